"""The stand-in for W&B in interpreters that a program starts: how they find it, and the files to which it logs."""

from __future__ import annotations

import os
from pathlib import Path

from trialplane.job.program import MetricSource
from trialplane.wire import env
from trialplane.worker import module_path

INTERPRETERS = Path(__file__).with_name("interpreters")
# Files in JSON Lines with the W&B logs of processes that the program starts, one for each process.
FILES = ".trialplane-wandb-{}.jsonl"
STEP = "_step"
SOURCE = MetricSource("wandb", path=FILES.format("*"), step=STEP)


def variables(folder: Path) -> dict[str, str]:
    """Return environment variables with which an interpreter finds the stand-in; `folder` is for its files."""
    return {**module_path.import_variables(str(INTERPRETERS), os.environ), env.WANDB_FOLDER: str(folder)}
