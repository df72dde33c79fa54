"""Processes of a worker: a slot, its warm template, and the trial processes with the context that jobs see."""
