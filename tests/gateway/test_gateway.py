"""The gateway over a real PostgreSQL and real ledgers: what it says of living and ended runs, what it refuses, and that it
stays small.

Not checked here: the laptop's side (tests/client), and the way through the API server (tests/e2e).
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.contracts.conftest import Postgres, ask, complete, wait_until
from tests.gateway.gateway_site import STRANGER, VIEWER, Site, postgres, site

from trialplane.controller.status import StatusBoard
from trialplane.ledger.attempts import Attempt
from trialplane.wire import labels, records
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
        assert [(run["run"], run["job"]) for run in site.get("/runs")] == [("new", "toy"), ("old", "toy")]
        assert site.get("/runs/new/status")["alive"] is True
        wait_until(lambda: not site.get("/runs/old/status")["alive"], "PostgreSQL sees that the controller is gone")
        assert site.get("/runs/new/attempts")["rows"][0]["state"] == "RUNNING"
    found = [records.from_dict(TrialRow, row) for row in site.get("/runs/old/attempts")["rows"]]
    assert [row.state for row in found] == [TrialState.COMPLETE, TrialState.LOST]
    assert found[0].values == (found[0].params["x"],)
    assert site.get("/runs/old/job")["sampler"]["name"] == "random"
    assert site.get("/runs/old/submission")["user"] == "ann"
    assert site.ask("GET", "/runs/old/code").data == b"\0\1\2"


def test_a_status_has_the_digests_that_the_operator_kept(site: Site) -> None:
    with site.ledger("toy"):
        assert site.get("/runs/toy/status")["status"]["images"] == {}
        site.archive.add_images("toy", [("a:1", "sha256:1")])
        status = records.from_dict(RunStatus, site.get("/runs/toy/status")["status"])
    assert (status.images, records.mistyped_field(status)) == ({"a:1": ("sha256:1",)}, "")


def test_the_trials_of_a_killed_controller_are_counted_by_the_ledger(site: Site) -> None:
    with site.ledger("toy") as ledger:
        ledger.tell(complete(ask(ledger)))
        assert site.get("/runs/toy/status")["status"]["complete"] == 0, "as its controller said last"
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    status = site.get("/runs/toy/status")["status"]
    assert (status["complete"], status["best"]["trial"]) == (1, 0)


def test_a_run_whose_controller_is_gone_is_paused_and_cancelled_as_desired(site: Site) -> None:
    """It has no controller that could come to say so."""
    with site.ledger("toy"):
        pass
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    assert site.get("/runs/toy/status")["status"]["state"] == "RUNNING"
    site.archive.change_desired("toy", {"state": RunState.PAUSED})
    status = site.get("/runs/toy/status")["status"]
    assert (status["state"], status["running"], status["eta"]) == ("PAUSED", 0, None)
    assert status["reason"] == "paused by the user; `platform resume toy` continues it"
    site.archive.change_desired("toy", {"state": RunState.CANCELLED, "parallel": None})
    status = site.get("/runs/toy/status")["status"]
    assert (status["state"], status["reason"]) == ("CANCELLED", "cancelled by the user")
    assert (status["running"], status["slots_ready"], status["nodes"], status["eta"]) == (0, 0, [], None)


def test_ends_are_told_once(site: Site) -> None:
    with site.ledger("toy") as ledger:
        end_number = site.get("/runs/toy/ends")["end_number"]
        told = []
        for _ in range(3):
            ledger.tell(complete(ask(ledger)))
            answer = site.get(f"/runs/toy/ends?after={end_number}")
            told += [row["trial"] for row in answer["rows"]]
            end_number = answer["end_number"]
        assert told == [0, 1, 2]
        assert site.get(f"/runs/toy/ends?after={end_number}") == {"end_number": end_number, "rows": [], "next": None}


def test_what_an_export_reads_is_what_has_changed(site: Site) -> None:
    with site.ledger("toy") as ledger:
        first, second = ask(ledger), ask(ledger)
        ledger.tell(complete(second))
        answer = site.get("/runs/toy/whole?after=0")
        found = [records.from_dict(Attempt, attempt) for attempt in answer["attempts"]]
        assert (answer["alive"], [(one.request.number, one.end_number) for one in found]) == (True, [(0, None), (1, 1)])
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
    made = Site(postgres, tmp_path, controllers=f"http://127.0.0.1:{board.port}")
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


def test_a_controller_that_has_written_no_status_yet_is_not_shown_with_one_of_an_earlier_start(site: Site) -> None:
    with site.ledger("toy") as ledger:
        known = records.from_dict(RunStatus, site.get("/runs/toy/status")["status"])
        ledger.write_facts({labels.LEDGER_SUBMISSION: {labels.BEGUN: known.updated + 1}})
        answer = site.get("/runs/toy/status")
        status = records.from_dict(RunStatus, answer["status"])
        assert (answer["alive"], status.state, status.running, status.nodes) == (True, RunState.PENDING, 0, ())
        ledger.write_facts({labels.LEDGER_STATUS: records.to_dict(dataclasses.replace(known, updated=known.updated + 1))})
        assert site.get("/runs/toy/status")["status"]["running"] == known.running == 2


EVERYTHING = [
    *(("GET", f"/runs/toy/{what}") for what in ("status", "job", "submission", "code", "attempts", "ends", "whole", "log")),
    ("GET", "/runs"),
    ("GET", "/runs/toy/checkpoints"),
    ("DELETE", "/runs/toy"),
]


@pytest.mark.parametrize(("token", "code"), [("", 403), ("wrong", 403), ("ä", 403), ("not.a.user", 401)])
def test_nothing_but_its_health_is_for_those_it_does_not_know(site: Site, token: str, code: int) -> None:
    site.ledger("toy").close()
    for method, path in EVERYTHING:
        reply = site.ask(method, path, token=token)
        assert (reply.code, b"toy" in reply.data) == (code, False), path
    assert site.ask("GET", "/health", token=token).code == 200
    assert len(site.get("/runs")) == 1


def test_a_user_sees_the_runs_of_one_namespace(site: Site) -> None:
    site.ledger("toy").close()
    refused = site.ask("GET", "/runs", token=STRANGER)
    assert refused.code == 403
    assert refused.json()["error"] == "the runs in studies are for its users, and your token is of other"
    for method, path in EVERYTHING:
        if "toy" in path:
            reply = site.ask(method, path, token=STRANGER)
            other = site.ask(method, path.replace("toy", "none"))
            told = reply.data.replace(b"toy", b"none")
            assert (reply.code, told) == (404, other.data), "as for a run that there is not"
    assert len(site.get("/runs")) == 1


def test_the_desired_state_is_not_written_here(site: Site) -> None:
    """It is in the spec of a Run."""
    with site.ledger("toy") as ledger:
        for path, code in (("/runs/toy", 405), ("/runs/toy/desired", 404)):
            assert site.ask("PUT", path, b"{}").code == code
        assert ledger.read_desired() == Desired()


def test_who_only_views_reads_and_deletes_nothing(site: Site) -> None:
    with site.ledger("toy"):
        pass
    assert [one["run"] for one in site.ask("GET", "/runs", token=VIEWER).json()] == ["toy"]
    assert site.ask("GET", "/runs/toy/status", token=VIEWER).code == 200
    refused = site.ask("DELETE", "/runs/toy", token=VIEWER)
    assert refused.code == 403
    assert refused.json()["error"] == "you may view the runs of studies and delete none; ask one of its users"
    assert site.archive.removal_marks() == {}


def test_a_run_is_deleted_whole_and_alone(site: Site) -> None:
    """Here it is marked; the operator removes its files, and then its record (tests/reconciler/test_removal.py)."""
    for name in ("toy", "other"):
        with site.ledger(name) as ledger:
            site.archive.set_token(name, "a-token")
            ledger.tell(complete(ask(ledger)))
            ledger.tell(TrialOutcome(ask(ledger).number, TrialState.FAILED, failure=FailureClass.ERROR))
            if name == "toy":
                reply = site.delete("toy")
                assert reply.code == 409
                assert "platform cancel toy" in reply.json()["error"]
                assert site.archive.removal_marks() == {}
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    assert site.delete("toy").code == 200
    marks = site.archive.removal_marks()
    assert site.delete("toy").code == 200, "it may be asked for again"
    assert site.archive.removal_marks() == marks, "and is the same removal"
    assert set(marks) == {"toy"}
    assert not site.archive.is_token_valid("toy", "a-token"), "no controller comes in between"
    assert site.archive.is_token_valid("other", "a-token")
    assert len(site.get("/runs")) == 2, "it is there until its files are gone"
    site.archive.delete("toy")
    assert (site.archive.removal_marks(), [run["run"] for run in site.get("/runs")]) == ({}, ["other"])
    assert len(site.get("/runs/other/attempts")["rows"]) == 2
    assert site.postgres.execute("SELECT count(*) FROM attempts", site.url) == [(2,)]
    assert site.delete("toy").code == 404
    with site.ledger("toy") as again:
        assert again.counts.ended == 0, "the name is free"


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
        postgres.execute("DROP SCHEMA public CASCADE", made.url)
        assert made.ask("GET", "/runs").code == 200
        assert made.ask("GET", "/runs/toy/status").code == 404
        assert made.delete("toy").code == 404
    finally:
        made.close()


def test_whether_a_training_has_saved_a_checkpoint(site: Site) -> None:
    """It is in the ledger, as slots saw it when attempts ended; one that runs, or was lost with its slot, may have saved."""

    def lost(number: int, saved: bool | None) -> TrialOutcome:
        return TrialOutcome(number, TrialState.FAILED, failure=FailureClass.LOST, saved=saved)

    with site.ledger("toy") as ledger:
        assert site.get("/runs/toy/checkpoints") == {"saved": False}, "nothing has begun"
        first = ask(ledger)
        assert site.get("/runs/toy/checkpoints") == {"saved": None}
        ledger.tell(lost(first.number, False))
        assert site.get("/runs/toy/checkpoints") == {"saved": False}
        ledger.tell(lost(ask(ledger).number, None))
        assert site.get("/runs/toy/checkpoints") == {"saved": None}
        ledger.tell(lost(ask(ledger).number, True))
        assert site.get("/runs/toy/checkpoints") == {"saved": True}
        ask(ledger)
        assert site.get("/runs/toy/checkpoints") == {"saved": True}
    assert site.ask("GET", "/runs/other/checkpoints").code == 404


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


def test_a_ledger_of_another_version_is_said(site: Site) -> None:
    site.ledger("toy").close()
    site.postgres.execute("UPDATE schema_version SET version = 99", site.url)
    reply = site.ask("GET", "/runs/toy/attempts")
    assert (reply.code, "has tables of version 99" in reply.json()["error"]) == (503, True)


@pytest.mark.slow
def test_800_attempts_are_read_quickly(site: Site) -> None:
    with site.ledger("toy", trials=800) as ledger:
        while (request := ledger.ask()) is not None:
            ledger.tell(complete(request))
    began = time.perf_counter()
    assert len(site.get("/runs/toy/attempts")["rows"]) == 800
    print(f"800 attempts: {time.perf_counter() - began:.3f} s")  # noqa: T201  for the benchmark's reader


def test_it_stays_small() -> None:
    code = "import sys, trialplane.gateway; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"optuna", "ray", "mlflow", "torch", "numpy", "pandas"}
