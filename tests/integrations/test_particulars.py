"""What is particular to Keras, XGBoost, LightGBM, CatBoost and Accelerate.

Not checked here: what every library does (test_libraries.py).
"""

from __future__ import annotations

import pytest
from tests.integrations.conftest import Trials

from trialplane.wire.states import FailureClass, TrialState


def test_a_keras_epoch_that_is_given_up_is_begun_anew(trials: Trials) -> None:
    """The request comes in the second batch of the first epoch, and in that of the epoch after a checkpoint."""
    whole = trials.attempt("keras")
    first = trials.attempt("keras", interrupt=1)
    assert (first.steps, first.outcome.message) == ([], "stopped by SIGTERM without a checkpoint")
    saved = trials.attempt("keras", stop_at=2)
    second = trials.attempt("keras", interrupt=2, after=saved)
    assert (second.steps, second.outcome.message) == ([], "stopped by SIGTERM after step 2, with a checkpoint")
    third = trials.attempt("keras", after=saved)
    assert third.steps == [3, 4]
    assert third.outcome.metrics == whole.outcome.metrics


def test_a_keras_epoch_that_is_all_but_done_is_saved(trials: Trials) -> None:
    first = trials.attempt("keras", interrupt=1, batch=3)
    assert (first.steps, first.outcome.message) == ([1], "stopped by SIGTERM after step 1, with a checkpoint")


def test_the_state_of_a_keras_optimizer_that_is_not_built_is_loaded_too(trials: Trials) -> None:
    first = trials.attempt("keras", stop_at=2)
    assert trials.attempt("keras", after=first, unbuilt=True).outcome.metrics == {"score": 8.0}, "2 epochs of 4 batches"


def test_keras_must_be_told_where_its_epochs_go_on(trials: Trials) -> None:
    first = trials.attempt("keras", stop_at=2, told=False)
    second = trials.attempt("keras", after=first, told=False)
    assert second.outcome.failure is FailureClass.ERROR
    assert "call fit(…, initial_epoch=callback.initial_epoch)" in second.outcome.message


@pytest.mark.parametrize(
    ("library", "names"),
    [
        ("xgboost", {"train-logloss", "test-logloss"}),
        ("lightgbm", {"valid-binary_logloss"}),
    ],
)
def test_a_cross_validation_is_reported_and_not_saved(trials: Trials, library: str, names: set[str]) -> None:
    ended = trials.attempt(library, cv=True)
    assert ended.outcome.state is TrialState.COMPLETE, ended.outcome.traceback
    assert (ended.steps, set(ended.reports[0][1])) == ([1, 2, 3], names)
    assert ended.reports[-1][1][max(names, key=lambda name: name.startswith(("test", "valid")))] == pytest.approx(
        ended.outcome.metrics["score"]
    )
    stopped = trials.attempt(library, cv=True, stop_at=2)
    assert stopped.outcome.message == "paused: stopped by SIGTERM without a checkpoint"


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_killed_trial_goes_on_from_the_last_save(trials: Trials, library: str) -> None:
    """The example saves every 4 rounds."""
    first = trials.attempt(library, kill_at=6)
    assert first.outcome.failure is FailureClass.CRASHED
    second = trials.attempt(library, after=first)
    assert (second.outcome.state, second.steps) == (TrialState.COMPLETE, [5, 6, 7, 8])


def test_a_catboost_trial_needs_the_block_that_ends_it(trials: Trials) -> None:
    ended = trials.attempt("catboost", bare=True)
    assert ended.outcome.failure is FailureClass.ERROR
    assert "call fit within a block of `with catboost.TrialCallback() as callback:`" in ended.outcome.traceback
    assert ended.steps == []


def test_a_catboost_snapshot_of_another_run_that_is_cut_is_an_error(trials: Trials) -> None:
    """CatBoost itself prints a warning and begins with the first iteration."""
    first = trials.attempt("catboost", stop_at=2)
    snapshot = trials.checkpoints(first.trial) / "catboost.snapshot"
    snapshot.write_bytes(snapshot.read_bytes()[: snapshot.stat().st_size // 2])
    second = trials.attempt("catboost", resume=first)
    assert (second.outcome.failure, second.reports) == (FailureClass.ERROR, ())
    assert "CatBoost cannot read the snapshot" in second.outcome.message


def test_half_a_checkpoint_of_accelerate_is_none(trials: Trials) -> None:
    """A process that is killed while it saves leaves a folder with another name; the step is saved again."""
    first = trials.attempt("accelerate", stop_at=5)
    folder = trials.checkpoints(first.trial)
    half = (folder / "step-0000000005").rename(folder / ".step-0000000008.saving")
    (half / "of_a_third_rank").touch()
    second = trials.attempt("accelerate", after=first)
    assert (second.outcome.state, second.steps) == (TrialState.COMPLETE, [5, 6, 7, 8]), second.outcome.traceback
    assert sorted(path.name for path in folder.iterdir()) == ["step-0000000006", "step-0000000008"]
    assert not (folder / "step-0000000008" / "of_a_third_rank").exists()


def test_accelerate_counts_steps_that_are_not_given(trials: Trials) -> None:
    ended = trials.attempt("accelerate", counts=True)
    assert ended.steps == list(range(8))
