"""An operator for several namespaces: a Run is known by namespace and name, and what one namespace lacks holds up no other.

That their ledgers are apart is in tests/contracts/test_ledger_namespaces.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from trialplane.errors import LedgerCorrupt
from trialplane.kube.cluster import Cluster
from trialplane.reconciler import __main__ as operator
from trialplane.reconciler.__main__ import Name
from trialplane.reconciler.workqueue import WorkQueue

from .conftest import Team


class TwoLedgers:
    """Of the team's namespace, and of one in which there is no chart."""

    namespaces = ("elsewhere", "team")

    def __init__(self, team: Team) -> None:
        self._team = team

    def of(self, _namespace: str) -> Any:
        return self._team.archive


def test_a_namespace_without_a_site_holds_up_no_other(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        made = operator.reconcilers(TwoLedgers(team))  # type: ignore[arg-type]
    assert list(made) == ["team"]
    assert "Runs in namespace elsewhere wait" in caplog.text
    team.apply()
    made["team"].reconcile("a")
    assert "a" in team.ray_clusters


def test_a_namespace_that_gets_its_site_has_the_operator_start_anew(
    team: Team, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then each look is logged, and the others are served."""
    tries: list[str] = []
    at_first = operator._site

    def look(cluster: Cluster) -> Any:
        tries.append(cluster.namespace)
        return at_first(Cluster(namespace="team") if len(tries) == 3 else cluster)

    class Held:
        def hold(self) -> bool:
            return True

    async def watch(**given: Any) -> None:
        assert given["namespaces"] == ["team"]
        await asyncio.sleep(60)

    ledgers: Any = TwoLedgers(team)
    found = operator.reconcilers(ledgers)
    monkeypatch.setattr(operator.kopf, "operator", watch)
    monkeypatch.setattr(operator, "_site", look)
    lacking = operator.await_sites(["elsewhere"], pause=0.01)
    with pytest.raises(operator.RestartNeeded, match="namespace elsewhere can be served now"):
        asyncio.run(operator.operate(found, Held(), [lacking]))  # type: ignore[arg-type]
    assert tries == ["elsewhere"] * 3
    assert caplog.text.count("Runs in namespace elsewhere wait") == 3, "at the start, and at both looks that found none"


def test_runs_of_one_name_in_two_namespaces_are_two() -> None:
    async def taken() -> list[str]:
        queue: WorkQueue[Name] = WorkQueue(lambda name: name.namespace)
        for namespace in ("team-a", "team-b", "team-a"):
            queue.add(Name(namespace, "toy"))
        return [str(await asyncio.wait_for(queue.take(), 60)) for _ in range(2)]

    assert asyncio.run(taken()) == ["team-a/toy", "team-b/toy"]


@pytest.mark.parametrize("which", ["admitted", "runs_to_remove"])
def test_each_namespaces_runs_are_looked_at_by_its_own_reconciler(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of which nothing is seen to happen, under names that both namespaces have."""
    looked: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []
    began, done = threading.Event(), asyncio.Event()

    class One:
        def __init__(self, namespace: str, *runs: str) -> None:
            self.namespace, self.runs = namespace, runs

        def admitted(self) -> list[str]:
            return [*self.runs] if which == "admitted" else []

        def runs_to_remove(self) -> list[str]:
            return [*self.runs] if which == "runs_to_remove" else []

        def reconcile(self, name: str) -> None:
            assert began.wait(60)
            looked.append(f"{self.namespace}/{name}")
            if len(set(looked)) == 3:
                loops[0].call_soon_threadsafe(done.set)

    class Held:
        def hold(self) -> bool:
            return True

    async def watch(**given: Any) -> None:
        assert given["namespaces"] == ["team-a", "team-b"]
        loops.append(asyncio.get_running_loop())
        began.set()
        await asyncio.wait_for(done.wait(), 60)

    monkeypatch.setattr(operator.kopf, "operator", watch)
    both = {"team-a": One("team-a", "toy", "other"), "team-b": One("team-b", "toy")}
    asyncio.run(operator.operate(both, Held()))  # type: ignore[arg-type]
    assert set(looked) == {"team-a/toy", "team-a/other", "team-b/toy"}


@pytest.mark.parametrize("which", ["admitted", "runs_to_remove"])
def test_a_namespace_whose_ledger_cannot_be_read_keeps_no_other_from_being_looked_at(
    which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    class One:
        def __init__(self, is_damaged: bool) -> None:
            self.is_damaged = is_damaged

        def names_for(self, what: str) -> list[str]:
            if what == which and self.is_damaged:
                raise LedgerCorrupt("its tables are of another version")
            return ["toy"] if what == which else []

        def admitted(self) -> list[str]:
            return self.names_for("admitted")

        def runs_to_remove(self) -> list[str]:
            return self.names_for("runs_to_remove")

        def reconcile(self, name: str) -> None:
            ((loop, event),) = done
            loop.call_soon_threadsafe(event.set)

    class Held:
        def hold(self) -> bool:
            return True

    async def watch(**_: Any) -> None:
        done.append((asyncio.get_running_loop(), asyncio.Event()))
        await asyncio.wait_for(done[0][1].wait(), 60)

    monkeypatch.setattr(operator.kopf, "operator", watch)
    with caplog.at_level(logging.ERROR):
        asyncio.run(operator.operate({"broken": One(True), "team": One(False)}, Held()))  # type: ignore[arg-type]
    assert "its tables are of another version" in caplog.text
