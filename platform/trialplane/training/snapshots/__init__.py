"""Evolution snapshots of a model in training: `snapshots.Snapshots` saves and lists them, `report` compares them.

`python -m trialplane.training.snapshots FOLDER` prints the comparison. Importing it must not import torch.
"""

from trialplane.training.snapshots.snapshots import Snapshot, Snapshots, Spacing, is_due, thinned

__all__ = ["Snapshot", "Snapshots", "Spacing", "is_due", "thinned"]
