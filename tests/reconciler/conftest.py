"""A namespace on the doubles of the client's tests, with Runs in it and a reconciler of this process."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.archive_double import ArchiveDouble
from tests.client.kuberay_double import SITE, NamespaceDouble
from tests.kube.cluster_double import ClusterDouble

from trialplane.job import kinds
from trialplane.kube.cluster import Cluster
from trialplane.plan import plan as planning
from trialplane.plan import run as runs
from trialplane.plan.plan import Plan, Provenance
from trialplane.plan.site import Site
from trialplane.reconciler.reconciler import Reconciler

JOB = {
    "kind": "hpo",
    "name": "demo",
    "entrypoint": "train:run",
    "objectives": [{"metric": "f1", "direction": "maximize"}],
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "trials": 24,
    "parallel": 3,
}
ORIGIN = Provenance(job_folder="/home/ada/demo", user="ada", version="1")
SUBMITTED = 1_800_000_000.0


@dataclasses.dataclass
class Team:
    """The namespace: its API server, KubeRay and ledger, and what a user and the operator do there."""

    cluster: ClusterDouble
    namespace: NamespaceDouble
    archive: ArchiveDouble
    reconciler: Reconciler
    folder: Path
    later: float = 0.0  # seconds by which the operator's clock is ahead
    made: int = 0  # RayClusters, one after another

    def plan(self, name: str = "a", **fields: Any) -> Plan:
        """A plan of the job with other fields."""
        return planning.plan(kinds.read({**JOB, **fields}), self.folder, name, ORIGIN)

    def apply(self, plan: Plan | None = None) -> str:
        """Applies a Run and its code, all of its parts; gives its name."""
        plan = plan or self.plan()
        run, *code = runs.manifests(plan, "team", SUBMITTED)
        self.cluster.put("runs", run)
        for part in code:
            self.cluster.put("configmaps", part)
        return plan.run

    def change(self, name: str = "a", **fields: Any) -> None:
        """A user's patch of a Run's spec."""
        run = self.cluster.objects["runs"][name]
        run["spec"].update(fields)
        run["metadata"]["generation"] += 1

    def settle(self, name: str = "a") -> dict[str, Any]:
        """Reconciles as an operator does that sees each change; gives the status."""
        for _ in range(4):
            self.namespace.step()
            self.reconciler.reconcile(name)
        return self.status(name)

    def status(self, name: str = "a") -> dict[str, Any]:
        return dict(self.cluster.objects["runs"][name]["status"])

    def condition(self, kind: str, name: str = "a") -> tuple[str, str, str]:
        """Its status, reason and message."""
        (condition,) = (candidate for candidate in self.status(name)["conditions"] if candidate["type"] == kind)
        return condition["status"], condition["reason"], condition["message"]

    @property
    def ray_clusters(self) -> dict[str, dict[str, Any]]:
        return self.cluster.objects["rayclusters"]


@pytest.fixture
def make_team(tmp_path, monkeypatch) -> Iterator[Callable[[], Team]]:
    """Makes namespaces, each on an API server of its own."""
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "train.py").write_text("def run(ctx):\n    return {'f1': 1.0}\n")
    site = Site.model_validate({**SITE, "namespace": "team"})
    with contextlib.ExitStack() as stack:

        def make() -> Team:
            cluster = ClusterDouble()
            stack.callback(cluster.close)
            monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "kubeconfig")))
            namespace = NamespaceDouble(cluster)
            archive, made = ArchiveDouble(namespace), namespace.cluster.made
            team = Team(cluster, namespace, archive, Reconciler(Cluster(), archive, site), folder)  # type: ignore[arg-type]
            team.reconciler.clock = lambda: time.time() + team.later

            def counted(ray_cluster: dict[str, Any]) -> None:
                team.made += 1
                made(ray_cluster)

            cluster.made = counted
            return team

        yield make


@pytest.fixture
def team(make_team) -> Team:
    return make_team()
