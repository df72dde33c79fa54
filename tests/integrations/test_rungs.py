"""Callbacks save a checkpoint at a rung and at the last step by themselves, and the next segment continues from it.

The next segment is another trial's, as in a population, where an older checkpoint than that of the rung is no substitute.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integrations.conftest import EXAMPLES, Ended, Trials

from trialplane.integrations import sklearn, xgboost
from trialplane.wire.records import Parent, Segment
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import context
from trialplane.worker.pausing import Pause


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Puts back what happens at SIGTERM, which callbacks take as a request."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def trial(folder: Path, segment: Segment | None) -> tuple[context.Context, list[int]]:
    """A trial, and the steps that it reports."""
    steps: list[int] = []

    def report(step: int, metrics: object, *, waits: bool = True) -> bool:
        steps.append(step)
        return False

    work = folder / "work"
    work.mkdir(exist_ok=True)
    given = {"code": folder, "cache": folder, "workdir": work, "checkpoints": str(folder / "checkpoints")}
    ctx = context.Context({}, 0, "toy", 0, 1, 1, 0, **given, _reporter=report, _pause=Pause(segment))
    return ctx, steps


def test_fit_epochs(tmp_path: Path) -> None:
    def fit(model: list[int]) -> None:
        model.append(len(model))

    def train(segment: Segment | None) -> tuple[list[int], list[int]]:
        ctx, steps = trial(tmp_path, segment)
        with context.activate(ctx):
            return sklearn.fit_epochs([], epochs=5, fit=fit, score=lambda model: {"loss": len(model)}), steps

    with pytest.raises(context.Paused, match="after step 2"):
        train(Segment(2, ("loss",)))
    model, steps = train(Segment(0, ("loss",), 2, 0))
    assert (model, steps) == ([0, 1, 2, 3, 4], [3, 4, 5])


def test_boosting(tmp_path: Path) -> None:
    xgb = pytest.importorskip("xgboost")
    x = np.random.default_rng(0).random((50, 3))
    data = xgb.DMatrix(x, label=x.sum(axis=1))

    def train(segment: Segment | None) -> tuple[int, list[int]]:
        ctx, steps = trial(tmp_path, segment)
        with context.activate(ctx):
            callback = xgboost.TrialCallback()
            booster = xgb.train(
                {"nthread": 1},
                data,
                callback.rounds(6),
                evals=[(data, "train")],
                xgb_model=callback.model,
                callbacks=[callback],
                verbose_eval=False,
            )
        return booster.num_boosted_rounds(), steps

    with pytest.raises(context.Paused, match="after step 3"):
        train(Segment(3, ("train-rmse",)))
    assert train(Segment(0, ("train-rmse",), 3, 0)) == (6, [4, 5, 6])


@dataclasses.dataclass(frozen=True)
class Library:
    """A library's example with a rung, before which it has saved another checkpoint.

    Attributes:
        metric: by which trials are compared.
        rung: step at which the trial is paused.
        top: its last step.
        file: of the checkpoint that tells whether it is intact; "" for the largest.
        error: of one that is damaged.
        params: of the example.
        is_repeatable: whether a trial that continues ends with the metrics of one that was not paused.
    """

    metric: str
    rung: int
    top: int
    error: str
    file: str = ""
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_repeatable: bool = True

    @property
    def segment(self) -> Segment:
        return Segment(self.rung, (self.metric,), folder=self.rung, top=self.top)


CHANGED = "was changed after it was written"
LIBRARIES = {
    "accelerate": Library("valid_loss", 3, 8, "header", file="model.safetensors"),
    "catboost": Library("validation-Logloss", 3, 8, "members of a population cannot change theirs"),
    "huggingface": Library("eval_loss", 12, 16, "is missing or damaged", file="trainer_state.json"),
    "keras": Library("val_loss", 2, 4, CHANGED),
    "lightgbm": Library("valid_0-binary_logloss", 6, 8, CHANGED),
    "lightning": Library("val_loss", 8, 16, CHANGED),
    "sklearn": Library("log_loss", 3, 8, CHANGED),
    "xgboost": Library("valid-logloss", 6, 8, CHANGED),
}
CASES = {
    **{name: library for name, library in LIBRARIES.items() if name != "catboost"},  # it is not for populations
    "huggingface-logs": dataclasses.replace(LIBRARIES["huggingface"], metric="loss", rung=6, params={"save": "no"}),
    "huggingface-no": dataclasses.replace(LIBRARIES["huggingface"], rung=4, params={"save": "no"}),
    # Lightning begins the data of an epoch anew when it continues within it.
    "lightning-within": dataclasses.replace(LIBRARIES["lightning"], rung=6, params={"validate": 0.5}, is_repeatable=False),
}

every_library = pytest.mark.parametrize("library", sorted(LIBRARIES))
every_case = pytest.mark.parametrize("case", sorted(CASES))


def last_segment(library: Library, donor: Ended) -> Segment:
    """The segment of another trial that continues to the end from a donor's rung."""
    assert donor.outcome.checkpoints is not None
    parent = Parent(donor.trial, library.rung, donor.outcome.checkpoints.digest, donor.trial, library.rung)
    return Segment(0, (library.metric,), library.rung, 0, parent, top=library.top)


def newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=step)


def step(checkpoint: Path) -> int:
    """The step in the name of a checkpoint: step-0000000008.1, checkpoint-8."""
    return int(checkpoint.name.partition("-")[2].partition(".")[0] or 0)


def test_each_example_has_a_rung() -> None:
    assert {f"with_{library}" for library in LIBRARIES} == set(EXAMPLES)


@every_case
def test_another_trial_continues_exactly_from_the_rung(trials: Trials, case: str) -> None:
    name, library = case.partition("-")[0], CASES[case]
    whole, donor = (trials.attempt(name, segment=part, **library.params) for part in (None, library.segment))
    assert donor.outcome.state is TrialState.PAUSED, donor.outcome.traceback
    assert donor.steps == [number for number in whole.steps if number <= library.rung]
    folder = trials.checkpoints(donor.trial)
    rung = folder.with_name(f"{folder.name}-step-{library.rung}")
    segment = last_segment(library, donor)
    child = trials.attempt(name, segment=segment, **library.params)
    assert child.outcome.state is TrialState.COMPLETE, child.outcome.traceback
    assert [*donor.steps, *child.steps] == whole.steps
    if library.is_repeatable:
        assert child.outcome.metrics == whole.outcome.metrics
    assert step(newest(rung)) == library.rung
    assert step(newest(trials.checkpoints(child.trial))) == library.top
    again = trials.attempt(name, after=child, segment=segment, **library.params)
    assert again.outcome.state is TrialState.COMPLETE, again.outcome.traceback
    assert (again.steps[-1], again.outcome.metrics) == (library.top, child.outcome.metrics)


@pytest.mark.parametrize("library", ["accelerate", "huggingface", "keras", "lightning"])
def test_an_optimizer_with_the_rate_of_another_trial_is_reported(trials: Trials, library: str) -> None:
    """Boosters take their parameters from the call, not from the checkpoint."""
    name, other = "lr" if library in ("accelerate", "lightning") else "learning_rate", 0.1
    donor = trials.attempt(library, segment=LIBRARIES[library].segment, **{name: other})
    changed = dataclasses.replace(last_segment(LIBRARIES[library], donor), changed=True)
    kept, same = (trials.attempt(library, segment=changed, **{name: rate}) for rate in (0.02, other))
    assert kept.outcome.state is same.outcome.state is TrialState.COMPLETE, kept.outcome.traceback
    assert f"the optimizer has {name} 0.1 of the trial whose checkpoint was restored, and ctx.params has 0.02: set " in (
        kept.outcome.remark
    )
    assert same.outcome.remark == ""


def test_the_rate_of_an_optimizer_in_another_one_is_compared(trials: Trials) -> None:
    donor = trials.attempt("keras", segment=LIBRARIES["keras"].segment, learning_rate=0.1, scales=True)
    changed = dataclasses.replace(last_segment(LIBRARIES["keras"], donor), changed=True)
    child = trials.attempt("keras", segment=changed, learning_rate=0.02, scales=True)
    assert child.outcome.state is TrialState.COMPLETE, child.outcome.traceback
    assert "the optimizer has learning_rate 0.1 of the trial" in child.outcome.remark


@every_library
def test_a_damaged_checkpoint_of_another_trial_is_an_error_and_not_replaced_by_an_older_one(
    trials: Trials, library: str
) -> None:
    donor = trials.attempt(library, segment=LIBRARIES[library].segment)
    folder = trials.checkpoints(donor.trial)
    checkpoint = newest(folder.with_name(f"{folder.name}-step-{LIBRARIES[library].rung}"))
    assert library == "catboost" or len(list(checkpoint.parent.iterdir())) > 1, "there is an older one"
    files = [checkpoint] if checkpoint.is_file() else list(checkpoint.rglob(LIBRARIES[library].file or "*"))
    file = max(files, key=lambda each: each.stat().st_size)
    file.write_bytes(bytes(file.stat().st_size))  # the digest is that of names and sizes, which stay
    child = trials.attempt(library, segment=last_segment(LIBRARIES[library], donor))
    # The libraries of these two raise errors of their own.
    failure = FailureClass.ERROR if library in ("accelerate", "catboost") else FailureClass.LOST
    assert (child.outcome.state, child.outcome.failure) == (TrialState.FAILED, failure)
    assert child.reports == ()
    assert LIBRARIES[library].error in child.outcome.message


def test_catboost_continues_its_own_snapshot(trials: Trials) -> None:
    """As a promoted trial does, which keeps its parameters and its folder."""
    first = trials.attempt("catboost", segment=Segment(3, ("validation-Logloss",), top=8))
    assert (first.outcome.state, first.steps) == (TrialState.PAUSED, [1, 2, 3])
    assert first.outcome.checkpoints is not None
    parent = Parent(first.trial, 3, first.outcome.checkpoints.digest, first.trial)
    rest = trials.attempt("catboost", after=first, segment=Segment(0, ("validation-Logloss",), 3, 0, parent, top=8))
    assert (rest.outcome.state, rest.steps) == (TrialState.COMPLETE, [4, 5, 6, 7, 8])
    assert rest.outcome.metrics == trials.attempt("catboost").outcome.metrics
