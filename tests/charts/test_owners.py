"""Whose a Run is and who changes it, by the admission policy for Runs: nobody names another, the owner stays, and others
change nothing; what Kubernetes and the operator do goes through.

The expressions are evaluated where a CEL interpreter (`cel-python`) is installed. Not checked here: that an API server does
the same, and that `platform` sets the annotations (tests/client).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.charts.judge import Judge

from trialplane.wire import cluster

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]
GARBAGE = "system:serviceaccount:kube-system:generic-garbage-collector"
ADMINS = [
    {"kind": "User", "name": "lead"},
    {"kind": "Group", "name": "platform-team"},
    {"kind": "ServiceAccount", "name": "flux", "namespace": "flux-system"},
    {"kind": "ServiceAccount", "name": "ci"},
]


@pytest.fixture(scope="module", name="judge")
def _judge(render: Render, named: Callable[..., Thing]) -> Judge:
    return Judge(named(render({"owners": {"admins": ADMINS}}), "ValidatingAdmissionPolicy", "control-platform-runs"))


def run(owner: str = "ada", changed_by: str = "", **spec: Any) -> Thing:
    """A Run as the API server has it."""
    named = {cluster.OWNER: owner, cluster.CHANGED_BY: changed_by}
    annotations = {key: value for key, value in named.items() if value}
    metadata = {"name": "a", **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": {"state": "Running", "job": {"trials": 24}, **spec}, "status": {}}


def test_the_owner_is_who_makes_it(judge: Judge) -> None:
    assert judge.of_request("CREATE", "ada", run("ada"), None) == []
    for owner in ("", "bob"):
        message, *_ = judge.of_request("CREATE", "ada", run(owner), None)
        assert "set the annotation trialplane.io/owner to ada" in message
    assert judge.of_request("CREATE", "ada", run("ada", changed_by="bob"), None)


def test_an_administrator_makes_it_for_another_and_names_himself(judge: Judge) -> None:
    flux = "system:serviceaccount:flux-system:flux"
    assert judge.of_request("CREATE", flux, run("ada", changed_by=flux), None) == []
    (message,) = judge.of_request("CREATE", flux, run("ada"), None)
    assert f"set the annotation trialplane.io/changed-by of the Run to {flux}" in message


@pytest.mark.parametrize(
    "change",
    [
        {"state": "Paused"},
        {"parallel": 4},
        {"job": {"trials": 48}},
    ],
)
def test_its_owner_changes_it_by_any_means(judge: Judge, change: dict[str, Any]) -> None:
    """A plain `kubectl patch` too: who is named nowhere else made the change."""
    assert judge.of_request("UPDATE", "ada", run(**change), run()) == []
    assert judge.of_request("DELETE", "ada", None, run()) == []


def test_others_change_and_delete_nothing(judge: Judge) -> None:
    labelled, adopted, finalized = run(), run(), run()
    labelled["metadata"]["labels"] = {"a": "b"}
    adopted["metadata"]["ownerReferences"] = [{"uid": "of-nothing"}]  # it would be deleted with that
    finalized["metadata"]["finalizers"] = ["bob.example/never"]
    for new in (run(changed_by="bob", state="Paused"), labelled, adopted, finalized, run(changed_by="bob")):
        (message,) = judge.of_request("UPDATE", "bob", new, run(), "system:authenticated")
        assert message.startswith("this Run is of ada, and the cluster knows you as bob: ask its owner")
    assert judge.of_request("DELETE", "bob", None, run(), "system:authenticated")


def test_the_owner_never_changes(judge: Judge) -> None:
    for user, groups in (("ada", ()), ("bob", ()), ("lead", ()), ("eve", ("platform-team",))):
        for owner in ("", "bob"):
            new = run(owner, changed_by=user)
            assert any("does not change" in one for one in judge.of_request("UPDATE", user, new, run(), *groups)), user


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        ("lead", ()),
        ("eve", ("system:authenticated", "platform-team")),
        ("system:serviceaccount:flux-system:flux", ()),
        ("system:serviceaccount:control:ci", ()),
    ],
)
def test_whom_the_values_name_changes_everybodys_and_is_named(judge: Judge, user: str, groups: tuple[str, ...]) -> None:
    assert judge.of_request("UPDATE", user, run(changed_by=user, state="Paused"), run(), *groups) == []
    assert judge.of_request("DELETE", user, None, run(), *groups) == []
    for changed_by in ("", "ada", "bob"):
        (message,) = judge.of_request("UPDATE", user, run(changed_by=changed_by, state="Paused"), run(), *groups)
        assert f"trialplane.io/changed-by of the Run to {user}" in message


def test_who_changed_it_last_is_named_truly_after_another(judge: Judge) -> None:
    before = run(changed_by="lead", state="Paused")
    (message,) = judge.of_request("UPDATE", "ada", run(changed_by="lead", state="Running"), before)
    assert "changed-by of the Run to ada" in message
    assert judge.of_request("UPDATE", "ada", run(changed_by="ada", state="Running"), before) == []
    assert judge.of_request("UPDATE", "ada", run(state="Running"), before) == [], "without it, it is the owner's"
    assert judge.of_request("UPDATE", "lead", run(state="Paused"), before), "a change is not given to another"


@pytest.mark.parametrize("user", [GARBAGE, "system:kube-controller-manager"])
def test_what_kubernetes_removes_is_removed(judge: Judge, user: str) -> None:
    old = run()
    old["metadata"]["finalizers"] = ["foregroundDeletion"]
    new = copy.deepcopy(old)
    del new["metadata"]["finalizers"]
    assert judge.of_request("DELETE", user, None, old) == []
    assert judge.of_request("UPDATE", user, new, old) == []
    assert judge.of_request("UPDATE", user, run(state="Cancelled", changed_by=user), old)


def test_the_operator_removes_what_ended_long_ago_and_asks_for_nothing(judge: Judge) -> None:
    operator = "system:serviceaccount:control:platform-operator"
    assert judge.of_request("DELETE", operator, None, run()) == []
    assert judge.of_request("UPDATE", operator, run(state="Paused", changed_by=operator), run())
    assert judge.of_request("DELETE", "system:serviceaccount:other:platform-operator", None, run())


def test_a_run_without_an_owner_is_changed_by_anybody_and_may_get_one(judge: Judge) -> None:
    before = run("")
    assert judge.of_request("UPDATE", "bob", run("", changed_by="bob", state="Paused"), before) == []
    assert judge.of_request("UPDATE", "bob", run("bob"), before) == []
    assert judge.of_request("UPDATE", "bob", run("ada"), before)
    assert judge.of_request("UPDATE", "bob", run("", state="Paused"), before), "who changes it is named"
    assert judge.of_request("DELETE", "bob", None, before) == []


def test_it_looks_at_runs_and_not_at_their_status(render: Render, named: Callable[..., Thing]) -> None:
    policy = named(render({}), "ValidatingAdmissionPolicy", "control-platform-runs")["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"]) == ([cluster.GROUP], ["runs"])
    assert sorted(rule["operations"]) == ["CREATE", "DELETE", "UPDATE"]
    assert policy["failurePolicy"] == "Fail"
    assert "system:masters" in json.dumps(policy), "a cluster's administrators are not locked out"


@pytest.mark.parametrize("name", ["it's", "a\\", ""])
def test_a_name_that_could_end_the_expression_is_refused(template: Callable[..., Any], name: str) -> None:
    assert template({"owners": {"admins": [{"kind": "User", "name": name}]}}).returncode != 0
