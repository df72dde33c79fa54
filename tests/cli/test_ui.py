"""`platform ui`: where it listens, and that it takes its server with it. The server is a double, not MLflow.

optuna-dashboard is the real one. Not checked here: what its pages look like.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import io
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from tests.browser import Browser
from tests.client.conftest import complete
from tests.ports import free_port

from trialplane.cli import ui
from trialplane.client import folder
from trialplane.client.pages import PrivateServer
from trialplane.client.run import RunHandle
from trialplane.client.target_choice import HERE
from trialplane.controller.ledger import Ledger
from trialplane.errors import RunNotFound
from trialplane.job.kinds import Job, Objective, Study
from trialplane.wire import paths

# In place of `python -m mlflow`: says its pid, arguments and environment, and answers as MLflow does.
DOUBLE = """
import http.server, json, os, socket, sys
switches = [os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"], os.environ["MLFLOW_DISABLE_TELEMETRY"]]
switches.append(os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"))
print(json.dumps([os.getpid(), *switches, *sys.argv[1:]]), file=sys.stderr, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"experiment": {"experiment_id": "7"}}).encode())

    def log_message(self, *_): ...

server = http.server.HTTPServer(("", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=0)
server.serve_forever()
"""


def write_database(home: Path) -> None:
    """Write what stands for a complete database of MLflow."""
    with contextlib.closing(sqlite3.connect(paths.mlflow_db(home))) as database, database:
        database.execute("CREATE TABLE experiments AS SELECT 7 AS experiment_id")


@pytest.fixture
def recorded(home, tmp_path, monkeypatch) -> Path:
    """A home in which something is recorded, and a double of MLflow."""
    home.mkdir()
    write_database(home)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mlflow.py").write_text(DOUBLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    return home


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_before_mlflow_prints_and_ends_with_it(recorded, monkeypatch, number):
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    command = [sys.executable, "-c", "from trialplane.cli import main; main.main(['ui'])"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        address, note = child.stderr.readline(), child.stderr.readline()
        pid, jobs, no_telemetry, protobuf, *arguments = json.loads(child.stderr.readline())
        browser = Browser(address.strip())
        child.send_signal(number)
        _, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    assert (jobs, no_telemetry, protobuf) == ("false", "true", None)
    assert "read-only" in note
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert given["--backend-store-uri"] == paths.mlflow_uri(recorded)
    assert "--fd 0" in given["--uvicorn-opts"]
    assert browser.page.startswith("http://127.0.0.1:")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("length", [10, 100])
def test_no_other_account_can_connect_to_the_server_behind_the_pages(monkeypatch, length):
    temporary = Path(tempfile.mkdtemp(prefix="t" * length, dir="/tmp"))  # tmp_path may be long itself
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with PrivateServer(("127.0.0.1", 1)) as server:
        file = Path(server.listener.getsockname())
        assert len(str(file)) <= 103, "the most on macOS"
        assert (file.parent.stat().st_mode & 0o777, file.parent.parent == temporary) == (0o700, length < 100)
    assert not file.parent.exists()
    temporary.rmdir()


def test_a_port_in_use_is_refused_or_passed_over(platform, recorded, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = platform("ui", "--port", str(port))
        assert result.exit_code == 2
        assert f"port {port} is in use" in result.stderr
        monkeypatch.setattr(ui, "FIRST_PORT", port)
        with ui.open_listener(None) as first, ui.open_listener(None) as second:  # two that start at the same time
            assert port < first.getsockname()[1] < second.getsockname()[1]
            assert first.getsockname()[0] == "127.0.0.1"


@contextlib.contextmanager
def mlflow(method: str, target: str, body: bytes) -> Iterator[Any]:
    """Knows one experiment, as MLflow answers."""
    name = target.removeprefix("/api/2.0/mlflow/experiments/get-by-name?experiment_name=")
    known = {"criteria": "7"}.get(name)
    data = json.dumps({"experiment": {"experiment_id": known}} if known else {}).encode()
    yield urllib3.HTTPResponse(io.BytesIO(data), status=200 if known else 404, preload_content=False)


def shown(direction: str = "maximize", job: str = "criteria") -> tuple[str, Job]:
    objective = Objective.model_construct(metric="macro f1", direction=direction)
    return "criteria-2", Study.model_construct(name=job, objectives=(objective,))


@pytest.mark.parametrize(("direction", "ascending"), [("maximize", "false"), ("minimize", "true")])
def test_the_page_is_that_of_the_runs_trials_the_best_first(direction, ascending):
    path, _, query = ui.mlflow_page(mlflow, shown(direction)).partition("?")
    assert path == "/#/experiments/7/runs"
    assert dict(urllib.parse.parse_qsl(query, strict_parsing=True)) == {
        "workflowType": "machine_learning",
        "searchFilter": "tags.`trialplane.kind` = 'trial' and tags.`trialplane.run` = 'criteria-2'",
        "orderByKey": "metrics.`macro f1`",
        "orderByAsc": ascending,
        "compareRunsMode": "CHART",
    }


def test_on_a_cluster_the_pages_open_in_the_workspace_of_the_namespace():
    assert ui.mlflow_page(mlflow, shown(), "team-a").startswith("/#/experiments/7/runs?workspace=team-a&")
    assert ui.mlflow_page(mlflow, None, "team-a") == "/#/experiments?workspace=team-a"


def test_without_an_experiment_or_a_run_it_is_mlflows_first_page():
    assert ui.mlflow_page(mlflow, shown(job="nothing of it yet")) == "/"
    assert ui.mlflow_page(mlflow, None) == "/"


def test_a_run_that_is_named_and_not_there_is_told_at_once(platform, recorded):
    result = platform("ui", "criteria-9")
    assert result.exit_code == 2
    assert "criteria-9" in result.stderr


def test_the_run_shown_is_the_one_that_is_named_or_the_newest(runs):
    assert ui.run_to_show(None, HERE) is None
    for name in ("a", "b"):
        runs.make(name)
    for name, expected in (("a", "a"), (None, "b")):
        found = ui.run_to_show(name, HERE)
        assert found is not None
        run, job = found
        assert (run, job.name) == (expected, "demo")
    with pytest.raises(RunNotFound):
        ui.run_to_show("c", HERE)


def test_the_page_of_the_first_run_is_shown_before_mlflow_has_a_database(platform, runs, monkeypatch):
    addresses: list[str] = []
    seen: list[Any] = []

    def serve(command, environ, server):
        page = Browser(addresses[0]).open("/-/report").read().decode()  # MLflow does not answer here
        seen.append((page, command))
        return 0

    runs.make("a")
    monkeypatch.setattr(ui, "_print_addresses", lambda pages, _: addresses.append(pages.page("/-/report")))
    monkeypatch.setattr(ui, "_serve", serve)
    assert not paths.mlflow_db(paths.home()).exists()
    result = platform("ui", "--local")
    assert result.exit_code == 0, result.stderr
    ((page, command),) = seen
    assert "<title>a" in page
    assert command[2:5] == ["-m", "trialplane.exporter.store", str(paths.mlflow_db(paths.home()))], "creates it first"


class Dashboard:
    """`platform ui --dashboard` as a process, and its API."""

    def __init__(self, *words: str) -> None:
        self.port = free_port()
        verb = ("ui", "--dashboard", "--port", str(self.port))
        command = [sys.executable, "-c", "from trialplane.cli import main; main.main()", *verb, *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.browser = Browser(self.process.stderr.readline().strip())
        self.process.stderr.readline()  # the address of the report
        self.process.stderr.readline()  # what it shows
        pid = self.process.pid
        self.server = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def api(self, path: str, body: Any = None, method: str | None = None) -> Any:
        return self.browser.get(f"/api/{path}", body, method)

    def listens_at(self) -> list[str]:
        """The addresses of its port, as the system has them: bytes of an IPv4 or IPv6 address in hexadecimal, reversed."""
        found = []
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                address, port = line.split()[1].split(":")
                if line.split()[3] == "0A" and int(port, 16) == self.port:
                    found.append(address)
        return found

    def serves(self) -> bool:
        return Path(f"/proc/{self.server}").exists()

    def states(self) -> list[str]:
        return [trial["state"] for trial in self.api("studies/0")["trials"]]

    def close(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=300)
        return self.process.returncode, said


@pytest.fixture
def dashboard(workplace) -> Iterator[Callable[..., Dashboard]]:
    """Starts it."""
    started: list[Dashboard] = []

    def start(*words: str) -> Dashboard:
        started.append(Dashboard(*words))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
        one.close()


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_dashboard_shows_a_run_while_it_goes_on(runs, held, dashboard):
    run = runs.make("a", tell=lambda request: complete(request) if request.trial < 2 else None, asks=3)
    runs.make("b")
    held(run)  # a controller works on it
    shown = dashboard("a", "--local")
    assert shown.browser.page.endswith("/dashboard/studies/0")
    assert shown.browser.get("/-/report/data?after=0")["runs"][0]["server"] == "optuna-dashboard"
    assert [(study["study_name"], study["directions"]) for study in shown.api("studies")["study_summaries"]] == [
        ("a", ["minimize"])
    ]
    assert shown.states() == ["Complete", "Complete", "Running"]
    # What that controller would write, without its lock: the third is lost, and tried again.
    lock = run.root / "another.lock"
    with Ledger(f"sqlite:///{run.ledger}", folder.load_job(run), "a", run.code, lock) as ledger:
        while (request := ledger.ask()) is not None:
            ledger.tell(complete(request))
    until(lambda: shown.states() == ["Complete", "Complete", "Fail", *["Complete"] * 4])
    assert shown.listens_at() == ["0100007F"], "127.0.0.1"
    shown.process.send_signal(signal.SIGINT)
    assert shown.close() == (0, "")
    assert not shown.serves()


def test_the_dashboard_is_shown_to_nobody_without_its_secret_and_what_is_deleted_there_is_the_copy(runs, dashboard):
    run = runs.make("a", tell=complete)
    shown = dashboard("a", "--local")
    guess = f"/?token={'0' * 32}"
    asked = [("GET", path) for path in ("/", "/dashboard/studies/0", "/api/studies", "/csv/0", "/?token=", guess)]
    for method, path in [*asked, ("DELETE", "/api/studies/0")]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", shown.port, timeout=60)) as connection:
            connection.request(method, path)
            assert connection.getresponse().status == 403, path
    assert len(shown.states()) == 6
    with contextlib.suppress(urllib.error.URLError):
        shown.api("studies/0", {}, "DELETE")
    code, said = shown.close()
    assert code == 3
    assert "the copy of a was deleted in the dashboard; the run itself is as it was" in said
    assert len(RunHandle("a", runs.target).attempts()) == 6
    assert run.ledger.exists()


def test_the_dashboards_server_ends_with_a_killed_command(runs, dashboard):
    runs.make("a", tell=complete)
    shown = dashboard("a", "--local")
    shown.process.kill()
    until(lambda: not shown.serves())


def test_the_dashboard_needs_its_library(platform, runs, monkeypatch):
    runs.make("a", tell=complete)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna_dashboard" else find(name))
    result = platform("ui", "a", "--dashboard", "--local")
    assert result.exit_code == 2
    assert "optuna_dashboard cannot be found; pip install 'trialplane[local]'" in result.stderr
