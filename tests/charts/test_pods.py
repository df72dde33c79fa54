"""The chart's own pods: each keeps the Pod Security Standard `restricted` and a read-only root, has no token, tells no
password, and starts what the images have.

Not checked here: the pods of runs (tests/plan/test_manifests.py), whether they start (tests/e2e).
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from tests.charts.conftest import TEAM
from tests.gateway.mlflow_site import SOURCE

from trialplane.ledger import budget
from trialplane.wire import cluster, env, mlflow

Thing = dict[str, Any]
Pods = Callable[[list[Thing]], Iterator[tuple[str, Thing]]]
Render = Callable[[dict[str, Any]], list[Thing]]
WRITABLE = ("emptyDir", "persistentVolumeClaim")


def _containers(pod: Thing) -> list[Thing]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def test_every_pod_is_restricted(objects: list[Thing], pods: Pods) -> None:
    found = list(pods(objects))
    assert len(found) >= 2
    for name, pod in found:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is name.endswith(("-operator", "-gateway", "-mlflow")), name
        assert spec["enableServiceLinks"] is False
        only_helps = name == "platform-images" or name.startswith("platform-volumes-")  # no run fails without it
        priority = "control-warm" if name.startswith("platform-warm-") else None if only_helps else "control-platform"
        assert spec.get("priorityClassName") == priority, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["fsGroup"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in spec["volumes"]:
            assert set(volume) - {"name"} <= {"emptyDir", "configMap", "secret", "persistentVolumeClaim"}, name
        for container in _containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            }, f"{name}/{container['name']}"


def test_every_container_can_write_to_tmp_and_has_requests_and_limits(objects: list[Thing], pods: Pods) -> None:
    """A quota on CPU or memory refuses pods that do not say what they want."""
    for name, pod in pods(objects):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for container in _containers(pod):
            paths = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert "emptyDir" in volumes[paths["/tmp"]], name
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= set(container["resources"][kind]), name


def test_no_pod_shows_a_password(objects: list[Thing], pods: Pods) -> None:
    hidden = {
        value
        for one in objects
        if one["kind"] == "Secret"
        for key, value in {**one.get("data", {}), **one.get("stringData", {})}.items()
        if key != "username"
    }
    texts = {name: json.dumps(pod) for name, pod in pods(objects)}
    texts |= {one["metadata"]["name"]: json.dumps(one["data"]) for one in objects if one["kind"] == "ConfigMap"}
    for name, text in texts.items():
        assert not any(secret in text for secret in hidden), name


def test_the_databases_are_two_with_passwords_of_their_own(render: Render, named: Callable[..., Thing]) -> None:
    objects = render({})
    urls = [named(objects, "Secret", name)["stringData"]["url"] for name in ("platform-ledger", "platform-mlflow-database")]
    passwords = named(objects, "Secret", "platform-postgresql")["stringData"]
    assert len(set(passwords.values())) == 3
    assert urls == [
        f"postgresql+psycopg2://{user}:{passwords[user]}@platform-postgresql.control.svc:5432/{user}"
        for user in ("ledger", "mlflow")
    ]


def test_given_passwords_are_used_and_quoted(render: Render, named: Callable[..., Thing]) -> None:
    given = {"admin": "a", "ledger": "p@ss /word", "mlflow": "m"}
    objects = render({"postgresql": {"passwords": given}})
    assert named(objects, "Secret", "platform-postgresql")["stringData"] == given
    url = named(objects, "Secret", "platform-ledger")["stringData"]["url"]
    assert sqlalchemy.make_url(url).password == given["ledger"]


def test_the_gateway_gets_what_it_reads(render: Render, named: Callable[..., Thing]) -> None:
    template = named(render({}), "Deployment", "platform-gateway")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    names = {one["name"] for one in container["env"]}
    assert {env.LEDGER, env.MLFLOW_TRACKING_URI} <= names
    assert container["command"] == ["python", "-m", "trialplane.gateway"]
    assert container["args"] == ["--control=control", "--namespaces=studies"]
    assert importlib.util.find_spec("trialplane.gateway") is not None
    assert container["ports"][0]["containerPort"] == cluster.GATEWAY_PORT


def test_no_gateway_needs_a_volume_so_there_are_two(render: Render, named: Callable[..., Thing]) -> None:
    objects = render({"runs": {"existingClaim": "r"}, "checkpoints": {"enabled": True}})
    found = named(objects, "Deployment", "platform-gateway")["spec"]
    assert found["replicas"] == 2
    assert found["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    (volume,) = found["template"]["spec"]["volumes"]
    assert volume["emptyDir"]["sizeLimit"]
    budget = named(objects, "PodDisruptionBudget", "platform-gateway")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= found["template"]["metadata"]["labels"].items()
    alone = render({"gateway": {"replicas": 1}})
    assert named(alone, "Deployment", "platform-gateway")["spec"]["replicas"] == 1
    assert not [one for one in alone if one["kind"] == "PodDisruptionBudget"], "it would let no node be drained"


@pytest.mark.parametrize(
    ("values", "claims"),
    [
        ({}, ["platform-runs"]),
        ({"checkpoints": {"enabled": True}}, ["platform-runs", "platform-checkpoints"]),
        ({"runs": {"existingClaim": "mine"}, "checkpoints": {"enabled": True, "existingClaim": "mine"}}, []),
        ({"runs": {"enabled": False}}, []),
    ],
)
def test_a_pod_binds_the_claims_that_no_other_pod_of_the_chart_uses(
    render: Render, values: dict[str, Any], claims: list[str]
) -> None:
    """Else `helm install --wait` waits for them until it gives up."""
    jobs = [one["spec"]["template"]["spec"] for one in render(values) if one["kind"] == "Job"]
    found = [one["persistentVolumeClaim"]["claimName"] for job in jobs for one in job["volumes"][1:]]
    assert found == claims


@pytest.mark.parametrize("secret", ["", "login"])
def test_the_gateway_reads_logs_of_mlflow(render: Render, named: Callable[..., Thing], secret: str) -> None:
    values: dict[str, Any] = {
        "mlflow": {"enabled": False, "trackingUri": "https://mlflow.example", "existingSecret": secret}
    }
    (container,) = named(render(values), "Deployment", "platform-gateway")["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one for one in container["env"]}
    assert variables[env.MLFLOW_TRACKING_URI]["value"] == "https://mlflow.example"
    password = variables.get("MLFLOW_TRACKING_PASSWORD", {}).get("valueFrom")
    assert password == ({"secretKeyRef": {"name": "login", "key": "password"}} if secret else None)
    values["mlflow"]["login"] = "token"
    (container,) = named(render(values), "Deployment", "platform-gateway")["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one for one in container["env"]}
    assert ("MLFLOW_TRACKING_TOKEN" in variables, "MLFLOW_TRACKING_PASSWORD" in variables) == (bool(secret), False)
    if secret:
        key = {"secretKeyRef": {"name": "login", "key": "token"}}
        assert variables["MLFLOW_TRACKING_TOKEN"]["valueFrom"] == key


def test_pods_start_anew_when_a_given_password_changes_and_only_then(render: Render, named: Callable[..., Thing]) -> None:
    """Generated ones are drawn anew at each rendering here, as there is no cluster to read them back from."""

    def marks(values: dict[str, Any]) -> list[Thing]:
        objects = render(values)
        owners = (("StatefulSet", "postgresql"), ("Deployment", "mlflow"), ("Deployment", "gateway"))
        return [named(objects, kind, f"platform-{name}")["spec"]["template"]["metadata"] for kind, name in owners]

    first, second = (
        marks({"postgresql": {"passwords": {"ledger": "one"}}}),
        marks({"postgresql": {"passwords": {"ledger": "2"}}}),
    )
    assert all(one["annotations"] != other["annotations"] for one, other in zip(first, second, strict=True))
    assert marks({}) == marks({"keepVolumes": False})


def test_postgresql_starts_by_the_script_that_sets_passwords(render: Render, named: Callable[..., Thing]) -> None:
    spec = named(render({}), "StatefulSet", "platform-postgresql")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    folder = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "scripts")
    script = Path(container["command"][1])
    assert str(script.parent) == folder
    assert script.name in named(render({}), "ConfigMap", "platform-postgresql")["data"]
    assert script.suffix not in (".sh", ".sql")  # the image would run it on an empty volume


def _mlflow(render: Render, named: Callable[..., Thing], values: dict[str, Any]) -> Thing:
    spec: Thing = named(render({"mlflow": values}), "Deployment", "platform-mlflow")["spec"]["template"]["spec"]
    return spec


def _option(spec: Thing, name: str) -> str:
    (found,) = (word for word in spec["containers"][0]["command"] if word.startswith(f"--{name}="))
    return str(found.split("=", 1)[1])


@pytest.mark.services
def test_mlflow_answers_to_the_names_it_has_and_to_no_other(render: Render, named: Callable[..., Thing]) -> None:
    import mlflow

    # By its file: the package around it is a whole server.
    path = Path(mlflow.__file__).parent / "server" / "security_utils.py"
    spec_of_module = importlib.util.spec_from_file_location("loaded_security_utils", path)
    assert spec_of_module is not None
    assert spec_of_module.loader is not None
    security_utils = importlib.util.module_from_spec(spec_of_module)
    spec_of_module.loader.exec_module(security_utils)
    spec = _mlflow(render, named, {})
    hosts = _option(spec, "allowed-hosts").split(",")
    service = "platform-mlflow"
    for host in (
        f"{service}:5000",
        f"{service}.control:5000",
        f"{service}.control.svc:5000",
        f"{service}.control.svc.cluster.local:5000",
        "localhost:41234",
        "127.0.0.1:5000",
    ):
        assert security_utils.is_allowed_host_header(hosts, host), host
    for host in ("evil.org", f"{service}.evil.org", "mlflow.example.org.evil.org", "10.0.0.1:5000", ""):
        assert not security_utils.is_allowed_host_header(hosts, host), host
    probe = spec["containers"][0]["readinessProbe"]["httpGet"]["httpHeaders"][0]["value"]
    assert security_utils.is_allowed_host_header(hosts, probe)


def test_the_migration_gets_what_the_server_gets(render: Render, named: Callable[..., Thing]) -> None:
    """A database may want variables of its driver: PGSSLMODE."""
    more: dict[str, list[Thing]] = {
        "extraEnv": [{"name": "PGSSLMODE", "value": "verify-full"}],
        "extraEnvFrom": [{"secretRef": {"name": "tls"}}],
    }
    spec = _mlflow(render, named, more)
    for container in (*spec["initContainers"], *spec["containers"]):
        assert more["extraEnv"][0] in container["env"]
        assert container["envFrom"] == more["extraEnvFrom"]


@pytest.mark.services
def test_mlflow_takes_the_options_it_is_started_with(render: Render, named: Callable[..., Thing]) -> None:
    command = [sys.executable, "-m", "mlflow", "server", "--help"]
    known = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    command = _mlflow(render, named, {})["containers"][0]["command"]
    assert command[:2] == ["mlflow", "server"]
    for word in command[2:]:
        assert re.search(rf"{re.sub('=.*', '', word)}\b", known), word


def test_mlflow_and_its_page_do_not_call_home(render: Render, named: Callable[..., Thing]) -> None:
    (server,) = _mlflow(render, named, {})["containers"]
    assert {"name": "MLFLOW_DISABLE_TELEMETRY", "value": "true"} in server["env"]


def test_readiness_of_mlflow_asks_the_database_as_nobody(render: Render, named: Callable[..., Thing]) -> None:
    asked = _mlflow(render, named, {})["containers"][0]["readinessProbe"]["httpGet"]
    headers = {one["name"]: one["value"] for one in asked["httpHeaders"]}
    assert "experiments/search" in asked["path"]
    assert headers.keys() == {"Host", "X-Remote-User", mlflow.WORKSPACE}
    assert headers[mlflow.WORKSPACE] == TEAM


def test_mlflow_runs_with_the_plugin_and_the_teams_workspaces(
    render: Render, named: Callable[..., Thing], sets: dict[str, dict[str, Any]]
) -> None:
    pod = named(render(sets["two"]), "Deployment", "platform-mlflow")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert {"--enable-workspaces", "--workspace-store-uri=kubernetes://", "--app-name=kubernetes-auth"} <= set(
        server["command"]
    )
    environ = {one["name"]: one.get("value") for one in server["env"]}
    assert environ["MLFLOW_K8S_AUTH_AUTHORIZATION_MODE"] == "subject_access_review"
    assert environ["MLFLOW_K8S_WORKSPACE_LABEL_SELECTOR"] == "kubernetes.io/metadata.name in (vision,speech)"
    source = re.compile(str(environ["MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX"]))
    assert source.pattern == SOURCE, "the gateway's tests try another one"
    assert source.search("mlflow-artifacts:/workspaces/vision/1/a/artifacts/model")
    assert not any(map(source.search, ("s3://bucket/workspaces/speech/1", "file:///etc", "mlflow-artifacts://host/a")))


def test_artifacts_go_to_a_volume_or_to_s3(render: Render, named: Callable[..., Thing]) -> None:
    volume, s3 = (_mlflow(render, named, values) for values in ({}, {"artifacts": {"uri": "s3://b/p"}}))
    mounts = {mount["mountPath"] for mount in volume["containers"][0]["volumeMounts"]}
    assert _option(volume, "artifacts-destination") in mounts
    assert _option(s3, "artifacts-destination") == "s3://b/p"
    assert not any("persistentVolumeClaim" in one for one in s3["volumes"])


def test_the_gateway_is_the_way_to_mlflow_and_has_its_password(
    render: Render, named: Callable[..., Thing], sets: dict[str, dict[str, Any]]
) -> None:
    def environ(values: dict[str, Any]) -> dict[str, Thing]:
        spec = named(render(values), "Deployment", "platform-gateway")["spec"]["template"]["spec"]
        return {one["name"]: one for one in spec["containers"][0]["env"]}

    plain = environ({})
    assert plain[env.MLFLOW_TRACKING_URI]["value"] == "http://platform-mlflow.control.svc:5000"
    assert plain[env.MAX_ARTIFACT]["value"] == str(512 << 20)
    assert env.MLFLOW_PASSWORD not in plain
    outside = environ({**sets["outside"], "gateway": {**sets["outside"].get("gateway", {}), "maxArtifact": "3Ti"}})
    assert outside[env.MLFLOW_TRACKING_URI]["value"] == "https://mlflow.example.org"
    assert outside[env.MAX_ARTIFACT]["value"] == str(3 << 40)
    password = {"name": "mlflow-login", "key": "password"}
    assert outside[env.MLFLOW_PASSWORD]["valueFrom"]["secretKeyRef"] == password


def test_gateway_and_operator_know_the_budget_of_each_team(render: Render, named: Callable[..., Thing]) -> None:
    def budgets(values: dict[str, Any]) -> Any:
        objects = render({"teams": [{"namespace": "a"}, {"namespace": "b"}], **values})
        found = set()
        for name in ("platform-gateway", "platform-operator"):
            (container,) = named(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"]
            (one,) = (one for one in container["env"] if one["name"] == env.BUDGETS)
            budget.read(one["value"], ["a", "b"])
            found.add(one["value"])
        (text,) = found
        return json.loads(text)

    gib = 1 << 30
    share = {"database": 10 * gib // 2 // 2, "artifacts": 20 * gib // 2}
    assert budgets({}) == {"a": share, "b": share}
    own = {"teams": [{"namespace": "a", "budget": {"database": "3Gi"}}, {"namespace": "b"}]}
    assert budgets({"budget": {"database": "1Gi", "artifacts": "2Ti"}, **own}) == {
        "a": {"database": 3 * gib, "artifacts": 2 << 40},
        "b": {"database": gib, "artifacts": 2 << 40},
    }
    store = {"mlflow": {"artifacts": {"uri": "s3://bucket/mlflow"}}, "postgresql": {"size": "1.5T"}}
    assert budgets(store)["a"] == {"database": int(1.5e12) // 4, "artifacts": None}


def test_a_team_has_a_quota_for_numbers_of_objects(render: Render, named: Callable[..., Thing]) -> None:
    more = {"namespace": "b", "counts": {"count/secrets": 9}, "quota": {"pods": "3"}}
    objects = render({"teams": [{"namespace": "a"}, more]})
    quotas = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"]["hard"]
        for one in objects
        if one["kind"] == "ResourceQuota"
    }
    counts = {"count/runs.trialplane.io": "500", "count/configmaps": "2000", "count/secrets": "1500"}
    assert quotas == {
        ("a", "platform-counts"): counts,
        ("b", "platform-counts"): {**counts, "count/secrets": 9},
        ("b", "platform"): {"pods": "3"},
    }


def test_images_are_pulled_on_request_to_the_nodes_of_runs(
    render: Render, named: Callable[..., Thing], sets: dict[str, dict[str, Any]]
) -> None:
    assert not [one for one in render({}) if one["kind"] == "DaemonSet"]
    spec = named(render(sets["cloud"]), "DaemonSet", "platform-images")["spec"]["template"]["spec"]
    trial = "team/trial@sha256:" + "0" * 64
    assert [one["image"] for one in spec["containers"]] == [trial, "team/controller:1", "team/vision:1"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == {"pool": "gpu"}, "that of runs"
    gpus = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert spec["tolerations"] == [gpus], "once, though it is among those of runs too"
    own = {"enabled": True, "nodeSelector": {"pool": "all"}, "tolerations": [], "images": ["trialplane/trial:0.1.0"]}
    spec = named(render({"image": {"prePull": own}}), "DaemonSet", "platform-images")["spec"]["template"]["spec"]
    assert (spec["nodeSelector"], "tolerations" in spec) == ({"pool": "all"}, False)


def test_warm_pods_hold_room_where_a_teams_trials_run(render: Render, named: Callable[..., Thing]) -> None:
    assert not [one for one in render({}) if one["metadata"]["name"].startswith("platform-warm")]
    gpus = {
        "namespace": "a",
        "warm": {"pods": 3, "requests": {"nvidia.com/gpu": "1"}},
        "studies": {"nodeSelector": {"pool": "a100"}},
    }
    objects = render({"teams": [gpus, {"namespace": "b"}], "warm": {"requests": {"memory": "8Gi"}}})
    (deployment,) = (one for one in objects if one["metadata"]["name"].startswith("platform-warm"))
    assert deployment["metadata"]["name"] == "platform-warm-a"
    assert "namespace" not in deployment["metadata"], "the release's, where no quota of the team counts them"
    assert deployment["spec"]["replicas"] == 3
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    held = {"cpu": "1", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert container["resources"] == {"requests": held, "limits": held}
    assert spec["nodeSelector"] == {"pool": "a100"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    priority = named(objects, "PriorityClass", spec["priorityClassName"])
    assert (priority["value"], priority["preemptionPolicy"], priority["globalDefault"]) == (-10, "Never", False)


def test_warm_pods_must_be_below_all_classes_of_runs(template: Callable[..., Any], render: Render) -> None:
    values = {"teams": [{"namespace": "a", "warm": {"pods": 1}}], "priorityClasses": {"enabled": True, "warm": -1000}}
    refused = template(values)
    assert refused.returncode != 0
    assert "team a: priorityClasses.warm must be below all of priorityClasses.classes, so below -1000" in refused.stderr
    values["priorityClasses"]["warm"] = -1001  # type: ignore[index]
    assert [one for one in render(values) if one["metadata"]["name"] == "platform-warm-a"]
