"""A controller in a head pod: it joins the Ray beside it, ends with it, is started again, and does nothing when all is done.

Not checked here: a real Ray and PostgreSQL (tests/study), the kubelet (tests/e2e).
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trialplane import errors
from trialplane.controller import ray_session, session, stopping
from trialplane.controller.endings import Ending
from trialplane.controller.ledger import Ledger
from trialplane.controller.setting import Setting
from trialplane.job import kinds
from trialplane.wire import labels, records
from trialplane.wire.exports import End
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

JOB = {"name": "toy", "kind": "hpo", "objectives": [{"metric": "score", "direction": "maximize"}], "trials": 2}
BEGUN = 2000.0


class Waits(Exception):
    """Instead of waiting to be removed."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    files = RunPaths(tmp_path / "home" / "runs" / "toy")
    files.code.mkdir(parents=True)
    files.job.write_text(kinds.read(JOB).model_dump_json())
    files.submission.write_text(json.dumps({"submitted": 1.0, labels.BEGUN: BEGUN}))

    def wait() -> None:
        raise Waits

    monkeypatch.setattr(stopping, "wait_for_removal", wait)
    return files


def _setting(tmp_path: Path) -> Setting:
    return Setting(submitted=tmp_path, ray="127.0.0.1:1")


def _recorded(run: RunPaths, status: RunStatus | None) -> None:
    with Ledger(f"sqlite:///{run.ledger}", kinds.read(JOB), "toy", run.code, run.lock) as ledger:
        if status is not None:
            ledger.write_facts({labels.LEDGER_STATUS: records.to_dict(status)})


def _status(state: RunState, updated: float) -> RunStatus:
    return RunStatus("toy", "toy", state, 2, updated=updated)


@pytest.mark.parametrize(
    ("state", "updated", "waits"),
    [
        (RunState.SUCCEEDED, BEGUN + 1, True),
        (RunState.FAILED, BEGUN + 1, True),
        (RunState.PAUSED, BEGUN, True),
        (RunState.PAUSED, BEGUN - 1, False),  # of a former start: it was resumed
        (RunState.SUCCEEDED, BEGUN - 1, False),
        (RunState.RUNNING, BEGUN + 1, False),  # its controller was killed
        (RunState.PENDING, BEGUN + 1, False),
    ],
)
def test_a_controller_that_finds_its_run_ended_waits_to_be_removed(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: RunState, updated: float, waits: bool
) -> None:
    _recorded(run, _status(state, updated))
    monkeypatch.setattr(session.Session, "_work_to_end", lambda self, *_: RunState.SUCCEEDED)
    if waits:
        with pytest.raises(Waits):
            session.drive(run.root, [], _setting(tmp_path))
        with Ledger(f"sqlite:///{run.ledger}", kinds.read(JOB), "toy", run.code, run.lock) as ledger:
            assert ledger.status is not None and (ledger.status.state, ledger.status.updated) == (state, updated)
    else:
        assert session.drive(run.root, [], _setting(tmp_path)) == errors.EXIT_OK


def test_a_run_that_the_ledger_does_not_have_and_one_on_a_laptop_are_worked_on(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.Session, "_work_to_end", lambda self, *_: RunState.SUCCEEDED)
    assert session.drive(run.root, [], _setting(tmp_path)) == errors.EXIT_OK
    _recorded(run, _status(RunState.FAILED, BEGUN + 1))
    assert session.drive(run.root, [], Setting()) == errors.EXIT_OK
    _recorded(run, _status(RunState.FAILED, BEGUN + 1))
    run.submission.write_text(json.dumps({"submitted": 1.0}))
    assert session.drive(run.root, [], _setting(tmp_path)) == errors.EXIT_OK, "without a start there is no end of it"


