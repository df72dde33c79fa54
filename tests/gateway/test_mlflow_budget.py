"""What the runs of a namespace may send to MLflow: with a real server of MLflow behind the gateway, and MLflow's own client.

How it is counted: tests/contracts/test_budget.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from tests.contracts.conftest import Postgres
from tests.controller.conftest import Server
from tests.gateway.gateway_site import NAMESPACE, Site, postgres
from tests.gateway.mlflow_site import Door, server, tenants

from trialplane.exporter import batch
from trialplane.gateway.upstream import Upstream
from trialplane.ledger import budget
from trialplane.wire import env

__all__ = ["postgres", "server", "tenants"]  # fixtures

ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
MOST = 60_000
BUDGETS = json.dumps({NAMESPACE: {"database": MOST, "artifacts": 5000}})


@pytest.fixture
def own(postgres: Postgres, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """The door of a run in a namespace with a small budget."""
    monkeypatch.setattr(budget, "AT_ONCE", 1000)
    site = Site(postgres, tmp_path, upstream=Upstream(server.uri), budgets=BUDGETS)
    with site.ledger("own-1"):
        site.archive.set_token("own-1", "the token of own-1")
    yield Door(site, "own-1")
    site.close()


def metrics(count: int) -> list[dict[str, object]]:
    return [{"key": "loss", "value": 0.5, "timestamp": 1, "step": step} for step in range(count)]


def test_a_trial_cannot_fill_mlflows_database(own: Door) -> None:
    """A trial that runs has a tenth more than new ones; each row counts beyond its bytes, as indexes have it too."""
    run_id, sent = own.new_run()["run_id"], 0
    for _ in range(1000):
        reply = own.call("runs/log-batch", {"run_id": run_id, "metrics": metrics(20)})
        if reply.code != 200:
            break
        sent += 20
    assert reply.code == 507
    assert reply.json()["error_code"] == "RESOURCE_LIMIT_EXCEEDED"
    assert f"the runs in {NAMESPACE} use" in reply.json()["message"] and "budget.database" in reply.json()["message"]
    assert 120 <= sent <= 280, "some 250 bytes for each"
    assert own.call("runs/create", {"experiment_id": own.experiment()}).code == 507
    body = {"experiment_ids": [own.experiment()]}
    assert own.call("runs/search", body).code == 200, "what reads or deletes goes on"
    assert own.call("runs/delete", {"run_id": run_id}).code == 200


def test_artifacts_are_counted_before_they_are_stored(own: Door) -> None:
    root = own.new_run()["artifact_uri"].removeprefix("mlflow-artifacts:")
    assert own.ask("PUT", f"{ARTIFACTS}{root}/a.bin", b"x" * 3000).code == 200
    reply = own.ask("PUT", f"{ARTIFACTS}{root}/b.bin", b"x" * 3000)
    assert (reply.code, reply.json()["error_code"]) == (507, "RESOURCE_LIMIT_EXCEEDED")
    assert "2.9 KiB more would exceed the budget" in reply.json()["message"]
    listed = own.ask("GET", f"{ARTIFACTS}?path={root.strip('/')}").json()["files"]
    assert [one["path"] for one in listed] == ["a.bin"]


def test_what_mlflow_does_not_take_costs_nothing(own: Door) -> None:
    root = own.new_run()["artifact_uri"].removeprefix("mlflow-artifacts:")
    assert own.ask("PUT", f"{ARTIFACTS}{root}/a", b"x" * 10).code == 200
    for _ in range(5):
        reply = own.ask("PUT", f"{ARTIFACTS}{root}/a/b.bin", b"x" * 3000)  # below a file, where no file can be
        assert reply.code >= 500 and reply.code != 507, "MLflow's own error, and none of the budget"
    assert own.ask("PUT", f"{ARTIFACTS}{root}/c.bin", b"x" * 3000).code == 200


def test_mlflows_client_says_why_at_once_and_the_exporter_tries_again_later(
    own: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = own.new_run()["run_id"]
    monkeypatch.setitem(os.environ, env.MLFLOW_TOKEN, own.token)
    client = mlflow.MlflowClient(own.uri)
    with pytest.raises(MlflowException, match=r"budget\.database in the chart's values") as caught:
        for number in range(100):
            client.set_tag(run_id, f"tag-{number}", "x" * 2000)
    assert not batch.is_refusal(caught.value)
