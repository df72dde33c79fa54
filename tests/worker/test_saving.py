"""`ctx.save` and `ctx.restored`, and that a trial is paused at its rung: functions, scripts and commands, each in a process.

Not checked here: when the controller pauses and promotes trials (tests/controller/test_promotion.py), and ranks
(tests/worker/test_ranks.py).
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench

from trialplane.wire.records import Parent, Segment, TrialOutcome, TrialReport
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker.context import Context
from trialplane.worker.pausing import Pause
from trialplane.worker.stopping import Stop

CODE = """
import os
import random

import numpy as np


def run(ctx):
    if ctx.params.get("torch"):
        torch.manual_seed(ctx.seed)
        draw = lambda: float(torch.rand(()))
    else:
        draw = lambda: random.random() + float(np.random.rand())
    what = ctx.params["what"]
    walk, done = [], 0
    first = ctx.params.get("first", 1)
    state = None if what in ("forgets", "writes a file", "saves, does not read") else ctx.restored
    if state is not None and what != "saves, starts over":
        walk, done = list(state["walk"]), state["step"] + 1 - first
    print("begins after", done)
    for step in range(done, 6):
        walk.append(draw())
        loss = sum(walk)
        if what == "saves first":
            ctx.save(step + first, {"walk": walk}, every=0)
        ctx.report(step + first, loss=loss)
        if what.startswith("saves") and what != "saves first":
            ctx.save(step + first, {"walk": walk}, every=0)
        if what == "obeys" and ctx.stopping:
            ctx._states().save(step + first, {"walk": walk}, wait=True)
            raise ctx.stopped(step + first)
        if what == "writes a file":
            os.makedirs(ctx.checkpoints, exist_ok=True)
            with open(os.path.join(ctx.checkpoints, "own"), "w") as file:
                file.write("state")
        if what == "dies at the rung" and step + first == 4 and ctx.attempt == 1:
            ctx._states().save(step + first, {"walk": walk}, wait=True)
            os._exit(1)
        if what == "dies at the rung":
            ctx.save(step + first, {"walk": walk}, every=0)
    return {"loss": sum(walk), "score": 0.5}
