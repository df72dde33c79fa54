"""trialplane: hyperparameter studies and training jobs, on a laptop or on a Kubernetes cluster.

Users import these names. `Platform` submits runs from Python. `standalone`, at the end of a job's train.py, makes the file
a script that runs one trial by itself. `Context` is the type of a trial function's argument `ctx`. Code of a trial without
access to `ctx` calls `report`, `params`, `checkpoints` and `current`, which do nothing outside of a trial.

`platform/README.md` lists the packages and their layers.
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

_MODULES = {  # public name → module that defines it
    "Context": "trialplane.worker.context",
    "Platform": "trialplane.client.sdk",
    "checkpoints": "trialplane.worker.context",
    "current": "trialplane.worker.context",
    "params": "trialplane.worker.context",
    "report": "trialplane.worker.context",
    "standalone": "trialplane.worker.alone",
}


def __getattr__(name: str) -> Any:
    """Return a public name of the package, imported on first use.

    So `import trialplane` is fast, and a trial does not import the client.

    Raises:
        AttributeError: The package has no such public name.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value  # so that Python finds it without this function next time
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
