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

from trialplane.controller.status import StatusBoard
from trialplane.controller.workloads.training import TrainingReports
from trialplane.wire import records
from trialplane.wire.paths import RunPaths
from trialplane.wire.progress import CollectionProgress, TrainingProgress
from trialplane.wire.records import RunStatus, TrialReport
from trialplane.wire.states import RunState
from trialplane.wire.units import WorkerStatus


def report(step: int, time: float, number: int = 1, **metrics: float) -> TrialReport:
    return TrialReport(number, step, metrics, time)


def test_each_metric_keeps_its_newest_value() -> None:
    reports = TrainingReports()
    assert reports.progress.numbers == {}
    reports.add(report(10, 100.0, loss=2.0, slowest_rank=3.0))
    reports.add(report(20, 110.0, loss=1.5))
    reports.add(report(20, 111.0, eval_loss=1.6))
    assert reports.progress == TrainingProgress(20, None, {"loss": 1.5, "eval_loss": 1.6}), "and no rank is slow for ever"


def test_the_time_left_is_that_of_the_steps_left() -> None:
    reports = TrainingReports()
    reports.add(report(100, 1000.0, total_steps=500))
    assert reports.eta(1000.0) is None, "one report is not a rate"
    reports.add(report(200, 1050.0))
    assert reports.eta(1050.0) == pytest.approx(150.0)
    assert reports.eta(1060.0) == pytest.approx(140.0)
    assert reports.eta(9999.0) == 0.0
    assert TrainingReports().eta(0.0) is None


def test_the_job_may_say_itself_how_long_it_will_take() -> None:
    reports = TrainingReports()
    reports.add(report(100, 1000.0, seconds_left=60.0, total_steps=5000))
    reports.add(report(200, 1050.0, eval_loss=1.0))
    assert reports.eta(1050.0) == pytest.approx(10.0)


def test_nobody_guesses_how_many_steps_there_are() -> None:
    reports = TrainingReports()
    for step in range(3):
        reports.add(report(step, 1000.0 + step, loss=1.0))
    assert reports.eta(1002.0) is None


def test_another_attempt_begins_anew() -> None:
    reports = TrainingReports()
    reports.add(report(100, 1000.0, loss=1.0, total_steps=500))
    reports.add(report(200, 1050.0, loss=0.5))
    reports.add(report(150, 5000.0, number=2, loss=0.7, total_steps=500))
    assert reports.progress == TrainingProgress(150, 500, {"loss": 0.7})
    assert reports.eta(5000.0) is None, "the pause between attempts is no speed"


@pytest.mark.parametrize("total", [math.nan, math.inf])
def test_a_number_of_steps_that_is_none_is_not_known(total: float) -> None:
    reports = TrainingReports()
    reports.add(report(10, 100.0, total_steps=total))
    assert reports.progress == TrainingProgress(10, None, {})


@pytest.fixture
def board(tmp_path: Path) -> Iterator[StatusBoard]:
    made = StatusBoard(RunPaths(tmp_path / "runs" / "pretrain"))
    (tmp_path / "runs" / "pretrain").mkdir(parents=True)
    yield made
    made.close()


def page(board: StatusBoard, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{board.port}{path}", timeout=60) as reply:
        return str(reply.read().decode())


def test_progress_is_in_the_status_and_among_the_metrics(board: StatusBoard, tmp_path: Path) -> None:
    metrics = {"loss": 1.5, "samples/s": 310.0, "grad_norm": math.nan, "slowest_rank": 3.0, "rank_seconds/3": 0.25}
    progress = TrainingProgress(20, None, metrics)
    status = RunStatus("pretrain", "cnm", RunState.RUNNING, 1, progress=progress, eta=90.0)
    board.show(status, now=True)
    kept = records.from_json(RunStatus, (tmp_path / "runs" / "pretrain" / "status.json").read_text())
    assert isinstance(kept.progress, TrainingProgress)
    assert (kept.progress.step, kept.progress.metrics["loss"]) == (20, 1.5)
    assert math.isnan(kept.progress.metrics["grad_norm"])
    assert json.loads(page(board, "/status"))["progress"]["metrics"]["samples/s"] == 310.0
    shown = page(board, "/metrics")
    assert 'trialplane_run_state{run="pretrain",trialplane_run_state="RUNNING"} 1.0' in shown
    assert 'trialplane_training_step{run="pretrain"} 20.0' in shown
    assert 'trialplane_training_loss{run="pretrain"} 1.5' in shown
    assert 'trialplane_training_samples_s{run="pretrain"} 310.0' in shown
    assert 'trialplane_training_slowest_rank{run="pretrain"} 3.0' in shown
    assert 'trialplane_training_rank_seconds{rank="3",run="pretrain"} 0.25' in shown
    assert shown.count("rank_seconds{") == 1
    assert 'trialplane_training_seconds_left{run="pretrain"} 90.0' in shown
    board.show(RunStatus("pretrain", "cnm", RunState.RUNNING, 1, progress=TrainingProgress(21)))
    assert "slowest_rank" not in page(board, "/metrics"), "what is no longer so is no longer shown"


def test_a_search_shows_nothing_of_a_training(board: StatusBoard) -> None:
    board.show(RunStatus("pretrain", "cnm", RunState.RUNNING, 8, eta=90.0))
    assert "trialplane_training" not in page(board, "/metrics")


def test_a_collection_shows_its_iteration_and_its_workers(board: StatusBoard, tmp_path: Path) -> None:
    workers = (WorkerStatus(0, "working", "pod-0", units=20, items=400), WorkerStatus(1, "failed", units=3, failed=1))
    progress = CollectionProgress(iteration=2, units=23, units_failed=1, units_total=80, workers=workers)
    board.show(RunStatus("pretrain", "chess", RunState.RUNNING, 10, progress=progress), now=True)
    kept = records.from_json(RunStatus, (tmp_path / "runs" / "pretrain" / "status.json").read_text())
    assert kept.progress == progress
    metrics = page(board, "/metrics")
    assert 'trialplane_collection_units{run="pretrain"} 23.0' in metrics
    assert 'trialplane_worker_units{run="pretrain",worker="0"} 20.0' in metrics
    assert 'trialplane_worker_failed{run="pretrain",worker="1"} 1.0' in metrics
    assert "trialplane_training" not in metrics
