"""`platform ui`: the MLflow UI, on this machine's results or on those of a cluster; or optuna-dashboard on one run."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from trialplane import errors
from trialplane.cli import names, output
from trialplane.client.target import Place
from trialplane.errors import InputError, RunNotFound, TargetError
from trialplane.policies import protobuf
from trialplane.wire import labels, paths

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.spec.jobs import Job
    from trialplane.wire.mlflow import Scope

_HOST = "127.0.0.1"  # neither UI asks for a password
_FIRST_PORT = 5000
_PATIENCE = 10.0  # seconds for a server to end, or for MLflow to return the id of an experiment
_REFRESH = 2.0  # seconds between updates of the copy
_STUDY = 0  # id of the only study of a storage in memory
_LOOK = 0.1  # seconds between checks whether the server has started
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to this machine, past any proxy


@click.command("ui")
@names.run_argument
@names.place_options()
@click.option("--dashboard", is_flag=True, help="Show RUN in optuna-dashboard instead of MLflow, also while it is active.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port; default: the first free one from 5000 on.")
def ui_command(run: str | None, place: Place, dashboard: bool, port: int | None) -> int:
    """Show results in a browser, until Ctrl-C; only this machine can reach it.

    The address leads to the trials of RUN, or of the newest run, the best first; all other records can be reached from
    there. On a cluster it is read-only, and needs no password. optuna-dashboard works on a copy of the run: changes made
    in it are lost when it ends.
    """
    home = paths.home()
    if place.local and not dashboard:
        from trialplane.client import folder  # needs pydantic, which `--help` should not wait for

        with folder.seen(home):
            is_there = paths.mlflow_db(home).exists()
        if not is_there:
            raise InputError(f"nothing is recorded in {home} yet; `platform submit hpo NAME --local` starts a run")
        if importlib.util.find_spec("mlflow") is None:
            raise InputError("mlflow is not installed; pip install 'trialplane[local]'")
    with _listener(port) as listener:
        if dashboard:
            return _dashboard(names.find_run(run, place), listener)
        return _here(place, home, run, listener) if place.local else _there(place, run, listener)


def _here(place: Place, home: Path, run: str | None, listener: socket.socket) -> int:
    shown = _shown(run, place)
    # Its runner of evaluation jobs would be as large as the server, and its telemetry would send data to its vendor.
    off = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environ = {**protobuf.controller_env(os.environ), **off}
    server = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", paths.mlflow_uri(home)]
    server += ["--default-artifact-root", str(paths.mlflow_artifacts(home)), "--workers", "1"]
    output.note(f"starting MLflow, which takes a few seconds; Ctrl-C stops it. Showing the results in {home}")
    base = _address(listener)
    # Of the descriptors, MLflow hands only the standard ones on to uvicorn.
    server += ["--host", _HOST, "--port", str(listener.getsockname()[1]), "--uvicorn-opts", "--fd 0"]
    code = _serve(server, environ, listener, f"{base}/health", lambda: output.note(_page(base, shown)))
    if code:
        raise TargetError(f"MLflow ended with exit code {code}; its output is above")
    return 0


def _dashboard(handle: RunHandle, listener: socket.socket) -> int:
    from trialplane.client import exporting  # needs pydantic, which `--help` should not wait for

    exporting.check("optuna", "sqlalchemy", "optuna_dashboard")
    line, after = exporting.changes(handle.target, handle.name, 0)  # errors are raised before anything starts
    first = exporting.order(handle.name, handle.job, listener=listener.fileno()) + line
    output.note(f"starting optuna-dashboard; Ctrl-C stops it. Showing a copy of {handle.name}, which is kept up to date")

    def feed(stdin: IO[bytes]) -> None:
        """Writes the changes until the server ends."""
        shown, text, place = "", first, after
        with contextlib.suppress(OSError):  # the server has ended
            while True:
                stdin.write(text.encode())
                stdin.flush()
                time.sleep(_REFRESH)
                try:
                    text, place = exporting.changes(handle.target, handle.name, place)
                    shown = ""
                except errors.TrialplaneError as error:
                    text, line = "\n", errors.first_line(error)
                    if line != shown:  # once, not every two seconds
                        output.note(f"the copy is not up to date: {line}")
                    shown = line

    base = _address(listener)
    page = f"{base}/dashboard/studies/{_STUDY}"
    environ = exporting.environ()
    code = _serve([*exporting.COMMAND], environ, listener, f"{base}/api/meta", lambda: output.note(page), feed)
    if code:
        raise TargetError(f"optuna-dashboard ended with exit code {code}; its message is above")
    return 0


def _there(place: Place, run: str | None, listener: socket.socket) -> int:
    from trialplane.client.kubernetes import KubernetesTarget
    from trialplane.client.pages import Pages  # both import urllib3 and more, which `--help` should not wait for

    target = KubernetesTarget(place.context, place.namespace)
    shown = _shown(run, place)
    target.gateway.check_mlflow()  # reports a failure at once
    with Pages(target.gateway, listener, output.note):
        output.note(_page(_address(listener), shown, target.gateway.scope))
        output.note(f"Showing the results in {target.cluster.place}, read-only; Ctrl-C stops it")
        _until_stopped()
    return 0


def _shown(run: str | None, place: Place) -> tuple[str, Job] | None:
    """The run to show, the newest when none is named, and its job; None when there is none.

    Raises:
        RunNotFound: the run that is named is not there.
    """
    try:
        handle = names.find_run(run, place)
        return handle.name, handle.job
    except (RunNotFound, TargetError):
        if run is not None:
            raise
        return None  # the results can be looked at all the same


def _page(base: str, shown: tuple[str, Job] | None, scope: Scope | None = None) -> str:
    """The page of a run's trials, the best first and with their curves, or MLflow's start page when it is not known.

    Args:
        base: the address of MLflow, on this machine.
        shown: a run and its job.
        scope: of the run's namespace; None for a run on this machine.
    """
    if shown is None:
        return base
    run, job = shown
    name = job.name if scope is None else scope.experiment(job.name)
    asked = f"{base}/api/2.0/mlflow/experiments/get-by-name?{urllib.parse.urlencode({'experiment_name': name})}"
    try:
        with _direct.open(asked, timeout=_PATIENCE) as answer:
            experiment = json.load(answer)["experiment"]["experiment_id"]
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
        KeyError,
        TypeError,
    ):  # no such experiment yet
        return base
    best = job.objectives[0]
    query = {
        "workflowType": "machine_learning",  # by default first-time visitors see the pages for language models
        "searchFilter": f"tags.`{labels.KIND}` = 'trial' and tags.`{labels.RUN}` = '{run}'",
        "orderByKey": f"metrics.`{best.metric}`",
        "orderByAsc": "true" if best.direction == "minimize" else "false",
        "compareRunsMode": "CHART",
    }
    return f"{base}/#/experiments/{experiment}/runs?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"


def _answers(address: str) -> bool:
    """Whether a server has started."""
    try:
        with _direct.open(address, timeout=_PATIENCE) as answer:
            return bool(answer.status == http.client.OK)
    except (OSError, http.client.HTTPException):
        return False


def _until_stopped() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()


def _serve(
    server: list[str],
    environ: dict[str, str],
    listener: socket.socket,
    address: str,
    started: Callable[[], None],
    feed: Callable[[IO[bytes]], None] | None = None,
) -> int:
    """Runs a server until it ends or is interrupted by the user, which returns 0.

    Args:
        server: command line.
        environ: its environment.
        listener: the server's from now on, under its number here; its standard input as well, if nothing is fed.
        address: where it answers once it has started.
        started: called when it does.
        feed: writes into its standard input, in a thread of its own.
    """
    # SIGINT too: a shell ignores it for processes that it starts in the background.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    # A session of its own: a Ctrl-C would otherwise reach it too and make it print tracebacks.
    stdin = listener.fileno() if feed is None else subprocess.PIPE
    child = subprocess.Popen(server, env=environ, stdin=stdin, pass_fds=[listener.fileno()], start_new_session=True)
    try:
        listener.close()
        if feed is not None:
            threading.Thread(target=feed, args=(child.stdin,), daemon=True).start()
        while child.poll() is None and not _answers(address):
            time.sleep(_LOOK)
        if child.poll() is None:
            started()
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


def _listener(port: int | None) -> socket.socket:
    """Listens on a port of this machine, or on the first free one; the server inherits it, so that nobody else gets it.

    Raises:
        InputError: the port is in use, or none is free.
    """
    for candidate in [port] if port is not None else range(_FIRST_PORT, _FIRST_PORT + 100):
        with contextlib.suppress(OSError):
            return socket.create_server((_HOST, candidate))
    if port is not None:
        raise InputError(f"port {port} is in use; leave --port out to take a free one")
    raise InputError(f"no port from {_FIRST_PORT} to {_FIRST_PORT + 99} is free; name one with --port")


def _address(listener: socket.socket) -> str:
    return f"http://{_HOST}:{listener.getsockname()[1]}"
