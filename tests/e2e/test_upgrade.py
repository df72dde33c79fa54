"""What an administrator does to the chart after studies have run: another values set, uninstalling, installing again.

Runs last, as it takes the platform away. Not checked here: what the values render to (tests/charts).
"""

from __future__ import annotations

import json
import re

import pytest
from tests.e2e.conftest import CONTROL, RELEASE, SPEC, TEAM, Cluster, helm, install


def _claims(cluster: Cluster) -> set[str]:
    found = json.loads(cluster.kubectl("get", "pvc", "-o", "json"))["items"]
    return {item["metadata"]["name"] for item in found if "deletionTimestamp" not in item["metadata"]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["teams[2].namespace=default"], "this release did not make it: add `create: false`"),
        (["teams[2].namespace=nowhere", "teams[2].create=false"], "there is no namespace nowhere"),
        (
            ["checkpoints.accessModes={ReadWriteOncePod}"],
            f"the claim {RELEASE}-checkpoints in namespace {TEAM} is there with",
        ),
    ],
)
def test_what_the_cluster_would_not_take_is_refused_before_anything_changes(
    cluster: Cluster, values: list[str], said: str
) -> None:
    with pytest.raises(AssertionError, match=re.escape(said)):
        install(*(word for value in values for word in ("--set", value)))


@pytest.mark.slow
def test_studies_outlive_upgrade_and_uninstall(cluster: Cluster) -> None:
    folder = cluster.home / "jobs" / "toy"
    job = cluster.job(folder, spec=SPEC.replace("trials: 6", "trials: 2"))
    cluster.platform("submit", "hpo", job, "--name", "kept")
    before = cluster.check_exact("kept", 2)

    # A second worker of MLflow needs more connections than the values for kind allow.
    connections = "postgresql.parameters.max_connections=160"
    install("--set", "teams[0].quota.pods=90,priorityClasses.enabled=false,mlflow.workers=2", "--set-string", connections)
    assert cluster.check_exact("kept", 2) == before

    claims = _claims(cluster)
    assert claims
    helm("uninstall", RELEASE, "--namespace", CONTROL, "--wait")
    assert _claims(cluster) == claims

    install()
    cluster.until("results again", lambda: cluster.said("results", "kept"))
    assert cluster.check_exact("kept", 2) == before
