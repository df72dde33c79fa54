"""How far a training or a collection is, and where that is shown: `status.json`, `/status` and `/metrics`.

Not checked here: the bar in a terminal (tests/cli), the reports of a real training (tests/study/test_training.py).
"""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialplane.controller.progress import Progress
from trialplane.controller.status import StatusBoard
from trialplane.wire import records
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialReport
from trialplane.wire.states import RunState
from trialplane.wire.units import WorkerStatus


def report(step: int, time: float, number: int = 1, **metrics: float) -> TrialReport:
    return TrialReport(number, step, metrics, time)


def test_each_metric_keeps_its_newest_value() -> None:
    progress = Progress()
    assert progress.metrics == {}
    progress.reported(report(10, 100.0, loss=2.0, slowest_rank=3.0))
    progress.reported(report(20, 110.0, loss=1.5))
    progress.reported(report(20, 111.0, eval_loss=1.6))
    assert progress.metrics == {"step": 20.0, "loss": 1.5, "eval_loss": 1.6}, "and no rank is slow for ever"


def test_the_time_left_is_that_of_the_steps_left() -> None:
    progress = Progress()
    progress.reported(report(100, 1000.0, total_steps=500))
    assert progress.eta(1000.0) is None, "one report is no rate"
    progress.reported(report(200, 1050.0))
    assert progress.eta(1050.0) == pytest.approx(150.0)
    assert progress.eta(1060.0) == pytest.approx(140.0)
    assert progress.eta(9999.0) == 0.0
    assert Progress().eta(0.0) is None


def test_the_job_may_say_itself_how_long_it_will_take() -> None:
    progress = Progress()
    progress.reported(report(100, 1000.0, seconds_left=60.0, total_steps=5000))
    progress.reported(report(200, 1050.0, eval_loss=1.0))
    assert progress.eta(1050.0) == pytest.approx(10.0)


def test_nobody_guesses_how_many_steps_there_are() -> None:
    progress = Progress()
    for step in range(3):
        progress.reported(report(step, 1000.0 + step, loss=1.0))
    assert progress.eta(1002.0) is None


def test_another_attempt_begins_anew() -> None:
    progress = Progress()
    progress.reported(report(100, 1000.0, loss=1.0, total_steps=500))
    progress.reported(report(200, 1050.0, loss=0.5))
    progress.reported(report(150, 5000.0, number=2, loss=0.7, total_steps=500))
    assert progress.metrics == {"step": 150.0, "loss": 0.7, "total_steps": 500.0}
    assert progress.eta(5000.0) is None, "the pause between attempts is no speed"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[StatusBoard]:
    made = StatusBoard(RunPaths(tmp_path / "runs" / "pretrain"))
    (tmp_path / "runs" / "pretrain").mkdir(parents=True)
    yield made
    made.close()


def page(board: StatusBoard, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{board.port}{path}", timeout=10) as reply:
        return str(reply.read().decode())


def test_progress_is_in_the_status_and_among_the_metrics(board: StatusBoard, tmp_path: Path) -> None:
    progress = {"step": 20.0, "loss": 1.5, "samples/s": 310.0, "grad_norm": math.nan, "slowest_rank": 3.0}
    status = RunStatus("pretrain", "cnm", RunState.RUNNING, 1, progress=progress, eta=90.0)
    board.show(status, now=True)
    kept = records.from_json(RunStatus, (tmp_path / "runs" / "pretrain" / "status.json").read_text())
    assert kept.progress["loss"] == 1.5
    assert math.isnan(kept.progress["grad_norm"])
    assert json.loads(page(board, "/status"))["progress"]["samples/s"] == 310.0
    metrics = page(board, "/metrics")
    assert 'trialplane_training_loss{run="pretrain"} 1.5' in metrics
    assert 'trialplane_training_samples_s{run="pretrain"} 310.0' in metrics
    assert 'trialplane_training_slowest_rank{run="pretrain"} 3.0' in metrics
    assert 'trialplane_training_seconds_left{run="pretrain"} 90.0' in metrics
    board.show(RunStatus("pretrain", "cnm", RunState.RUNNING, 1, progress={"step": 21.0}))
    assert "slowest_rank" not in page(board, "/metrics"), "what is no longer so is no longer shown"


def test_a_search_shows_nothing_of_a_training(board: StatusBoard) -> None:
    board.show(RunStatus("pretrain", "cnm", RunState.RUNNING, 8, eta=90.0))
    assert "trialplane_training" not in page(board, "/metrics")


def test_a_collection_shows_its_iteration_and_its_workers(board: StatusBoard, tmp_path: Path) -> None:
    progress = Progress()
    assert progress.done == 0
    workers = (WorkerStatus(0, "working", "pod-0", units=20, items=400), WorkerStatus(1, "failed", units=3, failed=1))
    progress.collected({"iteration": 2.0, "units": 23.0, "units_failed": 1.0, "units_total": 80.0}, workers)
    assert progress.done == 24 / 80
    status = RunStatus(
        "pretrain", "chess", RunState.RUNNING, 10, kind="collect", progress=progress.metrics, workers=progress.workers
    )
    board.show(status, now=True)
    kept = records.from_json(RunStatus, (tmp_path / "runs" / "pretrain" / "status.json").read_text())
    assert (kept.workers, kept.progress["units"]) == (workers, 23.0)
    metrics = page(board, "/metrics")
    assert 'trialplane_collection_units{run="pretrain"} 23.0' in metrics
    assert 'trialplane_worker_units{run="pretrain",worker="0"} 20.0' in metrics
    assert 'trialplane_worker_failed{run="pretrain",worker="1"} 1.0' in metrics
    assert "trialplane_training" not in metrics
