"""The exporter killed at each of its effects, and at random while the ledger grows, also two of them at once: MLflow ends up
as if that had never been.

A kill is an exception that nothing catches, before or after a call to MLflow: whatever the exporter had in memory is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controller.conftest import outcome, request
from tests.exporter.conftest import DONE, PROMOTION, Place, bring, segment
from tests.exporter.state import state

from trialplane.exporter.exporter import Exporter
from trialplane.wire.records import TrialRequest
from trialplane.wire.states import FailureClass, TrialState

pytestmark = pytest.mark.slow

EFFECTS = ("create_run", "log_batch", "set_tag", "set_terminated", "update_run", "delete_tag", "delete_run", "log_artifact")


class Killed(BaseException):
    """The end of a process."""


class Interrupted:
    """A client of MLflow whose process something happens to at one of its effects.

    Args:
        client: that is used.
        at: number of the effect, from 0.
        happen: what happens.
        after: whether MLflow gets the effect before that.

    Attributes:
        effect: name of that effect; "" until it comes.
    """

    def __init__(self, client: Any, at: int, happen: Callable[[], None], *, after: bool) -> None:
        self.client = client
        self.effect = ""
        self._left = at
        self._happen = happen
        self._after = after

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.client, name)
        if name not in EFFECTS:
            return call

        def interrupted(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            is_now = self._left == -1
            self.effect = name if is_now else self.effect
            if is_now and not self._after:
                self._happen()
            result = call(*arguments, **options)
            if is_now and self._after:
                self._happen()
            return result

        return interrupted


def interrupt(exporter: Exporter, at: int, happen: Callable[[], None], *, after: bool) -> Interrupted:
    """Let something happen to an exporter at one of its effects."""
    client = Interrupted(exporter.client, at, happen, after=after)
    exporter.client = exporter.sender.client = exporter.files.client = client
    return client


def life(place: Place, at: int, *, after: bool, closes: bool) -> str:
    """One life of an exporter, killed at an effect; the name of the effect, or "" if it had fewer."""

    def kill() -> None:
        raise Killed

    exporter = place.exporter(end=DONE if closes else None)
    client = interrupt(exporter, at, kill, after=after)
    with contextlib.suppress(Killed):
        bring(exporter, closes=closes)
    return client.effect


def two_lives(place: Place, at: int, *, after: bool) -> None:
    """An exporter, and another one that does everything at one of its effects."""
    exporter = place.exporter()
    interrupt(exporter, at, lambda: bring(place.exporter(), closes=False), after=after)
    bring(exporter, closes=False)


def first(place: Place) -> None:
    """Trials that have ended, one with a log, one that came back, one that runs, one promoted, and one paused."""
    place.play(0)
    log = place.run.trial_log(1, 1)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("all of it")
    place.begin(request(1))
    lost = {"state": TrialState.FAILED, "failure": FailureClass.LOST, "metrics": {}}
    place.end(request(1), outcome(1, **lost, retried=True))
    place.begin(request(2, trial=1, attempt=2, retry_of=1))
    place.report(2, 0, score=0.75)
    paused = segment(3, 2)
    place.begin(paused)
    place.report(3, 0, score=0.5)
    place.end(paused, outcome(3, state=TrialState.PAUSED, step=0, message="paused"))
    place.begin(segment(4, 2, paused))
    dropped = segment(5, 3)
    place.begin(dropped)
    place.end(dropped, outcome(5, state=TrialState.PAUSED))


def rest(place: Place) -> None:
    """The running ones end, and one that is paused is dropped."""
    place.report(2, 1, score=1.0)
    place.end(request(2, trial=1, attempt=2, retry_of=1), outcome(2, metrics={"score": 1.0}, step=1))
    place.report(4, 1, score=0.25)
    place.end(segment(4, 2, segment(3, 2)), outcome(4, metrics={"score": 0.25}, step=15, ended=2009.0))
    place.end(segment(5, 3), outcome(5, state=TrialState.PRUNED, message="not promoted"))


@pytest.fixture(scope="module")
def whole(mlflow_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What MLflow has of that run when nothing is killed."""
    place = Place(tmp_path_factory.mktemp("whole") / "home", mlflow_tables, PROMOTION)
    first(place)
    rest(place)
    place.export(DONE)
    found = state(place)
    place.close()
    return found


@pytest.fixture
def places(mlflow_tables: Path, tmp_path: Path) -> Iterator[Any]:
    """Makes places."""
    opened: list[Place] = []

    def make() -> Place:
        opened.append(Place(tmp_path / str(len(opened)) / "home", mlflow_tables, PROMOTION))
        return opened[-1]

    yield make
    for place in opened:
        place.close()


def test_killed_at_each_effect_it_leaves_the_same(places: Any, whole: dict[str, Any]) -> None:
    """After an effect is as before the next one, but for an uploaded file, which the exporter deletes in between."""
    for at in itertools.count():
        effects = killed_twice(places(), whole, at, after=False)
        if "log_artifact" in effects:
            killed_twice(places(), whole, at, after=True)
        if not any(effects):
            assert at > 10, "an exporter has more effects than that"
            return


