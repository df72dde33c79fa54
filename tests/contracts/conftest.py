"""The databases a ledger can live in: SQLite files, a PostgreSQL of this test session's own, and that behind a gateway.

PostgreSQL is Debian's (`apt-get install postgresql`): only its binaries are used, on a data folder in a temporary place,
without a password, reachable through a socket in that folder alone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa
from tests.contracts.driver import Driver
from tests.contracts.gateway_process import Door, Gateways
from tests.scratch import scratch

from trialplane import errors
from trialplane.controller.ledger import Ledger
from trialplane.controller.patience import Patience
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.training.process import die_with_parent
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

DEADLINE = 180.0  # seconds after which something that another process was to do counts as not done


def wait_until(condition: Callable[[], Any], description: str) -> Any:
    """Waits for something another process does; gives what the condition gave."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {description}"
        time.sleep(0.005)
    return value


class Postgres:
    """A PostgreSQL server with its own data folder.

    Args:
        binaries: folder of initdb and postgres.
    """

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._root = Path(tempfile.mkdtemp(dir=scratch(), prefix="postgres-"))
        self._account = self._unprivileged()
        if self._account is not None:
            os.chown(self._root, self._account.pw_uid, self._account.pw_gid)
        self._server: subprocess.Popen[bytes] | None = None
        self._count = itertools.count()
        command = [
            "initdb",
            "-D",
            str(self._data),
            "-U",
            "trialplane",
            "-A",
            "trust",
            "--no-sync",
            "--locale=C",
            "-E",
            "UTF8",
            "--wal-segsize=1",
        ]
        done = self._popen(command)
        assert done.wait() == 0, self._log.read_text()
        self.start()

    @property
    def _data(self) -> Path:
        return self._root / "data"

    @property
    def _log(self) -> Path:
        return self._root / "log"

    def url(self, database: str) -> str:
        return f"postgresql+psycopg2://trialplane@/{database}?host={self._root}"

    def new_database(self) -> str:
        """The URL of a database made for the caller alone."""
        name = f"study_{next(self._count)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Removes a database: each is 8 MB of memory, and there are hundreds."""
        self.execute(f"DROP DATABASE {sa.make_url(url).database} WITH (FORCE)")

    def execute(self, statement: str, url: str = "") -> list[tuple[Any, ...]]:
        """Runs one statement as the superuser, outside any transaction, in the database of a URL."""
        database = sa.make_url(url).database if url else "postgres"
        connection = psycopg2.connect(host=str(self._root), user="trialplane", dbname=database)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def start(self) -> None:
        # fsync off: these tests kill the client and stop the server, but never cut the power.
        # Every gateway and every archive of a test keeps some connections until it is closed.
        # All of it is memory: a short log, and shared blocks in the folder that goes with this process.
        settings = {
            "listen_addresses": "",
            "max_connections": "500",
            "max_wal_size": "32MB",
            "min_wal_size": "8MB",
            "dynamic_shared_memory_type": "mmap",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._server = self._popen(["postgres", "-D", str(self._data), "-k", str(self._root), *options, "-F"])
        wait_until(self._answers, f"PostgreSQL answers; its log is {self._log}")

    def stop(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGINT)  # "fast": ends sessions, writes everything
        self._server.wait()
        self._server = None

    def close(self) -> None:
        if self._server is not None:
            self.stop()
        shutil.rmtree(self._root)

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, self._log.read_text()
        try:
            self.execute("SELECT 1")
        except psycopg2.OperationalError:
            return False
        return True

    def _popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        account = self._account
        identity: dict[str, Any] = (
            {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        )
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(self._binaries / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                cwd=self._root,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),  # of a test run that is killed nothing stays
                **identity,
            )

    @staticmethod
    def _unprivileged() -> pwd.struct_passwd | None:
        """Somebody other than root, as whom PostgreSQL runs; None when we are nobody special ourselves."""
        if os.getuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        raise AssertionError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


@pytest.fixture(scope="session")
def postgres(services: None) -> Iterator[Postgres]:
    """The session's PostgreSQL; runs when a test gets it and must run when the test ends."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    if not programs:
        missing = "PostgreSQL's binaries are not in /usr/lib/postgresql; install them: apt-get install -y postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    server = Postgres(programs[-1].parent)
    yield server
    server.close()


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    """The URL of a new database for the test."""
    made = postgres.new_database()
    yield made
    postgres.drop(made)


@pytest.fixture(scope="session")
def gateways() -> Iterator[Gateways]:
    """Processes of the gateway, started without a new import."""
    started = Gateways()
    yield started
    started.close()


@dataclasses.dataclass
class Backend:
    """The database of one test's study, and the ledgers opened on it.

    Attributes:
        kind: "sqlite", "postgres" or "gateway".
        url: of the database.
        folder: for files beside it.
        door: the gateway, where ledgers are opened through one.
        opened: the ledgers.
        server: which made the database for this test alone.
    """

    kind: str
    url: str
    folder: Path
    door: Door | None = None
    opened: list[Ledger] = dataclasses.field(default_factory=list)
    server: Postgres | None = None

    @property
    def code(self) -> Path:
        return self.folder / "code"

    @property
    def lock(self) -> Path:
        return self.folder / "controller.lock"

    def open(self, job: Job, *, lock: Path | None = None, **patience: Any) -> Ledger:
        """A ledger, as a controller with such a patience opens it; closed at the end of the test if not before."""
        parts = (self.ledger("toy", job), job, "toy", self.code, lock or self.lock)
        ledger = Ledger(*parts, patience=Patience(**patience))
        self.opened.append(ledger)
        return ledger

    def ledger(self, run: str, job: Job) -> str:
        """The URL of a run's ledger; at a gateway the run is first recorded, as the operator does."""
        if self.door is None:
            return self.url
        self.door.admit(run, [objective.direction for objective in job.objectives])
        return self.door.url()

    def close(self) -> None:
        for ledger in self.opened:
            ledger.close()
        if self.door is not None:
            self.door.close()
        if self.server is not None:
            self.server.drop(self.url)


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        yield Path(folder)


@pytest.fixture
def sqlite(place: Path) -> Iterator[Backend]:
    """An empty place for a study, on SQLite alone: for what does not differ between databases."""
    backend = Backend("sqlite", f"sqlite:///{place}/ledger.db", place)
    backend.code.mkdir()
    yield backend
    backend.close()


def _backend(kind: str, sqlite: Backend, request: pytest.FixtureRequest) -> Backend:
    sqlite.kind = kind
    if kind != "sqlite":
        sqlite.server = request.getfixturevalue("postgres")
        sqlite.url = sqlite.server.new_database()
    if kind == "gateway":
        sqlite.door = request.getfixturevalue("gateways").door(sqlite.url)
    return sqlite


POSTGRES, GATEWAY = (pytest.param(kind, marks=pytest.mark.services) for kind in ("postgres", "gateway"))


@pytest.fixture(params=["sqlite", POSTGRES, GATEWAY])
def backend(request: pytest.FixtureRequest, sqlite: Backend) -> Backend:
    """An empty place for a study, once on each database, and once behind a gateway."""
    return _backend(request.param, sqlite, request)


@pytest.fixture(params=["sqlite", POSTGRES])
def database(request: pytest.FixtureRequest, sqlite: Backend) -> Backend:
    """The same for what happens before a controller may come through a gateway."""
    return _backend(request.param, sqlite, request)


@pytest.fixture(params=[POSTGRES, GATEWAY])
def remote(request: pytest.FixtureRequest, sqlite: Backend) -> Backend:
    """The same for what is about a database that is elsewhere."""
    return _backend(request.param, sqlite, request)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Another process that opens ledgers."""
    started = Driver(tmp_path)
    yield started
    started.close()


def open_when_free(backend: Backend, job: Job) -> Ledger:
    """A ledger, as soon as PostgreSQL has noticed that the former controller is gone."""

    def attempt() -> Ledger | None:
        try:
            return backend.open(job)
        except errors.LedgerLocked:
            return None

    ledger: Ledger = wait_until(attempt, "the lock is free")
    return ledger


def take_over(backend: Backend, postgres: Postgres, job: Job) -> Ledger:
    """A second controller after the first has lost its lock without noticing."""
    if backend.kind == "sqlite":  # a file system without working locks
        return backend.open(job, lock=backend.folder / "other.lock")
    holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    postgres.execute(f"SELECT pg_terminate_backend(pid) FROM ({holders}) AS holders", backend.url)
    return open_when_free(backend, job)


SPEC: dict[str, Any] = {
    "name": "toy",
    "kind": "hpo",
    "params": {"epochs": 2},
    "space": {
        "x": {"type": "float", "low": 0.0, "high": 1.0},
        "layers": {"type": "int", "low": 1, "high": 4},
        "kind": {"type": "categorical", "choices": ["a", "b", None, 3]},
    },
    "objectives": [{"metric": "score", "direction": "maximize"}],
    "sampler": "random",
    "trials": 6,
    "seed": 7,
}


def make_job(**changes: Any) -> Job:
    """The suite's job, with fields replaced."""
    return kinds.read({**SPEC, **changes})


def complete(request: TrialRequest, **metrics: float) -> TrialOutcome:
    """A result; by default the score is the parameter x."""
    return TrialOutcome(request.number, TrialState.COMPLETE, metrics=metrics or {"score": float(request.params["x"])})


def failed(request: TrialRequest, failure: FailureClass, message: str = "") -> TrialOutcome:
    return TrialOutcome(request.number, TrialState.FAILED, failure=failure, message=message)


def report(request: TrialRequest, step: int, **metrics: float) -> TrialReport:
    return TrialReport(request.number, step, metrics, time.time())


def ask(ledger: Ledger) -> TrialRequest:
    """The next attempt; there must be one."""
    request = ledger.ask()
    assert request is not None
    return request


def drive(
    ledger: Ledger, tell: Callable[[TrialRequest], TrialOutcome] = complete, count: int | None = None
) -> list[TrialRequest]:
    """Asks and tells, one after the other, until nothing is left or `count` attempts ended; gives the attempts."""
    attempts: list[TrialRequest] = []
    while (count is None or len(attempts) < count) and (request := ledger.ask()) is not None:
        attempts.append(request)
        assert ledger.tell(tell(request)) is not None
    return attempts


def points(requests: Sequence[TrialRequest]) -> list[Mapping[str, Any]]:
    """The tries, in order."""
    return [request.params for request in requests]


def storage_of(ledger: Ledger) -> Any:
    """Each backend that a ledger writes into and reads from."""
    return ledger.storage


@pytest.fixture
def served(postgres: Postgres, gateways: Gateways, place: Path) -> Iterator[Backend]:
    """A place for a study behind a gateway."""
    backend = Backend("gateway", postgres.new_database(), place, server=postgres)
    backend.door = gateways.door(backend.url)
    backend.code.mkdir()
    yield backend
    backend.close()


def door(served: Backend) -> Door:
    """The gateway of a place that has one."""
    assert served.door is not None
    return served.door
