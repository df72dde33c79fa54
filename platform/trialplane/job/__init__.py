"""What the user asks: a job file as frozen models, how it is read and checked. No network, no heavy library."""
