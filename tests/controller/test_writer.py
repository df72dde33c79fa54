"""What the MLflow writer makes of lost answers, lost files and damaged lines: each trial once, and nothing left out.

It runs in the test's process, over a real store. Not checked here: the process and its recorder (test_recorder).
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from tests.controller.conftest import FACTS, Place, outcome, play, request, wait_until

from trialplane.controller.mlflow_writer import Writer
from trialplane.wire import labels

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_uri() -> Iterator[None]:
    """A writer sets the process's tracking URI."""
    yield
    mlflow.set_tracking_uri(None)


def ledger(trials: int) -> Any:
    """One that has so many trials, each with the outcome that `play` records."""
    attempts = [(request(number), outcome(number, metrics={"score": 0.5, "loss": 0.25}, step=2)) for number in range(trials)]
    return SimpleNamespace(attempts=lambda: iter(attempts))


def numbers(place: Place) -> list[int]:
    """The ledger's numbers of the attempts that MLflow has as ended, in order."""
    return sorted(int(run.data.tags[labels.NUMBER]) for run in place.runs() if run.info.status == "FINISHED")


def begun(place: Place) -> Writer:
    """A writer of a spool with a study and its first trial, of which MLflow has nothing yet."""
    spool = place.spooler()
    spool.study(FACTS)
    play(spool, 0)
    return place.writer()


def test_a_study_whose_creation_nobody_answered_is_found_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun(place)
    create = writer._client.create_run

    def lost(*arguments: Any, **options: Any) -> Any:
        create(*arguments, **options)
        raise MlflowException("the answer did not come")

    with monkeypatch.context() as broken, pytest.raises(MlflowException):
        broken.setattr(writer._client, "create_run", lost)
        writer.write()
    assert writer.write()
    assert len(place.runs("study")) == 1
    with monkeypatch.context() as broken, pytest.raises(MlflowException):
        broken.setattr(writer._client, "create_run", lost)
        writer._create_trial(1, "trial-0001")
    assert writer._find(1), "the next try takes it"
    assert numbers(place) == [0]


def test_runs_that_mlflow_made_late_are_deleted_at_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun(place)
    create = writer._client.create_run

    def twice(*arguments: Any, **options: Any) -> Any:
        create(*arguments, **options)
        return create(*arguments, **options)

    monkeypatch.setattr(writer._client, "create_run", twice)
    assert writer.write()
    assert len(place.runs("study")) == 2
    (experiment,) = {run.info.experiment_id for run in place.runs()}
    made = place.client.search_runs([experiment], f"tags.`{labels.NUMBER}` = '0'")
    assert len(made) == 2
    place.run.written.unlink()  # with the disk of a pod
    writer = place.writer(look=True)
    while writer.write():
        pass
    writer.close()
    (study,) = place.runs("study")
    (trial,) = place.client.search_runs([experiment], f"tags.`{labels.NUMBER}` = '0'")
    assert study.data.params == {"trials": "24", "sampler": "tpe"}
    assert trial.data.tags[labels.PARENT] == study.info.run_id


