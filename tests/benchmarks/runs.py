"""Makes the jobs and run folders that the benchmarks work on; runs trials in a slot alone."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.benchmarks.workplace import MeasurementFailed

from trialplane.job import load
from trialplane.wire.messages import TrialEnded
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialRequest
from trialplane.wire.states import TrialState
from trialplane.worker.slot import Slot

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


def in_slot(config: SlotConfig, points: Sequence[Mapping[str, Any]], metric: str) -> list[TrialOutcome]:
    """The outcomes of trials in a slot of this process, one after the other.

    Args:
        config: of the slot.
        points: the parameters of each trial.
        metric: what it returns or reports.

    Raises:
        MeasurementFailed: one of them is not complete.
    """
    slot = Slot(config, "0-1")
    outcomes: list[TrialOutcome] = []
    try:
        slot.start()
        for number, params in enumerate(points):
            sent = slot.run(TrialRequest(config.run, number, 1, number, params, 0, (metric,)))
            while not (sent and isinstance(sent[-1], TrialEnded)):
                sent = slot.answer()
            outcome = sent[-1].outcome
            if outcome.state is not TrialState.COMPLETE:
                raise MeasurementFailed(f"trial {number} is not complete: {outcome.message}")
            outcomes.append(outcome)
    finally:
        slot.close()
    return outcomes
