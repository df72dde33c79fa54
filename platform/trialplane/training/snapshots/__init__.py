"""Snapshots of a model at chosen steps of its training: weights and metrics, limited in number and size.

    kept = snapshots.Snapshots(f"{ctx.checkpoints}/snapshots", keep=8)
    kept.save(step, model, {"loss": loss, "accuracy": accuracy})

`python -m trialplane.training.snapshots FOLDER` compares them: how far the weights have moved, and in which layers.
"""

# Importing this must not import torch.

from trialplane.training.snapshots.snapshots import Snapshot, Snapshots, is_due, surplus_snapshots

__all__ = ["Snapshot", "Snapshots", "is_due", "surplus_snapshots"]
