"""`platform ui`: where it listens, and that it takes its server with it. The server is a double, not MLflow."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialplane.cli import ui
from trialplane.client.places import HERE
from trialplane.errors import RunNotFound
from trialplane.spec.jobs import Job, Objective, Study
from trialplane.wire import paths

# In place of `python -m mlflow`: says its pid, arguments and environment, and answers as MLflow does.
DOUBLE = """
import http.server, json, os, sys
switches = [os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"], os.environ["MLFLOW_DISABLE_TELEMETRY"]]
print(os.getpid(), *switches, os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"), *sys.argv[1:], flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"experiment": {"experiment_id": "7"}}).encode())

    def log_message(self, *_): ...

http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def recorded(home, tmp_path, monkeypatch) -> Path:
    """A home in which something is recorded, and a double of MLflow."""
    home.mkdir()
    paths.mlflow_db(home).touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mlflow.py").write_text(DOUBLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    return home


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_this_machine_only_and_ends_with_its_server(recorded, monkeypatch, number):
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    command = [sys.executable, "-c", "from trialplane.cli import main; main.main(['ui'])"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        pid, jobs, no_telemetry, protobuf, *arguments = child.stdout.readline().split()
        told = ""
        while "http://" not in told:  # MLflow answers
            told = child.stderr.readline()
            assert told, "it ended"
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert (jobs, no_telemetry, protobuf) == ("false", "true", "None")
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert given["--host"] == "127.0.0.1"
    assert given["--backend-store-uri"] == paths.mlflow_uri(recorded)
    assert told.startswith(f"http://127.0.0.1:{given['--port']}")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_port_in_use_is_refused_or_passed_over(platform, recorded, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = platform("ui", "--port", str(port))
        assert result.exit_code == 2
        assert f"port {port} is in use" in result.stderr
        monkeypatch.setattr(ui, "_FIRST_PORT", port)
        assert ui._first_free() > port


@pytest.fixture
def mlflow() -> Iterator[str]:
    """Address of a server that knows one experiment, as MLflow answers."""

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/api/2.0/mlflow/experiments/get-by-name?experiment_name=criteria"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"experiment": {"experiment_id": "7"}} if known else {}).encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def shown(direction: str = "maximize", job: str = "criteria") -> tuple[str, Job]:
    objective = Objective.model_construct(metric="macro f1", direction=direction)
    return "criteria-2", Study.model_construct(name=job, objectives=(objective,))


@pytest.mark.parametrize(("direction", "ascending"), [("maximize", "false"), ("minimize", "true")])
def test_the_page_is_that_of_the_runs_trials_the_best_first(mlflow, direction, ascending):
    page = urllib.parse.urlsplit(ui._page(mlflow, shown(direction)))
    path, _, query = page.fragment.partition("?")
    assert f"{page.scheme}://{page.netloc}" == mlflow
    assert path == "/experiments/7/runs"
    assert dict(urllib.parse.parse_qsl(query, strict_parsing=True)) == {
        "workflowType": "machine_learning",
        "searchFilter": "tags.`trialplane.kind` = 'trial' and tags.`trialplane.run` = 'criteria-2'",
        "orderByKey": "metrics.`macro f1`",
        "orderByAsc": ascending,
        "compareRunsMode": "CHART",
    }


def test_without_an_experiment_or_a_run_it_is_mlflows_first_page(mlflow):
    assert ui._page(mlflow, shown(job="nothing of it yet")) == mlflow
    assert ui._page(mlflow, None) == mlflow


def test_a_run_that_is_named_and_not_there_is_told_at_once(platform, recorded):
    result = platform("ui", "criteria-9")
    assert result.exit_code == 2
    assert "criteria-9" in result.stderr


def test_the_run_shown_is_the_one_that_is_named_or_the_newest(runs):
    assert ui._shown(None, HERE) is None
    for name in ("a", "b"):
        runs.make(name)
    for name, expected in (("a", "a"), (None, "b")):
        found = ui._shown(name, HERE)
        assert found is not None
        run, job = found
        assert (run, job.name) == (expected, "demo")
    with pytest.raises(RunNotFound):
        ui._shown("c", HERE)
