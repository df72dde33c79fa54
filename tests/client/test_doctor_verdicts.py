"""What `platform doctor` says of what it sees on a laptop and in a cluster, every failure with its cure, and its pod.

Not checked here: the command as a whole (test_doctor.py), what the pod looks at (tests/worker/test_probe.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trialplane
from trialplane import policies
from trialplane.client import doctor, doctor_pod, doctor_verdicts
from trialplane.client.machine import Machine
from trialplane.kube.cluster import ApiResponse
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire import findings, records
from trialplane.wire.findings import Finding, Verdict

SITE = {
    "version": trialplane.__version__,
    "release": "platform",
    "control": "trialplane",
    "images": {"controller": "trialplane/controller:dev", "trial": "trialplane/trial:dev"},
    "gateway": {"service": "platform-gateway", "port": 8080},
    "ledger": {"name": "ledger", "key": "url"},
    "runs": {"claim": "runs"},
    "controller_account": "platform-controller",
    "trial_account": "platform-trial",
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}
REFUSAL = (
    "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'trialplane' with binding 'trialplane' denied request: "
    "a trial's pod needs TRIALPLANE_START_METHOD=spawn"
)


def site(**changes: Any) -> Site:
    return Site.read(json.dumps({**SITE, **changes}), "team")


def answer(status: int, data: Any) -> ApiResponse:
    return ApiResponse(status, {}, data if isinstance(data, bytes) else json.dumps(data).encode())


def node(labels: dict[str, str], **allocatable: str) -> dict[str, Any]:
    have = {"cpu": "8", "memory": "32Gi", **{name.replace("__", "/"): value for name, value in allocatable.items()}}
    return {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": have}}


def claim(name: str, phase: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"phase": phase}}


def operator(image: str, available: int = 1) -> dict[str, Any]:
    containers = [{"image": image}]
    return {
        "metadata": {"name": "kuberay-operator", "namespace": "kuberay-system"},
        "spec": {"template": {"spec": {"containers": containers}}},
        "status": {"availableReplicas": available} if available else {},
    }


def version(minor: str) -> ApiResponse:
    return answer(200, {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"})


RAY_API = answer(200, {"resources": [{"name": "rayclusters"}]})
SCHEMA = answer(200, b'{"enableK8sTokenAuth": {}}')
DEFAULT_CLASS = {"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
HERE = Machine(cores=2, gpus=0, memory=2**34, missing=(), obstacle="", free=2**34)


def room(gpus: int, nodes: Any) -> Finding:
    return doctor_verdicts.room(site(), doctor_pod.plan(doctor.default_job(gpus)), nodes)


GPU_NODE = node({"pool": "gpu"}, nvidia__com_gpu="0")
GPU_NODE["status"]["allocatable"] = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2"}

BAD = {
    "an old interpreter": (doctor.check_python((3, 10, 1)), Verdict.FAIL, "3.10.1", "3.11"),
    "no libraries": (
        doctor.check_libraries(Machine(2, 0, None, ("ray",), "", 2**34)),
        Verdict.FAIL,
        "ray cannot be found",
        "pip install",
    ),
    "no disk": (
        doctor.check_disk(Machine(2, 0, None, (), "", 2**20), Path("/home/ann")),
        Verdict.FAIL,
        "1 MiB are left",
        "TRIALPLANE_HOME",
    ),
    "little shared memory": (doctor.check_shared_memory(2**26), Verdict.FAIL, "64 MiB free", "--shm-size"),
    "no shared memory": (doctor.check_shared_memory(None), Verdict.WARN, "there is none", "Linux"),
    "no credentials": (doctor_verdicts.server(answer(401, {}), "lab"), Verdict.FAIL, "answers 401", "auth whoami"),
    "an old Kubernetes": (doctor_verdicts.server(version("29+"), "lab"), Verdict.FAIL, "v1.29", "1.30"),
    "no KubeRay": (
        doctor_verdicts.resources(answer(404, {}), answer(404, {})),
        Verdict.FAIL,
        "does not know rayclusters",
        "platform docs cluster",
    ),
    "no Runs": (doctor_verdicts.runs(answer(404, {})), Verdict.FAIL, "trialplane.io/v1alpha1", "charts/platform/crds/"),
    "other Runs": (
        doctor_verdicts.runs(answer(200, {"resources": []})),
        Verdict.FAIL,
        "trialplane.io/v1alpha1",
        "charts/platform/crds/",
    ),
    "old kinds": (
        doctor_verdicts.resources(RAY_API, answer(200, b"{}")),
        Verdict.FAIL,
        "before 1.6",
        "helm show crds",
    ),
    "no operator": (doctor_verdicts.operator([]), Verdict.FAIL, "no Deployment", "platform docs cluster"),
    "an old operator": (
        doctor_verdicts.operator([operator("quay/operator:v1.5.1")]),
        Verdict.FAIL,
        "older than 1.6",
        "platform docs cluster",
    ),
    "an operator that does not run": (
        doctor_verdicts.operator([operator("quay/operator:v1.6.2", 0)]),
        Verdict.FAIL,
        "no ready pod",
        "kubectl --namespace kuberay-system",
    ),
    "an operator without a version": (
        doctor_verdicts.operator([operator("quay/operator@sha256:abc")]),
        Verdict.WARN,
        "not a version",
        "1.6",
    ),
    "another version of the chart": (
        doctor_verdicts.chart(site(version="99.1.0")),
        Verdict.WARN,
        "99.1.0",
        "helm upgrade platform",
    ),
    "no claim": (doctor_verdicts.claims(site(), [], []), Verdict.FAIL, "no claim runs", "helm upgrade"),
    "no storage class": (
        doctor_verdicts.claims(site(), [claim("runs", "Pending")], []),
        Verdict.FAIL,
        "no storage class is the default",
        "get storageclass",
    ),
    "a claim that waits": (
        doctor_verdicts.claims(site(), [claim("runs", "Pending")], [DEFAULT_CLASS]),
        Verdict.WARN,
        "runs not bound",
        "describe pvc runs",
    ),
    "no claim for runs": (
        doctor_verdicts.claims(site(runs={"claim": ""}), [], []),
        Verdict.WARN,
        "are lost with their pods",
        "claim for runs",
    ),
    "no way to the gateway": (
        doctor_verdicts.gateway(answer(403, {}), site()),
        Verdict.FAIL,
        "may not reach the service platform-gateway in namespace trialplane",
        "`users` of your team",
    ),
    "a dead gateway": (
        doctor_verdicts.gateway(answer(503, b"no endpoints"), site()),
        Verdict.FAIL,
        "answers 503: no endpoints",
        "kubectl -n trialplane logs",
    ),
    "no GPUs": (room(1, [node({"pool": "gpu"})]), Verdict.FAIL, "no node has any", "device plugin"),
    "too few GPUs": (
        room(4, [GPU_NODE]),
        Verdict.FAIL,
        "the largest node that it may run on has 2",
        "--gpus 0",
    ),
    "no node of the kind": (room(0, [node({})]), Verdict.WARN, "pool=gpu", "wait"),
    "nodes that may not be seen": (room(0, None), Verdict.WARN, "may not list them", "ask"),
    "a missing permission": (
        doctor_verdicts.permissions(["create pods"]),
        Verdict.FAIL,
        "you may not create pods",
        "`users` of your team",
    ),
    "pods that may not be made": (
        doctor_verdicts.permission_to_make_pods(["create pods", "delete pods"], "lab", "team"),
        Verdict.WARN,
        "may not create pods and delete pods",
        "platform doctor --context lab --namespace team",
    ),
    "no admission policy": (
        doctor_verdicts.admission(answer(201, {})),
        Verdict.FAIL,
        "would be admitted",
        "admission.enabled",
    ),
    "another refusal": (
        doctor_verdicts.admission(answer(403, {"message": "exceeded quota: small"})),
        Verdict.WARN,
        "not by it: exceeded quota: small",
        "something else",
    ),
    "a pod that died": (
        doctor_pod.early_end_finding(
            {
                "metadata": {"name": "p"},
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}],
                },
            },
            0,
            ["No module named probe\n"],
        ),
        Verdict.FAIL,
        "ended with exit code 1 before its checks were done; its output: No module named probe",
        "jobs/Dockerfile",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_comes_with_its_cure(what: str) -> None:
    finding, verdict, message, cure = BAD[what]
    assert finding is not None
    assert finding.verdict is verdict
    assert message in finding.message
    assert cure in finding.fix


GOOD = [
    doctor.check_python((3, 11, 0)),
    doctor.check_optional_program("kind", None, "makes clusters"),
    doctor.check_libraries(HERE),
    doctor.check_disk(HERE, Path("/home/ann")),
    doctor.check_shared_memory(2**30),
    doctor_verdicts.server(version("34"), "lab"),
    doctor_verdicts.resources(RAY_API, SCHEMA),
    doctor_verdicts.operator([operator("quay/operator:v1.6.2")]),
    doctor_verdicts.chart(site()),
    doctor_verdicts.claims(site(), [claim("runs", "Bound")], []),
    doctor_verdicts.gateway(answer(200, b"{}"), site()),
    room(2, [GPU_NODE]),
    doctor_verdicts.permissions([]),
    doctor_verdicts.admission(answer(422, {"message": REFUSAL})),
]


@pytest.mark.parametrize("finding", GOOD, ids=lambda finding: finding.check)
def test_what_is_well_needs_no_cure(finding: Finding) -> None:
    assert finding.verdict is Verdict.PASS, finding
    assert finding.fix == ""


def test_the_policys_own_words_are_shown() -> None:
    finding = doctor_verdicts.admission(answer(422, {"message": REFUSAL}))
    assert finding.message == "refuses a pod without the variables: a trial's pod needs TRIALPLANE_START_METHOD=spawn"


def test_the_pod_is_made_as_a_trials_pod_is() -> None:
    plan = doctor_pod.plan(doctor.default_job(2))
    pod = doctor_pod.manifest(plan, site(), doctor_pod.arguments(plan, site(data={"claim": "data"}), "db.team.svc:5432"))
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert pod["metadata"]["labels"][names.ROLE] == names.TRIAL
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert spec["serviceAccountName"] == "platform-trial"
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] > 0
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not [volume for volume in spec["volumes"] if "configMap" in volume]
    assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in spec["volumes"]}
    assert container["command"][:3] == ["python", "-m", "trialplane.worker.probe"]
    assert {"--gpus=2", "--data=/data", "--closed=PostgreSQL=db.team.svc:5432"} <= set(container["command"])
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert policies.trial_env().items() <= variables.items()
    left = {one["name"] for one in doctor_verdicts.forbidden_pod(pod)["spec"]["containers"][0]["env"]}
    assert left == variables.keys() - policies.trial_env().keys()
    assert "env" in container  # the pod itself was not changed


def test_a_database_elsewhere_is_found_by_the_ledgers_url() -> None:
    assert doctor_pod.database_address("postgresql+psycopg2://u:p@far:6432/x") == "far:6432"
    assert doctor_pod.database_address("postgresql+psycopg2://u:p@far/x") == "far:5432"
    assert doctor_pod.database_address("") == ""


def test_only_findings_are_read_from_a_pods_log() -> None:
    finding = findings.warned("a", "b", "c")
    assert doctor_pod.parse_finding(records.to_json(finding) + "\n") == finding
    assert doctor_pod.parse_finding("USDT: profiler\n") is None
    assert doctor_pod.parse_finding('{"check": "a", "verdict": "great"}\n') is None
    assert doctor_pod.parse_finding('{"check" broken\n') is None
