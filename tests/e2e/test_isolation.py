"""What the cluster refuses by policy, and what a trial's pod can and cannot do.

Not checked here: the decisions of `platform doctor` one by one (tests/client/test_doctor.py).
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import CONTROL, REACHES, RELEASE, SPEC, Cluster, helm


@pytest.fixture(scope="module")
def trial_pod(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A worker pod of a run that goes on while the module's tests look at it."""
    folder = tmp_path_factory.mktemp("slow") / "jobs" / "toy"
    job = cluster.job(folder, spec=SPEC.replace("0.3", "100").replace("trials: 6", "trials: 2"))
    cluster.platform("submit", "hpo", job, "--name", "open", "--parallel", "1", "--detach")
    cluster.until("trial", lambda: cluster.status("open")["running"] == 1)
    (pod,) = cluster.objects("pods", run="open", role="trial")
    yield pod
    cluster.platform("cancel", "open", "--now", "--yes")


def again(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod as a manifest of another one."""
    meta = pod["metadata"]
    spec = copy.deepcopy(pod["spec"])
    for name in ("nodeName", "tolerations", "priority", "preemptionPolicy"):
        spec.pop(name, None)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "again", "namespace": meta["namespace"], "labels": meta["labels"]},
        "spec": spec,
    }


def refused(cluster: Cluster, manifest: dict[str, Any]) -> str:
    return cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest), code=1)


def test_the_pod_as_it_is_would_be_let_in(cluster: Cluster, trial_pod: dict[str, Any]) -> None:
    cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(again(trial_pod)))


def test_a_pod_without_a_policys_variable_is_refused_by_name(cluster: Cluster, trial_pod: dict[str, Any]) -> None:
    from trialplane import policies

    for name in policies.trial_env():
        manifest = again(trial_pod)
        (container,) = manifest["spec"]["containers"]
        container["env"] = [entry for entry in container["env"] if entry["name"] != name]
        assert name in refused(cluster, manifest)


def test_a_pod_has_no_priority_and_no_nodes_that_its_team_may_not_have(cluster: Cluster, trial_pod: dict[str, Any]) -> None:
    urgent = again(trial_pod)
    urgent["spec"]["priorityClassName"] = "system-node-critical"
    assert "PriorityClasses" in refused(cluster, urgent)
    for toleration in (
        {"operator": "Exists"},
        {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},  # it has none
    ):
        placed = again(trial_pod)
        placed["spec"]["tolerations"] = [toleration]
        assert "taints" in refused(cluster, placed), toleration
    of_gpus = again(trial_pod)
    (container,) = of_gpus["spec"]["containers"]
    for kind in ("limits", "requests"):
        container["resources"][kind]["nvidia.com/gpu"] = "1"
    of_gpus["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(of_gpus))


def test_a_pod_with_a_token_a_host_path_or_privilege_is_refused(cluster: Cluster, trial_pod: dict[str, Any]) -> None:
    token = again(trial_pod)
    token["spec"]["automountServiceAccountToken"] = True
    assert "token" in refused(cluster, token)
    path = again(trial_pod)
    path["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    assert "host" in refused(cluster, path).lower()
    privileged = again(trial_pod)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "privileged" in refused(cluster, privileged).lower()


PROBE = (
    REACHES
    + """
import json, os
def writes(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
print(json.dumps({
    "postgresql": reaches(%r, 5432),
    "api": reaches(os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]),
    "gateway": reaches(%r, 8080),
    "mlflow": reaches(%r, 5000),
    "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "root": os.getuid() == 0,
    "writes_root": writes("/here") or writes("/usr/here") or writes("/opt/here"),
    "writes_tmp": writes("/tmp/here"),
    "ledger": any("LEDGER" in name for name in os.environ),
}))
"""
)


def test_a_trial_is_a_stranger(cluster: Cluster, trial_pod: dict[str, Any]) -> None:
    code = PROBE % tuple(f"{RELEASE}-{name}.{CONTROL}.svc" for name in ("postgresql", "gateway", "mlflow"))
    said = cluster.kubectl("exec", trial_pod["metadata"]["name"], "-c", "ray-worker", "--", "python", "-c", code)
    assert json.loads(said.splitlines()[-1]) == {
        "postgresql": False,
        "api": False,
        "gateway": True,  # MLflow's door
        "mlflow": False,
        "token": False,
        "root": False,
        "writes_root": False,
        "writes_tmp": True,
        "ledger": False,
    }


@pytest.fixture
def neighbour(cluster: Cluster, tmp_path: Path) -> Any:
    """A worker pod of another run, beside that of `trial_pod`."""
    job = cluster.job(tmp_path / "jobs" / "toy", spec=SPEC.replace("0.3", "100").replace("trials: 6", "trials: 2"))
    cluster.platform("submit", "hpo", job, "--name", "beside", "--parallel", "1", "--detach")
    cluster.until("trial", lambda: cluster.status("beside")["running"] == 1)
    (pod,) = cluster.objects("pods", run="beside", role="trial")
    yield pod
    cluster.platform("cancel", "beside", "--now", "--yes")


def test_pods_of_two_runs_do_not_reach_each_other(
    cluster: Cluster, trial_pod: dict[str, Any], neighbour: dict[str, Any]
) -> None:
    """Ray's head and Ray's agent, which listen in each of them; the first is the run's own."""
    theirs = [("beside-head-svc", 6379), ("beside-head-svc", 8090), (neighbour["status"]["podIP"], 52365)]
    assert cluster.connects(trial_pod, [("open-head-svc", 6379), *theirs]) == [True, False, False, False]


def test_doctor_finds_nothing_broken(cluster: Cluster) -> None:
    found = cluster.said("doctor")
    bad = [line for line in found if line["verdict"] == "fail"]
    assert not bad, bad
    assert len(found) > 15


def test_helm_test_passes(cluster: Cluster) -> None:
    assert "Succeeded" in helm("test", RELEASE, "--namespace", CONTROL, "--timeout", "4m")


def test_what_would_be_applied_is_what_the_cluster_takes(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.job(tmp_path / "jobs" / "toy")
    manifests = cluster.platform("submit", "hpo", job, "--name", "dry", "--dry-run")
    out = cluster.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=manifests)
    assert "run.trialplane.io/dry" in out
    assert not cluster.objects("runs", run="dry")
