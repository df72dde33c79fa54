"""A gateway with a server of MLflow with Kubeflow's plugin behind it, and runs of two teams whose tokens open its door.

The plugin needs Python 3.12: where the tests run with an older one, PLUGIN_PYTHON names one that has it, and psycopg2.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.conftest import Postgres
from tests.controller.conftest import Server
from tests.gateway.gateway_site import NAMESPACE, Reply, Site, postgres
from tests.gateway.rbac_double import Rbac

from trialplane.gateway.upstream import Upstream
from trialplane.wire import ledger
from trialplane.wire import mlflow as wire

__all__ = ["postgres"]  # a fixture

OTHER = "other"  # another team's namespace
RUNS = ("own-1", "other-1")
SOURCE = "^((mlflow-artifacts|models):/[^/].*|prompt-template|dummy-source)$"  # of versions of registered models
MOST = 6 << 20  # bytes of an artifact; a run's page has 5 MB


class Door:
    """The door of one run, as a trial of it comes there."""

    def __init__(self, site: Site, run: str, namespace: str = NAMESPACE) -> None:
        self.site, self.run, self.path = site, run, wire.path(ledger.namespace_path(namespace), run)
        self.token = wire.token(f"the token of {run}" if namespace == NAMESPACE else f"the token of {run} in {namespace}")
        self.uri = f"{site.address}{self.path}"

    def ask(self, method: str, path: str, body: Any = None, token: str = "", **headers: str) -> Reply:
        """One request: a JSON body, or the bytes of an artifact."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        kind = {} if body is None or isinstance(body, bytes) else {"Content-Type": "application/json"}
        headers = {"Authorization": f"Bearer {token or self.token}", **kind, **headers}
        return self.site.ask(method, self.path + path, sent, **headers)

    def call(self, endpoint: str, body: Any = None, *, get: bool = False, **headers: str) -> Reply:
        """One call of MLflow's protocol."""
        if get:
            return self.ask("GET", f"/api/2.0/mlflow/{endpoint}?{urllib.parse.urlencode(body or {})}", **headers)
        return self.ask("POST", f"/api/2.0/mlflow/{endpoint}", body or {}, **headers)

    def experiment(self, job: str = "toy") -> str:
        """The id of a job's experiment, which is made when it is not there."""
        answer = self.call("experiments/get-by-name", {"experiment_name": job}, get=True)
        if answer.code == 404:
            return str(self.done("experiments/create", {"name": job})["experiment_id"])
        return str(answer.json()["experiment"]["experiment_id"])

    def new_run(self, job: str = "toy", **tags: str) -> dict[str, Any]:
        """A new run in MLflow: its info."""
        tag_entries = [{"key": key, "value": value} for key, value in tags.items()]
        run: dict[str, Any] = self.done("runs/create", {"experiment_id": self.experiment(job), "tags": tag_entries})
        info: dict[str, Any] = run["run"]["info"]
        return info

    def new_model(self) -> dict[str, Any]:
        """A new logged model: its info."""
        body = {"experiment_id": self.experiment(), "source_run_id": self.new_run()["run_id"], "name": "net"}
        info: dict[str, Any] = self.done("logged-models", body)["model"]["info"]
        return info

    def done(self, endpoint: str, body: Any, *, get: bool = False) -> Any:
        """Make a call that succeeds; return its answer."""
        reply = self.call(endpoint, body, get=get)
        assert reply.code == 200, reply.data
        return reply.json()

    def tags(self, run_id: str) -> dict[str, str]:
        """The data of a run in MLflow."""
        data = self.done("runs/get", {"run_id": run_id}, get=True)["run"]["data"]
        return {tag["key"]: tag["value"] for tag in data["tags"]}


def plugin_python() -> str:
    """A Python with the plugin, or ""."""
    has_plugin = importlib.util.find_spec("mlflow_kubernetes_plugins") is not None
    return sys.executable if has_plugin else os.environ.get("PLUGIN_PYTHON", "")


def require_plugin() -> None:
    """Skip the test if no Python has the plugin; in CI, where the boundary between teams must be tested, fail."""
    if not plugin_python():
        missing = "mlflow-kubernetes-plugins is not installed: it needs Python 3.12, which PLUGIN_PYTHON may name"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)


@contextlib.contextmanager
def with_plugin(store: str, folder: Path, *namespaces: str) -> Iterator[tuple[Server, Rbac]]:
    """MLflow's server as the chart starts it, which takes seconds, and the API server that it asks."""
    rbac = Rbac(folder)
    chart = {
        "KUBECONFIG": str(rbac.kubeconfig),
        "MLFLOW_K8S_AUTH_AUTHORIZATION_MODE": "subject_access_review",
        "MLFLOW_K8S_WORKSPACE_LABEL_SELECTOR": f"kubernetes.io/metadata.name in ({','.join(namespaces)})",
        "MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX": SOURCE,
    }
    options = ("--enable-workspaces", "--workspace-store-uri", "kubernetes://", "--app-name", "kubernetes-auth")
    started = Server(store, folder, plugin_python(), options, chart)
    try:
        started.start()
        yield started, rbac
    finally:
        started.stop()
        rbac.close()


@pytest.fixture(scope="session")
def tenants(tmp_path_factory: pytest.TempPathFactory, services: None) -> Iterator[tuple[Server, Rbac]]:
    require_plugin()
    folder = tmp_path_factory.mktemp("mlflow-server")
    with with_plugin(f"sqlite:///{folder / 'mlflow.db'}", folder, NAMESPACE, OTHER) as started:
        yield started


@pytest.fixture(scope="session")
def server(tenants: tuple[Server, Rbac]) -> Server:
    return tenants[0]


@pytest.fixture
def rbac(tenants: tuple[Server, Rbac]) -> Rbac:
    return tenants[1]


@pytest.fixture
def site(postgres: Postgres, server: Server, tmp_path: Path) -> Iterator[Site]:
    """Both runs are in both namespaces."""
    started = Site(postgres, tmp_path, upstream=Upstream(server.uri, max_artifact=MOST), others=[OTHER])
    for run in RUNS:
        for namespace in (NAMESPACE, OTHER):
            token = f"the token of {run}" + ("" if namespace == NAMESPACE else f" in {namespace}")
            with started.ledger(run, namespace=namespace):
                started.archive_of(namespace).set_token(run, token)
    yield started
    started.close()


@pytest.fixture
def own(site: Site) -> Door:
    return Door(site, RUNS[0])


@pytest.fixture
def other(site: Site) -> Door:
    """That of a run of another team."""
    return Door(site, RUNS[1], OTHER)
