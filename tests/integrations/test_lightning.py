"""What is particular to Lightning: which metrics are new, stops within an epoch, and its other package.

Not checked here: what every library does (test_libraries.py), and ranks (test_ranks.py).
"""

from __future__ import annotations

import pytest
from tests.integrations.conftest import Trials

from trialplane.wire.states import TrialState


def test_the_metrics_of_an_older_validation_are_not_reported_again(trials: Trials) -> None:
    ended = trials.attempt("lightning", every=2)
    assert {step: set(metrics) for step, metrics in ended.reports} == {
        4: {"train_loss"},
        8: {"train_loss", "val_loss"},
        12: {"train_loss"},
        16: {"train_loss", "val_loss"},
    }


def test_a_stop_within_an_epoch_is_saved_within_it(trials: Trials) -> None:
    """The report of a validation after half an epoch, at step 6, is sent before step 7, and so is the request."""
    first = trials.attempt("lightning", validate=0.5, stop_at=3)
    assert first.steps == [2, 4, 6]
    assert first.outcome.message == "paused: stopped by SIGTERM after step 6, with a checkpoint"
    second = trials.attempt("lightning", validate=0.5, after=first)
    assert second.outcome.state is TrialState.COMPLETE, second.outcome.traceback
    assert second.steps == [8, 10, 12, 14, 16]


@pytest.mark.parametrize(("steps", "reported"), [(3, [2, 3]), (4, [2, 4])])
def test_a_stop_in_the_last_step_changes_nothing(trials: Trials, steps: int, reported: list[int]) -> None:
    """Step 4 is the last one of an epoch, and step 3 is not."""
    ended = trials.attempt("lightning", validate=0.5, steps=steps, stop_at=2)
    assert (ended.outcome.state, ended.outcome.message) == (TrialState.COMPLETE, "")
    assert ended.steps == reported


def test_it_works_with_pytorch_lightning(trials: Trials) -> None:
    whole = trials.attempt("lightning", without="lightning")
    assert whole.outcome.state is TrialState.COMPLETE, whole.outcome.traceback
    assert whole.steps == [4, 8, 12, 16]
    first = trials.attempt("lightning", without="lightning", stop_at=2)
    assert first.outcome.message == "paused: stopped by SIGTERM after step 8, with a checkpoint"
    second = trials.attempt("lightning", without="lightning", after=first)
    assert (second.steps, second.outcome.metrics) == ([12, 16], whole.outcome.metrics)
