"""Files on their way to MLflow, against a store of artifacts that refuses, is busy or is away: they hold nothing else up.

Not checked here: which files a run gets (test_recorder, test_places).
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from tests.controller.conftest import FACTS, Place, Spooler, outcome, request, wait_until

from trialplane.controller import artifacts
from trialplane.controller.batch import Artifact
from trialplane.controller.mlflow_writer import Writer
from trialplane.wire import labels, logs
from trialplane.wire.states import FailureClass, TrialState

pytestmark = pytest.mark.slow


class Store:
    """A store of artifacts; `refusals` says with which status it answers for which name, `files` what it took."""

    def __init__(self) -> None:
        self.refusals: dict[str, int] = {}
        self.files: dict[str, bytes] = {}
        self.uri = ""

    def took(self) -> list[str]:
        """The names of the files in it."""
        return sorted(path.rpartition("/")[2] for path in self.files)


@pytest.fixture
def store(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """One that the experiment's runs put their files into."""
    made = Store()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = made.refusals.get(self.path.rpartition("/")[2], 200)
            if status == 200:
                made.files[self.path] = body
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing on the terminal."""

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # as the recorder has it for its writer
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        made.uri = f"http://127.0.0.1:{server.server_port}/api/2.0/mlflow-artifacts/artifacts/toy"
        place.client.create_experiment("toy", artifact_location=made.uri)
        yield made
        server.shutdown()
        serving.join()
    mlflow.set_tracking_uri(None)  # which a writer sets


def fail(place: Place, spool: Spooler, number: int) -> None:
    """A trial that fails and so leaves its log."""
    log = place.run.trial_log(number, number + 1)
    log.parent.mkdir(parents=True)
    log.write_text("all of it")
    tried = request(number, attempt=number + 1)
    spool.started(tried, uses_mlflow=False)
    spool.ended(tried, outcome(number, state=TrialState.FAILED, failure=FailureClass.ERROR))


def write(writer: Writer, attempts: int = 1000) -> None:
    """Writes all events, and files as often as it is said, without the pauses between attempts."""
    while writer.write():
        pass
    for _ in range(attempts):
        writer.artifacts._due = 0.0
        if not writer.artifacts.send():
            break


@pytest.fixture
def spool(place: Place, store: Store) -> Spooler:
    """A study of two trials that left their logs, attempt-1.log and attempt-2.log."""
    made = place.spooler()
    made.study(FACTS)
    for number in (0, 1):
        fail(place, made, number)
    return made


@pytest.mark.parametrize("status", [400, 403, 404, 413])
def test_a_file_that_is_refused_holds_nothing_up(
    place: Place, spool: Spooler, store: Store, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store.refusals["attempt-1.log"] = status
    writer = place.writer()
    write(writer, attempts=10)
    assert writer.offset == spool._spool.tell()
    assert store.took() == ["attempt-2.log", "job.json"]
    assert {run.info.status for run in place.runs()} == {"FAILED"}
    assert writer.artifacts.left == 0
    log = str(place.run.trial_log(0, 1))
    assert capsys.readouterr().err.count(log) == 1
    assert str(status) in writer.artifacts.trouble


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_file_waits_for_a_store_that_is_away_and_nothing_waits_for_the_file(
    place: Place, spool: Spooler, store: Store, status: int
) -> None:
    store.refusals["attempt-1.log"] = status
    writer = place.writer(look=True)
    write(writer, attempts=10)
    assert writer.offset == spool._spool.tell()
    assert store.took() == ["attempt-2.log", "job.json"]
    assert {run.info.status for run in place.runs()} == {"FAILED"}
    assert writer.artifacts.trouble.startswith("1 file has not reached MLflow yet and will be retried: ")
    recorded = [labels.RECORDED in place.trial(number).data.tags for number in (0, 1)]
    assert recorded == [False, True], "a run is marked when it has its files"

    writer._journal._file.close()
    store.refusals.clear()
    writer = place.writer(look=True)
    assert writer.artifacts.left == 1, "the next writer knows of it"
    write(writer)
    assert store.took() == ["attempt-1.log", "attempt-2.log", "job.json"]
    assert writer.progress == {"done": spool._spool.tell(), "left": 0, "trouble": ""}


def test_a_file_that_never_comes_through_is_given_up_alone(
    place: Place, spool: Spooler, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.refusals["attempt-1.log"] = 500
    writer = place.writer(look=True)
    write(writer)
    assert store.took() == ["attempt-2.log", "job.json"]
    assert writer.artifacts.left == 0
    assert capsys.readouterr().err.count(str(place.run.trial_log(0, 1))) == 1
    assert labels.RECORDED in place.trial(0).data.tags


def test_a_store_that_stays_away_gets_one_attempt_for_what_comes_later(place: Place, spool: Spooler, store: Store) -> None:
    store.refusals.update({"job.json": 503, "attempt-1.log": 503, "attempt-2.log": 503, "attempt-3.log": 503})
    writer = place.writer()
    write(writer, attempts=artifacts.TRIES)
    assert writer.artifacts.left == 0
    assert "3 files" in writer.artifacts.trouble
    fail(place, spool, 2)
    write(writer, attempts=1)
    assert writer.artifacts.left == 0
    store.refusals.clear()
    fail(place, spool, 3)
    write(writer)
    assert store.took() == ["attempt-4.log"]


def test_an_mlflow_that_is_away_costs_a_file_none_of_its_attempts(
    place: Place, spool: Spooler, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = place.writer()
    while writer.write():
        pass

    def away(*_: Any, **__: Any) -> None:
        raise MlflowException("nobody answers")

    with monkeypatch.context() as broken:
        for call in ("get_run", "log_artifact"):
            broken.setattr(writer._client, call, away)
        for _ in range(2 * artifacts.TRIES):
            with pytest.raises(MlflowException):
                writer.artifacts.send()
    write(writer)
    assert store.took() == ["attempt-1.log", "attempt-2.log", "job.json"]


def test_only_a_log_is_cut(place: Place, store: Store, tmp_path: Path) -> None:
    place.run.spool.mkdir()
    writer = place.writer()
    writer._ensure_parent()
    run_id = writer._create_trial(0, "trial-0000")
    content = b"begin" + b"x" * logs.KEPT
    for name in ("model.log", "attempt.log"):
        (tmp_path / name).write_bytes(content)
    files = [Artifact("", str(tmp_path / "model.log")), Artifact("logs", str(tmp_path / "attempt.log"), "log")]
    writer.artifacts.add(run_id, files, is_last=False)
    write(writer)
    taken = {path.rpartition("/")[2]: body for path, body in store.files.items()}
    assert taken["model.log"] == content
    assert taken["attempt.log"] == logs.notice(5) + content[5:]


def test_a_recorder_waits_for_files_and_says_what_was_left_out(place: Place, store: Store) -> None:
    store.refusals["job.json"] = 503
    recorder = place.recorder()
    recorder.study(FACTS)
    wait_until(lambda: recorder.tick() or recorder.trouble, "the store has not taken the file")
    wait_until(lambda: recorder.tick() or not recorder.behind, "the event is in MLflow all the same")
    assert "1 file" in recorder.trouble
    store.refusals["job.json"] = 413
    assert recorder.close(60)
    assert "413" in recorder.trouble
    assert str(place.run.job) in place.run.controller_log.read_text()
