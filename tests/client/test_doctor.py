"""`platform doctor` as a whole, on a double of an API server on which a pod has ended as soon as it is made.

Not checked here: what each check says of what it sees (test_doctor_verdicts.py), what the pod looks at
(tests/worker/test_probe.py), and a real cluster (tests/e2e).
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from click.testing import CliRunner
from tests.client.test_doctor_verdicts import DEFAULT_CLASS, GPU_NODE, REFUSAL, SITE, claim, operator
from tests.kube.cluster_double import ClusterDouble, Problem

from trialplane import policies
from trialplane.cli import doctor as doctor_verb
from trialplane.client import doctor, target_choice
from trialplane.client.target import HERE, TargetName
from trialplane.wire import cluster as names
from trialplane.wire import findings, records


class Doctored(ClusterDouble):
    """A cluster on which the chart is installed and all is well; a pod has ended as soon as it is made.

    Attributes:
        denied: what this user may not do, as `verb resource`.
        enforces: whether the admission policy is bound.
        pod: status that a new pod gets, and what its log says.
    """

    def __init__(self) -> None:
        super().__init__()
        self.denied: set[str] = set()
        self.enforces = True
        self.status: dict[str, Any] = {"phase": "Succeeded"}
        self.said = records.to_json(findings.passed("torch", "computes")) + "\nnoise\n"
        site = {**SITE, "database": "platform-postgresql.trialplane.svc:5432"}
        self.put("configmaps", {"metadata": {"name": names.SITE}, "data": {names.SITE_KEY: json.dumps(site)}})
        self.put("nodes", GPU_NODE)
        self.proxy = lambda *_: (200, {}, b"{}")

    def answer(self, method, target, headers, body):
        path, _, query = target.partition("?")
        fixed = {
            "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.3"},
            "/apis/ray.io/v1": {"resources": [{"name": "rayclusters"}]},
            "/apis/trialplane.io/v1alpha1": {"resources": [{"name": "runs"}, {"name": "runs/status"}]},
            "/openapi/v3/apis/ray.io/v1": {"enableK8sTokenAuth": {}},
            "/apis/apps/v1/deployments": {"items": [operator("quay/operator:v1.6.2")]},
            "/apis/storage.k8s.io/v1/storageclasses": {"items": [DEFAULT_CLASS]},
            f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims": {"items": [claim("runs", "Bound")]},
        }
        if path in fixed:
            return 200, {}, json.dumps(fixed[path]).encode()
        if path.endswith("/selfsubjectaccessreviews"):
            asked = json.loads(body)["spec"]["resourceAttributes"]
            allowed = f"{asked['verb']} {asked['resource']}" not in self.denied
            proxied = "trialplane" if asked["resource"] == "services" else self.namespace
            allowed = allowed and asked["namespace"] == proxied
            return 201, {}, json.dumps({"status": {"allowed": allowed}}).encode()
        if path.endswith("/pods") and method == "POST":
            pod = json.loads(body)
            named = {one["name"] for one in pod["spec"]["containers"][0]["env"]}
            if self.enforces and not policies.trial_env().keys() <= named:
                return 422, {}, json.dumps(Problem(422, REFUSAL).body).encode()
            if "dryRun" in query:
                return 201, {}, body
            self.logs[pod["metadata"]["name"]] = self.said
            self.put("pods", {**pod, "status": self.status})
            return 201, {}, body
        return super().answer(method, target, headers, body)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    double = Doctored()
    monkeypatch.setenv("KUBECONFIG", str(double.kubeconfig(tmp_path / "kubeconfig")))
    monkeypatch.setenv("TRIALPLANE_HOME", str(tmp_path / "home"))
    yield double
    double.close()


def examined(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code, and findings by check."""
    said = CliRunner().invoke(doctor_verb.doctor_command, [*words, "--output", "json"], standalone_mode=False)
    assert said.exception is None, said.exception
    return said.return_value, {one["check"]: one for one in json.loads(said.stdout)}


def pods_made(cluster: Doctored) -> int:
    return sum(method == "POST" and path.endswith("/pods") for method, path in cluster.requests)


