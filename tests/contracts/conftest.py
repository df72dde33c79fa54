"""The databases a ledger can live in: SQLite files, and a PostgreSQL of this test session's own.

PostgreSQL is Debian's (`apt-get install postgresql`): only its binaries are used, on a data folder in a temporary place,
without a password, reachable through a socket in that folder alone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from trialplane.controller.ledger import Ledger
from trialplane.controller.patience import Patience
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.training.process import die_with_parent
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

DEADLINE = 180.0  # seconds after which something that another process was to do counts as not done

DRIVER = '''
"""Opens a ledger and works on it, or only holds it, in children that a test kills. One order a line on stdin."""

import json, os, sys
from pathlib import Path

from trialplane.controller.ledger import Ledger
from trialplane.controller.patience import Patience
from trialplane.spec import jobs
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import TrialState

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def work(order):
    with Ledger(order["url"], jobs.read(order["job"]), "toy", Path(order["code"]), Path(order["lock"])) as ledger:
        say("open")
        if order["hold"]:
            sys.stdin.readline()
        while (request := ledger.ask()) is not None:
            say("asked", request.number)
            ledger.tell(TrialOutcome(request.number, TrialState.COMPLETE, metrics={"score": request.params["x"]}))
            say("told", request.number)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        work(json.loads(line))
        os._exit(0)
    say("child", child)
    os.waitpid(child, 0)
    say("gone")
'''


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for something another process does; gives what the condition gave."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)
    return value


class Postgres:
    """A PostgreSQL server with its own data folder.

    Args:
        binaries: folder of initdb and postgres.
    """

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        memory = Path("/dev/shm")
        self._root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None, prefix="trialplane-pg-"))
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

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs one statement as the superuser, outside any transaction."""
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
        self._server = self._popen(
            ["postgres", "-D", str(self._data), "-k", str(self._root), "-c", "listen_addresses=", "-F"]
        )
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
def postgres() -> Iterator[Postgres]:
    """The session's PostgreSQL; runs when a test gets it and must run when the test ends."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    if not found:
        missing = "PostgreSQL's binaries are not in /usr/lib/postgresql; install them: apt-get install -y postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    server = Postgres(found[-1].parent)
    yield server
    server.close()


@dataclasses.dataclass
class Backend:
    """Where one test's study lives, and the ledgers opened on it."""

    kind: str
    url: str
    folder: Path
    opened: list[Ledger] = dataclasses.field(default_factory=list)

    @property
    def code(self) -> Path:
        return self.folder / "code"

    @property
    def lock(self) -> Path:
        return self.folder / "controller.lock"

    def open(self, job: Job, *, lock: Path | None = None, left_at: int = 0, **patience: Any) -> Ledger:
        """A ledger, as a controller with such a patience opens it; closed at the end of the test if not before."""
        parts = (self.url, job, "toy", self.code, lock or self.lock)
        ledger = Ledger(*parts, patience=Patience(**patience), left_at=left_at)
        self.opened.append(ledger)
        return ledger

    def close(self) -> None:
        for ledger in self.opened:
            ledger.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder, in memory where there is one: hundreds of studies wait long for a busy disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="trialplane-") as folder:
        yield Path(folder)


@pytest.fixture
def sqlite(place: Path) -> Iterator[Backend]:
    """An empty place for a study, on SQLite alone: for what does not differ between databases."""
    made = Backend("sqlite", f"sqlite:///{place}/ledger.db", place)
    made.code.mkdir()
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, sqlite: Backend) -> Backend:
    """An empty place for a study, once on each database."""
    if request.param == "postgres":
        sqlite.kind = "postgres"
        sqlite.url = request.getfixturevalue("postgres").new_database()
    return sqlite


class Driver:
    """A process that drives ledgers in children of its own; each is killed and the next one started without a new import."""

    def __init__(self, folder: Path) -> None:
        script = folder / "driver.py"
        script.write_text(DRIVER)
        self._process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.child = 0

    def go(self, backend: Backend, job: Job, *, hold: bool) -> None:
        """Opens the ledger in a new child."""
        order = {
            "url": backend.url,
            "job": job.model_dump(mode="json"),
            "code": str(backend.code),
            "lock": str(backend.lock),
            "hold": hold,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        word, pid = self.hear()
        assert word == "child"
        self.child = int(pid)

    def hear(self) -> list[str]:
        """The next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the driver ended; its traceback is above"
        return line.decode().split()

    def kill(self) -> list[list[str]]:
        """Kills the child with SIGKILL; gives what it had still said."""
        os.kill(self.child, signal.SIGKILL)
        said = []
        while (line := self.hear()) != ["gone"]:
            said.append(line)
        return said

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Another process that opens ledgers."""
    made = Driver(tmp_path)
    yield made
    made.close()


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
    return jobs.read({**SPEC, **changes})


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
    """What was tried, in order."""
    return [request.params for request in requests]
