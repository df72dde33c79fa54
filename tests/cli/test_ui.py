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
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialplane.cli import ui
from trialplane.wire import paths

# In place of `python -m mlflow`: says its pid, arguments and environment, and waits.
DOUBLE = """
import os, sys, time
switch = os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"]
print(os.getpid(), switch, os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"), *sys.argv[1:], flush=True)
time.sleep(600)
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
        pid, jobs, protobuf, *arguments = child.stdout.readline().split()
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert (jobs, protobuf) == ("false", "None")
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert given["--host"] == "127.0.0.1"
    assert given["--backend-store-uri"] == paths.mlflow_uri(recorded)
    assert f"http://127.0.0.1:{given['--port']}" in err
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


def test_the_page_is_that_of_the_jobs_runs_and_not_of_language_models(mlflow):
    assert ui._page(mlflow, "criteria") == f"{mlflow}/#/experiments/7/runs?workflowType=machine_learning"
    assert ui._page(mlflow, "nothing of it yet") == mlflow
