"""What the chaos run sees of a cluster, and does to it, through the API server and Docker.

Not checked here: whom it chooses (test_chaos.py), Kubernetes and Docker themselves (tests/e2e/test_chaos.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.kills import KindCluster, Victim, roles
from tests.client.kuberay_double import SITE
from tests.kube.cluster_double import ClusterDouble

from trialplane.errors import TargetError
from trialplane.wire import cluster as names

ROLES = {role.name: role for role in roles("some")}


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterDouble]:
    found = ClusterDouble()
    monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig(tmp_path / "kubeconfig")))
    yield found
    found.close()


@pytest.fixture
def there(double: ClusterDouble) -> KindCluster:
    return KindCluster("lab", "team")


def made(name: str, labels: dict[str, str], ready: bool = True, **more: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready)}
    return {"metadata": {"name": name, "labels": labels, **more}, "status": {"conditions": [condition]}}


def installed(double: ClusterDouble, **site: str) -> None:
    double.put("configmaps", {"metadata": {"name": names.SITE}, "data": {names.SITE_KEY: json.dumps({**SITE, **site})}})


def test_only_ready_pods_of_the_role_and_the_run_are_seen(double: ClusterDouble, there: KindCluster) -> None:
    installed(double)
    ours = {names.RUN: "some", names.ROLE: "trial"}
    double.put("pods", made("ours", ours))
    double.put("pods", made("of-another-run", {**ours, names.RUN: "other"}))
    double.put("pods", made("of-another-role", {**ours, names.ROLE: "controller"}))
    double.put("pods", made("starting", ours, ready=False))
    double.put("pods", made("going", ours, deletionTimestamp="2026-11-21T12:00:00Z"))
    double.put("pods", {"metadata": {"name": "waiting", "labels": ours}, "status": {}})
    double.put("pods", made("platform-mlflow", {names.ROLE: "mlflow"}))
    assert [pod.name for pod in there.ready(ROLES["trial"])] == ["ours"]
    assert [pod.name for pod in there.ready(ROLES["mlflow"])] == ["platform-mlflow"]
    assert there.ready(ROLES["gateway"]) == []


def test_the_charts_pods_are_in_the_namespace_that_the_site_names(double: ClusterDouble, there: KindCluster) -> None:
    installed(double, control="trialplane")
    double.put("pods", made("platform-mlflow", {names.ROLE: "mlflow"}))
    assert there.ready(ROLES["mlflow"]) == [], "not in the team's"
    assert ("GET", "/api/v1/namespaces/trialplane/pods") in double.requests


def test_kuberay_is_found_in_any_namespace(double: ClusterDouble, there: KindCluster) -> None:
    double.put("pods", made("operator", {"app.kubernetes.io/component": "kuberay-operator"}))
    assert [pod.name for pod in there.ready(ROLES["kuberay"])] == ["operator"]
    assert ("GET", "/api/v1/pods") in double.requests


def test_a_killed_pod_is_deleted_and_one_that_is_gone_is_no_error(double: ClusterDouble, there: KindCluster) -> None:
    double.put("pods", made("ours", {names.RUN: "some", names.ROLE: "trial"}))
    (pod,) = there.ready(ROLES["trial"])
    there.kill(pod)
    assert there.ready(ROLES["trial"]) == []
    there.kill(pod)
    assert double.requests.count(("DELETE", "/api/v1/namespaces/team/pods/ours")) == 2


def test_the_api_servers_node_is_spared(double: ClusterDouble, there: KindCluster) -> None:
    double.put("nodes", made("lab-control-plane", {"node-role.kubernetes.io/control-plane": ""}))
    double.put("nodes", made("lab-worker", {}))
    double.put("nodes", made("lab-worker2", {}, ready=False))
    assert [node.name for node in there.nodes()] == ["lab-worker"]


def test_a_pod_is_cut_off_on_its_node(
    double: ClusterDouble, there: KindCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    pod = made("trial", {names.RUN: "some", names.ROLE: "trial"})
    double.put("pods", {**pod, "spec": {"nodeName": "lab-worker"}, "status": {**pod["status"], "podIP": "10.244.1.7"}})
    (victim,) = there.ready(ROLES["trial"])
    there.cut(victim)
    there.reconnect(victim)
    rule = "exec lab-worker iptables -w -t mangle {} FORWARD {} 10.244.1.7 -j DROP"
    assert (tmp_path / "commands").read_text().splitlines() == [
        rule.format(action, end) for action in ("-I", "-D") for end in ("-s", "-d")
    ]


def test_a_node_is_a_container_of_its_name(there: KindCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ "$2" = lab-worker ] || {{ echo no such thing >&2; exit 1; }}\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    there.stop(Victim("lab-worker", "1"))
    there.start(Victim("lab-worker", "1"))
    assert (tmp_path / "asked").read_text().splitlines() == ["kill lab-worker", "start lab-worker"]
    with pytest.raises(
        TargetError, match=r"`docker kill gke-1` failed; --nodes and --cut are for kind on this machine: no such thing"
    ):
        there.stop(Victim("gke-1", "2"))
