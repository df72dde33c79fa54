"""`platform ui`: the MLflow UI, on this machine's results or on those of a cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import click

from trialplane.cli import names, output
from trialplane.client.places import Place
from trialplane.errors import InputError, TargetError
from trialplane.policies import protobuf
from trialplane.wire import paths

_HOST = "127.0.0.1"  # MLflow's UI asks nobody for a password
_FIRST_PORT = 5000
_PATIENCE = 10.0  # seconds for MLflow to end, or to say what an experiment is called


@click.command("ui")
@names.run_argument
@names.place_options()
@click.option("--port", type=click.IntRange(1, 65535), help="Port; the first free one from 5000 on when left out.")
def command(run: str | None, place: Place, port: int | None) -> int:
    """Show all results in a browser, until Ctrl-C; only this machine can reach it.

    On a cluster it forwards a port to MLflow there; with RUN the address is that of its experiment.
    """
    home = paths.home()
    if place.local:
        from trialplane.client import folder  # needs pydantic, which `--help` should not wait for

        with folder.seen(home):
            is_there = paths.mlflow_db(home).exists()
        if not is_there:
            raise InputError(f"nothing is recorded in {home} yet; `platform submit hpo NAME --local` starts a run")
        if importlib.util.find_spec("mlflow") is None:
            raise InputError("mlflow is not installed; pip install 'trialplane[local]'")
    if port is not None and not _is_free(port):
        raise InputError(f"port {port} is in use; leave --port out to take a free one")
    port = port or _first_free()
    return _here(home, port) if place.local else _there(place, run, port)


def _here(home: Path, port: int) -> int:
    environ = {**protobuf.controller_env(os.environ), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", paths.mlflow_uri(home)]
    server += ["--default-artifact-root", str(paths.mlflow_artifacts(home)), "--workers", "1"]
    output.note(f"http://{_HOST}:{port} shows the results in {home} in a few seconds; Ctrl-C ends it")
    code = _serve([*server, "--host", _HOST, "--port", str(port)], environ)
    if code:
        raise TargetError(f"MLflow ended with exit code {code}; what it said is above")
    return 0


def _there(place: Place, run: str | None, port: int) -> int:
    from trialplane.client.forward import Forward
    from trialplane.client.kubernetes import KubernetesTarget

    target = KubernetesTarget(place.context, place.namespace)
    mlflow = target.objects.site.mlflow
    if not mlflow.service:
        output.note(f"MLflow is not in {target.cluster.place}; it is at {mlflow.url}")
        return 0
    with Forward(target.cluster, mlflow.service, mlflow.port, port, output.note) as forward:
        forward.connect().close()  # what stands in the way is said at once
        page = _page(forward.url, _job(target, run))
        output.note(f"{page} shows the results in {target.cluster.place}; Ctrl-C ends it")
        if mlflow.secret:
            kubectl = f"kubectl --context {target.cluster.context} -n {target.cluster.namespace}"
            output.note(f"MLflow asks for the user and password of `{kubectl} get secret {mlflow.secret} -o yaml`")
        _until_enough()
    return 0


def _job(target: Any, run: str | None) -> str:
    """The job of a run, or of the newest; "" when there is none."""
    try:
        return str(target.status(run or target.runs()[0]).job)
    except (TargetError, IndexError):  # the results can be looked at all the same
        return ""


def _page(base: str, job: str) -> str:
    """The page of a job's experiment, or MLflow's first page when it cannot be told."""
    query = urllib.parse.urlencode({"experiment_name": job})
    try:
        asked = f"{base}/api/2.0/mlflow/experiments/get-by-name?{query}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to this machine
        with direct.open(asked, timeout=_PATIENCE) as answer:
            found = json.load(answer)["experiment"]["experiment_id"]
    except (OSError, ValueError, KeyError, TypeError):  # no such experiment yet, or a password is wanted
        return base
    # MLflow shows somebody who was never there its pages for language models, where a study is nowhere to be seen.
    return f"{base}/#/experiments/{found}/runs?workflowType=machine_learning"


def _until_enough() -> None:
    enough = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: enough.set())
    enough.wait()


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
