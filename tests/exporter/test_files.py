"""Files on their way to MLflow, against a store of artifacts that refuses, is busy or is away: they hold nothing else up.

Not checked here: which files a run gets (test_exporter).
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from tests.controller.conftest import outcome, request
from tests.exporter.conftest import DONE, Place

from trialplane.exporter import files
from trialplane.exporter.__main__ import Export
from trialplane.exporter.batch import Artifact
from trialplane.exporter.exporter import Exporter
from trialplane.exporter.files import Files
from trialplane.wire import env, labels, logs, records
from trialplane.wire.exports import Copy, Order
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

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # as a controller has it for its exporter
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        made.uri = f"http://127.0.0.1:{server.server_port}/api/2.0/mlflow-artifacts/artifacts/toy"
        place.client.create_experiment("toy", artifact_location=made.uri)
        yield made
        server.shutdown()
        serving.join()


def fail(place: Place, number: int) -> None:
    """A trial that fails and so leaves its log."""
    log = place.run.trial_log(number, number + 1)
    log.parent.mkdir(parents=True)
    log.write_text("all of it")
    tried = request(number, attempt=number + 1)
    place.begin(tried)
    place.end(tried, outcome(number, state=TrialState.FAILED, failure=FailureClass.ERROR))


def write(exporter: Exporter, attempts: int = 1000) -> None:
    """Write all that the ledger has, and files as often as it is said, without the pauses between attempts."""
    while exporter.advance():
        pass
    for _ in range(attempts):
        exporter.files._next_time = 0.0
        if not exporter.files.send():
            break
    exporter.advance()


@pytest.fixture
def failed(place: Place, store: Store) -> Place:
    """A study of two trials that left their logs, attempt-1.log and attempt-2.log."""
    for number in (0, 1):
        fail(place, number)
    return place


def exported(place: Place) -> int:
    """The place of the last end whose files are in MLflow, as noted there."""
    (parent,) = place.runs("study")
    noted = json.loads(parent.data.tags.get(labels.EXPORTED, "{}"))
    return int(noted["ends"]["end_number"]) if noted else 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its lock is held until the process ends
def test_files_do_not_wait_for_the_pause_between_reads(failed: Place, store: Store) -> None:
    with Path(os.devnull).open("wb") as answers:
        export = Export(failed.run, Order(failed.ledger), failed.uri, answers.fileno())
        assert export.advance(time.monotonic() + 60.0) == 0.0
    assert store.took() == ["attempt-1.log", "attempt-2.log", "job.json"]


@pytest.mark.parametrize("status", [400, 403, 404, 413])
def test_a_file_that_is_refused_holds_nothing_up(
    failed: Place, store: Store, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store.refusals["attempt-1.log"] = status
    exporter = failed.exporter()
    write(exporter, attempts=10)
    assert store.took() == ["attempt-2.log", "job.json"]
    assert {run.info.status for run in failed.runs()} == {"FAILED"}
    assert exporter.files.pending == 0
    log = str(failed.run.trial_log(0, 1))
    assert capsys.readouterr().err.count(log) == 1
    assert str(status) in exporter.files.trouble


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_file_waits_for_a_store_that_is_away_and_nothing_waits_for_the_file(
    failed: Place, store: Store, status: int
) -> None:
    store.refusals["attempt-1.log"] = status
    exporter = failed.exporter()
    write(exporter, attempts=10)
    assert store.took() == ["attempt-2.log", "job.json"]
    assert {run.info.status for run in failed.runs()} == {"FAILED"}
    assert exporter.files.trouble.startswith("1 file has not reached MLflow yet and will be retried: ")
    exporter.set_end(DONE)
    assert not exporter.close()
    assert exported(failed) == 0, "an end is noted when its files are there"

    store.refusals.clear()
    exporter = failed.exporter()
    write(exporter)
    assert store.took() == ["attempt-1.log", "attempt-2.log", "job.json"], "the next exporter knows of it"
    assert (exporter.files.pending, exporter.files.trouble) == (0, "")
    assert exported(failed) == 2


def test_the_reason_for_a_file_that_was_given_up_stays_while_others_arrive(failed: Place, store: Store) -> None:
    store.refusals.update({"attempt-1.log": 413, "attempt-2.log": 503})
    exporter = failed.exporter()
    write(exporter, attempts=10)
    del store.refusals["attempt-2.log"]
    write(exporter)
    assert exporter.files.pending == 0
    assert "413" in exporter.files.trouble
    assert "503" not in exporter.files.trouble


def test_a_file_that_never_comes_through_is_given_up_alone(
    failed: Place, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.refusals["attempt-1.log"] = 500
    exporter = failed.exporter()
    write(exporter)
    assert store.took() == ["attempt-2.log", "job.json"]
    assert exporter.files.pending == 0
    assert capsys.readouterr().err.count(str(failed.run.trial_log(0, 1))) == 1
    assert exported(failed) == 2


def test_a_store_that_stays_away_gets_one_attempt_for_what_comes_later(failed: Place, store: Store) -> None:
    store.refusals.update({"job.json": 503, "attempt-1.log": 503, "attempt-2.log": 503, "attempt-3.log": 503})
    exporter = failed.exporter()
    write(exporter, attempts=files.TRIES)
    assert exporter.files.pending == 0
    assert "3 files" in exporter.files.trouble
    fail(failed, 2)
    write(exporter, attempts=1)
    assert exporter.files.pending == 0
    store.refusals.clear()
    fail(failed, 3)
    write(exporter)
    assert store.took() == ["attempt-4.log"]


def test_an_mlflow_that_is_away_costs_a_file_none_of_its_attempts(
    failed: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = failed.exporter()
    while exporter.advance():
        pass

    def away(*_: Any, **__: Any) -> None:
        raise MlflowException("nobody answers")

    with monkeypatch.context() as broken:
        for call in ("get_run", "log_artifact"):
            broken.setattr(exporter.client, call, away)
        for _ in range(2 * files.TRIES):
            with pytest.raises(MlflowException):
                exporter.files.send()
    write(exporter)
    assert store.took() == ["attempt-1.log", "attempt-2.log", "job.json"]


class Once(dict[str, int]):
    """Statuses of which each is answered only once."""

    def get(self, name: str, default: int) -> int:  # type: ignore[override]
        return self.pop(name, default)


def test_the_export_of_a_copy_pauses_while_a_file_waits(place: Place, store: Store) -> None:
    store.refusals = Once({"job.json": 503})
    exported = subprocess.run(
        [sys.executable, "-P", "-m", "trialplane.exporter", str(place.run.root)],
        input=f"{records.to_json(Order(copy=Copy((), ()), end=DONE))}\n",
        env={**os.environ, env.MLFLOW_TRACKING_URI: place.uri},
        capture_output=True,
        text=True,
        check=True,
    )
    assert store.took() == ["job.json"]
    rounds = exported.stdout.splitlines()
    assert any("will be retried" in line for line in rounds)
    assert len(rounds) < 50, "ten in the second before the next try"


def test_only_a_log_is_cut(place: Place, store: Store, tmp_path: Path) -> None:
    run_id = place.client.create_run(place.experiment).info.run_id
    content = b"begin" + b"x" * logs.ARTIFACT_BYTES
    for name in ("model.log", "attempt.log"):
        (tmp_path / name).write_bytes(content)
    sent = Files(place.client)
    sent.add([(run_id, Artifact("", str(tmp_path / "model.log")))])
    sent.add([(run_id, Artifact("logs", str(tmp_path / "attempt.log"), "log"))])
    while sent.send():
        pass
    taken = {path.rpartition("/")[2]: body for path, body in store.files.items()}
    assert taken["model.log"] == content
    assert taken["attempt.log"] == logs.notice(5) + content[5:]