"""
RUNG = Segment(rung=2, metrics=("loss",))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, {"train": CODE}) as bench:
        yield bench


def ended(bench: Bench, what: str, **changes: Any) -> tuple[TrialOutcome, list[TrialReport]]:
    """An attempt at trial 3, and its reports."""
    params = {name: changes.pop(name) for name in ("torch", "first") if name in changes}
    request = dataclasses.replace(bench.request(what, **params), trial=3, seed=7, **changes)
    return bench.reported(request)


def losses(reports: list[TrialReport]) -> dict[int, float]:
    return {report.step: report.metrics["loss"] for report in reports}


@pytest.mark.parametrize("what", ["saves", "saves first", "obeys"])
def test_a_trial_is_paused_at_its_rung_and_continues_exactly(bench: Bench, what: str) -> None:
    continues_exactly(bench, what, torch=False)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["saves", "saves first", "obeys"])
def test_a_trial_that_draws_from_torch_continues_exactly(tmp_path: Path, what: str) -> None:
    with Bench(tmp_path, {"train": f"import torch\n{CODE}"}) as bench:  # the template imports it once for all trials
        continues_exactly(bench, what, torch=True)


def continues_exactly(bench: Bench, what: str, torch: bool) -> None:
    whole, undisturbed = ended(bench, "forgets", torch=torch)
    assert whole.state is TrialState.COMPLETE
    first, reports = ended(bench, what, torch=torch, segment=RUNG)
    assert (first.state, first.failure, first.step) == (TrialState.PAUSED, None, 0)
    assert list(losses(reports)) == [1, 2]
    assert first.checkpoints is not None
    parent = Parent(3, 2, first.checkpoints.digest)
    middle, more = ended(bench, what, torch=torch, segment=Segment(4, ("loss",), 2, 0, parent), attempt=2)
    assert (middle.state, list(losses(more))) == (TrialState.PAUSED, [3, 4])
    last, rest = ended(bench, what, torch=torch, segment=Segment(0, ("loss",), 4, 0, Parent(3, 4)), attempt=3)
    assert last.state is TrialState.COMPLETE
    assert losses(reports + more + rest) == losses(undisturbed), "to the last bit"
    assert last.metrics == whole.metrics


@pytest.mark.parametrize("what", ["saves, does not read", "saves, starts over"])
@pytest.mark.parametrize("first_step", [0, 1])
def test_a_trial_that_starts_over_fails_at_its_first_report(bench: Bench, what: str, first_step: int) -> None:
    """Otherwise it would train its steps again, which the study would not count."""
    first, _ = ended(bench, what, first=first_step, segment=RUNG)
    assert first.state is TrialState.PAUSED and first.checkpoints is not None
    segment = Segment(4, ("loss",), 2, 1 - first_step, Parent(3, 2, first.checkpoints.digest))
    second, reports = ended(bench, what, first=first_step, segment=segment, attempt=2)
    assert (second.failure, second.certain, reports) == (FailureClass.INVALID, True, [])
    assert (
        f"was to continue after its 2 steps, and the job has started over and reported step {first_step}" in second.message
    )


def test_a_trial_may_continue_from_before_its_rung(bench: Bench) -> None:
    """Its newest state is damaged, or an attempt that was lost has left only states beyond the rung."""
    first, _ = ended(bench, "saves", segment=Segment(1, ("loss",)))
    assert first.checkpoints is not None
    second, _ = ended(bench, "saves", segment=Segment(3, ("loss",), 1, 0, Parent(3, 1, first.checkpoints.digest)), attempt=2)
    assert second.state is TrialState.PAUSED and second.checkpoints is not None
    folder = bench.root / "checkpoints" / "toy" / "trial-3"
    packed = folder / "step-0000000003" / "state.packed"
    packed.write_bytes(packed.read_bytes()[:-1])
    third, reports = ended(bench, "saves", segment=Segment(0, ("loss",), 3, 0, Parent(3, 3)), attempt=3)
    assert third.state is TrialState.COMPLETE, third.message
    assert next(iter(losses(reports))) == 3, "it continues from step 2"
    retried, reports = ended(bench, "saves", segment=Segment(2, ("loss",), 2, 0, Parent(3, 2)), attempt=4)
    assert retried.state is TrialState.PAUSED, retried.message
    assert list(losses(reports)) == [1, 2], "no state is usable"


@pytest.mark.parametrize("step", [0, 2, 3])
def test_only_a_first_step_shows_that_a_job_has_started_over(step: int) -> None:
    assert Pause(Segment(4, ("loss",), 2, 1, Parent(3, 2))).is_first_again(step) == (step == 0)
    assert not Pause(Segment(4, ("loss",), 1, 1, Parent(3, 1))).is_first_again(step), "it may evaluate the restored state"
    assert not Pause(Segment(4, ("loss",), 2, 1)).is_first_again(step), "it starts over without a checkpoint"


def test_no_checkpoint_is_before_its_reports(bench: Bench) -> None:
    """A retry that continued from it would leave a gap in the curve, if the slot were lost with the reports."""
    request = dataclasses.replace(bench.request("saves"), trial=3, segment=Segment(4, ("loss",)))
    folder = bench.root / "checkpoints" / "toy" / "trial-3"
    event = bench.slot.run(request)
    for step in (1, 2, 3):
        steps = [report.step for report in event.reports]
        while not event.confirm:  # the report may come alone
            event = bench.slot.answer()
            steps += [report.step for report in event.reports]
        assert steps == [step]
        assert [path for path in folder.glob(f"step-*{step}") if path.is_dir()] == [], "the trial waits for the answer"
        event = bench.slot.answer()
    (*_, end) = bench.slot.rest(event)
    assert end.outcome is not None and end.outcome.state is TrialState.PAUSED
    assert not event.confirm, "no retry continues from the state at the rung"


def test_a_trial_that_must_stop_waits_for_no_record(tmp_path: Path) -> None:
    waits: list[int] = []
    fields: dict[str, Any] = {"code": tmp_path, "cache": tmp_path, "workdir": tmp_path, "_reporter": lambda *_, **__: False}
    stop = Stop()
    ctx = Context(
        {}, 0, "toy", 0, 1, 1, 0, **fields, _stop=stop, _pause=Pause(Segment(4, ("loss",))), _confirm=lambda: waits.append(1)
    )
    ctx.confirm_reports(2)
    assert waits == [1]
    stop._request(signal.SIGTERM, None)
    ctx.confirm_reports(3)
    assert waits == [1]


def test_steps_may_be_counted_from_0(bench: Bench) -> None:
    first, reports = ended(bench, "saves", first=0, segment=RUNG)
    assert (first.state, list(losses(reports))) == (TrialState.PAUSED, [0, 1])
    middle, more = ended(bench, "saves", first=0, segment=Segment(4, ("loss",), 2, 1, Parent(3, 1)), attempt=2)
    assert (middle.state, list(losses(more))) == (TrialState.PAUSED, [2, 3])


@pytest.mark.parametrize("what", ["forgets"])
def test_a_trial_without_a_checkpoint_fails_at_its_rung_as_every_other_would(bench: Bench, what: str) -> None:
    outcome, reports = ended(bench, what, segment=Segment(1, ("loss",)))
    assert (outcome.state, outcome.failure, outcome.certain) == (TrialState.FAILED, FailureClass.INVALID, True)
    assert "call ctx.save(step, state)" in outcome.message
    assert len(reports) <= 2, "before steps are wasted"


def test_a_job_that_saves_in_its_own_way_is_paused_before_its_next_report(bench: Bench) -> None:
    outcome, reports = ended(bench, "writes a file", segment=Segment(2, ("loss",)))
    assert outcome.state is TrialState.PAUSED
    assert list(losses(reports)) == [1, 2]
    assert outcome.metrics["loss"] == losses(reports)[2]
    assert outcome.checkpoints is not None


def test_a_checkpoint_that_is_gone_or_changed_is_an_error(bench: Bench) -> None:
    first, _ = ended(bench, "saves", segment=RUNG)
    assert first.checkpoints is not None
    segment = Segment(4, ("loss",), 2, 0, Parent(3, 2, "another"))
    outcome, reports = ended(bench, "saves", segment=segment, attempt=2)
    assert (outcome.state, outcome.failure, reports) == (TrialState.FAILED, FailureClass.ERROR, [])
    assert "was changed since the trial was paused" in outcome.message
    segment = Segment(4, ("loss",), 2, 0, Parent(4, 2, first.checkpoints.digest))
    outcome, _ = ended(bench, "saves", segment=segment, attempt=3)
    assert outcome.failure is FailureClass.LOST, "the storage's fault"
    assert "trial-4 is missing" in outcome.message


def test_an_attempt_that_is_lost_at_the_rung_is_repeated_up_to_it(bench: Bench) -> None:
    """Its last report may be lost with it, so a checkpoint of that step is not continued from."""
    segment = Segment(4, ("loss",), 0, 0)
    lost, reports = ended(bench, "dies at the rung", segment=segment)
    assert lost.failure is FailureClass.CRASHED
    again, more = ended(bench, "dies at the rung", segment=segment, attempt=2)
    assert again.state is TrialState.PAUSED
    assert list(losses(more)) == [4], "after the checkpoint of step 3"
    assert losses(more)[4] == losses(reports)[4]


def test_a_checkpoint_of_another_run_that_cannot_be_read_is_an_error(bench: Bench) -> None:
    """Each rank decides where to begin: if one took this for a missing checkpoint, it would begin alone at step 0."""
    location = bench.root.parent / "other" / "checkpoints" / "other" / "trial-5"
    (location / "step-0000000001").mkdir(parents=True)
    (location / "step-0000000001" / "COMPLETE").symlink_to("/proc/self/mem")  # a read fails, for root too
    outcome, reports = ended(bench, "saves", resume="other", start=Parent(5, -1, "digest"))
    assert (outcome.state, reports) == (TrialState.FAILED, [])
    assert "cannot be read" in outcome.message


def test_a_trial_starts_from_a_checkpoint_of_another_trial(bench: Bench) -> None:
    whole, undisturbed = ended(bench, "saves")
    starts = dataclasses.replace(bench.request("saves"), trial=9, seed=7, resume="toy", start=Parent(3, 5))
    outcome, reports = bench.reported(starts)
    assert list(losses(reports)) == [6], "the two newest checkpoints are those of steps 5 and 6"
    assert losses(reports)[6] == losses(undisturbed)[6]
    assert outcome.metrics == whole.metrics
    newest = dataclasses.replace(bench.request("saves"), trial=10, resume="toy", start=Parent(3, -1))
    assert bench.reported(newest)[1] == [], "all steps are done"
    missing = dataclasses.replace(bench.request("saves"), trial=11, resume="toy", start=Parent(3, 2))
    outcome, _ = bench.reported(missing)
    assert outcome.state is TrialState.FAILED
    assert "there is no checkpoint of ctx.save of step 2" in outcome.message


def test_a_checkpoint_of_another_run_at_the_rung_is_skipped(bench: Bench) -> None:
    """The other trial was stopped after it had saved the rung's step, and before it had reported that."""
    _, undisturbed = ended(bench, "forgets")
    first, _ = ended(bench, "saves first", segment=RUNG)
    assert first.checkpoints is not None
    location = bench.root.parent / "other" / "checkpoints" / "other" / "trial-5"
    location.parent.mkdir(parents=True)
    shutil.move(bench.root / "checkpoints" / "toy" / "trial-3", location)
    start = Parent(5, -1, first.checkpoints.digest)
    outcome, reports = ended(bench, "saves first", resume="other", start=start, segment=RUNG)
    assert outcome.state is TrialState.PAUSED, outcome
    assert [report.start_step for report in reports] == [1]
    assert losses(reports) == {2: losses(undisturbed)[2]}


