"""trialplane: a laptop's Optuna script as hundreds of isolated trials.

What users import from here: `Platform` submits runs from Python; a job's train.py takes `standalone` and, for its
annotations, `Context`; code of a trial that has no `ctx` at hand calls `report`, `params`, `checkpoints` and `current`,
which do nothing outside of a trial.

The rooms, from the user's file to the pod: `spec` (the job file), `plan` (what will be sent),
`client` and `cli` (the laptop), `controller` (Optuna's `ask` and `tell`), `worker` (runs trials), with `wire` (what
crosses a process boundary) and `policies` (what must hold in a process) below them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trialplane.client.sdk import Platform
    from trialplane.worker.alone import standalone
    from trialplane.worker.context import Context, checkpoints, current, params, report

__version__ = "0.1.0"
__all__ = ["Context", "Platform", "checkpoints", "current", "params", "report", "standalone"]

_MODULES = {
    "Context": "trialplane.worker.context",
    "Platform": "trialplane.client.sdk",
    "checkpoints": "trialplane.worker.context",
    "current": "trialplane.worker.context",
    "params": "trialplane.worker.context",
    "report": "trialplane.worker.context",
    "standalone": "trialplane.worker.alone",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: a trial needs no client, and `import trialplane` costs nothing."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
