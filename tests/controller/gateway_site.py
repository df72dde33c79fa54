"""A gateway over a PostgreSQL database of its own, and the ledgers in it."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.conftest import Postgres, make_job, postgres

from trialplane.controller import gateway as gateways
from trialplane.controller.gateway import Gateway
from trialplane.controller.ledger import Ledger
from trialplane.controller.store.archive import Archive
from trialplane.wire import cluster, labels, records
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

__all__ = ["postgres"]  # a fixture

TOKEN = "t" * 32


@dataclasses.dataclass
class Reply:
    code: int
    data: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.data)


class Site:
    """A gateway over a database of its own, and the ledgers in it."""

    def __init__(
        self, server: Postgres, home: Path, token: str = TOKEN, status_url: str = "http://127.0.0.1:9/{run}"
    ) -> None:
        self.postgres = server
        self.url = server.new_database()
        self.home = home
        self.archive = Archive(self.url)
        self.checkpoints = home / "checkpoints"
        made = Gateway(self.archive, token, home, status_url, self.checkpoints)
        self._server = gateways.serve(made, "127.0.0.1", 0)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.server_address[1], timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body or None, headers)
            reply = connection.getresponse()
            return Reply(reply.status, reply.read(), {name.lower(): value for name, value in reply.getheaders()})

    def get(self, path: str) -> Any:
        reply = self.ask("GET", path)
        assert reply.code == 200, reply.data
        return reply.json()

    def delete(self, run: str) -> Reply:
        return self.ask("DELETE", f"/runs/{run}", **{cluster.TOKEN_HEADER: TOKEN})

    def ledger(self, run: str, submitted: float = 1000.0, **changes: Any) -> Ledger:
        """A ledger as a controller has it, with what it says of the run."""
        job = make_job(**changes)
        code = self.home / "code"
        code.mkdir(exist_ok=True)
        ledger = Ledger(self.url, job, run, code, self.home / "lock")
        status = RunStatus(run, job.name, RunState.RUNNING, job.trials, running=2, slots_ready=2, nodes=("n",), eta=9.0)
        status = dataclasses.replace(status, created=submitted, started=submitted)
        ledger.describe(
            {
                labels.LEDGER_JOB: job.model_dump(mode="json"),
                labels.LEDGER_SUBMISSION: {"submitted": submitted, "user": "ann"},
                labels.LEDGER_CODE: "AAEC",
                labels.LEDGER_STATUS: records.to_dict(status),
            }
        )
        return ledger

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.archive.close()


@pytest.fixture
def site(postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    made = Site(postgres, tmp_path)
    yield made
    made.close()