def killed_twice(place: Place, whole: dict[str, Any], at: int, *, after: bool) -> tuple[str, str]:
    """An exporter that is killed while the run goes on, one that is killed at its end, and a last one; the two effects."""
    first(place)
    effect = life(place, at, after=after, closes=False)
    rest(place)
    last_effect = life(place, at, after=after, closes=True)
    place.export(DONE)
    assert state(place) == whole, f"killed at effect {at}"
    return effect, last_effect


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_two_at_once_leave_the_same(places: Any, whole: dict[str, Any], after: bool) -> None:
    """The second one does all that there is at an effect of the first one; the third one is alone."""
    for at in (0, 1, 2, 5, 13):
        place = places()
        first(place)
        two_lives(place, at, after=after)
        rest(place)
        place.export(DONE)
        assert state(place) == whole, f"another one at effect {at}"


STEPS = st.one_of(
    st.tuples(st.just("begin"), st.just(0)),
    st.tuples(st.just("report"), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("pause"), st.integers(0, 3)),
    st.tuples(st.just("promote"), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.integers(0, 3)),
    st.tuples(st.just("export"), st.integers(0, 25)),
    st.tuples(st.just("export, its last effect done"), st.integers(0, 25)),
    st.tuples(st.just("two exporters"), st.integers(0, 25)),
    st.tuples(st.just("own run"), st.integers(0, 3)),
)


class Grown:
    """A ledger that grows by steps, each on one of the attempts that run."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._count = 0
        self._running: list[int] = []
        self._paused: list[int] = []
        self._requests: dict[int, TrialRequest] = {}
        self._reported: dict[int, int] = {}
        self._own: set[int] = set()

    def step(self, kind: str, choice: int) -> None:
        if (
            kind == "begin"
            or (kind == "promote" and self._paused)
            or (kind in ("report", "end", "pause") and not self._running)
        ):
            before = self._requests[self._paused.pop(choice % len(self._paused))] if kind == "promote" else None
            trial = self._count if before is None else before.trial
            self._requests[self._count] = asked = segment(self._count, trial, before)
            self.place.begin(asked)
            self._running.append(self._count)
            self._count += 1
        elif kind in ("promote", "drop"):
            if self._paused:
                self._end(self._paused.pop(choice % len(self._paused)), state=TrialState.PRUNED, message="dropped")
        elif kind == "own run":
            new = [n for n in self._running if n not in self._own and self._requests[n].series == n]
            if new and not [run for run in self.place.runs() if run.data.tags["trialplane.number"] == str(new[0])]:
                self.place.client.log_param(self.place.trials_own(new[0]), "of_the_job", str(choice))
            self._own.update(new[:1])
        elif kind == "report":
            number = self._running[choice % len(self._running)]
            step = self._reported.get(number, 0)
            self.place.report(number, step, score=float(choice))
            self._reported[number] = step + 1
        else:
            number = self._running.pop(choice % len(self._running))
            asked = self._requests[number].segment
            assert asked is not None
            if kind == "pause" and asked.rung:
                self._paused.append(number)
                self._end(number, state=TrialState.PAUSED)
            else:
                self._end(number)

    def _end(self, number: int, **ended: Any) -> None:
        values = {"metrics": {"score": float(number % 3)}, "step": self._reported.get(number, 0)}
        self.place.end(self._requests[number], outcome(number, **{**values, **ended}))

    def finish(self) -> None:
        while self._running:
            self.step("end", 0)
        while self._paused:
            self.step("drop", 0)


@settings(max_examples=15)
@given(steps=st.lists(STEPS, min_size=4, max_size=16))
def test_any_interleaving_of_growth_kills_and_exports_leaves_the_same(
    mlflow_tables: Path, steps: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place, other = (Place(Path(folder, name), mlflow_tables, PROMOTION) for name in ("home", "other"))
        grown, same = Grown(place), Grown(other)
        for kind, choice in steps:
            if kind.startswith("export"):
                life(place, choice, after="done" in kind, closes=False)
                continue
            if kind == "two exporters":
                two_lives(place, choice // 2, after=bool(choice % 2))
                continue
            grown.step(kind, choice)
            if kind != "own run":
                same.step(kind, choice)
        grown.finish()
        same.finish()
        place.export(DONE)
        other.export(DONE)
        found, wanted = state(place), state(other)
        for run in found.values():  # what only a trial's own calls add
            run["params"].pop("of_the_job", None)
            for tag in [tag for tag in run["tags"] if tag == "trialplane.own" or tag.startswith("mlflow.u")]:
                del run["tags"][tag]
        assert found == wanted
        assert {run.info.status for run in place.everything()} <= {"FINISHED"}
        place.close()
        other.close()
