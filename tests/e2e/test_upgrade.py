"""What an administrator does to the chart after studies have run: another values set, uninstalling, installing again.

Runs last, as it takes the platform away. Not checked here: what the values render to (tests/charts).
"""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import NAMESPACE, RELEASE, SPEC, Cluster, helm, install


def _claims(cluster: Cluster) -> set[str]:
    found = json.loads(cluster.kubectl("get", "pvc", "-o", "json"))["items"]
    return {item["metadata"]["name"] for item in found if "deletionTimestamp" not in item["metadata"]}


@pytest.mark.slow
def test_studies_outlive_upgrade_and_uninstall(cluster: Cluster) -> None:
    folder = cluster.home / "jobs" / "toy"
    job = cluster.job(folder, spec=SPEC.replace("trials: 6", "trials: 2"))
    cluster.platform("submit", "hpo", job, "--name", "kept")
    before = cluster.check_exact("kept", 2)

    install(NAMESPACE, "--set", "quota.enabled=true", "--set", "priorityClasses.enabled=false", "--set", "mlflow.workers=2")
    assert cluster.check_exact("kept", 2) == before

    claims = _claims(cluster)
    assert claims
    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    assert _claims(cluster) == claims

    install(NAMESPACE)
    cluster.until("results again", lambda: cluster.said("results", "kept"))
    assert cluster.check_exact("kept", 2) == before