@pytest.mark.parametrize(
    ("what", "segment"),
    [("obeys", None), ("forgets", None), ("obeys", Segment(4, ("loss",), 2, 0))],
    ids=["obeys", "forgets", "promoted"],
)
@pytest.mark.parametrize("fate", ["there", "changed", "damaged", "gone"])
def test_a_trial_continues_an_equal_one_of_another_run(bench: Bench, what: str, segment: Segment | None, fate: str) -> None:
    _, undisturbed = ended(bench, "forgets")
    first, _ = ended(bench, "obeys", segment=RUNG)
    assert first.checkpoints is not None
    location = bench.root.parent / "other" / "checkpoints" / "other" / "trial-5"
    location.parent.mkdir(parents=True)
    shutil.move(bench.root / "checkpoints" / "toy" / "trial-3", location)
    (checkpoint,) = location.iterdir()
    if fate == "changed":
        shutil.copytree(checkpoint, location / "step-0000000001")
    elif fate == "damaged":
        (checkpoint / "state.packed").write_bytes(b"x" * (checkpoint / "state.packed").stat().st_size)
    elif fate == "gone":
        shutil.rmtree(location)
    start = Parent(5, -1, first.checkpoints.digest)
    attempt = 1 if segment is None else 2  # the first one was taken over from the other run
    outcome, reports = ended(bench, what, resume="other", start=start, segment=segment, attempt=attempt)
    assert outcome.state is (TrialState.COMPLETE if segment is None else TrialState.PAUSED), outcome
    begun = 2 if (fate, what) == ("there", "obeys") else -1
    assert [report.start_step for report in reports] == [begun, *[None] * (len(reports) - 1)]
    last_step = 6 if segment is None else segment.rung
    expected = {step: loss for step, loss in losses(undisturbed).items() if begun < step <= last_step}
    assert losses(reports) == expected, "to the last bit"
    missing = "the checkpoint of trial 5 of other is missing or was changed, so trial 3 has begun at step 0"
    unread = (
        "the checkpoint of other has no effect: the job has read neither ctx.restored nor ctx.resume_from, so it started "
    )
    remark = "" if begun == 2 else missing if fate in ("changed", "gone") or what == "obeys" else f"{unread}from scratch"
    assert [report.remark for report in reports] == [remark, *[""] * (len(reports) - 1)]
