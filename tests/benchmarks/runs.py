"""Makes the jobs and run folders that the benchmarks work on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml

from trialplane.spec import load
from trialplane.wire.paths import RunPaths

# What one trial of figure `trial` does, here and at the peers.
HEAVY = """\
import torch
import transformers


def run(ctx):
    return (ctx.params["x"] - 0.3) ** 2 + ctx.params["y"]
"""
SLEEPING = """\
import time


def run(ctx):
    time.sleep(ctx.params["seconds"])
    return ctx.params["x"]
"""


def make(home: Path, name: str, code: str, **fields: Any) -> RunPaths:
    """A run that is ready for a controller.

    Args:
        home: TRIALPLANE_HOME.
        name: of the run.
        code: text of train.py.
        **fields: of job.yaml, on top of kind and objectives.
    """
    run = RunPaths.of(home, name)
    run.code.mkdir(parents=True)
    (run.code / "train.py").write_text(code)
    document = {"kind": "hpo", "objectives": [{"metric": "loss", "direction": "minimize"}], **fields}
    (run.code / "job.yaml").write_text(yaml.safe_dump(document))
    job = load.load_job(run.code)
    run.job.write_text(job.model_dump_json())
    run.submission.write_text(json.dumps({"submitted": time.time()}))
    return run


def heavy(home: Path, name: str, trials: int) -> RunPaths:
    """A run of trials that import torch and transformers and do nothing else."""
    return make(home, name, HEAVY, trials=trials, parallel=2, space=unit_space(("x", "y")))


def sleeping(home: Path, name: str, trials: int, seconds: float) -> RunPaths:
    """A run of trials that sleep."""
    return make(home, name, SLEEPING, trials=trials, parallel=2, params={"seconds": seconds}, space=unit_space(("x",)))


def unit_space(names: tuple[str, ...]) -> dict[str, Any]:
    """Float parameters from 0 to 1."""
    return {name: {"type": "float", "low": 0.0, "high": 1.0} for name in names}
