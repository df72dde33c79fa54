"""Folders named by a step of a training, complete or absent: `record` is what is in one, `stores` is where they lie.

What checkpoints and snapshots have in common; `folders` has the whole of a trial's. Imports nothing: the report of snapshots
needs no torch.
"""
