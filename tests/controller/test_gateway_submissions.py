"""What the gateway keeps of a run that is submitted or resumed, before there is a controller that could.

On a real PostgreSQL. The gateway otherwise is test_gateway.py; what a laptop makes of this, tests/client/test_unstarted.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.contracts.conftest import ask, complete, wait_until
from tests.controller.gateway_site import Site, postgres, site, submission

from trialplane.wire import records
from trialplane.wire.records import RunStatus, TrialOutcome
from trialplane.wire.states import RunState, TrialState

__all__ = ["postgres", "site"]  # fixtures


def test_a_run_is_known_from_its_submission_on(site: Site) -> None:
    objectives = [{"metric": "score", "direction": "maximize"}, {"metric": "cost", "direction": "minimize"}]
    sent = submission(code=b"x" * 2**20, objectives=objectives)
    assert site.change("PUT", "/runs/toy", sent).code == 200
    assert site.get("/runs") == [{"run": "toy", "job": "toy", "submitted": 3.0, "state": "PENDING"}]
    found = site.get("/runs/toy/status")
    status = records.from_dict(RunStatus, found["status"])
    assert (status.state, status.trials, status.created, status.started) == (RunState.PENDING, 6, 3.0, None)
    assert (found["alive"], site.get("/runs/toy/attempts"), site.get("/runs/toy/job")) == (False, [], sent["job"])
    assert site.ask("GET", "/runs/toy/code").data == b"x" * 2**20
    assert site.change("PUT", "/runs/toy/desired", {"state": "CANCELLED"}).code == 200
    assert site.get("/runs/toy/status")["status"]["state"] == "CANCELLED"
    with site.ledger("toy", objectives=objectives) as ledger:  # the study that its controller finds is its own
        request = ask(ledger)
        ledger.tell(TrialOutcome(request.number, TrialState.COMPLETE, metrics={"score": 1.0, "cost": 2.0}))
        assert site.get("/runs/toy/attempts")[0]["values"] == [1.0, 2.0]
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    assert site.change("DELETE", "/runs/toy").code == 200
    assert site.get("/runs") == []


def test_a_new_run_takes_no_name_that_is_taken(site: Site) -> None:
    assert site.change("PUT", "/runs/toy", submission()).code == 200
    reply = site.change("PUT", "/runs/toy", submission(trials=7))
    assert (reply.code, reply.json()["error"]) == (409, "the ledger has a study toy already")
    assert site.get("/runs/toy/job")["trials"] == 6


def test_what_a_run_is_resumed_with_takes_the_place_of_what_it_was_submitted_with(site: Site) -> None:
    assert site.change("PUT", "/runs/other", submission()).code == 200
    assert site.change("PUT", "/runs/other", submission(new=False, trials=7)).code == 200
    assert site.get("/runs/other/status")["status"]["trials"] == site.get("/runs/other/job")["trials"] == 7
    with site.ledger("toy", submitted=1.0) as ledger:
        ledger.tell(complete(ask(ledger)))
        reply = site.change("PUT", "/runs/toy", submission(new=False, trials=7))
        assert (reply.code, "platform cancel toy" in reply.json()["error"]) == (409, True), "its controller knows better"
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    before = site.get("/runs/toy/status")
    assert site.change("PUT", "/runs/toy", submission(new=False, trials=7)).code == 200
    assert (site.get("/runs/toy/job")["trials"], len(site.get("/runs/toy/attempts"))) == (7, 1)
    assert site.get("/runs/toy/status") == before


@pytest.mark.parametrize("body", [[], {}, {"job": 1}, {**submission(), "submission": 1}, {**submission(), "job": {"x": 1}}])
def test_what_is_no_submission_is_refused(site: Site, body: Any) -> None:
    reply = site.change("PUT", "/runs/toy", body)
    assert (reply.code, bool(reply.json()["error"])) == (400, True)
    assert site.get("/runs") == []


def test_the_first_submission_of_all_has_the_tables_made(site: Site) -> None:
    database = site.url.split("/")[3].split("?")[0]
    site.postgres.execute("DROP SCHEMA public CASCADE", database)
    site.postgres.execute("CREATE SCHEMA public", database)
    assert site.change("PUT", "/runs/toy", submission()).code == 200
    assert [run["run"] for run in site.get("/runs")] == ["toy"]
    with site.ledger("toy") as ledger:
        ledger.tell(complete(ask(ledger)))
