"""`platform ui`: the MLflow UI on this machine's results."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys

import click

from trialplane.cli import output
from trialplane.client import folder
from trialplane.errors import InputError, TargetError
from trialplane.policies import protobuf
from trialplane.wire import paths

_HOST = "127.0.0.1"  # MLflow's UI asks nobody for a password
_FIRST_PORT = 5000
_PATIENCE = 10.0  # seconds for MLflow to end


@click.command("ui")
@click.option("--port", type=click.IntRange(1, 65535), help="Port; the first free one from 5000 on when left out.")
def command(port: int | None) -> int:
    """Show all results in a browser, until Ctrl-C; only this machine can reach it."""
    home = paths.home()
    with folder.seen(home):
        is_there = paths.mlflow_db(home).exists()
    if not is_there:
        raise InputError(f"nothing is recorded in {home} yet; `platform submit hpo NAME --local` starts a run")
    if importlib.util.find_spec("mlflow") is None:
        raise InputError("mlflow is not installed; pip install 'trialplane[local]'")
    if port is not None and not _is_free(port):
        raise InputError(f"port {port} is in use; leave --port out to take a free one")
    port = port or _first_free()
    environ = {**protobuf.controller_env(os.environ), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", paths.mlflow_uri(home)]
    server += ["--default-artifact-root", str(paths.mlflow_artifacts(home)), "--workers", "1"]
    output.note(f"http://{_HOST}:{port} shows the results in {home} in a few seconds; Ctrl-C ends it")
    code = _serve([*server, "--host", _HOST, "--port", str(port)], environ)
    if code:
        raise TargetError(f"MLflow ended with exit code {code}; what it said is above")
    return 0


def _serve(server: list[str], environ: dict[str, str]) -> int:
    """Runs MLflow until it ends, or until the user has had enough: then its exit code does not matter."""
    # SIGINT too: a shell that starts this in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    # A session of its own: a Ctrl-C that reached it as well would make it print tracebacks.
    child = subprocess.Popen(server, env=environ, start_new_session=True)
    try:
        return child.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _first_free() -> int:
    port = next((port for port in range(_FIRST_PORT, _FIRST_PORT + 100) if _is_free(port)), None)
    if port is None:
        raise InputError(f"no port from {_FIRST_PORT} to {_FIRST_PORT + 99} is free; name one with --port")
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True
