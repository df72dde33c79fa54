"""A gateway over a PostgreSQL database of its own, and the ledgers in it."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import uvicorn
from tests.contracts.conftest import Postgres, make_job, postgres

from trialplane.controller.ledger import Ledger
from trialplane.gateway import server as http_server
from trialplane.gateway.callers import Callers, Review
from trialplane.gateway.ledgers import LedgerService
from trialplane.gateway.logs import Controllers, MlflowLogs
from trialplane.gateway.mlflow import MlflowProxy
from trialplane.gateway.routes import Dispatcher, Gateway
from trialplane.gateway.upstream import Upstream
from trialplane.ledger import tables
from trialplane.ledger.archive import Archive
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import cluster, labels, ledger, records
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

__all__ = ["postgres"]  # a fixture

NAMESPACE = "studies"
PLACE = ledger.namespace_path(NAMESPACE)
TOKEN = "of.a.user"
STRANGER = "of.a.stranger"
VIEWER = "of.a.viewer"
BEARERS = {
    TOKEN: f"system:serviceaccount:{NAMESPACE}:trialplane-user",
    STRANGER: "system:serviceaccount:other:trialplane-user",
    VIEWER: f"system:serviceaccount:{NAMESPACE}:trialplane-viewer",
}


def callers() -> Callers:
    """A user of the namespace and one of another, without an API server; with one: `test_callers`."""
    return Callers(lambda token: Review(BEARERS.get(token, ""), "made up"))


@dataclasses.dataclass
class Reply:
    code: int
    data: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.data)


class Http:
    """A server of the gateway's, running in a thread."""

    def __init__(self, server: uvicorn.Server) -> None:
        self.server = server
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._thread = threading.Thread(target=server.run, args=([listener],))
        self._thread.start()

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        """A connection from one of this machine's own addresses."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60, source_address=(address, 0))

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join()


class Site:
    """A gateway over a database of its own, and the ledgers in it; it may serve others than its own namespace."""

    def __init__(
        self,
        server: Postgres,
        home: Path,
        controllers: str = "http://127.0.0.1:9",
        mlflow: MlflowLogs | None = None,
        upstream: Upstream | None = None,
        others: Sequence[str] = (),
        budgets: str = "",
    ) -> None:
        self.postgres = server
        self.url = server.new_database()
        self.home = home
        self.ledgers = Ledgers(self.url, NAMESPACE, [NAMESPACE, *others], budgets)
        self.archive = self.archive_of(NAMESPACE)
        made = {
            name: Gateway(self.archive_of(name), callers(), name, Controllers(controllers), mlflow)
            for name in self.ledgers.namespaces
        }
        answers = Dispatcher(made)
        self.proxy = MlflowProxy(upstream, self.ledgers, answers.user)
        self.http = Http(http_server.server(answers, LedgerService(self.ledgers), self.proxy))

    def archive_of(self, namespace: str) -> Archive:
        archive = self.ledgers.of(namespace)
        assert archive is not None
        return archive

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    def ask(self, method: str, path: str, body: bytes = b"", token: str = TOKEN, **headers: str) -> Reply:
        headers = {cluster.TOKEN_HEADER: token, **headers} if token else headers
        connection = http.client.HTTPConnection("127.0.0.1", self.http.port, timeout=60)
        if path.startswith(("/runs", "/mlflow")):  # of the one namespace
            path = PLACE + path
        with contextlib.closing(connection):
            connection.request(method, path, body or None, headers)
            reply = connection.getresponse()
            return Reply(reply.status, reply.read(), {name.lower(): value for name, value in reply.getheaders()})

    def get(self, path: str) -> Any:
        reply = self.ask("GET", path)
        assert reply.code == 200, reply.data
        return reply.json()

    def delete(self, run: str) -> Reply:
        return self.ask("DELETE", f"/runs/{run}")

    def ledger(
        self, run: str, submitted: float = 1000.0, namespace: str = NAMESPACE, uid: str = "", **changes: Any
    ) -> Ledger:
        """A ledger as a controller has it, with what it says of the run."""
        job = make_job(**changes)
        code = self.home / "code"
        code.mkdir(exist_ok=True)
        ledger = Ledger(self.ledgers.url(namespace), job, run, code, self.home / "lock")
        status = RunStatus(run, job.name, RunState.RUNNING, job.trials, running=2, slots_ready=2, nodes=("n",), eta=9.0)
        status = dataclasses.replace(status, created=submitted, started=submitted)
        ledger.write_facts(
            {
                labels.LEDGER_JOB: job.model_dump(mode="json"),
                labels.LEDGER_SUBMISSION: {
                    "submitted": submitted,
                    "user": "ann",
                    labels.RECORD_UID: uid or record(submitted),
                },
                labels.LEDGER_STATUS: records.to_dict(status),
            }
        )
        with self.archive_of(namespace)._connections.begin() as connection:
            digest = tables.store_code(connection, b"\0\1\2")
            connection.execute(sa.update(tables.runs).where(tables.runs.c.name == run).values(code=digest))
        return ledger

    def close(self) -> None:
        self.http.close()
        self.ledgers.close()
        self.postgres.drop(self.url)


def record(submitted: float) -> str:
    """The uid of the Run that was made at that time."""
    return f"uid-of-{submitted:g}"


@pytest.fixture
def site(postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    started = Site(postgres, tmp_path)
    yield started
    started.close()
