"""The stand-in for W&B in interpreters that a program starts: how they find it, and the files to which it logs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from trialplane.job.program import MetricSource
from trialplane.wire import env

INTERPRETERS = Path(__file__).with_name("interpreters")
# Files in JSON Lines with the W&B logs of processes that the program starts, one for each process.
FILES = ".trialplane-wandb-{}.jsonl"
STEP = "_step"
SOURCE = MetricSource("wandb", path=FILES.format("*"), step=STEP)
_SETS_PATH = re.compile(r"(?<![\w$])PYTHONPATH=")  # in a word of a command: `env PYTHONPATH=src`


def variables(folder: Path) -> dict[str, str]:
    """Return environment variables with which an interpreter finds the stand-in.

    Args:
        folder: Folder for the files.
    """
    old_path = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([str(INTERPRETERS), *([old_path] if old_path else [])])
    return {"PYTHONPATH": path, env.WANDB_FOLDER: str(folder)}


def with_stand_in(command: Sequence[str]) -> list[str]:
    """Return the words of a command whose interpreters find the stand-in also if the command sets PYTHONPATH."""
    return [_SETS_PATH.sub(lambda match: f"{match[0]}{INTERPRETERS}{os.pathsep}", word) for word in command]
