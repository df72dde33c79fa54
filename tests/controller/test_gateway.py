"""The gateway over a real PostgreSQL and real ledgers: what it says of living and ended runs, what it refuses, and that it
stays small.

Not checked here: the laptop's side (tests/client), and the way through the API server (tests/e2e).
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.conftest import Postgres, ask, complete, wait_until
from tests.controller.gateway_site import TOKEN, Site, postgres, site

from trialplane.controller import gateway as gateways
from trialplane.controller.gateway import Gateway
from trialplane.controller.status import StatusBoard
from trialplane.controller.store.archive import Archive
from trialplane.wire import attempts as reading
from trialplane.wire import cluster, paths, records
from trialplane.wire.attempts import Attempt
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import Desired, RunStatus, TrialOutcome, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

__all__ = ["postgres", "site"]  # fixtures


def test_a_living_run_and_an_ended_one(site: Site) -> None:
    with site.ledger("old", submitted=1.0) as old:
        old.tell(complete(ask(old)))
        ask(old)  # still running when its controller goes away
    with site.ledger("new", submitted=2.0) as new:
        ask(new)
        assert [(run["run"], run["job"], run["state"]) for run in site.get("/runs")] == [
            ("new", "toy", "RUNNING"),
            ("old", "toy", "RUNNING"),
        ]
        assert site.get("/runs/new/status")["alive"] is True
        wait_until(lambda: not site.get("/runs/old/status")["alive"], "PostgreSQL sees that the controller is gone")
        assert site.get("/runs/new/attempts")[0]["state"] == "RUNNING"
    found = [records.from_dict(TrialRow, row) for row in site.get("/runs/old/attempts")]
    assert [row.state for row in found] == [TrialState.COMPLETE, TrialState.LOST]
    assert found[0].values == (found[0].params["x"],)
    assert site.get("/runs/old/job")["sampler"]["name"] == "random"
    assert site.get("/runs/old/submission")["user"] == "ann"
    assert site.ask("GET", "/runs/old/code").data == b"\0\1\2"


def test_a_run_whose_controller_is_gone_is_paused_and_cancelled_as_desired(site: Site) -> None:
    """It has no controller that could come to say so."""
    with site.ledger("toy"):
        pass
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    assert site.get("/runs/toy/status")["status"]["state"] == "RUNNING"
    site.archive.desire("toy", {"state": RunState.PAUSED})
    status = site.get("/runs/toy/status")["status"]
    assert (status["state"], status["running"], status["eta"]) == ("PAUSED", 0, None)
    assert status["reason"] == "paused by the user; `platform resume toy` continues it"
    site.archive.desire("toy", {"state": RunState.CANCELLED, "parallel": None})
    status = site.get("/runs/toy/status")["status"]
    assert (status["state"], status["reason"]) == ("CANCELLED", "cancelled by the user")
    assert (status["running"], status["slots_ready"], status["nodes"], status["eta"]) == (0, 0, [], None)


def test_ends_are_told_once(site: Site) -> None:
    with site.ledger("toy") as ledger:
        place = site.get("/runs/toy/ends")["place"]
        told = []
        for _ in range(3):
            ledger.tell(complete(ask(ledger)))
            answer = site.get(f"/runs/toy/ends?after={place}")
            told += [row["trial"] for row in answer["rows"]]
            place = answer["place"]
        assert told == [0, 1, 2]
        assert site.get(f"/runs/toy/ends?after={place}") == {"place": place, "rows": []}


def test_what_an_export_reads_is_what_has_changed(site: Site) -> None:
    with site.ledger("toy") as ledger:
        first, second = ask(ledger), ask(ledger)
        ledger.tell(complete(second))
        answer = site.get("/runs/toy/whole?after=0")
        found = [records.from_dict(Attempt, attempt) for attempt in answer["attempts"]]
        assert (answer["alive"], [(one.request.number, one.place) for one in found]) == (True, [(0, None), (1, 1)])
        assert set(found[1].optuna["params"]) == {"x", "layers", "kind"}
        assert found[1].outcome is not None
        ledger.tell(complete(first))
        answer = site.get("/runs/toy/whole?after=1")
        assert [attempt["request"]["number"] for attempt in answer["attempts"]] == [0]
    wait_until(lambda: not site.get("/runs/toy/whole")["alive"], "PostgreSQL sees that the controller is gone")
    assert site.ask("GET", "/runs/none/whole").code == 404


def test_the_controllers_own_status_is_newer(postgres: Postgres, tmp_path: Path) -> None:
    run = RunPaths.of(tmp_path, "toy")
    run.root.mkdir(parents=True)
    board = StatusBoard(run)
    made = Site(postgres, tmp_path, status_url=f"http://127.0.0.1:{board.port}/status")
    try:
        with made.ledger("toy"):
            assert made.get("/runs/toy/status")["status"]["complete"] == 0
            board.show(RunStatus("toy", "toy", RunState.RUNNING, 6, complete=5))
            assert made.get("/runs/toy/status")["status"]["complete"] == 5
            board.show(RunStatus("other", "toy", RunState.RUNNING, 6, complete=4))
            assert made.get("/runs/toy/status")["status"]["complete"] == 0, "another run's controller is not believed"
        wait_until(lambda: not made.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
        board.show(RunStatus("toy", "toy", RunState.RUNNING, 6, complete=3))
        assert made.get("/runs/toy/status")["status"]["complete"] == 0, "nobody is asked about a run without a controller"
    finally:
        made.close()
        board.close()


@pytest.mark.parametrize("headers", [{}, {cluster.TOKEN_HEADER: "wrong"}, {cluster.TOKEN_HEADER: "ä"}])
def test_to_delete_needs_the_token(site: Site, headers: dict[str, str]) -> None:
    site.ledger("toy").close()
    assert site.ask("DELETE", "/runs/toy", **headers).code == 403
    assert len(site.get("/runs")) == 1


def test_the_desired_state_is_not_written_here(site: Site) -> None:
    """It is in the spec of a Run; a laptop of a former version is refused."""
    with site.ledger("toy") as ledger:
        for path in ("/runs/toy", "/runs/toy/desired"):
            assert site.ask("PUT", path, b"{}", **{cluster.TOKEN_HEADER: TOKEN}).code == 405
        assert ledger.desired() == Desired()


def test_a_gateway_without_a_token_changes_nothing(postgres: Postgres, tmp_path: Path) -> None:
    made = Site(postgres, tmp_path, token="")
    try:
        made.ledger("toy").close()
        assert made.ask("DELETE", "/runs/toy", **{cluster.TOKEN_HEADER: ""}).code == 403
    finally:
        made.close()


def test_a_run_is_deleted_whole_and_alone(site: Site) -> None:
    for name in ("toy", "other"):
        with site.ledger(name) as ledger:
            ledger.tell(complete(ask(ledger)))
            ledger.tell(TrialOutcome(ask(ledger).number, TrialState.FAILED, failure=FailureClass.ERROR))
            RunPaths.of(site.home, name).root.mkdir(parents=True)
            Path(paths.trial_checkpoints(str(site.checkpoints), name, 0)).mkdir(parents=True)
            if name == "toy":
                reply = site.delete("toy")
                assert reply.code == 409
                assert "platform cancel toy" in reply.json()["error"]
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    assert site.delete("toy").code == 200
    assert [run["run"] for run in site.get("/runs")] == ["other"]
    assert len(site.get("/runs/other/attempts")) == 2
    assert not RunPaths.of(site.home, "toy").root.exists()
    assert RunPaths.of(site.home, "other").root.exists()
    assert [folder.name for folder in site.checkpoints.iterdir()] == ["other"]
    database = site.url.split("/")[3].split("?")[0]
    assert site.postgres.execute("SELECT count(*) FROM attempts", database) == [(2,)]
    assert site.delete("toy").code == 404
    with site.ledger("toy") as again:
        assert again.counts.ended == 0, "the name is free"


def test_files_that_cannot_be_removed_are_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.ledger("toy").close()
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    log = RunPaths.of(site.home, "toy").controller_log
    log.parent.mkdir(parents=True)
    log.write_text("said")
    remove = os.unlink

    def refuse(path: str, **where: Any) -> None:  # root, as which tests may run, is refused nothing by a folder's mode
        if path == log.name:
            raise OSError(errno.EROFS, "Read-only file system", path)
        remove(path, **where)

    monkeypatch.setattr(os, "unlink", refuse)
    reply = site.delete("toy")
    assert reply.code == 500
    assert "toy is forgotten, but not all its files could be removed" in reply.json()["error"]
    assert f"{log}: Read-only file system" in reply.json()["error"]
    assert site.get("/runs") == []


@pytest.mark.parametrize(
    "path",
    [
        "/runs/unknown/status",
        "/runs/unknown/attempts",
        "/runs/unknown/log",
        "/runs/../status",
        "/runs/..%2F..%2Fetc/log",
        "/runs/%00/log",
        "/runs/a'b/status",
        "/nothing",
        "/runs/toy/nothing",
    ],
)
def test_what_is_not_there_is_404_with_a_word(site: Site, path: str) -> None:
    site.ledger("toy").close()
    reply = site.ask("GET", path)
    assert reply.code == 404
    assert reply.json()["error"]


def test_an_empty_database_has_no_runs(postgres: Postgres, tmp_path: Path) -> None:
    made = Site(postgres, tmp_path)
    try:
        postgres.execute("DROP SCHEMA public CASCADE", made.url.split("/")[3].split("?")[0])
        assert made.ask("GET", "/runs").code == 200
        assert made.ask("GET", "/runs/toy/status").code == 404
        assert made.delete("toy").code == 404
    finally:
        made.close()


def test_logs_are_read_in_pieces(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "PIECE", 4)
    run = RunPaths.of(site.home, "toy")
    with site.ledger("toy") as ledger:
        request = ask(ledger)
        log = run.trial_log(0, 1)
        log.parent.mkdir(parents=True)
        log.write_text("one two")
        run.controller_log.write_text("said")
        first = site.ask("GET", "/runs/toy/log?trial=0")
        assert (first.data, first.headers["x-trialplane-next"], first.headers["x-trialplane-growing"]) == (b"one ", "4", "1")
        rest = site.ask("GET", "/runs/toy/log?trial=0&attempt=1&from=4")
        assert (rest.data, rest.headers["x-trialplane-next"], rest.headers["x-trialplane-growing"]) == (b"two", "7", "1")
        ledger.tell(complete(request))
        rest = site.ask("GET", "/runs/toy/log?trial=0&from=4")
        assert rest.headers["x-trialplane-growing"] == "0"
        assert site.ask("GET", "/runs/toy/log?trial=0").headers["x-trialplane-growing"] == "1", "there is more to read"
        assert site.ask("GET", "/runs/toy/log?from=99").headers["x-trialplane-growing"] == "1"
    said = wait_until(
        lambda: (r := site.ask("GET", "/runs/toy/log")).headers["x-trialplane-growing"] == "0" and r, "its end"
    )
    assert said.data == b"said"
    worker = run.trial_log(0, 1, worker=2)
    worker.write_text("played")
    assert site.ask("GET", "/runs/toy/log?trial=0&worker=2&from=4").data == b"ed"
    assert "worker 1, is not there" in site.ask("GET", "/runs/toy/log?trial=0&worker=1").json()["error"]
    assert site.ask("GET", "/runs/toy/log?trial=5").code == 404
    assert site.ask("GET", "/runs/toy/log?trial=x").code == 400
    log.unlink()
    assert "artifact of the MLflow run" in site.ask("GET", "/runs/toy/log?trial=0").json()["error"]


def test_the_log_of_a_trial_reads_the_attempts_at_that_trial_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll of one log must not take what a study of 100,000 trials is made of."""
    run, read = RunPaths.of(site.home, "toy"), []
    odd = {"type": "categorical", "choices": ["\0", '"trial": 1,']}  # neither must lead the choice astray
    with site.ledger("toy", space={"x": odd}) as ledger:
        for request in [ask(ledger) for _ in range(4)]:
            lost = TrialOutcome(request.number, TrialState.FAILED, failure=FailureClass.LOST)
            ledger.tell(lost if request.trial == 1 else complete(request, score=0.5))
        again = ask(ledger)
        assert (again.trial, again.attempt, again.number) == (1, 2, 4)
        for attempt in (1, 2):
            log = run.trial_log(1, attempt)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"attempt {attempt}")
        row = reading.row
        monkeypatch.setattr(reading, "row", lambda *found: read.append(row(*found)) or read[-1])
        assert site.ask("GET", "/runs/toy/log?trial=1").data == b"attempt 2"
        assert site.ask("GET", "/runs/toy/log?trial=1&attempt=1").data == b"attempt 1"
        assert {attempt.trial for attempt in read} == {1}
        assert site.ask("GET", "/runs/toy/log?trial=1&attempt=3").code == 404
        assert site.ask("GET", "/runs/toy/log?trial=99999999999").code == 404


