"""The admission policies: they ask for what `trialplane.policies` says, their messages teach, they are bound to the
release's namespace by its name, and their expressions let the manifests of `plan` in and nothing that breaks a rule.

The expressions are evaluated where a CEL interpreter (`cel-python`) is installed. Not checked here: that the API server
does the same (tests/e2e/test_isolation.py).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialplane import policies
from trialplane.policies import protobuf
from trialplane.wire import cluster

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]
GOLDEN = Path(__file__).resolve().parents[1] / "plan" / "golden"
DATABASE = {"name": "URL", "valueFrom": {"secretKeyRef": {"name": "platform-ledger", "key": "url"}}}
TOKEN = {"name": "token2", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


def test_the_charts_variables_are_the_policies(chart: Path) -> None:
    assert json.loads((chart / "files" / "policies.json").read_text()) == policies.trial_env()


def test_every_variable_has_a_rule_whose_message_names_it_and_what_sets_it(
    render: Render, named: Callable[..., Thing]
) -> None:
    objects = render({})
    for name in ("studies-platform-pods", "studies-platform-rayjobs"):
        rules = named(objects, "ValidatingAdmissionPolicy", name)["spec"]["validations"]
        for variable, value in policies.trial_env().items():
            (rule,) = (rule for rule in rules if f"{variable}={value} in every" in rule["message"])
            assert f"'{variable}'" in rule["expression"]
            assert f"'{value}'" in rule["expression"]
            assert "platform submit" in rule["message"]
        assert all(len(rule["message"]) > 60 and "\n" not in rule["message"] for rule in rules)


def test_a_message_is_no_longer_than_a_terminal_can_show(render: Render) -> None:
    for one in render({}):
        if one["kind"] == "ValidatingAdmissionPolicy":
            assert all(len(rule["message"]) < 300 for rule in one["spec"]["validations"])


def test_the_policies_hold_in_the_releases_namespace_and_need_no_label(render: Render) -> None:
    objects = render({"admission": {"actions": ["Warn", "Audit"]}})
    bindings = [one for one in objects if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    there = {one["metadata"]["name"] for one in objects if one["kind"] == "ValidatingAdmissionPolicy"}
    assert {one["spec"]["policyName"] for one in bindings} == there
    for one in bindings:
        chosen = one["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]
        assert chosen == {"kubernetes.io/metadata.name": "studies"}
        assert one["spec"]["validationActions"] == ["Warn", "Audit"]


def test_without_admission_there_is_none(render: Render) -> None:
    kinds = {one["kind"] for one in render({"admission": {"enabled": False}})}
    assert not any("Admission" in kind for kind in kinds)


class Judge:
    """Evaluates a policy as the API server does: conditions, variables in their order, validations."""

    def __init__(self, policy: Thing) -> None:
        self._celpy = pytest.importorskip("celpy", reason="cel-python is not installed")
        self._spec = policy["spec"]
        self._environment = self._celpy.Environment()
        self._programs: dict[str, Any] = {}  # to compile one takes longer than all else

    def complaints(self, thing: Thing) -> list[str] | None:
        """Messages of what it refuses; None when the policy is not about the object."""
        scope = {"object": self._celpy.json_to_cel(thing)}
        if not all(self._value(one["expression"], scope) for one in self._spec["matchConditions"]):
            return None
        variables = self._celpy.celtypes.MapType()
        for one in self._spec["variables"]:
            name = self._celpy.celtypes.StringType(one["name"])
            variables[name] = self._value(one["expression"], {**scope, "variables": variables})
        scope["variables"] = variables
        return [one["message"] for one in self._spec["validations"] if not self._value(one["expression"], scope)]

    def _value(self, expression: str, scope: dict[str, Any]) -> Any:
        if expression not in self._programs:
            self._programs[expression] = self._environment.program(self._environment.compile(expression))
        return self._programs[expression].evaluate(scope)


@pytest.fixture(scope="module", name="pod_judge")
def _pod_judge(render: Render, named: Callable[..., Thing]) -> Judge:
    return Judge(named(render({}), "ValidatingAdmissionPolicy", "studies-platform-pods"))


def ray_job(name: str) -> Thing:
    """The RayJob of a golden file of `plan`."""
    (one,) = (one for one in yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()) if one["kind"] == "RayJob")
    job: Thing = one
    return job


def pod(name: str, role: str) -> Thing:
    """The pod that KubeRay makes of a golden RayJob: with its labels, and the containers that it adds."""
    spec = ray_job(name)["spec"]
    of_cluster = spec["rayClusterSpec"]
    template = copy.deepcopy(
        {
            cluster.CONTROLLER: of_cluster["headGroupSpec"]["template"],
            cluster.TRIAL: of_cluster["workerGroupSpecs"][0]["template"],
            cluster.SUBMITTER: spec["submitterPodTemplate"],
        }[role]
    )
    template["metadata"]["labels"]["ray.io/cluster"] = "criteria-1-abcde"
    (own,) = template["spec"]["containers"]
    ray_token = {"secretKeyRef": {"name": "criteria-1-abcde", "key": "auth_token"}}
    own["env"].append({"name": "RAY_AUTH_TOKEN", "valueFrom": ray_token})
    if role == cluster.TRIAL:
        template["spec"]["initContainers"] = [{**copy.deepcopy(own), "name": "wait-gcs-ready"}]
    if role == cluster.CONTROLLER and of_cluster.get("enableInTreeAutoscaling"):
        options = of_cluster["autoscalerOptions"]
        given = {key: options[key] for key in ("env", "securityContext", "volumeMounts")}
        template["spec"]["containers"].append({"name": "autoscaler", "image": own["image"], **given})
    return {"apiVersion": "v1", "kind": "Pod", **template}


@pytest.mark.parametrize("role", [cluster.CONTROLLER, cluster.TRIAL, cluster.SUBMITTER])
@pytest.mark.parametrize("name", ["plain", "gpus", "autoscale", "data"])
def test_the_pods_of_plan_are_let_in(pod_judge: Judge, name: str, role: str) -> None:
    assert pod_judge.complaints(pod(name, role)) == []


@pytest.mark.parametrize("variable", policies.trial_env())
def test_a_variable_missing_wrong_or_given_twice_is_refused_by_name(pod_judge: Judge, variable: str) -> None:
    for where in ("containers", "initContainers"):
        missing, twice = pod("plain", cluster.TRIAL), pod("plain", cluster.TRIAL)
        (container,) = missing["spec"][where]
        container["env"] = [one for one in container["env"] if one["name"] != variable]
        twice["spec"][where][0]["env"].append({"name": variable, "value": "another"})  # the last one wins
        for changed in (missing, twice):
            (message,) = pod_judge.complaints(changed) or []
            assert variable in message


def _no_role(one: Thing) -> None:
    del one["metadata"]["labels"][cluster.ROLE]


def _container(**fields: Any) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["containers"][0].update(copy.deepcopy(fields))


def _spec(**fields: Any) -> Callable[[Thing], None]:
    return lambda one: one["spec"].update(copy.deepcopy(fields))


def _volume(volume: Thing) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["volumes"].append(copy.deepcopy(volume))


def _env(entry: Thing) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["containers"][0]["env"].append(copy.deepcopy(entry))


def _context(**fields: Any) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["containers"][0]["securityContext"].update(copy.deepcopy(fields))


@pytest.mark.parametrize(
    ("name", "role", "change", "told"),
    [
        ("plain", "trial", _no_role, "trialplane.io/role"),
        ("plain", "trial", _spec(automountServiceAccountToken=True), "token"),
        ("plain", "trial", lambda one: one["spec"].pop("automountServiceAccountToken"), "token"),
        ("plain", "trial", _volume(TOKEN), "token"),
        ("plain", "controller", _volume(TOKEN), "token"),
        ("plain", "submitter", _volume(TOKEN), "token"),
        ("autoscale", "controller", _container(volumeMounts=[{"name": "token", "mountPath": "/t"}]), "autoscaler"),
        ("plain", "trial", _volume({"name": "host", "hostPath": {"path": "/"}}), "hostPath"),
        ("plain", "controller", _spec(hostNetwork=True), "hostNetwork"),
        ("plain", "trial", _spec(hostPID=True), "hostPID"),
        ("plain", "trial", _context(privileged=True), "privileged"),
        ("plain", "trial", _context(capabilities={"add": ["SYS_ADMIN"]}), "capabilities"),
        ("plain", "trial", _context(readOnlyRootFilesystem=False), "readOnlyRootFilesystem"),
        ("plain", "trial", _context(runAsNonRoot=False), "runAsNonRoot"),
        ("plain", "trial", _env(DATABASE), "secrets"),
        ("plain", "submitter", _env(DATABASE), "secrets"),
        ("plain", "trial", _container(envFrom=[{"secretRef": {"name": "platform-postgresql"}}]), "secrets"),
        ("plain", "trial", _volume({"name": "s", "secret": {"secretName": "platform-gateway"}}), "secrets"),
        ("plain", "controller", _env({"name": protobuf.VARIABLE, "value": "python"}), protobuf.VARIABLE),
    ],
)
def test_a_pod_that_breaks_a_rule_is_refused(
    pod_judge: Judge, name: str, role: str, change: Callable[[Thing], None], told: str
) -> None:
    changed = pod(name, role)
    change(changed)
    (message,) = pod_judge.complaints(changed) or []
    assert told in message


def test_the_charts_pods_and_those_of_others_are_not_the_policys_business(pod_judge: Judge) -> None:
    for labels in ({}, {"app": "web"}, {cluster.ROLE: "mlflow"}):
        thing = pod("plain", cluster.TRIAL)
        thing["metadata"]["labels"] = labels
        assert pod_judge.complaints(thing) is None


def test_ray_jobs_are_judged_before_their_pods(render: Render, named: Callable[..., Thing]) -> None:
    judge = Judge(named(render({}), "ValidatingAdmissionPolicy", "studies-platform-rayjobs"))
    job = ray_job("plain")
    assert judge.complaints(job) == []
    job["spec"]["runtimeEnvYAML"] = "env_vars: {A: b}"
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["env"] = []
    assert len(judge.complaints(job) or []) == 1 + len(policies.trial_env())
    del job["metadata"]["labels"][cluster.RUN]
    assert judge.complaints(job) is None
