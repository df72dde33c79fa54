"""`Dataset.map` for trainings, on all cores and once for all ranks: `mapping.table` and `mapping.mapped`.

rows = mapping.table(ctx.path("data"), ["text"], cache=ctx.cache)
samples = mapping.mapped(rows, function, cache=ctx.cache, batched=True, remove_columns=rows.column_names)
"""

# `dataset` is the public part, `worker` the process that maps. Importing this must not import `datasets`.

from trialplane.training.mapping.dataset import mapped, table

__all__ = ["mapped", "table"]
