"""A gateway with a certificate: laptops, controllers and trials reach it by HTTPS."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tests.e2e.conftest import CONTROL, RELEASE, SPEC, Cluster, install
from tests.gateway.certificates import Authority

LOGS = """
import mlflow

def run(ctx):
    mlflow.log_metric("own", 1.0)
    return {"score": ctx.params["x"]}
"""


@pytest.fixture
def authority(cluster: Cluster, tmp_path: Path) -> Path:
    """A Secret with a certificate in the chart's namespace; gives the file of its authority."""
    Authority().write(tmp_path, f"{RELEASE}-gateway.{CONTROL}.svc")
    data = {name: base64.b64encode((tmp_path / name).read_bytes()).decode() for name in ("tls.crt", "tls.key")}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "gateway-tls"}}
    cluster.control.kubectl("apply", "-f", "-", stdin=json.dumps({**secret, "data": data}))
    return tmp_path / "ca.crt"


def test_runs_and_laptops_reach_a_gateway_with_a_certificate(cluster: Cluster, authority: Path) -> None:
    job = cluster.job(cluster.home / "jobs" / "tls", LOGS, SPEC.replace("trials: 6", "trials: 2"))
    try:
        install("--set", "gateway.tls.secret=gateway-tls", "--set-file", f"gateway.tls.ca={authority}")
        cluster.platform("submit", "hpo", job, "--name", "encrypted")
        cluster.check_exact("encrypted", 2)
        doctor = cluster.platform("doctor")
        assert "fail " not in doctor
    finally:
        install()
    cluster.until("results by plain HTTP again", lambda: cluster.said("results", "encrypted"))
