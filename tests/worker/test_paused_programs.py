"""Scripts and commands that are paused at a rung, and continue from what they have saved in `{checkpoints}`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench

from trialplane.job.program import MetricSource, Program
from trialplane.wire.records import Parent, Segment, TrialOutcome, TrialReport
from trialplane.wire.states import FailureClass, TrialState

SCRIPT = """
import argparse
import json
import os
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
out = parser.parse_args().out
file = out / "state.json"
done, total = json.loads(file.read_text()) if file.exists() else (0, 0.0)
for step in range(done + 1, 7):
    total += step
    if "SAVES" in os.environ:
        file.with_suffix(".part").write_text(json.dumps([step, total]))
        file.with_suffix(".part").rename(file)
    print(f"step={step} loss={total}", flush=True)
    if step in (2, 4):
        time.sleep(60)  # it is ended here
"""


@pytest.mark.parametrize("kind", ["script", "command"])
@pytest.mark.parametrize("saves", [True, False])
def test_a_program_is_paused_at_its_rung(tmp_path: Path, kind: str, saves: bool) -> None:
    start = {"script": "train.py"} if kind == "script" else {"command": ("python", "train.py")}
    program = program_of(**start, arguments=("--out", "{checkpoints}"))
    with Bench(tmp_path, {"train": SCRIPT}, entrypoint="", program=program) as bench:

        def ended(segment: Segment, attempt: int) -> tuple[TrialOutcome, list[TrialReport]]:
            request = bench.request("", env={"SAVES": "1"} if saves else {})
            request = dataclasses.replace(request, trial=0, params={}, segment=segment, attempt=attempt, metrics=("loss",))
            return bench.reported(request)

        first, reports = ended(Segment(2, ("loss",)), 1)
        assert [(report.step, report.metrics) for report in reports] == [(1, {"loss": 1.0}), (2, {"loss": 3.0})]
        if not saves:
            assert (first.state, first.failure, first.certain) == (TrialState.FAILED, FailureClass.INVALID, True)
            assert "{checkpoints}" in first.message
            return
        assert (first.state, first.metrics) == (TrialState.PAUSED, {"loss": 3.0})
        assert first.checkpoints is not None
        middle, reports = ended(Segment(4, ("loss",), 2, 0, Parent(0, 2, first.checkpoints.digest)), 2)
        assert (middle.state, [report.step for report in reports]) == (TrialState.PAUSED, [3, 4])
        last, _ = ended(Segment(0, ("loss",), 4, 0, Parent(0, 4)), 3)
        assert (last.state, last.metrics["loss"]) == (TrialState.COMPLETE, 21.0)


def test_a_program_that_starts_over_fails(tmp_path: Path) -> None:
    code = SCRIPT.replace("if file.exists()", "if False")
    program = program_of(script="train.py", arguments=("--out", "{checkpoints}"))
    with Bench(tmp_path, {"train": code}, entrypoint="", program=program) as bench:
        request = dataclasses.replace(bench.request("", env={"SAVES": "1"}), trial=0, params={}, metrics=("loss",))
        first = bench.reported(dataclasses.replace(request, segment=Segment(2, ("loss",))))[0]
        assert first.state is TrialState.PAUSED and first.checkpoints is not None
        segment = Segment(4, ("loss",), 2, 0, Parent(0, 2, first.checkpoints.digest))
        second = bench.reported(dataclasses.replace(request, segment=segment, attempt=2))[0]
        assert (second.state, second.failure) == (TrialState.FAILED, FailureClass.INVALID)
        assert "the job has started over and reported step 1" in second.message and "{checkpoints}" in second.message


def program_of(**fields: Any) -> Program:
    return Program(**fields, metrics=(MetricSource("stdout"),), names=("loss",))
