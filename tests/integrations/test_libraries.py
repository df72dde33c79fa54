"""Each library's example in a real slot: what it reports, how it is pruned, stopped and gone on with, and run outside of a
trial.

Not checked here: what is particular to one library (the other files), and ranks (test_ranks.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
from tests.integrations.conftest import EXAMPLES, Ended, Trials

from trialplane.wire.states import FailureClass, TrialState


@dataclasses.dataclass(frozen=True)
class Library:
    """What its example does.

    Attributes:
        steps: of its reports.
        names: of metrics that its first report with a validation has.
        stopped: the step of its checkpoint when a stop is requested with the second report.
        score: which of the metrics its last report and its result have in common.
    """

    steps: tuple[int, ...]
    names: frozenset[str]
    stopped: int
    score: str


def made(steps: range, *names: str, stopped: int = 2) -> Library:
    return Library(tuple(steps), frozenset(names), stopped, names[-1])


LIBRARIES = {
    "accelerate": made(range(1, 9), "loss", "valid_loss"),
    "catboost": made(range(1, 9), "learn-Logloss", "validation-Logloss"),
    "huggingface": made(range(2, 17, 2), "loss", "grad_norm", "learning_rate", "epoch", stopped=5),
    "keras": made(range(1, 5), "accuracy", "loss", "val_accuracy", "val_loss"),
    "lightgbm": made(range(1, 9), "valid_0-binary_logloss"),
    "lightning": made(range(4, 17, 4), "train_loss", "val_loss", stopped=8),
    "sklearn": made(range(1, 9), "accuracy", "log_loss"),
    "xgboost": made(range(1, 9), "train-logloss", "valid-logloss"),
}
LIBRARIES["huggingface"] = dataclasses.replace(LIBRARIES["huggingface"], score="eval_loss")

every_library = pytest.mark.parametrize("library", sorted(LIBRARIES))


@pytest.fixture(scope="session")
def undisturbed(trials: Trials) -> Callable[[str], Ended]:
    """A library's example from its beginning to its end, once."""
    return functools.cache(trials.attempt)


def test_each_example_is_checked() -> None:
    assert {f"with_{library}" for library in LIBRARIES} == set(EXAMPLES)


@every_library
def test_it_reports_each_step_once_under_the_names_of_the_library(undisturbed: Callable[[str], Ended], library: str) -> None:
    expected, ended = LIBRARIES[library], undisturbed(library)
    assert (ended.outcome.state, ended.outcome.message) == (TrialState.COMPLETE, ""), ended.outcome.traceback
    assert ended.steps == list(expected.steps)
    assert set(ended.reports[0][1]) == expected.names
    assert ended.outcome.start_method == "fork"
    assert ended.reports[-1][1][expected.score] == pytest.approx(ended.outcome.metrics["score"], rel=1e-5)


@every_library
def test_a_pruned_trial_ends_as_pruned(trials: Trials, library: str) -> None:
    ended = trials.attempt(library, prune_at=2)
    second = LIBRARIES[library].steps[1]
    assert (ended.outcome.state, ended.outcome.message) == (TrialState.PRUNED, f"pruned at step {second}")
    assert ended.steps == list(LIBRARIES[library].steps[:2])
    assert ended.outcome.metrics == ended.reports[-1][1]


@every_library
def test_a_stopped_trial_goes_on_from_its_checkpoint_as_if_undisturbed(
    trials: Trials, undisturbed: Callable[[str], Ended], library: str
) -> None:
    expected = LIBRARIES[library]
    first = trials.attempt(library, stop_at=2)
    assert (first.outcome.state, first.outcome.failure) == (TrialState.FAILED, FailureClass.LOST), first.outcome.traceback
    assert first.outcome.message == f"paused: stopped by SIGTERM after step {expected.stopped}, with a checkpoint"
    second = trials.attempt(library, after=first)
    assert (second.outcome.state, second.outcome.message) == (TrialState.COMPLETE, ""), second.outcome.traceback
    assert [*first.steps, *second.steps] == list(expected.steps), "no step is done again"
    assert second.outcome.metrics == undisturbed(library).outcome.metrics


@every_library
def test_a_stop_with_the_last_report_loses_nothing(
    trials: Trials, undisturbed: Callable[[str], Ended], library: str
) -> None:
    """A loop of one's own, and CatBoost, do not know that it was the last one: there is another attempt, in which nothing is
    left to do.
    """
    ended = trials.attempt(library, stop_at=len(LIBRARIES[library].steps))
    if ended.outcome.failure is FailureClass.LOST:
        assert library in ("accelerate", "catboost")
        ended = trials.attempt(library, after=ended)
        assert ended.steps == []
    assert ended.outcome.state is TrialState.COMPLETE, ended.outcome.traceback
    assert ended.outcome.metrics == undisturbed(library).outcome.metrics


@every_library
def test_a_trial_killed_with_its_last_report_ends_in_another_attempt(
    trials: Trials, undisturbed: Callable[[str], Ended], library: str
) -> None:
    """Whatever the last checkpoint is: what an example returns is there also when nothing, or little, is left to do."""
    first = trials.attempt(library, kill_at=len(LIBRARIES[library].steps))
    assert first.outcome.failure is FailureClass.CRASHED
    second = trials.attempt(library, after=first)
    assert second.outcome.state is TrialState.COMPLETE, second.outcome.traceback
    assert second.outcome.metrics == undisturbed(library).outcome.metrics


@pytest.mark.parametrize("library", ["accelerate", "catboost", "huggingface", "xgboost"])
def test_a_trial_goes_on_from_that_of_another_run(trials: Trials, undisturbed: Callable[[str], Ended], library: str) -> None:
    """One library for each way in which checkpoints are found."""
    first = trials.attempt(library, stop_at=2)
    second = trials.attempt(library, resume=first)
    assert second.outcome.state is TrialState.COMPLETE, second.outcome.traceback
    assert [*first.steps, *second.steps] == list(LIBRARIES[library].steps)
    assert second.outcome.metrics == undisturbed(library).outcome.metrics
    nothing = trials.attempt(library, resume=trials.attempt(library, outside=True))
    assert "there is no checkpoint to continue from at" in nothing.outcome.message
    assert "submit without --resume" in nothing.outcome.message


@every_library
def test_outside_of_a_trial_it_is_as_if_it_was_not_there(
    trials: Trials, undisturbed: Callable[[str], Ended], library: str
) -> None:
    ended = trials.attempt(library, outside=True)
    assert (ended.outcome.state, ended.reports) == (TrialState.COMPLETE, ()), ended.outcome.traceback
    assert ended.outcome.metrics == undisturbed(library).outcome.metrics
    assert not trials.checkpoints(ended.trial).exists()
