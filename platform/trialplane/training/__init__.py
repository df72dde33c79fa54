"""Data, batches, checkpoints and progress of a training.

| module | contents |
|---|---|
| `lines` | lines of text files as a dataset, without loading the files |
| `tokens` | tokens of such lines, made once on all cores and memory-mapped by every rank |
| `mapping` | `Dataset.map` on all cores, once for all ranks |
| `batches` | global batches that do not depend on the number of ranks |
| `checkpoint` | checkpoints that are complete or absent, and resuming from them |
| `snapshots` | weights and metrics at chosen steps, to compare |
| `progress` | rates, loss, GPU use and time left, in `platform status` and MLflow |
| `final_model` | the trained model as an artifact, and in MLflow's model registry |

Each module is imported when it is first used: a job that only reads lines needs no torch. They also work outside of the
platform.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialplane.training import batches, checkpoint, final_model, lines, mapping, progress, snapshots, tokens

__all__ = ["batches", "checkpoint", "final_model", "lines", "mapping", "progress", "snapshots", "tokens"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
