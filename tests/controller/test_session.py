"""How a controller's life ends when the disk fills: in words, resumable, and not for want of a status file.

Not checked here: sessions that work on a study (tests/study).
"""

from __future__ import annotations

import errno
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.controller.conftest import outcome
from tests.controller.trainings import asked
from tests.webhook import webhook

from trialplane import errors
from trialplane.controller import notifications, session, status
from trialplane.controller.ledger import Ledger
from trialplane.controller.setting import Setting
from trialplane.controller.status import StatusBoard
from trialplane.job import kinds
from trialplane.wire import env, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

JOB = {"name": "toy", "kind": "hpo", "objectives": [{"metric": "score", "direction": "maximize"}], "trials": 2}


def full(file: Path, *_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(file))


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    files = RunPaths(tmp_path / "home" / "runs" / "toy")
    files.code.mkdir(parents=True)
    files.job.write_text(kinds.read(JOB).model_dump_json())
    files.submission.write_text(json.dumps({"submitted": 1.0}))
    return files


def test_a_disk_that_fills_ends_the_run_as_one_that_can_be_resumed(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.Session, "_work_to_end", lambda *_: full(run.packed(3)))
    assert session.drive(run.root, [], Setting()) == errors.EXIT_PLATFORM
    last = records.from_json(RunStatus, run.status.read_text())
    assert last.state is RunState.PAUSED
    assert last.reason == (
        f"cannot write {run.packed(3)}: No space left on device; all records are safe. "
        "Make room and type `platform resume toy`"
    )