class Forgetful(http.server.BaseHTTPRequestHandler):
    """An MLflow that loses its answer to each `create_run`, and has none of those runs."""

    asked: list[str]

    def do_GET(self) -> None:
        self._answer({"experiment": {"experiment_id": "1", "name": "toy"}})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(self.path.rpartition("/")[2])
        if self.path.endswith("/create"):
            self.close_connection = True
        else:
            self._answer({})

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal."""


def test_no_run_is_asked_for_again_before_it_was_looked_for(place: Place) -> None:
    handler = type("Handler", (Forgetful,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            recorder = place.recorder(f"http://127.0.0.1:{server.server_port}")
            recorder.study(FACTS)
            wait_until(lambda: recorder.tick() or handler.asked.count("create") >= 2, "the writer tries again")
        finally:
            server.shutdown()
            serving.join()
    assert handler.asked[:3] == ["create", "search", "create"]


@pytest.mark.parametrize("trials", [2, 8], ids=["shorter", "longer"])
def test_a_spool_that_lost_its_end_in_a_power_cut_is_written_again(place: Place, trials: int) -> None:
    """Also when it is longer by now than what the journal says."""
    spool = place.spooler()
    spool.study(FACTS)
    for number in range(4):
        play(spool, number)
    offset = place.written().offset
    spool._spool.close()
    lines = place.run.events.read_bytes().splitlines(keepends=True)
    place.run.events.write_bytes(b"".join(lines[:4]))  # the first trial had not ended
    spool = place.spooler()
    spool.study(FACTS)
    assert spool.catch_up(ledger(trials).attempts()) == trials
    assert (place.run.events.stat().st_size > offset) == (trials == 8)
    assert place.written().offset == place.run.events.stat().st_size
    assert numbers(place) == list(range(max(4, trials)))
    for number in range(4):
        assert place.history(place.trial(number))["score"] == [(0, 0.0), (1, 0.25), (2, 0.5), (2, 0.5)]
    assert len(place.runs("study")) == 1


def test_a_spool_that_is_whole_is_not_written_again(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    spool = place.spooler()
    spool.study(FACTS)
    play(spool, 0)
    offset = place.written().offset
    play(spool, 1)
    assert place.writer().offset == offset
    assert capsys.readouterr().err == ""


def test_damaged_lines_of_the_spool_are_set_aside_and_the_study_goes_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    spool = place.spooler()
    spool.study(FACTS)
    for number in range(3):
        play(spool, number)
    spool._spool.close()
    lines = place.run.events.read_bytes().splitlines(keepends=True)
    for index, bad in ((1, b"\0" * (len(lines[1]) - 1) + b"\n"), (4, b"[]\n"), (10, b'{"kind": "ended"}\n')):
        lines[index] = bad
    place.run.events.write_bytes(b"".join(lines))

    spool = place.spooler()
    assert [spool.has("started", number) for number in range(3)] == [False, True, True]
    assert [spool.has("ended", number) for number in range(3)] == [False, False, True], "no end without its start"
    assert place.run.damaged_events.read_bytes() == lines[1] + lines[4] + lines[10]
    (record,) = caplog.records
    assert str(place.run.damaged_events) in record.getMessage()
    caplog.clear()
    assert spool.catch_up(ledger(3).attempts()) == 2
    spool._spool.close()
    place.spooler()
    assert caplog.records == [], "they are set aside once"
    place.written()
    assert numbers(place) == [0, 1, 2]


def test_damaged_lines_of_the_journal_cost_no_more_than_what_they_said(place: Place) -> None:
    spool = place.spooler()
    spool.study(FACTS)
    play(spool, 0)
    place.written()
    with place.run.written.open("ab") as journal:
        journal.write(b'\0\0\0\n7\n[["list"], 1, 2]\n["run"')
    play(spool, 1)
    place.written()
    assert numbers(place) == [0, 1]


def test_a_run_that_the_job_itself_ended_is_not_whole_before_ours_is_in_it(place: Place) -> None:
    """The head's disk was lost before the outcome was written."""
    spool = place.spooler()
    spool.study(FACTS)
    play(spool, 0)
    spool.started(request(1), uses_mlflow=False)
    place.written(look=True)
    assert labels.RECORDED in place.trial(0).data.tags
    place.client.set_terminated(place.trial(1).info.run_id, "FINISHED")  # as `mlflow.end_run` does
    spool._spool.close()
    place.run.events.unlink()
    place.run.written.unlink()

    spool = place.spooler()
    spool.study(FACTS)
    assert spool.catch_up(ledger(2).attempts()) == 2
    place.written(look=True)
    assert len(place.runs()) == 2
    trial = place.trial(1)
    assert trial.data.metrics["loss"] == 0.25
    assert (trial.data.tags[labels.STATE], trial.info.end_time) == ("COMPLETE", 2_003_000)
