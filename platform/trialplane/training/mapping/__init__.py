"""`Dataset.map` for training jobs: `mapping.table` and `mapping.mapped` of `dataset`; `worker` is the process that maps.

Importing it must not import `datasets`.
"""

from trialplane.training.mapping.dataset import mapped, table

__all__ = ["mapped", "table"]
