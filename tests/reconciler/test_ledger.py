"""What a Run shows while its record cannot be had: the database is away, another controller has it, it is damaged, or there
is no room for it.

The ledger itself is checked in tests/contracts.
"""

from __future__ import annotations

from typing import Any

import pytest

from trialplane.errors import LedgerCorrupt, LedgerFull, LedgerLocked
from trialplane.reconciler.reconciler import LIVING

from .conftest import Team


def test_a_ledger_that_is_away_is_a_condition_and_changes_nothing(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    team.apply()
    team.settle()

    def away(run: str) -> None:
        raise OperationalError("SELECT 1", None, Exception("connection refused"))

    with monkeypatch.context() as patch:
        patch.setattr(team.archive, "snapshot", away)
        assert team.reconciler.reconcile("a") == LIVING
    assert team.status()["state"] == "Running"
    assert team.condition("Ready")[:2] == ("False", "LedgerAway")
    assert "connection refused" in team.condition("Ready")[2]
    team.settle()
    assert team.condition("Ready")[0] == "True"


def test_a_ledger_that_another_controller_still_holds_is_not_away(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.apply()

    def locked(*_: Any, **__: Any) -> None:
        raise LedgerLocked("a controller works on a")

    with monkeypatch.context() as patch:
        patch.setattr(team.archive, "record_run", locked)
        assert team.reconciler.reconcile("a") == LIVING
    assert team.condition("Ready") == ("False", "LedgerLocked", "a controller works on a")


def test_a_record_that_cannot_be_read_is_a_condition_of_its_run_alone(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.apply()
    team.settle()

    def damaged(run: str) -> None:
        raise LedgerCorrupt(f"the ledger's records of {run} cannot be read: no RunStatus: 'state'")

    with monkeypatch.context() as patch:
        patch.setattr(team.archive, "snapshot", damaged)
        assert team.reconciler.reconcile("a") == LIVING
    assert team.status()["state"] == "Running" and "a" in team.ray_clusters
    held, why, message = team.condition("Ready")
    assert (held, why) == ("False", "LedgerUnreadable")
    assert message == "the ledger's records of a cannot be read: no RunStatus: 'state'"
    team.settle()
    assert team.condition("Ready")[0] == "True"


def test_a_run_waits_for_room_in_the_budget_of_its_namespace(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.apply()

    def full(*_: Any, **__: Any) -> None:
        raise LedgerFull("the runs in team keep 2 GiB in the platform's database")

    with monkeypatch.context() as patch:
        patch.setattr(team.archive, "record_run", full)
        delays = [team.reconciler.reconcile("a") for _ in range(3)]
        assert delays == [LIVING, 2 * LIVING, 4 * LIVING], "each refused record costs the database some room"
    assert team.condition("Ready") == ("False", "BudgetSpent", "the runs in team keep 2 GiB in the platform's database")
    assert "a" not in team.ray_clusters
    team.settle()
    assert team.condition("Ready")[0] == "True"
