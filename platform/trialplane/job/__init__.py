"""The job that a user submits: a job file as frozen models, and how it is read and checked."""
