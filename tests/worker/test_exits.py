"""What becomes of `sys.exit`: an end with what was reported, an error, or the error behind it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from tests.worker.job_runs import Job, run

from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import context

__all__ = ["run"]  # a fixture


def exits(code: Any, *reports: Mapping[str, float]) -> Job:
    def job(ctx: Any) -> None:
        for step, metrics in enumerate(reports):
            ctx.report(step, **metrics)
        sys.exit(code)

    return job


@pytest.mark.parametrize("code", [0, None])
def test_sys_exit_without_an_error_ends_a_trial_with_what_it_reported_last(run, code) -> None:
    outcome, _ = run(exits(code, {"score": 0.25}, {"score": 0.5}, {"loss": 3.0}))
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 0.5, "loss": 3.0})
    outcome, _ = run(exits(code, {"loss": 3.0}))
    assert (outcome.failure, outcome.metrics) == (FailureClass.INVALID, {"loss": 3.0})
    assert outcome.message.endswith("it ended by sys.exit(0), after reports of loss")
    assert run(exits(code), rank=1)[0].state is TrialState.COMPLETE, "what counts is rank 0's"


@pytest.mark.parametrize("code", [1, "no data"])
def test_sys_exit_with_an_error_is_one(run, code) -> None:
    outcome, _ = run(exits(code, {"score": 0.5}))
    assert outcome.failure is FailureClass.ERROR
    assert outcome.message.startswith(f"SystemExit: {code} (test_exits.py:")


def test_an_error_behind_sys_exit_is_told(run) -> None:
    """Hydra ends with 1 on any exception."""

    def exits_for(error: Exception, code: object):
        def job(ctx) -> None:
            ctx.report(1, score=0.5)
            try:
                raise error
            except Exception:  # noqa: BLE001  as Hydra does
                sys.exit(code)

        return job

    outcome, _ = run(exits_for(ValueError("no such column"), 1))
    assert outcome.message.startswith("ValueError: no such column (test_exits.py:")
    assert "SystemExit: 1" in outcome.traceback
    outcome, _ = run(exits_for(MemoryError(), 1))
    assert outcome.failure is FailureClass.CRASHED
    outcome, _ = run(exits_for(context.Pruned("bad"), 1))
    assert outcome.state is TrialState.PRUNED
    outcome, _ = run(exits_for(context.Finished("ended by stop"), 1))
    assert (outcome.state, outcome.early, outcome.metrics) == (TrialState.COMPLETE, True, {"score": 0.5})
    outcome, _ = run(exits_for(KeyError("x"), "no data"))
    assert outcome.message.startswith("SystemExit: no data (test_exits.py:"), "its own words count"


def test_an_error_behind_another_sys_exit_is_told(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B puts a method in its place."""

    class Hooks:
        def __init__(self) -> None:
            self._before = sys.exit

        def exit(self, code: object = 0) -> None:
            self._before(code)

    monkeypatch.setattr(sys, "exit", Hooks().exit)

    def job(ctx: Any) -> None:
        try:
            raise ValueError("no such column")
        except ValueError:
            sys.exit(1)

    outcome, _ = run(job)
    assert outcome.message.startswith("ValueError: no such column (test_exits.py:")


def test_an_error_that_was_handled_further_out_is_not_behind_sys_exit(run) -> None:
    def main() -> None:
        sys.exit(3)

    def falls_back(ctx: Any) -> None:
        try:
            raise context.Pruned("bad")
        except context.Pruned:
            main()

    outcome, _ = run(falls_back)
    assert outcome.message.startswith("SystemExit: 3 (test_exits.py:")


def test_what_argparse_refuses_has_the_place_of_the_script(run) -> None:
    """So the first trials that all end there are alike, whatever the values are."""

    def job(ctx: Any) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--layers", type=int)
        parser.parse_args(["--layers", "0.57"])

    outcome, _ = run(job)
    assert outcome.message.startswith("SystemExit: 2 (test_exits.py:")
    assert outcome.fingerprint == f"test_exits.py:{job.__code__.co_firstlineno + 3}"
