"""The gateway as a process of its own, on a database of a test's: started, killed and started again at the same port."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from trialplane.ledger.archive import Archive
from trialplane.ledger.tables import Connections, create_if_missing, runs
from trialplane.wire import ledger

TOKEN = "a-token-of-the-run"
NAMESPACE = "team"  # the only one, and the gateway's own: its ledger is the database's default schema

PROGRAM = '''
"""Serves gateways in children that a test kills. One order a line on stdin; a line with port and pid is the answer."""

import errno, json, os, random, signal, socket, sys

from trialplane.gateway import server
from trialplane.gateway.callers import Callers, Review
from trialplane.gateway.ledgers import LedgerService
from trialplane.gateway.logs import Controllers
from trialplane.gateway.mlflow import MlflowProxy
from trialplane.gateway.routes import Gateway, Dispatcher
from trialplane.gateway.upstream import Upstream
from trialplane.ledger.namespaces import Ledgers
from trialplane.training.process import end_with_parent

def serve(order):
    end_with_parent()
    server.IDLE_SECONDS, server.REQUEST_SECONDS = order["idle"], order["request"]
    there, ledgers = order["namespace"], Ledgers(order["url"], order["namespace"], [order["namespace"]])
    runs = ledgers.of(there)
    gateway = Gateway(runs, Callers(lambda token: Review("")), there, Controllers("http://127.0.0.1:9"))
    answers = Dispatcher({there: gateway})
    proxy = MlflowProxy(Upstream(order["mlflow"]) if order["mlflow"] else None, ledgers, answers.user)
    service = LedgerService(ledgers)
    while True:
        try:
            # A port that no connection of another process gets by chance, as it must be free when this one is killed.
            port = order["port"] or random.SystemRandom().randrange(10_000, 32_000)
            listener = socket.create_server(("127.0.0.1", port))
            break
        except OSError as error:
            if order["port"] or error.errno != errno.EADDRINUSE:
                os.write(1, b"\\n")
                raise
    os.write(1, f"{port} {os.getpid()}\\n".encode())
    server.server(answers, service, proxy).run([listener])

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork() == 0:
        serve(json.loads(line))
'''


class Gateways:
    """A process that has imported the gateway, and forks one for each that is started."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", PROGRAM]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def door(self, url: str, *, idle: float = 60.0, request: float = 30.0, mlflow: str = "") -> Door:
        """A gateway that serves the database at `url`, with its limits of time, and with a server of MLflow."""
        order = {"url": url, "namespace": NAMESPACE, "idle": idle, "request": request, "mlflow": mlflow}
        return Door(self, url, order)

    def start(self, order: dict[str, object]) -> tuple[int, int]:
        """The port and pid of a new gateway."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        assert answer, "the gateway did not start; stderr says why"
        port, pid = answer
        return int(port), int(pid)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class Door:
    """One gateway, at one port whatever happens to its process."""

    def __init__(self, gateways: Gateways, url: str, order: dict[str, object]) -> None:
        self._gateways = gateways
        self._order = order
        self._connections = Connections(url)
        self._archive = Archive(self._connections.share())
        self._engine = sa.create_engine(url, poolclass=sa.pool.NullPool)  # the server may have been restarted
        self.port, self.pid = gateways.start({**order, "port": 0})

    def url(self, token: str = TOKEN) -> str:
        """The URL of the ledger of any run that the token opens."""
        return f"http://:{token}@127.0.0.1:{self.port}{ledger.namespace_path(NAMESPACE)}"

    def admit(self, run: str, directions: Sequence[str], token: str = TOKEN) -> None:
        """Records a run, if it is not recorded yet, and has a token open it."""
        create_if_missing(self._engine)
        with self._engine.begin() as connection:
            found = connection.execute(sa.select(runs.c.token).where(runs.c.name == run)).one_or_none()
            if found is None:
                new = {"name": run, "directions": json.dumps(list(directions)), "epoch": 0, "optuna": "{}"}
                connection.execute(sa.insert(runs).values(new))
        if found is None or found.token != ledger.token_digest(token):
            self._archive.set_token(run, token)

    def revoke(self, run: str) -> None:
        """Takes the token away."""
        self._archive.revoke_tokens(run)

    def kill(self) -> None:
        """Ends the process at once."""
        os.kill(self.pid, signal.SIGKILL)
        self.pid = 0

    def start(self) -> None:
        """Starts it again."""
        self.port, self.pid = self._gateways.start({**self._order, "port": self.port})

    def close(self) -> None:
        if self.pid:
            self.kill()
        self._connections.close()
        self._engine.dispose()


class Cut:
    """A proxy that passes requests on to the gateway, and breaks the connection once, with the answer in its hands."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._to = port
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.cuts = 0
        self.armed = False
        self._start(self._serve)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args))
        self._threads[-1].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                upstream = socket.create_connection(("127.0.0.1", self._to))
                self._sockets.append(upstream)
                self._start(self._copy, client, upstream, False)
                self._start(self._copy, upstream, client, True)

    def _copy(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self.armed:
                    self.armed, self.cuts = False, self.cuts + 1
                    break
                target.sendall(data)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connected in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connected in (self._listener, *self._sockets):
            connected.close()
