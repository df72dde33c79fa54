"""What the ledger of all runs keeps of one that is submitted or resumed, before there is a controller, and what it is to be.

On a real PostgreSQL, read through the gateway. What that serves otherwise is test_gateway.py; what a laptop makes of this,
tests/client/test_unstarted.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.contracts.conftest import ask, complete, make_job, wait_until
from tests.gateway.gateway_site import Site, postgres, site

from trialplane.errors import LedgerLocked, RunExists, RunNotFound
from trialplane.job.kinds import Job
from trialplane.wire import records
from trialplane.wire.records import Change, Desired, RunStatus, TrialOutcome
from trialplane.wire.states import RunState, TrialState

__all__ = ["postgres", "site"]  # fixtures


def record(site: Site, run: str, *, new: bool = True, code: bytes = b"\0\1\2", **changes: Any) -> Job:
    """Records a run of a job with these changes, as the operator does before it makes its pods."""
    job = make_job(**changes)
    site.archive.record_run(run, job, {"submitted": 3.0, "user": "ann"}, code, new=new)
    return job


def test_a_run_is_known_from_its_submission_on(site: Site) -> None:
    objectives = [{"metric": "score", "direction": "maximize"}, {"metric": "cost", "direction": "minimize"}]
    sent = record(site, "toy", code=b"x" * 2**20, objectives=objectives)
    assert site.get("/runs") == [{"run": "toy", "job": "toy", "submitted": 3.0}]
    found = site.get("/runs/toy/status")
    status = records.from_dict(RunStatus, found["status"])
    assert (status.state, status.trials, status.created, status.started) == (RunState.PENDING, 6, 3.0, None)
    assert (found["alive"], site.get("/runs/toy/attempts"), site.get("/runs/toy/job")) == (
        False,
        {"rows": [], "next": None},
        sent.model_dump(mode="json"),
    )
    assert site.ask("GET", "/runs/toy/code").data == b"x" * 2**20
    site.archive.change_desired("toy", {"state": RunState.CANCELLED})
    assert site.get("/runs/toy/status")["status"]["state"] == "CANCELLED"
    with site.ledger("toy", objectives=objectives) as ledger:  # the study that its controller finds is its own
        request = ask(ledger)
        ledger.tell(TrialOutcome(request.number, TrialState.COMPLETE, metrics={"score": 1.0, "cost": 2.0}))
        assert site.get("/runs/toy/attempts")["rows"][0]["values"] == [1.0, 2.0]
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    site.archive.delete("toy")
    assert site.get("/runs") == []


def test_a_new_run_takes_no_name_that_is_taken(site: Site) -> None:
    record(site, "toy")
    with pytest.raises(RunExists, match="the ledger has a study toy already"):
        record(site, "toy", trials=7)
    assert site.get("/runs/toy/job")["trials"] == 6


def test_what_a_run_is_resumed_with_takes_the_place_of_what_it_was_submitted_with(site: Site) -> None:
    record(site, "other")
    record(site, "other", new=False, trials=7)
    assert site.get("/runs/other/status")["status"]["trials"] == site.get("/runs/other/job")["trials"] == 7
    with site.ledger("toy", submitted=1.0) as ledger:
        ledger.tell(complete(ask(ledger)))
        with pytest.raises(LedgerLocked, match="platform cancel toy"):  # its controller knows better
            record(site, "toy", new=False, trials=7)
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    before = site.get("/runs/toy/status")
    record(site, "toy", new=False, trials=7)
    assert (site.get("/runs/toy/job")["trials"], len(site.get("/runs/toy/attempts")["rows"])) == (7, 1)
    assert site.get("/runs/toy/status") == before


def test_the_first_submission_of_all_has_the_tables_made(site: Site) -> None:
    site.postgres.execute("DROP SCHEMA public CASCADE", site.url)
    site.postgres.execute("CREATE SCHEMA public", site.url)
    record(site, "toy")
    assert [run["run"] for run in site.get("/runs")] == ["toy"]
    with site.ledger("toy") as ledger:
        ledger.tell(complete(ask(ledger)))


def test_to_go_on_is_about_the_newest_attempt(site: Site) -> None:
    with site.ledger("toy") as ledger:
        for state, again in (("RUNNING", None), ("PAUSED", None), ("RUNNING", 0)):
            site.archive.change_desired("toy", {"state": RunState(state)})
            assert ledger.read_desired().again == again
            if state == "PAUSED":
                ask(ledger)


def test_each_field_of_the_desired_state_changes_alone_and_a_pause_leaves_a_run_cancelled(site: Site) -> None:
    with site.ledger("toy") as ledger:
        ask(ledger)
        for changed, desired in (
            ({"parallel": 7}, Desired(RunState.RUNNING, 7)),
            ({"state": RunState.PAUSED}, Desired(RunState.PAUSED, 7)),
            ({"parallel": 3}, Desired(RunState.PAUSED, 3)),
            ({"state": RunState.CANCELLED, "parallel": None}, Desired(RunState.CANCELLED)),
            ({"state": RunState.PAUSED}, Desired(RunState.CANCELLED)),
            ({"state": RunState.RUNNING}, Desired(RunState.RUNNING, None, 0)),
        ):
            site.archive.change_desired("toy", changed)
            assert ledger.read_desired() == desired
            assert site.get("/runs/toy/status")["desired"] == records.to_dict(desired)


def change(generation: int, what: str = "submitted", uid: str = "u") -> Change:
    return Change(100.0 + generation, "ada", what, uid, generation, {"state": "Running", "parallel": None})


def test_a_change_is_kept_once_and_in_its_order(site: Site) -> None:
    record(site, "toy")
    record(site, "other")
    recorded = site.archive.snapshot("toy")
    assert recorded is not None
    assert recorded.change is None
    made = [change(1), change(2, "state: Running → Paused"), change(1, "resumed, as a new Run", "v")]
    for one in (*made, made[0], change(2, "another text")):
        site.archive.record_change("toy", one)
    assert site.archive.changes("toy") == made
    recorded = site.archive.snapshot("toy")
    assert recorded is not None
    assert recorded.change == made[-1]
    assert [records.from_dict(Change, one) for one in site.get("/runs/toy/changes")] == made
    assert site.get("/runs/other/changes") == []
    with pytest.raises(RunNotFound):
        site.archive.record_change("none", made[0])
    site.archive.delete("toy")
    assert site.postgres.execute("SELECT count(*) FROM changes", site.url) == [(0,)]
