"""Lines of text files as a dataset: `lines.LineDataset`."""

# `dataset` is the public part, `index` finds the beginnings of lines, and `scan` counts them. Importing this must stay
# cheap, without numpy and torch: every worker that unpickles a dataset does so.

from trialplane.training.lines.dataset import LineDataset

__all__ = ["LineDataset"]