def test_another_error_of_a_file_is_not_called_a_full_disk(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/x")

    monkeypatch.setattr(session.Session, "_work_to_end", closed)
    assert session.drive(run.root, [], Setting()) == errors.EXIT_PLATFORM
    assert records.from_json(RunStatus, run.status.read_text()).reason.startswith("the controller failed: PermissionError")


def test_a_space_that_does_not_import_ends_the_run_before_anything_is_started(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(session.workloads, "start", lambda *_, **__: started.append("slots"))
    monkeypatch.setattr(session, "ExporterProcess", lambda *_, **__: started.append("MLflow"))
    run.job.write_text(kinds.read({**JOB, "space": "no_such_module:space"}).model_dump_json())
    assert session.drive(run.root, [], Setting()) == errors.EXIT_BAD_INPUT
    last = records.from_json(RunStatus, run.status.read_text())
    assert (last.state, started) == (RunState.FAILED, [])
    assert last.reason.startswith("no_such_module:space does not import: ModuleNotFoundError")


@pytest.mark.parametrize(
    ("search", "library"),
    [
        ({"sampler": "gp"}, "torch"),
        ({"sampler": "gp"}, "scipy"),
        ({"sampler": "cmaes"}, "cmaes"),
        ({"sampler": {"name": "cmaes", "independent_sampler": "qmc"}}, "scipy"),
        ({"pruner": {"name": "patient", "wrapped_pruner": "wilcoxon", "patience": 1}}, "scipy"),
    ],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_sampler_that_lacks_its_library_ends_the_run_before_anything_is_started(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, search: dict[str, Any], library: str, resumed: bool
) -> None:
    """Optuna imports it only for the first trial that it draws from earlier ones."""
    started: list[str] = []
    monkeypatch.setattr(session.workloads, "start", lambda *_, **__: started.append("slots"))
    monkeypatch.setattr(session, "ExporterProcess", lambda *_, **__: started.append("MLflow"))
    job = kinds.read({**JOB, **search, "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}}})
    run.job.write_text(job.model_dump_json())
    if resumed:
        with Ledger(f"sqlite:///{run.ledger}", job, "toy", run.code, run.lock) as ledger:
            ledger.tell(outcome(asked(ledger).number))
    monkeypatch.setitem(sys.modules, library, None)  # its import fails
    assert session.drive(run.root, [], Setting()) == errors.EXIT_BAD_INPUT
    last = records.from_json(RunStatus, run.status.read_text())
    assert (last.state, started) == (RunState.FAILED, [])
    assert f" needs {library}, which does not import where the controller runs: " in last.reason
    assert last.reason.endswith("once it does, `platform resume` continues")


def test_a_session_notifies_of_a_run_without_a_running_trial_and_of_its_failure(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "STUCK", 0.0)
    monkeypatch.setattr(notifications, "CLOSE_PATIENCE", 300.0)

    def waits(self: session.Session, ledger: Any, board: StatusBoard, uri: str) -> RunState:
        for _ in range(2):
            board.show(self._status(RunState.RUNNING, "waiting for a GPU"), now=True)
        raise errors.LedgerFull("the ledger has no room")

    monkeypatch.setattr(session.Session, "_work_to_end", waits)
    with webhook() as (port, received):
        rule = {"url": f"json://127.0.0.1:{port}/", "on": ["stuck", "failed"]}
        run.job.write_text(kinds.read({**JOB, "notify": [rule]}).model_dump_json())
        session.drive(run.root, [], Setting())
    messages = [received.get(timeout=0) for _ in range(2)]
    assert [message["title"] for message in messages] == ["toy is stuck", "toy FAILED"]
    assert messages[0]["message"].splitlines() == [
        "No trial has run for 0 minutes: waiting for a GPU",
        "platform status toy",
    ]
    assert messages[1]["message"].startswith("the ledger has no room")
    assert received.empty()


@pytest.mark.parametrize("known", [True, False])
def test_trials_log_where_their_run_is_recorded(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, known: bool
) -> None:
    """A run that is resumed with another MLflow in the environment stays with its own: ids of runs are one store's."""
    if known:
        run.exporter.write_text("http://ann:secret@a:5000")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://b:5000")
    seen: list[str] = []

    def study(self: session.Session, ledger: Any, board: Any, uri: str) -> RunState:
        seen.extend((uri, self._slot_config(self._job.roles()[0], uri).env["MLFLOW_TRACKING_URI"]))
        return RunState.SUCCEEDED

    monkeypatch.setattr(session.Session, "_work_to_end", study)
    with caplog.at_level(logging.WARNING):
        assert session.drive(run.root, [], Setting()) == errors.EXIT_OK
    assert seen == (["http://ann:secret@a:5000"] if known else ["http://b:5000"]) * 2
    told = [record.getMessage() for record in caplog.records if "MLFLOW_TRACKING_URI" in record.getMessage()]
    assert len(told) == known
    assert all("http://ann:***@a:5000" in line and "http://b:5000" in line for line in told)


@pytest.mark.parametrize("rungs", [True, False])
def test_slots_import_what_states_need_where_trials_are_paused(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, rungs: bool
) -> None:
    pruner = {"pruner": {"name": "asha", "promote": True, "max_resource": 8}} if rungs else {}
    run.job.write_text(kinds.read(JOB | pruner).model_dump_json())
    seen: list[bool] = []

    def study(self: session.Session, ledger: Any, board: Any, uri: str) -> RunState:
        seen.append(self._slot_config(self._job.roles()[0], uri).restores)
        return RunState.SUCCEEDED

    monkeypatch.setattr(session.Session, "_work_to_end", study)
    assert session.drive(run.root, [], Setting()) == errors.EXIT_OK
    assert seen == [rungs]


def test_the_time_to_exit_is_the_jobs(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    run.job.write_text(kinds.read(JOB | {"budget": {"exit_timeout": "7s"}}).model_dump_json())
    limits: list[float] = []

    def study(self: session.Session, ledger: Any, board: Any, uri: str) -> RunState:
        limits.append(self._slot_config(self._job.roles()[0], uri).linger)
        return RunState.SUCCEEDED

    monkeypatch.setattr(session.Session, "_work_to_end", study)
    assert session.drive(run.root, [], Setting()) == errors.EXIT_OK
    assert limits == [7.0]


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (2.5, 2)])
def test_slots_know_the_cores_of_the_job_and_the_threads_for_them(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, cpus: float, threads: int
) -> None:
    run.job.write_text(kinds.read(JOB | {"resources": {"cpus": cpus}}).model_dump_json())
    seen: list[tuple[float, int]] = []

    def study(self: session.Session, ledger: Any, board: Any, uri: str) -> RunState:
        config = self._slot_config(self._job.roles()[0], uri)
        seen.append((config.cores, config.cpus))
        return RunState.SUCCEEDED

    monkeypatch.setattr(session.Session, "_work_to_end", study)
    assert session.drive(run.root, [], Setting()) == errors.EXIT_OK
    assert seen == [(cpus, threads)]


def test_trials_get_what_opens_mlflow_and_not_the_ledger(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the gateway, whose address is believed: one that is recorded where nobody can reach it goes on there."""
    run.exporter.write_text("http://platform-mlflow:5000")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://gateway:8080/runs/toy/mlflow")
    seen: list[dict[str, str]] = []

    def study(self: session.Session, ledger: Any, board: Any, uri: str) -> RunState:
        seen.append(dict(self._slot_config(self._job.roles()[0], uri).env))
        return RunState.SUCCEEDED

    monkeypatch.setattr(session.Session, "_work_to_end", study)
    assert session.drive(run.root, [], Setting(mlflow_token="derived")) == errors.EXIT_OK
    assert session.drive(run.root, [], Setting()) == errors.EXIT_OK
    door, without = seen
    assert (door["MLFLOW_TRACKING_URI"], door[env.MLFLOW_TOKEN]) == ("http://gateway:8080/runs/toy/mlflow", "derived")
    assert (without["MLFLOW_TRACKING_URI"], env.MLFLOW_TOKEN in without) == ("http://platform-mlflow:5000", False)


def test_a_run_is_recorded_with_the_login_of_today(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A password that has been changed cannot be used any more; the MLflow is the same."""
    run.exporter.write_text("http://ann:old@a:5000")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:new@a:5000/")
    with caplog.at_level(logging.WARNING):
        assert session.tracking_uri(run) == "http://ann:new@a:5000/"
    assert not caplog.records
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert session.tracking_uri(run) == "http://ann:new@a:5000/"


def test_a_status_that_cannot_be_written_does_not_end_a_run(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board = StatusBoard(run)
    try:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(status, "write_status", full)
            for _ in range(3):
                board.show(RunStatus("toy", "toy", RunState.RUNNING, 1), now=True)
        assert [record.getMessage() for record in caplog.records] == [
            f"{run.status} cannot be written: No space left on device; the run goes on"
        ]
        board.show(RunStatus("toy", "toy", RunState.RUNNING, 1, complete=1), now=True)
        assert records.from_json(RunStatus, run.status.read_text()).complete == 1, "when there is room again"
    finally:
        board.close()
