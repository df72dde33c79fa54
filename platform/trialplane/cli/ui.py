"""`platform ui`: the MLflow UI, on this machine's results or on those of a cluster; or optuna-dashboard on one run."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from trialplane import errors
from trialplane.cli import names, output
from trialplane.client.target import TargetName
from trialplane.errors import InputError, RunNotFound, TargetError
from trialplane.policies import protobuf
from trialplane.wire import labels, paths

if TYPE_CHECKING:
    from trialplane.client.pages import Pages, PrivateServer, Source
    from trialplane.client.run import RunHandle
    from trialplane.job.kinds import Job

_HOST = "127.0.0.1"
FIRST_PORT = 5000
_PATIENCE = 10.0  # seconds for a server to end
_REFRESH = 2.0  # seconds between updates of the copy
_STUDY = 0  # id of the only study of a storage in memory


@click.command("ui")
@names.run_argument
@names.target_options()
@click.option("--dashboard", is_flag=True, help="Show RUN in optuna-dashboard instead of MLflow.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port. Default: the first free one from 5000.")
def ui_command(run: str | None, target_name: TargetName, dashboard: bool, port: int | None) -> int:
    """Show results in a browser, until Ctrl-C.

    The command prints two addresses. One opens the trials of RUN (default: the newest run) in MLflow, best first, with all
    other records one click away. The other opens the page of `platform report`, which is updated while RUN goes on. Both
    contain a new secret at each start, so other users of this machine cannot open them.

    MLflow is read-only on this machine, and on a cluster for viewers; a team's users may edit its records there. It needs no
    password. optuna-dashboard shows a copy of the run: changes are lost when the command ends.
    """
    home = paths.home()
    if target_name.local and not dashboard:
        from trialplane.client import folder  # needs pydantic, which `--help` should not wait for

        with folder.explain_read_errors(home):
            is_there = paths.mlflow_db(home).exists()
        if not is_there:
            raise InputError(f"nothing is recorded in {home} yet; `platform submit hpo NAME --local` starts a run")
        if importlib.util.find_spec("mlflow") is None:
            raise InputError("mlflow is not installed; pip install 'trialplane[local]'")
    with open_listener(port) as listener, _ended_by_signals():
        if dashboard:
            _dashboard(names.find_run(run, target_name), listener)
        elif target_name.local:
            _serve_local(target_name, home, run, listener)
        else:
            _serve_cluster(target_name, run, listener)
    return 0


def _serve_local(target_name: TargetName, home: Path, run: str | None, listener: socket.socket) -> None:
    from trialplane.client.pages import Pages, PrivateServer  # imports urllib3, which `--help` should not wait for

    shown = shown_run(run, target_name)
    # Its runner of evaluation jobs would be as large as the server, and its telemetry would send data to the vendor.
    off = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    off["PYTHONSAFEPATH"] = "1"  # none of its processes may import from this working directory
    environ = {**protobuf.controller_env(os.environ), **off}
    command = [sys.executable, "-P", "-m", "mlflow", "server", "--backend-store-uri", paths.mlflow_uri(home)]
    command += ["--default-artifact-root", str(paths.mlflow_artifacts(home)), "--workers", "1"]
    # MLflow passes only the standard descriptors on to uvicorn.
    command += ["--uvicorn-opts", "--fd 0 --log-level warning"]
    with PrivateServer(listener.getsockname()) as server:
        ask = _read_only(server.ask)
        with Pages(_beside(ask, run, target_name), listener, lambda: mlflow_page(ask, shown), output.note) as pages:
            _tell(pages, shown is not None)
            output.note(f"Showing the results in {home}, read-only; MLflow answers in a few seconds. Ctrl-C stops it")
            code = _serve(command, environ, server)
    if code:
        raise TargetError(f"MLflow ended with exit code {code}; its output is above")


def _read_only(ask: Source) -> Source:
    """Forward only requests of MLflow's pages that read: MLflow itself would also write, and read any file."""
    import urllib3

    from trialplane.gateway import mlflow_paths

    @contextlib.contextmanager
    def answer(method: str, target: str, body: bytes) -> Iterator[Any]:
        if not mlflow_paths.is_read_only(method, target, body):
            text = json.dumps({"error_code": "PERMISSION_DENIED", "message": "MLflow is read-only here"}).encode()
            kind = {"Content-Type": "application/json"}
            yield urllib3.HTTPResponse(io.BytesIO(text), kind, 403, preload_content=False)
            return
        with ask(method, target, body) as response:
            yield response

    return answer


def _dashboard(handle: RunHandle, listener: socket.socket) -> None:
    # These need pydantic and urllib3, which `--help` should not wait for.
    from trialplane.client import exporting
    from trialplane.client.pages import Pages, PrivateServer

    exporting.check("optuna", "sqlalchemy", "optuna_dashboard")
    job = handle.job
    line, after = exporting.changes(handle.target, handle.name, job, exporting.Position())  # errors precede any start

    def feed(stdin: IO[bytes]) -> None:
        """Write the changes until the server ends."""
        shown, text, position = "", first, after
        with contextlib.suppress(OSError):  # the server has ended
            while True:
                stdin.write(text.encode())
                stdin.flush()
                time.sleep(_REFRESH)
                try:
                    text, position = exporting.changes(handle.target, handle.name, job, position)
                    shown = ""
                except errors.TrialplaneError as error:
                    text, line = "\n", errors.first_line(error)
                    if line != shown:  # once, not every two seconds
                        output.note(f"the copy is not up to date: {line}")
                    shown = line

    with PrivateServer(listener.getsockname()) as server:
        first = exporting.order(handle.name, job, listener=server.listener.fileno()) + line
        ask = _beside(server.ask, handle.name, handle.target.place)
        with Pages(ask, listener, lambda: f"/dashboard/studies/{_STUDY}", output.note) as pages:
            _tell(pages, has_report=True)
            output.note(f"Showing a copy of {handle.name} in optuna-dashboard, which is kept up to date; Ctrl-C stops it")
            code = _serve([*exporting.COMMAND], exporting.environ(), server, feed)
    if code:
        raise TargetError(f"optuna-dashboard ended with exit code {code}; its message is above")