def test_whether_a_training_has_saved_a_checkpoint(site: Site, postgres: Postgres, tmp_path: Path) -> None:
    site.ledger("toy").close()
    folder = Path(paths.trial_checkpoints(str(site.checkpoints), "toy", 0))
    assert site.get("/runs/toy/checkpoints") == {"saved": False}
    (folder / ".step-0000000004.saving").mkdir(parents=True)
    assert site.get("/runs/toy/checkpoints") == {"saved": False}
    (folder / "step-0000000004").mkdir()
    assert site.get("/runs/toy/checkpoints") == {"saved": True}
    assert site.ask("GET", "/runs/other/checkpoints").code == 404
    nowhere = Gateway(Archive(site.url), TOKEN, tmp_path, "http://127.0.0.1:9/{run}")
    reply = nowhere.answer("GET", "/runs/toy/checkpoints", {})
    assert (reply.code, json.loads(reply.body)) == (404, {"error": "checkpoints are on no volume here"})


def test_a_body_is_bounded(site: Site) -> None:
    site.ledger("toy").close()
    assert site.ask("DELETE", "/runs/toy", b"x" * 10_000, **{cluster.TOKEN_HEADER: TOKEN}).code == 413
    assert site.ask("GET", "/health", **{"Content-Length": "-1"}).code == 413


