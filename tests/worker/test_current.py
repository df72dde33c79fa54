"""What code of a trial calls that has no `ctx` at hand: in a trial it is the trial's, elsewhere it does nothing.

Not checked here: what becomes of reports (test_slot.py), and in ranks and collections (test_ranks.py, test_collect.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench

import trialplane
from trialplane.wire.states import TrialState
from trialplane.worker import context

JOB = {
    "library": (
        "import os, trialplane\n"
        "def epoch(loss):\n"
        "    if os.fork() == 0:\n"
        "        trialplane.report(loss=-1.0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    trialplane.report(loss=loss)\n"
    ),
    "train": (
        "import library, trialplane\n"
        "def run(ctx):\n"
        "    assert trialplane.current() is ctx\n"
        "    for step in range(trialplane.params()['epochs']):\n"
        "        library.epoch(1.0 / (step + 1))\n"
        "    trialplane.report(10, loss=0.1)\n"
        "    trialplane.report(loss=0.05)\n"
        "    return {'score': 1.0, 'own': trialplane.checkpoints() == ctx.checkpoints}\n"
    ),
}


class Reporter:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, dict[str, float]]] = []

    def __call__(self, step: int, metrics: Any, *, waits: bool = True) -> bool:
        self.reports.append((step, dict(metrics)))
        return metrics.get("loss") == 9.0


def made(reporter: Reporter, **params: Any) -> context.Context:
    place = Path("/nowhere")
    return context.Context(params, 1, "toy", 0, 1, 1, 0, place, place, place, reporter, checkpoints="/checkpoints")


def test_outside_of_a_trial_nothing_happens() -> None:
    trialplane.report(loss=1.0)
    trialplane.report(-5, loss=1.0)
    assert (trialplane.current(), trialplane.params(), trialplane.checkpoints()) == (None, {}, None)


def test_in_a_trial_it_is_the_trials() -> None:
    reporter = Reporter()
    ctx = made(reporter, lr=0.1)
    with context.activate(ctx):
        assert (trialplane.current(), trialplane.params(), trialplane.checkpoints()) == (ctx, {"lr": 0.1}, "/checkpoints")
        trialplane.report(loss=3.0)
        ctx.report(loss=2.0)
        ctx.report(7, loss=1.0)
        trialplane.report(loss=0.5)
        with pytest.raises(context.Pruned, match="pruned at step 9"):
            trialplane.report(loss=9.0)
        with pytest.raises(ValueError, match="a step is a whole number"):
            trialplane.report(-1, loss=1.0)
    assert [step for step, _ in reporter.reports] == [0, 1, 7, 8, 9]
    assert trialplane.current() is None


def test_what_a_trial_forks_is_no_trial() -> None:
    with context.activate(made(Reporter())):
        child = os.fork()
        if child == 0:
            os._exit(0 if trialplane.current() is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_library_of_the_job_reports_by_itself(tmp_path: Path) -> None:
    with Bench(tmp_path, JOB) as bench:
        events = bench.events("anything", epochs=3)
        reports = [report for event in events for report in event.reports]
        outcome = events[-1].outcome
        assert outcome is not None
        assert (outcome.state, outcome.message, outcome.metrics["own"]) == (TrialState.COMPLETE, "", 1.0)
        assert [report.step for report in reports] == [0, 1, 2, 10, 11]
        assert [report.metrics["loss"] for report in reports] == [1.0, 0.5, 1 / 3, 0.1, 0.05]