def _serve_cluster(target_name: TargetName, run: str | None, listener: socket.socket) -> None:
    from trialplane.client.kubernetes import KubernetesTarget
    from trialplane.client.pages import Pages  # both import urllib3 and more, which `--help` should not wait for

    target = KubernetesTarget(target_name.context, target_name.namespace)
    shown = shown_run(run, target_name)
    gateway = target.gateway
    gateway.check_mlflow()  # reports a failure at once
    ask, workspace = _beside(gateway.mlflow, run, target_name), target.cluster.namespace
    with Pages(ask, listener, lambda: mlflow_page(gateway.mlflow, shown, workspace), output.note) as pages:
        _tell(pages, shown is not None)
        output.note(f"Showing the results in {target.cluster.place}; Ctrl-C stops it")
        _until_stopped()


def _beside(ask: Source, run: str | None, target_name: TargetName) -> Source:
    """Add the page of a run to `ask`, if the run exists."""
    from trialplane.client.study_page import StudyPage  # urllib3 and more, which `--help` should not wait for
    from trialplane.pages import page
    from trialplane.pages.content import Surroundings

    try:
        handle = names.find_run(run, target_name)
        page.check()

        def surroundings() -> Surroundings:
            return Surroundings(handle.target.place.flags, handle.job.name in names.jobs(), None, time.time())

        return StudyPage(handle, surroundings).beside(ask)
    except (RunNotFound, TargetError, InputError):
        return ask


def _tell(pages: Pages, has_report: bool) -> None:
    """Print the addresses of pages."""
    output.note(pages.address)
    if has_report:
        output.note(f"{pages.page('/-/report')}  (the page of `platform report`, live)")


def shown_run(run: str | None, target_name: TargetName) -> tuple[str, Job] | None:
    """Return the run to show, by default the newest, and its job; None if there is none.

    Raises:
        RunNotFound: the named run does not exist.
    """
    try:
        handle = names.find_run(run, target_name)
        return handle.name, handle.job
    except (RunNotFound, TargetError):
        if run is not None:
            raise
        return None  # other results can still be shown


def mlflow_page(ask: Source, shown: tuple[str, Job] | None, workspace: str = "") -> str:
    """The page of a run's trials, the best first and with their curves, or MLflow's start page when it is not known.

    Args:
        ask: MLflow.
        shown: a run and its job.
        workspace: on a cluster, MLflow's name of the run's namespace.
    """
    import urllib3

    chosen = {"workspace": workspace} if workspace else {}  # else the pages ask for one first
    start = f"/#/experiments?{urllib.parse.urlencode(chosen)}" if workspace else "/"
    if shown is None:
        return start
    run, job = shown
    query = urllib.parse.urlencode({"experiment_name": job.name})
    try:
        with ask("GET", f"/api/2.0/mlflow/experiments/get-by-name?{query}", b"") as answer:
            experiment = urllib.parse.quote(json.loads(answer.read())["experiment"]["experiment_id"])
    except (
        errors.TrialplaneError,
        urllib3.exceptions.HTTPError,
        OSError,
        http.client.HTTPException,
        ValueError,
        KeyError,
        TypeError,
    ):  # no such experiment yet
        return start
    best = job.objectives[0]
    sought = {
        **chosen,
        "workflowType": "machine_learning",  # by default first-time visitors see the pages for language models
        "searchFilter": f"tags.`{labels.KIND}` = 'trial' and tags.`{labels.RUN}` = '{run}'",
        "orderByKey": f"metrics.`{best.metric}`",
        "orderByAsc": "true" if best.direction == "minimize" else "false",
        "compareRunsMode": "CHART",
    }
    return f"/#/experiments/{experiment}/runs?{urllib.parse.urlencode(sought, quote_via=urllib.parse.quote)}"


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the block when the user interrupts it or closes the terminal."""
    # SIGINT too: a shell ignores it for processes that it starts in the background.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)


def _until_stopped() -> None:
    signal.pause()


def _serve(
    command: list[str], environ: dict[str, str], server: PrivateServer, feed: Callable[[IO[bytes]], None] | None = None
) -> int:
    """Run a server until it ends, and return its exit code.

    Args:
        command: its command line.
        environ: its environment.
        server: its listener, which is also its standard input if nothing is fed.
        feed: writes into its standard input, in a thread of its own.
    """
    # A session of its own: a Ctrl-C would otherwise reach it too and make it print tracebacks.
    listener = server.listener.fileno()
    stdin = listener if feed is None else subprocess.PIPE
    child = subprocess.Popen(command, env=environ, stdin=stdin, pass_fds=[listener], start_new_session=True)
    try:
        server.listener.close()
        if feed is not None:
            threading.Thread(target=feed, args=(child.stdin,), daemon=True).start()
        return child.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def open_listener(port: int | None) -> socket.socket:
    """Listen on a port of this machine, or on the first free one.

    Raises:
        InputError: the port is in use, or none is free.
    """
    for candidate in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + 100):
        with contextlib.suppress(OSError):
            return socket.create_server((_HOST, candidate))
    if port is not None:
        raise InputError(f"port {port} is in use; omit --port to use a free one")
    raise InputError(f"no port from {FIRST_PORT} to {FIRST_PORT + 99} is free; name one with --port")
