"""Folders named by a step of a training, complete or absent: `record` describes the contents, `stores` the location.

Shared by checkpoints and snapshots; `folders` is about a trial's whole folder. Imports nothing: the report of snapshots
needs no torch.
"""
