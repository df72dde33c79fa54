"""A trial of two ranks is paused at its rung by all of them, and continues with the random numbers of each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench, wait_until

from trialplane.training.steps import folders
from trialplane.wire import env
from trialplane.wire.records import Parent, Segment, TrialOutcome, TrialReport
from trialplane.wire.states import FailureClass, TrialState

CODE = """
import torch
from torch import distributed


def run(ctx):
    distributed.init_process_group("gloo")
    torch.manual_seed(ctx.seed + ctx.rank)
    weight, done = torch.zeros(()), 0
    if ctx.params["what"] != "forgets" and (state := ctx.restored):
        weight, done = state["weight"], state["step"]
    for step in range(done + 1, 7):
        drawn = torch.rand(())
        distributed.all_reduce(drawn)  # each rank's own
        weight = weight + drawn
        if ctx.params["what"] == "saves first":
            ctx.save(step, {"weight": weight})
        if ctx.is_main:
            ctx.report(step, loss=float(weight))
        if ctx.params["what"] == "saves":
            ctx.save(step, {"weight": weight}, every=0)
    distributed.destroy_process_group()
    return {"loss": float(weight)}
"""


pytestmark = pytest.mark.slow
CONFIG: Any = {"ranks": 2, "cpus": 2, "preload": ("torch", "torch.distributed"), "grace": 20.0}


@pytest.mark.parametrize("what", ["saves", "saves first"])
def test_all_ranks_pause_and_continue(tmp_path: Path, what: str) -> None:
    with Bench(tmp_path, {"train": CODE}, **CONFIG) as bench:

        def ended(
            what: str, attempt: int, segment: Segment | None, trial: int = 0
        ) -> tuple[TrialOutcome, list[TrialReport]]:
            request = bench.request(what)
            request = dataclasses.replace(request, trial=trial, segment=segment, attempt=attempt, metrics=("loss",))
            return bench.reported(request)

        whole, undisturbed = ended("forgets", 1, None)
        assert whole.state is TrialState.COMPLETE
        first, reports = ended(what, 1, Segment(2, ("loss",)))
        assert (first.state, first.failure) == (TrialState.PAUSED, None), first.message
        assert first.checkpoints is not None
        forgotten, _ = ended("forgets", 2, Segment(4, ("loss",), 2, 0, Parent(0, 2, first.checkpoints.digest)))
        assert (forgotten.failure, forgotten.certain) == (FailureClass.INVALID, True), forgotten.message
        assert "has started over and reported step 1" in forgotten.message
        middle, more = ended(what, 2, Segment(4, ("loss",), 2, 0, Parent(0, 2, first.checkpoints.digest)))
        assert middle.state is TrialState.PAUSED, middle.message
        last, rest = ended(what, 3, Segment(0, ("loss",), 4, 0, Parent(0, 4)))
        assert last.state is TrialState.COMPLETE, last.message
        steps = {report.step: report.metrics["loss"] for report in (*reports, *more, *rest)}
        assert steps == {report.step: report.metrics["loss"] for report in undisturbed}, "to the last bit"
        assert last.metrics["loss"] == whole.metrics["loss"]
        lacking, _ = ended("forgets", 1, Segment(2, ("loss",)), trial=1)
        assert (lacking.failure, lacking.certain) == (FailureClass.INVALID, True)


def test_ranks_of_a_pod_that_is_removed_save_without_their_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.GRACE, "60")
    with Bench(tmp_path, {"train": CODE}, **CONFIG) as bench:
        request = dataclasses.replace(bench.request("saves"), trial=1, metrics=("loss",), segment=Segment(0, ("loss",)))
        event = bench.slot.run(request)
        while not event.confirm:  # until rank 0 waits for the answer
            event = bench.slot.answer()
        assert bench.slot.running is not None
        bench.slot.running.channel.close()
        newest = bench.root / "checkpoints" / "toy" / "trial-1" / "step-0000000006"
        wait_until(lambda: (newest / "COMPLETE").exists(), "all steps are saved")


def test_ranks_begin_at_the_same_step_if_the_checkpoint_of_one_is_damaged(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": CODE}, **CONFIG) as bench:

        def reported(**fields: Any) -> list[TrialReport]:
            request = dataclasses.replace(bench.request("saves"), metrics=("loss",), **fields)
            outcome, reports = bench.reported(request)
            assert outcome.state is TrialState.COMPLETE, outcome
            return reports

        undisturbed = reported(trial=1)
        other = bench.root.parent / "other" / "checkpoints" / "other" / "trial-5"
        other.parent.mkdir(parents=True)
        (bench.root / "checkpoints" / "toy" / "trial-1").rename(other)
        for trial, damaged, begun in ((2, 6, 5), (3, 5, -1)):  # the two newest checkpoints are kept
            (other / f"step-{damaged:010}" / "rank-00001.pt").write_bytes(b"damaged")
            summary = folders.summary(str(other))
            assert summary is not None
            reports = reported(trial=trial, resume="other", start=Parent(5, -1, summary.digest))
            assert reports[0].start_step == begun
            expected = [(report.step, report.metrics) for report in undisturbed if report.step > begun]
            assert [(report.step, report.metrics) for report in reports] == expected, "to the last bit"
