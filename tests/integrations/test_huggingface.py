"""What is particular to transformers' Trainer: which checkpoint is complete, where it is kept, and the last step.

Not checked here: what every library does (test_libraries.py), and ranks (test_ranks.py).
"""

from __future__ import annotations

import pytest
from tests.integrations.conftest import Trials

from trialplane.wire.states import FailureClass, TrialState

STATE = "trainer_state.json"


def test_an_evaluation_is_in_the_report_of_its_step(trials: Trials) -> None:
    reports = dict(trials.attempt("huggingface").reports)
    assert {"loss", "eval_loss", "eval_accuracy"} <= reports[4].keys()
    assert [step for step, metrics in reports.items() if "eval_loss" in metrics] == [4, 8, 12, 16]
    assert "train_loss" in reports[16], "what the Trainer logs at its end"


def test_a_training_that_never_saves_saves_when_it_is_stopped(trials: Trials) -> None:
    first = trials.attempt("huggingface", stop_at=2, save="no")
    assert first.outcome.message == "paused: stopped by SIGTERM after step 5, with a checkpoint"
    second = trials.attempt("huggingface", after=first, save="no")
    assert (second.outcome.state, second.steps) == (TrialState.COMPLETE, [6, 8, 10, 12, 14, 16]), second.outcome.traceback


@pytest.mark.parametrize("how", ["cut", "missing"])
def test_a_checkpoint_that_was_not_finished_is_passed_over(trials: Trials, how: str) -> None:
    first = trials.attempt("huggingface", stop_at=5)
    assert first.outcome.message == "paused: stopped by SIGTERM after step 11, with a checkpoint"
    state = trials.checkpoints(first.trial) / "checkpoint-11" / STATE
    if how == "cut":
        state.write_bytes(state.read_bytes()[:-20])
    else:
        state.unlink()
    second = trials.attempt("huggingface", after=first)
    assert second.outcome.state is TrialState.COMPLETE, second.outcome.traceback
    assert second.steps == [10, 12, 14, 16], "from checkpoint-8, of the end of the first epoch"


def test_a_killed_trial_goes_on_from_the_last_save(trials: Trials) -> None:
    first = trials.attempt("huggingface", kill_at=5)
    assert first.outcome.failure is FailureClass.CRASHED
    second = trials.attempt("huggingface", after=first)
    assert (second.outcome.state, second.steps) == (TrialState.COMPLETE, [10, 12, 14, 16]), second.outcome.traceback


def test_what_is_saved_elsewhere_is_not_waited_for(trials: Trials) -> None:
    first = trials.attempt("huggingface", stop_at=2, elsewhere=True)
    assert first.outcome.message == "paused: stopped by SIGTERM without a checkpoint"
    assert first.outcome.failure is FailureClass.LOST


def test_a_stop_in_the_last_step_changes_nothing(trials: Trials) -> None:
    """The report of step 15 is sent as the last step begins."""
    ended = trials.attempt("huggingface", log=5, stop_at=6)
    assert ended.steps == [4, 5, 8, 10, 12, 15, 16]
    assert (ended.outcome.state, ended.outcome.message) == (TrialState.COMPLETE, "")
