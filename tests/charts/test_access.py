"""Who may do what: the Role of users has the verbs that `platform` needs and no more, of the pods only the operator and the
gateway have any rights, and the account by whose tokens users are known has none.

Not checked here: a user with that Role and nothing else on a real cluster.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.charts.conftest import CONTROL, TEAM

from trialplane.client import doctor
from trialplane.kube import kinds
from trialplane.kube.kinds import ObjectKind
from trialplane.plan.raycluster import autoscaler_access
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire import mlflow

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]
ROLE, GATEWAY_ROLE = "trialplane-user", "trialplane-gateway"
# Kinds that users may read with kubectl and that `platform` itself does not.
DEPLOYMENT = ObjectKind("apps", "v1", "deployments")
CRD = ObjectKind("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
ADMISSION_POLICY = ObjectKind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", namespaced=False)


@pytest.fixture(name="role")
def _role(render: Render, named: Callable[..., Thing]) -> Thing:
    return named(render({}), "Role", ROLE)


def allowed(role: Thing, group: str, resource: str, verb: str, name: str = "") -> bool:
    """Whether RBAC lets it through."""
    return any(
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and verb in rule["verbs"]
        and ("resourceNames" not in rule or name in rule["resourceNames"])
        for rule in role["rules"]
    )


@pytest.mark.parametrize(
    ("kind", "verbs"),
    [
        (kinds.RUN, "get list watch create patch delete"),  # submit, list, status, pause, scale, delete
        (kinds.CONFIG_MAP, "get create"),
        (kinds.POD, "get list"),  # why it does not run
        (kinds.EVENT, "list"),
        (kinds.SERVICE, "get list"),
        (kinds.CLAIM, "get list"),
        (DEPLOYMENT, "get list"),
        (kinds.LOCAL_QUEUE, "list"),
        (kinds.WORKLOAD, "list"),
    ],
)
def test_users_may_do_what_the_client_does(role: Thing, kind: ObjectKind, verbs: str) -> None:
    for verb in verbs.split():
        assert allowed(role, kind.group, kind.plural, verb), f"{verb} {kind.plural}"


def test_users_may_do_what_the_doctor_asks_for(role: Thing, render: Render, named: Callable[..., Thing]) -> None:
    site = Site.read(named(render({}), "ConfigMap", names.SITE)["data"][names.SITE_KEY], TEAM)
    at_the_gateway = named(render({}), "Role", GATEWAY_ROLE, CONTROL)
    for one in doctor.permissions(site):
        there = {"": role, CONTROL: at_the_gateway}[one.namespace]
        for verb in one.verbs:
            resource = f"{one.resource}/{one.subresource}" if one.subresource else one.resource
            assert allowed(there, one.group, resource, verb, one.name), f"{verb} {one}"


def test_users_read_logs_and_forward_no_ports(role: Thing) -> None:
    assert allowed(role, "", "pods/log", "get")
    assert not allowed(role, "", "pods/portforward", "get")
    assert not allowed(role, "", "pods/portforward", "create")


def test_users_reach_the_gateway_by_the_proxy_and_nothing_else(
    render: Render, role: Thing, named: Callable[..., Thing]
) -> None:
    assert "services/proxy" not in {resource for rule in role["rules"] for resource in rule["resources"]}
    role = named(render({}), "Role", GATEWAY_ROLE, CONTROL)
    assert [rule["resources"] for rule in role["rules"]] == [["services/proxy"]]
    service, port = "platform-gateway", 8080
    for name in (service, f"{service}:{port}", f"http:{service}:{port}", f"{service}:http", f"http:{service}:http"):
        for verb in ("get", "create", "patch", "delete"):  # in MLflow's pages, POST is a search, too
            assert allowed(role, "", "services/proxy", verb, name)
        assert not allowed(role, "", "services/proxy", "update", name)  # PUT
    for name in ("", "platform-postgresql", "http:platform-mlflow:5000", "http:criteria-1-head-svc:8265"):
        assert not allowed(role, "", "services/proxy", "get", name)


def test_users_read_no_secret(role: Thing) -> None:
    assert "secrets" not in {resource for rule in role["rules"] for resource in rule["resources"]}


def test_users_get_tokens_of_one_account_that_may_do_nothing(role: Thing, objects: list[Thing]) -> None:
    assert allowed(role, "", "serviceaccounts/token", "create", names.USER)
    for name in ("", "platform-operator", "platform-gateway", "default"):
        assert not allowed(role, "", "serviceaccounts/token", "create", name)
    accounts = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("ServiceAccount", names.USER)]
    assert accounts
    assert not any(account["automountServiceAccountToken"] for account in accounts)
    assert names.USER not in {
        subject["name"] for one in objects for subject in one.get("subjects", []) if subject["kind"] == "ServiceAccount"
    }


def test_the_audience_of_these_tokens_is_for_no_pod(template: Callable[..., Any]) -> None:
    refused = template({"admission": {"tokenAudiences": [names.AUDIENCE]}})
    assert refused.returncode != 0
    assert "tokenAudiences" in refused.stderr


def test_users_write_runs_and_their_code_and_nothing_else(role: Thing) -> None:
    writes = {"create", "patch", "update", "delete", "deletecollection"}
    found = {
        (resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in writes & set(rule["verbs"])
    }
    runs = {("runs", verb) for verb in ("create", "patch", "update", "delete")}
    assert found == {*runs, ("configmaps", "create"), ("serviceaccounts/token", "create")}
    assert not [rule for rule in role["rules"] if "ray.io" in rule["apiGroups"]]


def test_viewers_read_what_users_read_and_change_nothing(render: Render, role: Thing, named: Callable[..., Thing]) -> None:
    users = [{"kind": "User", "name": "ada"}, {"kind": "User", "name": "eve", "view": True}]
    objects = render({"teams": [{"namespace": TEAM, "users": users}]})
    viewer = named(objects, "Role", "trialplane-viewer", TEAM)
    reads = {"get", "list", "watch"}

    def rights(of: Thing) -> set[tuple[str, str]]:
        return {(resource, verb) for rule in of["rules"] for resource in rule["resources"] for verb in rule["verbs"]}

    token = ("serviceaccounts/token", "create")
    assert {one for one in rights(viewer) if one[1] not in reads} == {token}
    assert {one for one in rights(role) if one[1] in reads} == rights(viewer) - {token}
    assert allowed(viewer, "", "serviceaccounts/token", "create", names.VIEWER)
    assert not allowed(viewer, "", "serviceaccounts/token", "create", names.USER), "by that the gateway would let it delete"
    who = {
        (one["metadata"]["name"], subject["name"])
        for one in objects
        if one["kind"] == "RoleBinding"
        for subject in one["subjects"]
        if subject["kind"] == "User"
    }
    assert who == {
        ("trialplane-user", "ada"),
        ("trialplane-viewer", "eve"),
        ("trialplane-gateway", "ada"),
        ("trialplane-gateway", "eve"),
    }


def test_users_may_not_enter_pods_or_give_rights(role: Thing) -> None:
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
    assert not {"pods/exec", "pods/attach", "roles", "rolebindings", "serviceaccounts"} & resources
    assert "*" not in resources | verbs


def test_only_who_asks_the_api_server_has_rights_and_a_token(objects: list[Thing], pods: Any) -> None:
    accounts = [one for one in objects if one["kind"] == "ServiceAccount"]
    teams = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", names.SITE)]
    assert len(accounts) == 4 + 4 * len(teams)
    assert all(one["automountServiceAccountToken"] is False for one in accounts)
    ours = {one["metadata"]["name"] for one in accounts}
    bound = [
        subject["name"]
        for one in objects
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        for subject in one["subjects"]
        if subject["kind"] == "ServiceAccount"
    ]
    known = ours & set(bound)
    assert {name.rpartition("-")[2] for name in known} - {"mlflow"} == {"gateway", "operator"}
    mounting = {pod["spec"]["serviceAccountName"] for _, pod in pods(objects) if pod["spec"]["automountServiceAccountToken"]}
    assert mounting == known


def test_the_gateway_may_have_tokens_checked_and_nothing_else(render: Render, named: Callable[..., Thing]) -> None:
    objects = render({})
    (rule,) = named(objects, "ClusterRole", "control-platform-gateway")["rules"]
    assert rule == {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    bound = [
        (one["kind"], one["roleRef"]["name"])
        for one in objects
        for subject in one.get("subjects", [])
        if subject["name"] == "platform-gateway"
    ]
    assert bound == [("ClusterRoleBinding", "control-platform-gateway")]


def test_in_mlflow_each_group_has_the_rights_of_its_role_in_its_namespace_alone(
    render: Render, sets: dict[str, dict[str, Any]], named: Callable[..., Thing]
) -> None:
    objects = render(sets["two"])
    for namespace in ("vision", "speech"):
        for role in (mlflow.USERS, mlflow.VIEWERS, mlflow.RUNS):
            binding = named(objects, "RoleBinding", f"trialplane-mlflow-{role}", namespace)
            (group,) = binding["subjects"]
            assert (group["kind"], group["name"]) == (
                "Group",
                mlflow.caller_headers(namespace, role, "x")["X-Remote-Groups"],
            )
            rights = named(objects, "Role", binding["roleRef"]["name"], namespace)
            assert {group for rule in rights["rules"] for group in rule["apiGroups"]} == {"mlflow.kubeflow.org"}
            assert allowed(rights, "mlflow.kubeflow.org", "experiments", "get")
            writes = {verb for rule in rights["rules"] for verb in rule["verbs"]} - {"get", "list"}
            assert writes == {"users": {"create", "update", "delete"}, "viewers": set(), "runs": {"create", "update"}}[role]
            for resource in ("gatewaysecrets", "gatewayendpoints", "assistants", "mcpservers", "*"):
                assert not allowed(rights, "mlflow.kubeflow.org", resource, "get")


def test_mlflow_asks_what_others_may_do_and_may_do_nothing(render: Render, named: Callable[..., Thing]) -> None:
    rules = named(render({}), "ClusterRole", "control-platform-mlflow")["rules"]
    assert {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]} == {
        ("subjectaccessreviews", "create"),
        ("namespaces", "list"),
        ("namespaces", "watch"),
        ("mlflowconfigs", "list"),
        ("mlflowconfigs", "watch"),
    }


def test_the_operator_may_do_what_the_reconciler_does(render: Render, named: Callable[..., Thing]) -> None:
    objects = render({})
    role = named(objects, "ClusterRole", "control-platform-operator")
    own = named(objects, "Role", "platform-operator", CONTROL)
    assert {resource for rule in own["rules"] for resource in rule["resources"]} == {"leases"}
    needed = [
        (kinds.RUN, "get list watch delete"),
        (dataclasses.replace(kinds.RUN, plural="runs/status"), "patch"),
        (kinds.RAY_CLUSTER, "get list watch create patch delete"),
        (kinds.CONFIG_MAP, "get create patch delete"),
        (kinds.SECRET, "get create patch"),
        (kinds.POD, "list watch create delete"),
        (kinds.EVENT, "list create patch"),
        (kinds.NETWORK_POLICY, "get create patch delete"),
        (kinds.SERVICE_ACCOUNT, "get create patch"),
        (kinds.ROLE, "get create patch"),
        (kinds.ROLE_BINDING, "get"),
        (kinds.SERVICE, "get"),
        (kinds.POD, "list watch"),
        (kinds.EVENT, "list"),
        (kinds.WORKLOAD, "list"),
        (kinds.LEASE, "create get patch"),
    ]
    for kind, verbs in needed:
        for verb in verbs.split():
            there = own if kind is kinds.LEASE else role
            assert allowed(there, kind.group, kind.plural, verb, "platform-operator"), f"{verb} {kind.plural}"
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert not {"pods/exec", "serviceaccounts/token", "*"} & resources
    assert not allowed(role, kinds.ROLE_BINDING.group, "rolebindings", "create"), "KubeRay binds what it makes"
    for verb in ("escalate", "bind"):
        assert not allowed(role, kinds.ROLE.group, "roles", verb)
    # Kubernetes lets it make a Role with what it has itself, and no other.
    for rule in autoscaler_access({"metadata": {"name": "a"}, "spec": {"enableInTreeAutoscaling": True}})[1]["rules"]:
        for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
            assert allowed(role, rule["apiGroups"][0], resource, verb, "a")
    assert not allowed(role, "", "pods", "patch")
    assert not allowed(role, "", "secrets", "list")
    assert not allowed(role, "trialplane.io", "runs", "patch"), "what is asked for is the users'"


def test_the_operators_rights_are_in_the_teams_namespaces_and_nowhere_else(
    render: Render, sets: dict[str, dict[str, Any]]
) -> None:
    objects = render(sets["two"])
    account = {"kind": "ServiceAccount", "name": "platform-operator", "namespace": CONTROL}
    bound = {
        (one["kind"], one["metadata"].get("namespace", CONTROL), one["roleRef"]["kind"])
        for one in objects
        if account in one.get("subjects", [])
    }
    assert bound == {
        ("RoleBinding", CONTROL, "Role"),
        ("RoleBinding", "vision", "ClusterRole"),
        ("RoleBinding", "speech", "ClusterRole"),
    }


def test_users_of_a_team_have_rights_in_its_namespace_and_at_the_gateway(
    render: Render, sets: dict[str, dict[str, Any]], named: Callable[..., Thing]
) -> None:
    objects = render(sets["two"])
    group = {"kind": "Group", "name": "vision", "apiGroup": "rbac.authorization.k8s.io"}
    ada = {"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"}
    ci = {"kind": "ServiceAccount", "name": "ci", "namespace": "speech"}
    assert named(objects, "RoleBinding", ROLE, "vision")["subjects"] == [group, ada]
    assert named(objects, "RoleBinding", ROLE, "speech")["subjects"] == [ada, ci]
    for kind, name in (("RoleBinding", GATEWAY_ROLE), ("ClusterRoleBinding", "control-platform-user")):
        assert named(objects, kind, name)["subjects"] == [group, ada, ci], "each once"
    everywhere = [one for one in objects if group in one.get("subjects", [])]
    places = {(one["metadata"].get("namespace", CONTROL), one["roleRef"]["name"]) for one in everywhere}
    assert places == {("vision", ROLE), (CONTROL, GATEWAY_ROLE), (CONTROL, "control-platform-user")}


def test_only_named_users_are_bound(render: Render, sets: dict[str, dict[str, Any]], named: Callable[..., Thing]) -> None:
    bound = [one for one in render({}) if "Binding" in one["kind"] and "rbac" in one["apiVersion"]]
    assert sorted(one["metadata"]["name"] for one in bound) == [
        "control-platform-gateway",
        "control-platform-mlflow",
        "platform-operator",
        "platform-operator-runs",
        "trialplane-mlflow-runs",
        "trialplane-mlflow-users",
        "trialplane-mlflow-viewers",
    ]
    objects = render(sets["cloud"])
    binding = named(objects, "RoleBinding", ROLE)
    assert binding["roleRef"]["name"] == ROLE
    assert binding["subjects"] == [
        {"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "ServiceAccount", "name": "ci", "namespace": "studies"},
    ]
    reader = named(objects, "ClusterRole", "control-platform-user")
    assert {verb for rule in reader["rules"] for verb in rule["verbs"]} == {"get", "list"}
    for kind in (kinds.NODE, kinds.STORAGE_CLASS, ADMISSION_POLICY):
        assert allowed(reader, kind.group, kind.plural, "list"), kind.plural
    assert allowed(reader, CRD.group, CRD.plural, "get", "rayclusters.ray.io")
    assert allowed(reader, CRD.group, CRD.plural, "get", "runs.trialplane.io")
    assert allowed(named(objects, "Role", ROLE, TEAM), "", "namespaces", "get"), "its own, by a Role that is in it"
    assert not allowed(reader, "", "namespaces", "get")


def test_the_cluster_wide_role_can_be_left_out(render: Render) -> None:
    team = {"namespace": TEAM, "users": [{"kind": "Group", "name": "team"}]}
    made = render({"teams": [team], "rbac": {"clusterReader": False}})
    found = {one["metadata"]["name"] for one in made if one["kind"].startswith("ClusterRole")}
    assert found == {"control-platform-gateway", "control-platform-mlflow", "control-platform-operator"}
