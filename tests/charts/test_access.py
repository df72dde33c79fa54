"""Who may do what: the Role of users has the verbs that `platform` needs and no more, and of the pods only the operator any.

Not checked here: a user with that Role and nothing else on a real cluster.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from trialplane.client import doctor, kinds
from trialplane.client.kinds import Kind
from trialplane.plan.site import Site
from trialplane.wire import cluster as names

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]
ROLE = "trialplane-user"
# Kinds that users may read with kubectl and that `platform` itself does not.
DEPLOYMENT = Kind("apps", "v1", "deployments")
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
ADMISSION_POLICY = Kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", namespaced=False)


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
        (kinds.QUOTA, "list"),
        (kinds.CLAIM, "get list"),
        (DEPLOYMENT, "get list"),
        (kinds.LOCAL_QUEUE, "list"),
        (kinds.WORKLOAD, "list"),
    ],
)
def test_users_may_do_what_the_client_does(role: Thing, kind: Kind, verbs: str) -> None:
    for verb in verbs.split():
        assert allowed(role, kind.group, kind.plural, verb), f"{verb} {kind.plural}"


def test_users_may_do_what_the_doctor_asks_for(role: Thing, render: Render, named: Callable[..., Thing]) -> None:
    site = Site.read(named(render({}), "ConfigMap", names.SITE)["data"][names.SITE_KEY], "team")
    for verbs, group, resource, below, name in doctor.permissions(site):
        for verb in verbs:
            assert allowed(role, group, f"{resource}/{below}" if below else resource, verb, name), (
                f"{verb} {resource} {name}"
            )


def test_users_read_logs_and_forward_ports(role: Thing) -> None:
    assert allowed(role, "", "pods/log", "get")
    assert allowed(role, "", "pods/portforward", "get")
    assert allowed(role, "", "pods/portforward", "create")


def test_users_reach_the_gateway_by_the_proxy_and_nothing_else(role: Thing) -> None:
    service, port = "platform-gateway", 8080
    for name in (service, f"{service}:{port}", f"http:{service}:{port}", f"{service}:http", f"http:{service}:http"):
        for verb in ("get", "delete"):
            assert allowed(role, "", "services/proxy", verb, name)
        for verb in ("update", "create"):  # PUT, POST
            assert not allowed(role, "", "services/proxy", verb, name)
    for name in ("", "platform-postgresql", "http:platform-mlflow:5000", "http:criteria-1-head-svc:8265"):
        assert not allowed(role, "", "services/proxy", "get", name)


def test_users_read_one_secret(role: Thing) -> None:
    assert allowed(role, "", "secrets", "get", "platform-gateway")
    for name in ("", "platform-ledger", "platform-postgresql", "platform-mlflow-database"):
        assert not allowed(role, "", "secrets", "get", name)
    assert not allowed(role, "", "secrets", "list", "platform-gateway")


def test_users_write_runs_and_their_code_and_nothing_else(role: Thing) -> None:
    writes = {"create", "patch", "update", "delete", "deletecollection"}
    found = {
        (resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in writes & set(rule["verbs"])
    }
    runs = {("runs", verb) for verb in ("create", "patch", "update", "delete")}
    through = {("pods/portforward", "create"), ("services/proxy", "delete")}
    assert found == {*runs, ("configmaps", "create"), *through}
    assert not [rule for rule in role["rules"] if "ray.io" in rule["apiGroups"]]


def test_users_may_not_enter_pods_or_give_rights(role: Thing) -> None:
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
    assert not {"pods/exec", "pods/attach", "roles", "rolebindings", "serviceaccounts", "serviceaccounts/token"} & resources
    assert "*" not in resources | verbs


def test_only_the_operators_service_account_has_rights_and_a_token(objects: list[Thing], pods: Any) -> None:
    accounts = [one for one in objects if one["kind"] == "ServiceAccount"]
    assert len(accounts) == 6
    assert all(one["automountServiceAccountToken"] is False for one in accounts)
    ours = {one["metadata"]["name"] for one in accounts}
    bound = [
        subject["name"]
        for one in objects
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        for subject in one["subjects"]
        if subject["kind"] == "ServiceAccount"
    ]
    (operator,) = ours & set(bound)
    assert operator.endswith("-operator")
    mounting = {pod["spec"]["serviceAccountName"] for _, pod in pods(objects) if pod["spec"]["automountServiceAccountToken"]}
    assert mounting == {operator}


def test_the_operator_may_do_what_the_reconciler_does(render: Render, named: Callable[..., Thing]) -> None:
    role = named(render({}), "Role", "platform-operator")
    needed = [
        (kinds.RUN, "get list watch delete"),
        (dataclasses.replace(kinds.RUN, plural="runs/status"), "patch"),
        (kinds.RAY_CLUSTER, "get list watch create patch delete"),
        (kinds.CONFIG_MAP, "get list watch create patch delete"),
        (kinds.POD, "list watch"),
        (kinds.EVENT, "list"),
        (kinds.WORKLOAD, "list"),
        (kinds.LEASE, "create get patch"),
    ]
    for kind, verbs in needed:
        for verb in verbs.split():
            assert allowed(role, kind.group, kind.plural, verb, "platform-operator"), f"{verb} {kind.plural}"
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert not {"secrets", "pods/exec", "roles", "rolebindings", "*"} & resources
    assert not allowed(role, "", "pods", "create")
    assert not allowed(role, "trialplane.io", "runs", "patch"), "what is asked for is the users'"


def test_only_named_users_are_bound(render: Render, sets: dict[str, dict[str, Any]], named: Callable[..., Thing]) -> None:
    bound = [one for one in render({}) if "Binding" in one["kind"] and "rbac" in one["apiVersion"]]
    assert [one["metadata"]["name"] for one in bound] == ["platform-operator"]
    objects = render(sets["cloud"])
    binding = named(objects, "RoleBinding", ROLE)
    assert binding["roleRef"]["name"] == ROLE
    assert binding["subjects"] == [
        {"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "ServiceAccount", "name": "ci", "namespace": "studies"},
    ]
    reader = named(objects, "ClusterRole", "studies-platform-user")
    assert {verb for rule in reader["rules"] for verb in rule["verbs"]} == {"get", "list"}
    for kind in (kinds.NODE, kinds.STORAGE_CLASS, kinds.PRIORITY_CLASS, ADMISSION_POLICY):
        assert allowed(reader, kind.group, kind.plural, "list"), kind.plural
    assert allowed(reader, CRD.group, CRD.plural, "get", "rayclusters.ray.io")
    assert allowed(reader, CRD.group, CRD.plural, "get", "runs.trialplane.io")
    assert allowed(reader, "", "namespaces", "get", "studies")


def test_the_cluster_wide_role_can_be_left_out(render: Render) -> None:
    made = render({"users": [{"kind": "Group", "name": "team"}], "rbac": {"clusterReader": False}})
    assert not [one for one in made if one["kind"].startswith("ClusterRole")]


def test_users_are_told_the_roles_name_by_the_client() -> None:
    from trialplane.client import refusal

    said = {"kind": "Status", "message": 'User "ada" cannot list resource "rayclusters" in API group "ray.io"'}
    error = refusal.explain(403, json.dumps(said).encode(), "list", "rayclusters.ray.io", "studies", "prod")
    assert f"--role={ROLE}" in str(error)
