"""What a user gets no more of by asking for it in a Run: priorities and nodes, objects of others, records of others.

An attacker here is a user of the team, bob, who applies Runs by hand, past what `platform submit` checks. Not here: what
code in a pod can do (test_attacks.py), and each rule about pods (test_isolation.py).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.conftest import SPEC, TEAM, Cluster

from trialplane.wire import cluster as names

BOB = ("--as", "bob")


@pytest.fixture(autouse=True, scope="module")
def bob(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("create", "rolebinding", "bob-too", "--role=trialplane-user", "--user=bob")
    yield
    cluster.kubectl("delete", "rolebinding", "bob-too")


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    spec = SPEC.replace("0.3", "0.1").replace("trials: 6", "trials: 2").replace("parallel: 2", "parallel: 1")
    return cluster.job(tmp_path_factory.mktemp("asked") / "toy", spec=spec)


def described(cluster: Cluster, job: str, name: str) -> list[dict[str, Any]]:
    """The Run of a job and its code, as bob would apply them."""
    said = cluster.platform("submit", "hpo", job, "--name", name, "--dry-run")
    made = [one for one in yaml.safe_load_all(said) if one]
    for one in made:
        if one["kind"] == "Run":
            one["metadata"]["annotations"] = {names.OWNER: "bob"}
    return made


def create(cluster: Cluster, things: list[dict[str, Any]]) -> None:
    cluster.kubectl("create", "-f", "-", *BOB, stdin=yaml.safe_dump_all(things))


def refused(cluster: Cluster, run: str) -> tuple[str, str]:
    """Reason and message why the operator does not accept a Run."""

    def accepted() -> Any:
        found = json.loads(cluster.kubectl("get", "run", run, "-o", "json")).get("status") or {}
        return next(
            (one for one in found.get("conditions", []) if (one["type"], one["status"]) == ("Accepted", "False")), None
        )

    condition = cluster.until("refusal", accepted, patience=60)
    assert not cluster.objects("rayclusters", run=run)
    return condition["reason"], condition["message"]


def may(cluster: Cluster, account: str, *what: str) -> bool:
    try:
        cluster.kubectl("auth", "can-i", *what, "--as", f"system:serviceaccount:{TEAM}:{account}", "--quiet")
        return True
    except AssertionError:
        return False


def test_a_run_has_no_priority_and_no_node_that_its_team_may_not_have(cluster: Cluster, job: str) -> None:
    run, *code = described(cluster, job, "urgent")
    asked = {"priority_class": "system-node-critical", "tolerations": [{"operator": "Exists"}]}
    asked |= {"labels": {"app": "web"}, "annotations": {"k8s.v1.cni.cncf.io/networks": "storage"}}
    run["spec"]["job"]["cluster"] |= asked
    create(cluster, [run, *code])
    reason, message = refused(cluster, "urgent")
    assert reason == "Invalid"
    for field in asked:
        assert f"spec.job.cluster.{field}" in message
    cluster.kubectl("delete", "run", "urgent", *BOB)


def test_a_runs_name_takes_no_secret_and_no_account_of_others(cluster: Cluster, job: str, tmp_path: Path) -> None:
    """KubeRay takes what has the name that it would give."""
    cluster.kubectl("create", "secret", "generic", "captured", "--from-literal=auth_token=of-others")
    cluster.kubectl("create", "serviceaccount", "captured")
    cluster.kubectl("create", "secret", "generic", "taken.ray", "--from-literal=auth_token=of-others")
    create(cluster, described(cluster, job, "taken"))
    message = "the Secret taken.ray does not belong to this Run; give the Run another name"
    assert refused(cluster, "taken") == ("NameTaken", message)
    slow = cluster.job(tmp_path / "toy", spec=SPEC.replace("0.3", "100").replace("parallel: 2", "parallel: 1"))
    cluster.platform("submit", "hpo", slow, "--name", "captured", "--detach", "--set", "cluster.autoscale=true")
    cluster.until("trial", lambda: cluster.status("captured")["running"] == 1)
    (head,) = cluster.objects("pods", run="captured", role="controller")
    assert head["spec"]["serviceAccountName"] == "captured.autoscaler"
    said = cluster.kubectl("exec", head["metadata"]["name"], "-c", "ray-head", "--", "printenv", "RAY_AUTH_TOKEN").strip()
    (token,) = json.loads(cluster.kubectl("get", "secret", "captured.ray", "-o", "json"))["data"].values()
    assert said == base64.b64decode(token).decode() != "of-others"
    for what in (("patch", "pods"), ("list", "pods"), ("patch", "rayclusters.ray.io/captured")):
        assert not may(cluster, "captured", *what), what
    assert may(cluster, "captured.autoscaler", "patch", "rayclusters.ray.io/captured")
    for what in (
        ("patch", "pods"),
        ("patch", "rayclusters.ray.io/another"),
        ("list", "rayclusters.ray.io"),
        ("get", "secrets"),
    ):
        assert not may(cluster, "captured.autoscaler", *what), what
    cluster.platform("cancel", "captured", "--now", "--yes")
    cluster.platform("delete", "captured", "--yes")
    cluster.kubectl("delete", "run", "taken", *BOB)
    cluster.kubectl("delete", "secret/captured", "secret/taken.ray", "serviceaccount/captured")


def test_another_user_goes_on_with_no_record_of_a_deleted_run(cluster: Cluster, job: str) -> None:
    """Also by naming the moment of its submission."""
    run, *code = described(cluster, job, "mine")
    cluster.platform("submit", "hpo", job, "--name", "mine")
    first = json.loads(cluster.kubectl("get", "run", "mine", "-o", "json"))
    cluster.kubectl("delete", "run", "mine")
    run["spec"] |= {"submission": first["spec"]["submission"], "resumes": 1}
    run["spec"]["job"]["trials"] = 4
    create(cluster, [run, *code])
    reason, message = refused(cluster, "mine")
    assert reason == "NameTaken"
    assert message.startswith("the ledger has a run mine of ") and "which only its owner may continue" in message
    cluster.kubectl("delete", "run", "mine", *BOB)
    cluster.check_exact("mine", 2)
    cluster.platform("delete", "mine", "--yes")
