"""Lines of text files as a dataset: `lines.LineDataset`.

`dataset` is what jobs see, `index` says where lines begin, `scan` counts them, `arrow` converts from and to `datasets`.
Importing it must stay cheap, without numpy and torch: every worker that unpickles a dataset does so.
"""

from trialplane.training.lines.dataset import LineDataset

__all__ = ["LineDataset"]
