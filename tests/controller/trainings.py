"""Helpers for tests of trainings in the controller: a job, its ledger opened again and again, and outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial
from tests.controller.conftest import outcome

from trialplane.controller.ledger import Ledger
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

SEARCH: dict[str, Any] = {"kind": "hpo", "objectives": [{"metric": "loss", "direction": "minimize"}], "trials": 1}
LOSS = {"loss": 0.5}


def job(**fields: Any) -> Job:
    return kinds.read({"name": "toy", "kind": "train", "params": {"width": 8}, **fields})


class Opened:
    """Ledgers over one study's file; each `open` is another controller."""

    def __init__(self, folder: Path) -> None:
        self.run = RunPaths(folder / "runs" / "toy-1")
        self.run.root.mkdir(parents=True)
        self._ledger: Ledger | None = None

    def open(self, of: Job, last_alive: float = 0.0) -> Ledger:
        self.close()
        url = f"sqlite:///{self.run.ledger}"
        self._ledger = Ledger(url, of, "toy-1", self.run.code, self.run.lock, last_alive=last_alive)
        return self._ledger

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


def asked(ledger: Ledger) -> TrialRequest:
    request = ledger.ask()
    assert request is not None
    return request


def failed(request: TrialRequest, failure: FailureClass) -> TrialOutcome:
    return outcome(request.number, state=TrialState.FAILED, failure=failure, metrics={})


def shown(ledger: Ledger) -> list[FrozenTrial]:
    """The trials that a sampler is shown now."""
    with ledger._memory.sampler_view():
        return ledger._study.get_trials(deepcopy=False)
