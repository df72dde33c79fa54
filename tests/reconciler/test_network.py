"""The network policies of a run: there before its pods, the Run's own, and those of the site as it is now.

What they let through is worked out in tests/charts/test_network.py; that a network does, in tests/e2e/test_isolation.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.kuberay_double import SITE

from trialplane.kube.cluster import Cluster
from trialplane.plan.site import Site
from trialplane.reconciler.reconciler import Reconciler
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState

from .conftest import Team


def policies(team: Team) -> dict[str, dict[str, Any]]:
    return team.cluster.objects["networkpolicies"]


def upgrade(team: Team, **network: Any) -> None:
    """The operator as it starts anew when the chart's values have changed."""
    site = Site.model_validate({**SITE, "namespace": "team", "network": network})
    team.reconciler = Reconciler(Cluster(), team.archive, site)  # type: ignore[arg-type]


def test_a_runs_pods_find_policies_of_their_own_run(team: Team) -> None:
    seen: list[list[str]] = []
    made = team.cluster.made
    team.cluster.made = lambda thing: (seen.append(sorted(policies(team))), made(thing))  # type: ignore[func-returns-value]
    team.apply()
    team.settle()
    assert seen == [["a.head", "a.trials"]], "what is denied at first may not be tried again"
    for one in policies(team).values():
        (owner,) = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Run", team.cluster.objects["runs"]["a"]["metadata"]["uid"])
        assert one["spec"]["podSelector"]["matchLabels"][names.RUN] == "a"
        assert one["spec"]["ingress"][0] == {"from": [{"podSelector": {"matchLabels": {names.RUN: "a"}}}]}
    assert {"ports": [{"port": 5000}]} in policies(team)["a.trials"]["spec"]["egress"]


def test_a_run_that_works_gets_what_the_values_allow_now(team: Team) -> None:
    team.apply()
    team.settle()
    upgrade(team, enabled=True, trial={"egress": [{"ports": [{"port": 443}]}]})
    team.settle()
    assert policies(team)["a.trials"]["spec"]["egress"][1:] == [{"ports": [{"port": 443}]}]
    assert team.made == 1


def test_a_run_that_was_started_without_policies_gets_some(team: Team) -> None:
    """From the upgrade on everything is denied that no policy allows."""
    upgrade(team, enabled=False)
    team.apply()
    team.settle()
    assert not policies(team)
    upgrade(team, enabled=True)
    team.settle()
    assert sorted(policies(team)) == ["a.head", "a.trials"]


def test_where_the_values_turn_policies_off_the_runs_have_none(team: Team) -> None:
    team.apply()
    team.settle()
    upgrade(team, enabled=False)
    team.settle()
    assert not policies(team)


def test_policies_that_are_as_they_should_be_are_left_alone(team: Team) -> None:
    team.apply()
    team.settle()
    made: list[str] = []
    call = team.reconciler.cluster.call

    def called(method: str, path: str, **named: Any) -> Any:
        made.append(f"{method} {path}")
        return call(method, path, **named)

    team.reconciler.cluster.call = called  # type: ignore[method-assign]
    team.settle()
    assert made
    assert not [one for one in made if "networkpolicies" in one]


@pytest.mark.parametrize("name", ["a.head", "a.trials"])
def test_a_policy_of_somebody_else_is_not_replaced(team: Team, name: str) -> None:
    theirs = {"metadata": {"name": name}, "spec": {"podSelector": {}}}
    team.cluster.put("networkpolicies", theirs)
    team.apply()
    team.settle()
    assert team.condition("Accepted")[1:] == (
        "NameTaken",
        f"the NetworkPolicy {name} does not belong to this Run; give the Run another name",
    )
    assert policies(team)[name]["spec"] == {"podSelector": {}}
    team.cluster.remove("networkpolicies", name)
    team.settle()
    assert team.status()["state"] == RunState.RUNNING.value.capitalize()


def test_a_run_that_installs_packages_reaches_the_index_until_the_values_forbid_it(team: Team) -> None:
    index = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 8443}]}
    values = {"enabled": True, "index": "https://packages.example.org/simple", "egress": [index]}
    for allowed in (True, False):
        install = {**values, "enabled": allowed}
        site = Site.model_validate({**SITE, "namespace": "team", "network": {"enabled": True}, "install": install})
        team.reconciler = Reconciler(Cluster(), team.archive, site)  # type: ignore[arg-type]
        if allowed:
            team.apply(team.plan(requirements="requirements.txt", install=True))
        team.settle()
        assert (index in policies(team)["a.trials"]["spec"]["egress"]) is allowed
        assert index not in policies(team)["a.head"]["spec"]["egress"]
    assert team.made == 1
