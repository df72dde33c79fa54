"""`import wandb` in an interpreter that a trial's script or command starts. This folder is first in its PYTHONPATH."""

import importlib
import sys
from pathlib import Path

try:
    from trialplane.worker.shims import capture
except ImportError:  # an interpreter without trialplane: it gets W&B's package, if it has one
    folder = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
    del sys.modules[__name__]
    importlib.invalidate_caches()
else:
    capture.replace_wandb()  # which also forgets this module
importlib.import_module(__name__)
