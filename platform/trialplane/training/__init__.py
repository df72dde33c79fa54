"""What a training job calls: its data, its batches, its checkpoints, and what people see of it while it runs.

| module | what it is for |
|---|---|
| `lines` | a text of any size as a dataset of its lines, without reading it |
| `tokens` | the tokens of such a text, made once by all cores and mapped by every rank |
| `mapping` | `Dataset.map` that ranks may call together: one of them does the work |
| `batches` | the global batches of a seed, the same whatever the number of ranks |
| `checkpoint` | checkpoints that are complete or absent, and where to go on |
| `snapshots` | what a model says of the same samples, early and late in its training |
| `progress` | rates, loss, GPUs and the time that is left, in `platform status` and MLflow |
| `final_model` | the trained model as an artifact, and in MLflow's registry |

Each is imported when it is asked for: a job that reads lines needs no torch for that. Every job can use them, on the
platform and alone. The other modules are what these are made of.
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
