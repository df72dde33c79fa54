"""One status of a killed run wherever it is read: on a laptop, at the gateway, in the Run, by the SDK and in Prometheus.

The ledgers are real, the one of the cluster in PostgreSQL, and so are the gateway and the operator; the API server and
KubeRay are doubles.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.client.conftest import Runs, complete, failed, home, planned, runs, workplace
from tests.client.kuberay_double import GATEWAY, SITE, NamespaceDouble
from tests.contracts.conftest import Postgres, wait_until
from tests.gateway.gateway_site import NAMESPACE, TOKEN, Site, postgres
from tests.kube.cluster_double import OPERATOR, ClusterDouble

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.local import LocalTarget
from trialplane.client.sdk import Platform
from trialplane.client.target import Target
from trialplane.controller.ledger import Ledger
from trialplane.controller.status import StatusBoard
from trialplane.kube.cluster import Cluster
from trialplane.ledger import attempts as reading
from trialplane.ledger import tables
from trialplane.plan import site as sites
from trialplane.plan.plan import Plan
from trialplane.reconciler.reconciler import Reconciler
from trialplane.wire import labels, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

__all__ = ["home", "planned", "postgres", "runs", "workplace"]  # fixtures

KILLED_WITH = 5  # attempts in the ledger, of which the controller's last status counts one


def tell(request: TrialRequest) -> TrialOutcome:
    """The end of an attempt: the first trial is tried again, then one fails for good and one is pruned."""
    if request.trial == 0 and request.attempt == 1:
        return failed(request, FailureClass.LOST)
    if request.trial == 1:
        return failed(request)
    if request.trial == 2:
        return dataclasses.replace(complete(request), state=TrialState.PRUNED)
    return complete(request)


def killed_with(status: RunStatus) -> RunStatus:
    """The last status of the controller."""
    return dataclasses.replace(
        status, state=RunState.RUNNING, complete=1, running=1, started=time.time(), updated=time.time(), objectives=("loss",)
    )


def counts(status: RunStatus) -> dict[str, Any]:
    """What every reader shows."""
    assert status.best is not None
    fields = ("state", "complete", "pruned", "failed", "retried", "running", "paused", "failures", "trials")
    return {**{name: getattr(status, name) for name in fields}, "best": (status.best.trial, status.best.values)}


class Team:
    """A namespace whose operator and gateway share a ledger in PostgreSQL."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.cluster = ClusterDouble(NAMESPACE)
        self.kubeconfig = self.cluster.kubeconfig(folder / "kubeconfig")
        NamespaceDouble(self.cluster)  # only its KubeRay: its controllers work on nothing, and its gateway is not asked
        self.cluster.proxy = self._forward

    def start_operator(self) -> Reconciler:
        """An operator as it is after its start."""
        site = sites.Site.read(json.dumps(SITE), NAMESPACE)
        reconciler = Reconciler(Cluster(OPERATOR), self.site.archive_of(NAMESPACE), site)

        def operate() -> None:
            for run in list(self.cluster.objects["runs"]):
                reconciler.reconcile(run)

        self.cluster.operate = operate
        return reconciler

    def _forward(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Answer a request through the API server with that of the real gateway."""
        target = path.removeprefix(GATEWAY)
        options = "&".join(f"{name}={value}" for name, value in query.items())
        reply = self.site.ask(method, f"{target}?{options}" if options else target, body, TOKEN)
        return reply.code, reply.headers, reply.data

    def controller(self, plan: Plan, folder: Path) -> Ledger:
        """The ledger as the run's controller opens it."""
        return Ledger(self.site.ledgers.url(NAMESPACE), plan.job, plan.run, folder, folder / "lock")

    def kill_controller(self, plan: Plan, folder: Path, asks: int = KILLED_WITH) -> None:
        """A controller ends some attempts, and is gone before it says so."""
        with self.controller(plan, folder) as ledger:
            pending = self.site.archive.snapshot(plan.run)
            assert pending is not None
            ledger.write_facts({labels.LEDGER_STATUS: records.to_dict(killed_with(pending.status))})
            for _ in range(asks):
                request = ledger.ask()
                assert request is not None
                ledger.tell(tell(request))
        wait_until(lambda: not self.site.archive.is_alive(plan.run), "PostgreSQL sees that the controller is gone")


@pytest.fixture
def team(home: Path, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    site = Site(postgres, tmp_path)
    made = Team(site, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
    made.start_operator()
    yield made
    made.cluster.close()
    site.close()


def sdk_status(target: Target, run: str) -> RunStatus:
    return Platform(target).get(run).status()


def test_a_killed_run_has_one_status(team: Team, runs: Runs, planned: Callable[..., Plan], tmp_path: Path) -> None:
    local = runs.make("a", tell=tell, asks=KILLED_WITH)
    runs.say(local, RunState.RUNNING, complete=1, running=1, started=1.0, objectives=("loss",))
    shown = counts(sdk_status(LocalTarget(runs.home), "a"))
    assert (shown["complete"], shown["pruned"], shown["failed"], shown["retried"]) == (2, 1, 1, 1)

    plan, target = planned(), KubernetesTarget()
    target.apply(plan)
    team.kill_controller(plan, local.code)
    target.desire("a", RunState.PAUSED, now=True)
    assert counts(sdk_status(target, "a")) == shown, "in the SDK, from both witnesses"
    at_gateway = records.from_dict(RunStatus, team.site.get("/runs/a/status")["status"])
    assert counts(at_gateway) == shown
    run_status = team.cluster.objects["runs"]["a"]["status"]
    best = f"loss={shown['best'][1][0]:.5g}"
    assert (run_status["state"], run_status["ended"], run_status["progress"], run_status["best"]) == (
        "Paused",
        4,
        "4/6",
        best,
    )

    board = StatusBoard(RunPaths.of(tmp_path, "a"))  # the next controller's, before it does anything
    RunPaths.of(tmp_path, "a").root.mkdir(parents=True)
    with team.controller(plan, local.code) as ledger:
        fields = ledger.counts.status_fields()
        board.show(dataclasses.replace(at_gateway, state=RunState.RUNNING, best=ledger.best, **fields))
    page = board.page("/metrics", "")
    board.close()
    assert page is not None
    metrics = dict(re.findall(r"^trialplane_(\S+) (\S+)$", page[1].decode(), re.MULTILINE))
    for state in ("complete", "pruned", "failed", "running"):
        assert float(metrics[f'trials{{run="a",state="{state}"}}']) == shown[state], state
    assert float(metrics['attempts_retried{run="a"}']) == shown["retried"]
    assert float(metrics['best_value{run="a"}']) == shown["best"][1][0]


def test_the_attempts_of_a_killed_controller_are_read_once(
    team: Team, workplace: Path, planned: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has a hundred runs that wait, and looks at each again and again."""
    plan, target = planned(), KubernetesTarget()
    target.apply(plan)
    team.kill_controller(plan, workplace / "jobs" / "demo")
    reads: list[str] = []
    pages = reading.pages

    def counted(select: reading.Select, run: str, *rest: Any, **values: Any) -> Iterator[reading.Attempt]:
        reads.append(run)
        return pages(select, run, *rest, **values)

    monkeypatch.setattr(reading, "pages", counted)
    reconciler = team.start_operator()
    for _ in range(3):
        reconciler.reconcile("a")
        assert team.cluster.objects["runs"]["a"]["status"]["progress"] == "4/6"
    assert reads == ["a"]
    team.kill_controller(plan, workplace / "jobs" / "demo", 2)  # the next one, which ends the rest
    for _ in range(2):
        reconciler.reconcile("a")
    assert team.cluster.objects["runs"]["a"]["status"]["progress"] == "6/6"
    assert reads == ["a", "a"]


def test_a_controller_that_comes_back_with_the_same_epoch_is_counted_again(
    team: Team, workplace: Path, planned: Callable[..., Plan]
) -> None:
    plan, target = planned(), KubernetesTarget()
    target.apply(plan)
    shown = []
    with team.controller(plan, workplace / "jobs" / "demo") as ledger:
        for _ in range(3):
            request = ledger.ask()
            assert request is not None
            shown.append(team.site.archive.counts("a"))
            ledger.tell(complete(request))
            shown.append(team.site.archive.counts("a"))
    assert [counted.complete for counted in shown] == [0, 1, 1, 2, 2, 3]


def test_a_damaged_attempt_keeps_no_run_from_being_paused(
    team: Team, workplace: Path, planned: Callable[..., Plan], caplog: pytest.LogCaptureFixture
) -> None:
    plan, target = planned(), KubernetesTarget()
    target.apply(plan)
    team.kill_controller(plan, workplace / "jobs" / "demo")
    with team.site.archive._connections.begin() as connection:
        connection.execute(sa.update(tables.attempts).values(request="{"))
    team.start_operator()
    target.desire("a", RunState.PAUSED, now=True)
    run_status = team.cluster.objects["runs"]["a"]["status"]
    assert (run_status["state"], run_status["progress"]) == ("Paused", "1/6")
    assert "a: the attempts in the ledger cannot be counted" in caplog.text
    at_gateway = team.site.get("/runs/a/status")["status"]
    assert (at_gateway["state"], at_gateway["complete"]) == ("PAUSED", 1)