def test_a_database_that_is_away_is_said_and_survived(site: Site) -> None:
    site.ledger("toy").close()
    site.postgres.stop()
    try:
        reply = site.ask("GET", "/runs")
        assert reply.code == 503
        assert "does not answer" in reply.json()["error"]
        assert site.ask("GET", "/health").code == 200
    finally:
        site.postgres.start()
    assert len(site.get("/runs")) == 1


def test_a_ledger_of_a_later_version_is_said(site: Site) -> None:
    site.ledger("toy").close()
    site.postgres.execute("UPDATE schema_version SET version = 99", site.url.split("/")[3].split("?")[0])
    reply = site.ask("GET", "/runs/toy/attempts")
    assert (reply.code, "later trialplane" in reply.json()["error"]) == (503, True)


@pytest.mark.slow
def test_800_attempts_are_read_quickly(site: Site) -> None:
    with site.ledger("toy", trials=800) as ledger:
        while (request := ledger.ask()) is not None:
            ledger.tell(complete(request))
    began = time.perf_counter()
    assert len(site.get("/runs/toy/attempts")) == 800
    print(f"800 attempts: {time.perf_counter() - began:.3f} s")  # noqa: T201  for the benchmark's reader


def test_it_stays_small() -> None:
    code = "import sys, trialplane.controller.gateway; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"optuna", "ray", "mlflow", "torch", "numpy", "pandas"}
