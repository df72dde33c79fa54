"""The admission policies: they ask for what `trialplane.policies` says, their messages teach, they are bound to the
release's namespace by its name, and their expressions let the manifests of `plan` in and nothing that breaks a rule;
other pods, and ConfigMaps of users, get nothing that is the chart's.

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
from tests.charts.judge import Judge

from trialplane import policies
from trialplane.policies import protobuf
from trialplane.wire import cluster

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]
GOLDEN = Path(__file__).resolve().parents[1] / "plan" / "golden"
ADMIN = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "platform-postgresql", "key": "admin"}}}
DATABASE = {"name": "URL", "valueFrom": {"secretKeyRef": {"name": "platform-ledger", "key": "url"}}}
RUN_TOKEN = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "plain.token", "key": "token"}}}
PROJECTED = {"name": "p", "projected": {"sources": [{"secret": {"name": "platform-ledger"}}]}}
TOKEN = {"name": "token2", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


def test_the_charts_variables_are_the_policies(chart: Path) -> None:
    assert json.loads((chart / "files" / "policies.json").read_text()) == policies.trial_env()


def test_every_variable_has_a_rule_whose_message_names_it_and_what_sets_it(
    render: Render, named: Callable[..., Thing]
) -> None:
    rules = named(render({}), "ValidatingAdmissionPolicy", "control-platform-pods")["spec"]["validations"]
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


def test_the_policies_hold_in_the_teams_namespaces_whatever_their_labels_are(
    render: Render, sets: dict[str, dict[str, Any]]
) -> None:
    """By a label that nobody can change. Runs are not in the platform's own namespace; pods with their labels may be."""
    objects = render({**sets["two"], "admission": {"actions": ["Warn", "Audit"]}})
    bindings = [one for one in objects if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    there = {one["metadata"]["name"] for one in objects if one["kind"] == "ValidatingAdmissionPolicy"}
    assert {one["spec"]["policyName"] for one in bindings} == there
    for one in bindings:
        (chosen,) = one["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        own = [] if one["spec"]["policyName"].endswith("-runs") else ["control"]
        names = [*own, "vision", "speech"]
        assert chosen == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}
        assert one["spec"]["validationActions"] == ["Warn", "Audit"]


def test_without_admission_there_is_none(render: Render) -> None:
    kinds = {one["kind"] for one in render({"admission": {"enabled": False}})}
    assert not any("Admission" in kind for kind in kinds)


@pytest.fixture(scope="module", name="pod_judge")
def _pod_judge(render: Render, named: Callable[..., Thing]) -> Judge:
    return Judge(named(render({}), "ValidatingAdmissionPolicy", "control-platform-pods"))


def ray_cluster(name: str) -> Thing:
    """The RayCluster of a golden file of `plan`."""
    found = yaml.load_all((GOLDEN / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    (one,) = (one for one in found if one["kind"] == "RayCluster")
    made: Thing = one
    return made


def pod(name: str, role: str) -> Thing:
    """The pod that KubeRay makes of a golden RayCluster: with its labels, and the containers that it adds."""
    of_cluster = ray_cluster(name)["spec"]
    groups = {cluster.CONTROLLER: of_cluster["headGroupSpec"], cluster.TRIAL: of_cluster["workerGroupSpecs"][0]}
    template = copy.deepcopy(groups[role]["template"])
    template["metadata"]["labels"]["ray.io/cluster"] = "criteria-1"
    (own,) = template["spec"]["containers"]
    ray_token = {"secretKeyRef": {"name": "criteria-1.ray", "key": "auth_token"}}
    own["env"].append({"name": "RAY_AUTH_TOKEN", "valueFrom": ray_token})
    if role == cluster.TRIAL:
        template["spec"]["initContainers"] = [{**copy.deepcopy(own), "name": "wait-gcs-ready"}]
    if role == cluster.CONTROLLER and of_cluster.get("enableInTreeAutoscaling"):
        options = of_cluster["autoscalerOptions"]
        given = {key: options[key] for key in ("env", "securityContext", "volumeMounts")}
        template["spec"]["containers"].append({"name": "autoscaler", "image": own["image"], **given})
    return {"apiVersion": "v1", "kind": "Pod", **template}


@pytest.mark.parametrize("role", [cluster.CONTROLLER, cluster.TRIAL])
@pytest.mark.parametrize("name", ["plain", "autoscale", "data"])
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


def _of_another_run(one: Thing) -> None:
    one["metadata"]["labels"][cluster.RUN] = "criteria-2"


def _container(**fields: Any) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["containers"][0].update(copy.deepcopy(fields))


def _sidecar(**fields: Any) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["initContainers"][0].update(copy.deepcopy(fields))


def _spec(**fields: Any) -> Callable[[Thing], None]:
    return lambda one: one["spec"].update(copy.deepcopy(fields))


def _volume(volume: Thing) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["volumes"].append(copy.deepcopy(volume))


def _env(entry: Thing) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["containers"][0]["env"].append(copy.deepcopy(entry))


def _run_token(one: Thing) -> None:
    """As the controller's pod has it."""
    secret = f"{one['metadata']['labels'][cluster.RUN]}.token"
    _volume({"name": "s", "secret": {"secretName": secret}})(one)


def _context(**fields: Any) -> Callable[[Thing], None]:
    return lambda one: one["spec"]["containers"][0]["securityContext"].update(copy.deepcopy(fields))


def _debugged(**fields: Any) -> Callable[[Thing], None]:
    """As `kubectl debug --profile=restricted` does."""
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    context |= fields.pop("securityContext", {})
    container = {"name": "debugger", "image": "busybox", "securityContext": context, **fields}
    return lambda one: one["spec"].update(ephemeralContainers=[copy.deepcopy(container)])


@pytest.mark.parametrize(
    ("name", "role", "change", "told"),
    [
        ("plain", "trial", _no_role, "trialplane.io/role"),
        ("plain", "trial", _of_another_run, "the RayCluster's name as its label trialplane.io/run"),
        ("plain", "trial", _spec(automountServiceAccountToken=True), "token"),
        ("plain", "trial", lambda one: one["spec"].pop("automountServiceAccountToken"), "token"),
        ("plain", "trial", _volume(TOKEN), "token"),
        ("plain", "controller", _volume(TOKEN), "token"),
        ("autoscale", "controller", _sidecar(volumeMounts=[{"name": "token", "mountPath": "/t"}]), "autoscaler"),
        ("autoscale", "controller", _container(volumeMounts=[{"name": "token", "mountPath": "/t"}]), "autoscaler"),
        ("plain", "trial", _volume({"name": "host", "hostPath": {"path": "/"}}), "hostPath"),
        ("plain", "controller", _spec(hostNetwork=True), "hostNetwork"),
        ("plain", "trial", _spec(hostPID=True), "hostPID"),
        ("plain", "trial", _context(privileged=True), "privileged"),
        ("plain", "trial", _context(capabilities={"add": ["SYS_ADMIN"]}), "capabilities"),
        ("plain", "trial", _context(readOnlyRootFilesystem=False), "readOnlyRootFilesystem"),
        ("plain", "trial", _context(runAsNonRoot=False), "runAsNonRoot"),
        ("plain", "trial", _env(DATABASE), "secrets"),
        ("plain", "controller", _env(DATABASE), "secrets"),
        ("plain", "trial", _run_token, "secrets"),
        ("plain", "trial", _volume({"name": "s", "secret": {"secretName": "another.token"}}), "secrets"),
        ("plain", "controller", _volume({"name": "s", "secret": {"secretName": "another.token"}}), "secrets"),
        (
            "plain",
            "controller",
            _volume({"name": "s", "projected": {"sources": [{"secret": {"name": "another.token"}}]}}),
            "secrets",
        ),
        ("plain", "controller", _env(RUN_TOKEN), "secrets"),
        ("plain", "trial", _container(envFrom=[{"secretRef": {"name": "another.token"}}]), "secrets"),
        ("plain", "trial", _container(envFrom=[{"secretRef": {"name": "platform-postgresql"}}]), "secrets"),
        ("plain", "trial", _volume({"name": "s", "secret": {"secretName": "platform-ledger"}}), "secrets"),
        ("plain", "controller", _env(ADMIN), "secrets"),
        ("plain", "controller", _volume({"name": "s", "secret": {"secretName": "platform-ledger"}}), "secrets"),
        (
            "plain",
            "trial",
            _volume({"name": "s", "projected": {"sources": [{"secret": {"name": "platform-ledger"}}]}}),
            "secrets",
        ),
        ("plain", "trial", _debugged(env=[DATABASE]), "secrets"),
        ("plain", "trial", _debugged(securityContext={"privileged": True}), "privileged"),
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


def test_a_head_that_calls_itself_another_runs_has_neither_its_network_nor_its_secret(pod_judge: Judge) -> None:
    changed = pod("plain", cluster.CONTROLLER)
    _of_another_run(changed)
    of_label, of_secret = sorted(pod_judge.complaints(changed) or [])
    assert "the RayCluster's name as its label trialplane.io/run" in of_label
    assert "secrets" in of_secret


def test_a_container_of_kubectl_debug_keeps_the_rules_but_needs_no_policys_variables(pod_judge: Judge) -> None:
    before = pod("plain", cluster.TRIAL)
    after = copy.deepcopy(before)
    _debugged()(after)
    assert pod_judge.complaints(after, before, "ephemeralcontainers") == []
    _debugged(envFrom=[{"secretRef": {"name": "platform-ledger"}}])(after)
    (message,) = pod_judge.complaints(after, before, "ephemeralcontainers") or []
    assert "secrets" in message


def test_a_pods_role_may_not_change_and_the_rest_of_an_old_one_may(pod_judge: Judge) -> None:
    before = pod("plain", cluster.TRIAL)
    before["spec"]["hostNetwork"] = True  # from before there was a policy
    after = copy.deepcopy(before)
    after["metadata"]["labels"]["team"] = "a"
    assert pod_judge.complaints(after, before) is None
    another = {cluster.ROLE: "trial", cluster.RUN: "another"}
    for labels in (another, {cluster.ROLE: "controller", cluster.RUN: "criteria-1"}, {cluster.ROLE: "mlflow"}, {}):
        after["metadata"]["labels"] = labels
        assert any("may not change" in one for one in pod_judge.complaints(after, before) or []), labels


def test_a_clouds_identity_is_let_in_when_its_audience_is_a_value(render: Render, named: Callable[..., Thing]) -> None:
    cloud = {"admission": {"tokenAudiences": ["sts.amazonaws.com"]}}
    judge = Judge(named(render(cloud), "ValidatingAdmissionPolicy", "control-platform-pods"))
    for role, name in ((cluster.TRIAL, "plain"), (cluster.CONTROLLER, "autoscale")):
        for audience, count in (("sts.amazonaws.com", 0), ("https://kubernetes.default.svc", 1)):
            thing = pod(name, role)
            token = {"serviceAccountToken": {"path": "token", "audience": audience}}
            thing["spec"]["volumes"].append({"name": "cloud", "projected": {"sources": [token]}})
            mount = {"name": "cloud", "mountPath": "/var/run/secrets/eks.amazonaws.com/serviceaccount"}
            thing["spec"]["containers"][0]["volumeMounts"].append(mount)
            assert len(judge.complaints(thing) or []) == count, (role, audience)


@pytest.fixture(scope="module", name="others_judge")
def _others_judge(render: Render, named: Callable[..., Thing]) -> Judge:
    values = {"mlflow": {"extraEnvFrom": [{"secretRef": {"name": "s3-credentials"}}]}}
    return Judge(named(render(values), "ValidatingAdmissionPolicy", "control-platform-others"))


def _plain() -> Thing:
    """A pod that has nothing to do with runs."""
    container = {"name": "a", "image": "b", "env": [{"name": "A", "value": "1"}]}
    return {"metadata": {"name": "mine"}, "spec": {"serviceAccountName": "default", "containers": [container]}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: one["metadata"].update(labels={cluster.ROLE: "mlflow"}), "trialplane.io/role"),
        (_spec(serviceAccountName="platform-controller"), "service accounts"),
        (_spec(serviceAccountName="trialplane-user"), "service accounts"),
        (_spec(priorityClassName="control-platform"), "the PriorityClass control-platform is for the platform's own pods"),
        (_env(DATABASE), "secrets"),
        (_env(ADMIN), "secrets"),
        (_container(envFrom=[{"secretRef": {"name": "s3-credentials"}}]), "secrets"),
        (_spec(volumes=[{"name": "s", "secret": {"secretName": "platform-ledger"}}]), "secrets"),
        (_spec(initContainers=[{"name": "i", "env": [DATABASE]}]), "secrets"),
        (_spec(volumes=[{"name": "s", "secret": {"secretName": "a-run.token"}}]), "secrets"),
    ],
)
def test_other_pods_get_nothing_of_the_charts_unless_who_makes_them_may_read_it(
    others_judge: Judge, change: Callable[[Thing], None], told: str
) -> None:
    assert others_judge.complaints(_plain(), trusted=False) == []
    changed = _plain()
    change(changed)
    (message,) = others_judge.complaints(changed, trusted=False) or []
    assert told in message
    assert others_judge.complaints(changed, trusted=True) == []


def test_a_secret_of_a_name_of_the_charts_is_another_one_elsewhere(pod_judge: Judge, others_judge: Judge) -> None:
    for judge, made in ((pod_judge, pod("plain", cluster.TRIAL)), (others_judge, _plain())):
        _env(DATABASE)(made)
        for namespace, count in (("control", 1), ("studies", 0)):
            made["metadata"]["namespace"] = namespace
            assert len(judge.complaints(made, trusted=False) or []) == count, namespace
        _env(RUN_TOKEN)(made)
        assert len(judge.complaints(made, trusted=False) or []) == 1


@pytest.mark.parametrize("name", ["platform-images", "platform-warm-studies"])
def test_pods_that_wait_on_nodes_are_let_in_for_everybody(
    others_judge: Judge, objects_with_images: list[Thing], name: str
) -> None:
    """The controllers of DaemonSets and Deployments are not among those that are trusted."""
    (made,) = (one["spec"]["template"] for one in objects_with_images if one["metadata"]["name"] == name)
    assert others_judge.complaints({**made, "metadata": {"name": "images", **made["metadata"]}}, trusted=False) == []


@pytest.fixture(scope="module", name="objects_with_images")
def _objects_with_images(render: Render) -> list[Thing]:
    return render({"image": {"prePull": {"enabled": True}}, "warm": {"pods": 1}})


def test_the_operators_pods_that_remove_files_are_let_in(others_judge: Judge) -> None:
    """It may read no Secret in the platform's namespace, by which others are trusted."""
    (variable,) = (one for one in others_judge.policy["spec"]["variables"] if one["name"] == "trusted")
    listed = variable["expression"].partition("[")[2].partition("]")[0]
    assert "'system:serviceaccount:control:platform-operator'" in listed


@pytest.mark.parametrize("which", ["two", "own"])
def test_every_pod_is_judged_by_one_of_the_two_policies(
    render: Render, sets: dict[str, dict[str, Any]], named: Callable[..., Thing], which: str
) -> None:
    """In each team's namespace and in the release's own, by what is bound there."""
    objects = render(sets[which])
    bound: dict[str, list[Judge]] = {}
    for name in ("control-platform-pods", "control-platform-others"):
        judge = Judge(named(objects, "ValidatingAdmissionPolicy", name))
        binding = named(objects, "ValidatingAdmissionPolicyBinding", name)["spec"]
        (chosen,) = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
        for namespace in chosen["values"]:
            bound.setdefault(namespace, []).append(judge)
    assert set(bound) == {"control", *(one["namespace"] for one in sets[which]["teams"])}
    every: list[dict[str, str]] = [{}, {"app": "web"}, {"ray.io/cluster": "a"}, {cluster.RUN: "a"}]
    every += [{cluster.ROLE: role} for role in ("mlflow", cluster.TRIAL, cluster.CONTROLLER)]
    for namespace, judges in bound.items():
        for labels in every:
            thing = {"metadata": {"name": "mine", "labels": labels}, "spec": {}}
            assert sum(judge.about(thing) for judge in judges) == 1, (namespace, labels)


@pytest.mark.parametrize("account", ["platform-operator", "platform-gateway", cluster.USER])
def test_no_pod_of_a_run_has_an_account_of_the_platforms_own(pod_judge: Judge, account: str) -> None:
    """Which is in the release's namespace: a head with an autoscaler mounts the token of its account."""
    for name, role in (("plain", cluster.TRIAL), ("autoscale", cluster.CONTROLLER)):
        changed = pod(name, role)
        changed["spec"]["serviceAccountName"] = account
        (message,) = pod_judge.complaints(changed) or []
        assert "service account of the platform's own pods" in message


def test_the_charts_own_configmaps_are_not_for_users(
    render: Render, sets: dict[str, dict[str, Any]], named: Callable[..., Thing]
) -> None:
    """Their Role lets them write ConfigMaps, which runs are."""
    for which in ("default", "cloud"):
        objects = render(sets[which])
        judge = Judge(named(objects, "ValidatingAdmissionPolicy", "control-platform-configmaps"))
        assert judge.about({"metadata": {"name": "criteria-1"}}) is False
        for one in objects:
            assert one["kind"] != "ConfigMap" or judge.about(one), one["metadata"]["name"]


def test_the_charts_pods_and_those_of_others_are_not_the_policys_business(pod_judge: Judge) -> None:
    for labels in ({}, {"app": "web"}, {cluster.ROLE: "mlflow"}):
        thing = pod("plain", cluster.TRIAL)
        thing["metadata"]["labels"] = labels
        assert pod_judge.complaints(thing) is None
