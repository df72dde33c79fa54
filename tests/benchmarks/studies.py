"""A study of ten float parameters without a controller: its job, its ledger, what its trials give. For the programs."""

from __future__ import annotations

import bisect
import dataclasses
import math
import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import runs

from trialplane.controller.ledger import Ledger
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import TrialState

NAME = "study"
PARAMETERS = tuple(f"p{index}" for index in range(10))


def job(trials: int, sampler: str, seed: int = 0, pruner: str | Mapping[str, Any] = "none") -> Job:
    """The job; by default, nothing prunes it."""
    return kinds.read(
        {
            "name": NAME,
            "kind": "hpo",
            "objectives": [{"metric": "loss", "direction": "minimize"}],
            "space": runs.unit_space(PARAMETERS),
            "sampler": sampler,
            "pruner": pruner,
            "trials": trials,
            "seed": seed,
        }
    )


def open_ledger(folder: Path, asked: Job) -> Ledger:
    """The ledger in a run's folder, as the controller opens it."""
    folder.mkdir(parents=True, exist_ok=True)
    run = RunPaths(folder)
    return Ledger(f"sqlite:///{run.ledger}", asked, NAME, run.code, run.lock)


def copy_ledger(source: Path, target: Path) -> Path:
    """Copies the ledger of one run's folder to another; gives the new file."""
    target.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(RunPaths(source).ledger, RunPaths(target).ledger))


def outcome(request: TrialRequest, loss: float) -> TrialOutcome:
    """A trial's end, with everything that a slot would say."""
    now = time.time()
    return TrialOutcome(
        number=request.number,
        state=TrialState.COMPLETE,
        metrics={"loss": loss},
        exit_code=0,
        started=now - 1,
        ended=now,
        node="benchmark",
        pid=1,
        start_method="fork",
        log=f"trials/{request.trial:04d}/attempt-{request.attempt}.log",
        peak_memory=100 << 20,
    )


class Halving:
    """Trials that report, of which a third goes on after some steps: successive halving with a single rung.

    Optuna's pruner decides the same way, but compares a trial with all others, and would take minutes of a long history.
    """

    STEPS, RUNG, FACTOR = 10, 4, 3
    PRUNER: Mapping[str, Any] = {"name": "successive_halving", "min_resource": RUNG, "reduction_factor": FACTOR}

    def __init__(self) -> None:
        self._losses: list[float] = []  # at the rung, sorted

    def train(self, ledger: Ledger, request: TrialRequest) -> None:
        """Report the steps of an attempt that has been asked, and tell its end."""
        final, noise, loss = sphere(request.params), random.Random(request.number), math.nan
        for step in range(1, self.STEPS + 1):
            loss = final + 500 * noise.uniform(0.5, 1.5) / step**2
            ledger.report(TrialReport(request.number, step, {"loss": loss}, time.time()))
            if step == self.RUNG and not self._is_promoted(loss):
                ledger.tell(dataclasses.replace(outcome(request, loss), state=TrialState.PRUNED, step=step))
                return
        ledger.tell(dataclasses.replace(outcome(request, loss), step=self.STEPS))

    def _is_promoted(self, loss: float) -> bool:
        bisect.insort(self._losses, loss)
        return loss <= self._losses[max(1, len(self._losses) // self.FACTOR) - 1]


def sphere(params: Mapping[str, Any]) -> float:
    """One smooth valley; 0 at the best point, which is not the middle."""
    return math.fsum((10 * params[name] - 3) ** 2 for name in PARAMETERS)


def rastrigin(params: Mapping[str, Any]) -> float:
    """The same valley full of holes."""
    offsets = [10 * params[name] - 3 for name in PARAMETERS]
    return math.fsum(offset**2 - 10 * math.cos(2 * math.pi * offset) + 10 for offset in offsets)


FUNCTIONS = {"sphere": sphere, "rastrigin": rastrigin}
