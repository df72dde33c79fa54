"""`platform init --from`: a job from a script, a command line, a notebook, a launcher or a pipeline, as it is."""
