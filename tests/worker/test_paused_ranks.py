"""A trial of two ranks is paused at its rung by all of them, and continues with the random numbers of each."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.worker.conftest import Bench

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
            ctx.save(step, {"weight": weight})
    distributed.destroy_process_group()
    return {"loss": float(weight)}
"""


@pytest.mark.parametrize("what", ["saves", "saves first"])
def test_all_ranks_pause_and_continue(tmp_path: Path, what: str) -> None:
    config = {"ranks": 2, "cpus": 2, "preload": ("torch", "torch.distributed"), "grace": 20.0}
    with Bench(tmp_path, {"train": CODE}, **config) as bench:

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
        assert (forgotten.failure, forgotten.certain) == (FailureClass.INVALID, True), "the checkpoint is of the rung before"
        middle, more = ended(what, 2, Segment(4, ("loss",), 2, 0, Parent(0, 2, first.checkpoints.digest)))
        assert middle.state is TrialState.PAUSED, middle.message
        last, rest = ended(what, 3, Segment(0, ("loss",), 4, 0, Parent(0, 4)))
        assert last.state is TrialState.COMPLETE, last.message
        steps = {report.step: report.metrics["loss"] for report in (*reports, *more, *rest)}
        assert steps == {report.step: report.metrics["loss"] for report in undisturbed}, "to the last bit"
        assert last.metrics["loss"] == whole.metrics["loss"]
        lacking, _ = ended("forgets", 1, Segment(2, ("loss",)), trial=1)
        assert (lacking.failure, lacking.certain) == (FailureClass.INVALID, True)