def test_it_looks_where_the_last_submission_went(cluster) -> None:
    _, found = examined("--wait", "1")
    assert found["kubeconfig"]["message"].startswith("namespace team of lab"), "nothing was submitted: as `submit` would go"
    target_choice.remember(TargetName(context="lab", namespace="other"), "a")
    _, found = examined("--wait", "1")
    assert found["kubeconfig"]["message"].startswith("namespace other of lab")


def test_on_this_machine_it_asks_for_nothing_that_only_clusters_need(cluster) -> None:
    lines = doctor.examine(HERE, doctor.default_job(0), 1.0)
    checks = [line.finding.check for line in itertools.takewhile(lambda line: line.finding.check != "/dev/shm", lines)]
    assert checks == ["versions", "libraries", "disk"]
    lines.close()


def test_a_healthy_cluster_passes_from_the_laptop_to_the_pod(cluster) -> None:
    code, found = examined("--gpus", "1")
    bad = {check: one for check, one in found.items() if one["verdict"] != "pass"}
    assert not bad
    assert code == 0
    assert [found[check]["area"] for check in ("versions", "gateway", "torch")] == ["laptop", "cluster", "trial pod"]
    assert cluster.objects["pods"] == {}


def test_people_see_a_line_for_each_and_the_cure_below_it(cluster) -> None:
    cluster.enforces = False
    said = CliRunner().invoke(doctor_verb.doctor_command, [], standalone_mode=False)
    assert said.return_value == 3
    lines = said.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "admission policy" in line)
    assert lines[at].startswith("fail  cluster")
    assert lines[at + 1].strip().startswith("fix: ")
    assert said.stderr.splitlines()[-1].endswith("0 warnings, 1 failed; see `platform docs troubleshooting`")


def test_the_pod_is_deleted_also_when_it_never_starts(cluster) -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    cluster.status = {"phase": "Pending", "conditions": [condition]}
    code, found = examined("--wait", "1")
    assert code == 3
    assert "for lack of" in found["trial pod"]["message"]
    assert cluster.objects["pods"] == {}


def test_a_pod_that_dies_early_is_a_failure_with_its_last_words(cluster) -> None:
    cluster.status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}
    cluster.said = "python: No module named trialplane.worker.probe\n"
    code, found = examined()
    assert code == 3
    assert "No module named" in found["trial pod"]["message"]
    assert cluster.objects["pods"] == {}


def test_who_may_not_make_pods_is_told_so_and_nothing_is_made(cluster) -> None:
    cluster.denied = {"create pods"}
    code, found = examined()
    assert code == 0
    assert found["trial pod"]["verdict"] == "warn"
    assert cluster.objects["pods"] == {}
    assert "torch" not in found


def test_what_may_not_be_read_is_a_warning(cluster) -> None:
    def refuse(verb: str, plural: str, name: str) -> None:
        if plural == "nodes":
            raise Problem(403, f'nodes is forbidden: User "ann" cannot {verb} resource "nodes"')

    cluster.refuse = refuse
    code, found = examined()
    assert code == 0
    assert found["nodes"]["verdict"] == "warn"


def test_without_the_chart_it_stops_there(cluster) -> None:
    cluster.objects["configmaps"].clear()
    code, found = examined()
    assert code == 3
    assert "is not that of a team" in found["chart"]["message"]
    assert "run `helm upgrade`" in found["chart"]["message"], "the cluster knows Runs, so there is a chart"
    assert "helm install" not in found["chart"]["message"]
    assert "gateway" not in found


def test_without_a_cluster_that_answers_it_stops_there(cluster) -> None:
    cluster.close()
    code, found = examined()
    assert code == 3
    assert found["API server"]["verdict"] == "fail"
    assert "cannot be reached" in found["API server"]["message"]
    assert "chart" not in found


def test_without_a_kubeconfig_it_says_what_to_choose(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("TRIALPLANE_HOME", str(tmp_path))  # the last submission of the user's own home may be a local one
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    code, found = examined()
    assert code == 3
    assert found["kubeconfig"]["verdict"] == "fail"