def test_a_controller_whose_token_opens_nothing_waits_to_be_removed_and_then_for_another_one(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet starts it again, with what is in the Secret by then."""
    waited: list[float] = []

    def fenced(*_: Any, **__: Any) -> None:
        raise errors.LedgerFenced("the token opens it no longer")

    monkeypatch.setattr(session, "Ledger", fenced)
    monkeypatch.setattr(stopping, "wait_for_removal", waited.append)
    assert session.drive(run.root, [], _setting(tmp_path)) == errors.EXIT_PLATFORM
    assert waited == [session.REFUSED_PATIENCE]
    assert not run.status.exists(), "the run's end is what was recorded before"
    assert session.drive(run.root, [], Setting()) != errors.EXIT_OK
    assert len(waited) == 1, "on a laptop nobody brings another token"


@pytest.mark.parametrize("error", [errors.LedgerLocked("another has it"), errors.LedgerFenced("another has taken over")])
def test_what_another_controller_has_is_not_recorded_as_paused(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: errors.LedgerError
) -> None:
    def study(self: session.Session, *_: Any) -> RunState:
        raise error

    written: list[RunStatus] = []
    monkeypatch.setattr(session.Session, "_work_to_end", study)
    monkeypatch.setattr(session.Session, "_record_status", lambda self, status: written.append(status))
    assert session.drive(run.root, [], _setting(tmp_path)) == error.exit_code
    assert not [status for status in written if status.state is RunState.PAUSED] and not run.status.exists()


@pytest.mark.parametrize(("lost", "recorded"), [(True, False), (False, True)])
def test_an_error_after_the_loss_of_the_head_is_no_end_of_the_run(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool, recorded: bool
) -> None:
    """Another error is recorded, and is shown as why the run paused."""
    written: list[RunStatus] = []

    def study(self: session.Session, *_: Any) -> RunState:
        self._has_joined = True
        raise ValueError("the actor died")

    monkeypatch.setattr(session.Session, "_work_to_end", study)
    monkeypatch.setattr(session.Session, "_record_status", lambda self, status: written.append(status))
    monkeypatch.setattr(ray_session, "is_head_lost", lambda address, patience: lost)
    assert session.drive(run.root, [], _setting(tmp_path)) == errors.EXIT_PLATFORM
    assert [status.state for status in written] == [RunState.PAUSED] * recorded
    assert run.status.exists() == recorded


def test_what_is_recorded_is_of_this_start_though_the_clock_is_behind_the_operators(run: RunPaths, tmp_path: Path) -> None:
    run.submission.write_text(json.dumps({"submitted": 1.0, labels.BEGUN: 4_000_000_000.0}))
    now = session.Session(run, kinds.read(JOB), [], _setting(tmp_path))
    status = now._updated_after_start(now._status(RunState.SUCCEEDED, ""))
    assert status.updated == 4_000_000_000.0
    assert status.has_ended(4_000_000_000.0)


def test_a_signal_ends_a_controller_in_a_pod_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that waits to be removed; and nothing is recorded: the signal is the pod's, not the user's."""

    def pause() -> None:
        raise Waits

    monkeypatch.setattr(signal, "pause", pause)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        stopping.record_signals([])  # as Ray does with its own
        with pytest.raises(Waits):
            stopping.wait_for_removal()
        assert {signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} == {signal.SIG_DFL}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ExporterDouble:
    """Takes the place of an exporter's process, and keeps the ends that it gets.

    Attributes:
        ends: Ends, of all instances.
        trouble: No trouble.
    """

    ends: ClassVar[list[End]] = []
    trouble = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def send_end(self, end: End, trials: int = 0) -> None:
        self.ends.append(end)

    def close(self, *_: Any, **__: Any) -> bool:
        return True


@pytest.mark.parametrize("in_cluster", [True, False])
def test_only_in_a_pod_the_exporter_gets_the_status_with_which_it_stores_the_page(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> None:
    """On a laptop the prompt would wait for the page."""
    monkeypatch.setattr(ExporterDouble, "ends", [])
    monkeypatch.setattr(session, "ExporterProcess", ExporterDouble)
    monkeypatch.setattr(session.Session, "_run_loop", lambda *_: Ending(RunState.SUCCEEDED, "all trials ended", kill=False))
    assert session.drive(run.root, [], _setting(tmp_path) if in_cluster else Setting()) == errors.EXIT_OK
    (end,) = ExporterDouble.ends
    assert (end.state, end.reason) == (RunState.SUCCEEDED, "all trials ended")
    assert (end.status is not None) is in_cluster
    assert end.status is None or (end.status.run, end.status.state) == ("toy", RunState.SUCCEEDED)


@pytest.mark.parametrize(
    ("in_cluster", "while_recorded"),
    [(True, (RunState.RUNNING, RunState.SUCCEEDED)), (False, (RunState.SUCCEEDED, None))],
)
def test_a_run_says_how_it_ends_while_mlflow_gets_its_last_results(
    run: RunPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_cluster: bool,
    while_recorded: tuple[RunState, RunState | None],
) -> None:
    """In a pod it is RUNNING until then, so that another controller continues if this one is killed."""
    shown: list[RunStatus] = []
    monkeypatch.setattr(session, "ExporterProcess", ExporterDouble)
    monkeypatch.setattr(session.StatusBoard, "show", lambda self, status, **_: shown.append(status))
    monkeypatch.setattr(session.Session, "_run_loop", lambda *_: Ending(RunState.SUCCEEDED, "all trials ended", kill=False))
    session.drive(run.root, [], _setting(tmp_path) if in_cluster else Setting())
    (recorded,) = [status for status in shown if status.mlflow]
    assert (recorded.state, recorded.final_state) == while_recorded
    assert recorded.reason == shown[-1].reason == "all trials ended"
    assert (shown[-1].state, shown[-1].final_state, shown[-1].mlflow) == (RunState.SUCCEEDED, None, "")


@pytest.mark.parametrize("in_cluster", [True, False])
def test_a_run_whose_results_mlflow_lacks_has_its_own_reason_and_says_so_beside_it(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> None:
    shown: list[RunStatus] = []
    monkeypatch.setattr(session, "ExporterProcess", ExporterDouble)
    monkeypatch.setattr(ExporterDouble, "close", lambda *_, **__: False)
    monkeypatch.setattr(session.StatusBoard, "show", lambda self, status, **_: shown.append(status))
    monkeypatch.setattr(session.Session, "_run_loop", lambda *_: Ending(RunState.SUCCEEDED, "all trials ended", kill=False))
    assert session.drive(run.root, [], _setting(tmp_path) if in_cluster else Setting()) == errors.EXIT_OK
    last = shown[-1]
    assert (last.state, last.reason, last.unrecorded) == (RunState.SUCCEEDED, "all trials ended", True)
    assert last.mlflow == f"MLflow lacks some results (it is slow); `platform resume {run.root.name}` writes the rest"
