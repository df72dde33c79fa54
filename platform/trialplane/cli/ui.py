"""`platform ui`: the pages of MLflow, on this machine or of a cluster, or optuna-dashboard with one run."""

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
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from trialplane import errors
from trialplane.cli import names, output
from trialplane.client.target import TargetName
from trialplane.errors import InputError, RunNotFound, TargetError
from trialplane.policies import protobuf
from trialplane.wire import env, labels, paths

if TYPE_CHECKING:
    from trialplane.client.exporting import Position
    from trialplane.client.pages import Pages, PrivateServer, Source
    from trialplane.client.run import RunHandle
    from trialplane.job.kinds import Job

_LOOPBACK = "127.0.0.1"
FIRST_PORT = 5000
_PATIENCE = 10.0  # seconds for a server to end or to answer
_UPDATE_PAUSE = 2.0  # seconds between updates of the copy in optuna-dashboard
_STUDY_ID = 0  # id of the only study in optuna-dashboard's storage


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
        from trialplane.client import folder  # imports pydantic, which would delay `--help`

        with folder.explain_read_errors(home):
            has_records = paths.mlflow_db(home).exists()
        # MLflow's database is missing until the first run has created it. The page of that run does not need it.
        if not has_records and run_to_show(run, target_name) is None:
            raise InputError(f"nothing is recorded in {home} yet; `platform submit hpo NAME --local` starts a run")
        if importlib.util.find_spec("mlflow") is None:
            raise InputError("mlflow is not installed; pip install 'trialplane[local]'")
    with open_listener(port) as listener, _until_signal():
        if dashboard:
            _dashboard(names.find_run(run, target_name), listener)
        elif target_name.local:
            _serve_local(target_name, home, run, listener)
        else:
            _serve_cluster(target_name, run, listener)
    return 0


def _serve_local(target_name: TargetName, home: Path, run: str | None, listener: socket.socket) -> None:
    """Show the MLflow of this machine until Ctrl-C.

    Raises:
        TargetError: MLflow fails.
    """
    from trialplane.client.pages import Pages, PrivateServer  # imports urllib3, which would delay `--help`

    run_and_job = run_to_show(run, target_name)
    # MLflow's runner of evaluation jobs would need as much memory as the server. Its telemetry sends data to the vendor.
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environ = {**protobuf.controller_env(os.environ), **settings}
    # `exporter.store` creates the database and then becomes MLflow. MLflow itself would create it in the file, which would
    # be useless if this command ended meanwhile.
    command = [sys.executable, "-P", "-m", "trialplane.exporter.store", str(paths.mlflow_db(home))]
    command += [sys.executable, "-P", "-m", "mlflow", "server", "--backend-store-uri", paths.mlflow_uri(home)]
    command += ["--default-artifact-root", str(paths.mlflow_artifacts(home)), "--workers", "1"]
    # uvicorn inherits only the standard descriptors from MLflow, so the socket is its standard input.
    command += ["--uvicorn-opts", "--fd 0 --log-level warning"]
    with PrivateServer(listener.getsockname()) as server:
        source = _read_only_source(server.ask)
        with Pages(
            source=_with_report_page(source, run, target_name),
            listener=listener,
            start=lambda: mlflow_page(source, run_and_job),
            report=output.note,
        ) as pages:
            _print_addresses(pages, run_and_job is not None)
            output.note(f"Showing the results in {home}, read-only; MLflow answers in a few seconds. Ctrl-C stops it")
            code = _serve(command, environ, server)
    if code:
        raise TargetError(f"MLflow ended with exit code {code}; its output is above")


def _read_only_source(source: Source) -> Source:
    """Return a source that refuses all requests except those with which MLflow's pages read records.

    MLflow itself would also accept requests that write records or read any file.
    """
    import urllib3

    from trialplane.gateway import mlflow_paths

    @contextlib.contextmanager
    def answer(method: str, target: str, body: bytes) -> Iterator[Any]:
        """Yield the response to a request, which is 403 for one that does not only read; see `Source`."""
        if not mlflow_paths.is_read_only(method, target, body):
            text = json.dumps({"error_code": "PERMISSION_DENIED", "message": "MLflow is read-only here"}).encode()
            headers = {"Content-Type": "application/json"}
            yield urllib3.HTTPResponse(io.BytesIO(text), headers, 403, preload_content=False)
            return
        with source(method, target, body) as response:
            yield response

    return answer


def _dashboard(handle: RunHandle, listener: socket.socket) -> None:
    """Show a copy of a run in optuna-dashboard until Ctrl-C.

    Raises:
        InputError: A library is not installed.
        TargetError: The run cannot be read, or optuna-dashboard fails.
    """
    # Imported late, because pydantic and urllib3 would delay `--help`.
    from trialplane.client import exporting
    from trialplane.client.pages import Pages, PrivateServer

    exporting.check_installed("optuna", "sqlalchemy", "optuna_dashboard")
    target, run, job = handle.target, handle.name, handle.job
    # Read before the start of the server, so that an error ends the command.
    first_changes, position = exporting.changes_line(target, run, job, after=exporting.Position())

    with PrivateServer(listener.getsockname()) as server:
        # The first line that the process of optuna-dashboard reads: the study to create, and the socket to serve.
        order = exporting.study_order_line(run, job, listener=server.listener.fileno())

        def feed(stdin: IO[bytes]) -> None:
            """Write the order and then the changes of the run to the server, until the server ends."""
            with contextlib.suppress(OSError):  # raised when the server has ended
                stdin.write((order + first_changes).encode())
                stdin.flush()
                _feed_changes(stdin, handle, job, position)

        source = _with_report_page(server.ask, run, target.name, server="optuna-dashboard")
        with Pages(source, listener, start=lambda: f"/dashboard/studies/{_STUDY_ID}", report=output.note) as pages:
            _print_addresses(pages, has_report=True)
            output.note(f"Showing a copy of {run} in optuna-dashboard, which is kept up to date; Ctrl-C stops it")
            code = _serve([*exporting.COMMAND], protobuf.controller_env(os.environ), server, feed)
    if code:
        raise TargetError(f"optuna-dashboard ended with exit code {code}; its message is above")


def _feed_changes(stdin: IO[bytes], handle: RunHandle, job: Job, position: Position) -> None:
    """Write the changes of a run since a position to optuna-dashboard's process, as they come.

    Raises:
        OSError: The process has ended.
    """
    from trialplane.client import exporting  # imports pydantic, which would delay `--help`

    last_message = ""
    while True:
        time.sleep(_UPDATE_PAUSE)
        try:
            text, position = exporting.changes_line(handle.target, handle.name, job, after=position)
            message = ""
        except errors.TrialplaneError as error:
            text = "\n"  # changes nothing, but writing it fails if the process has ended
            message = errors.first_line(error)
        if message not in ("", last_message):  # a lasting error is printed once
            output.note(f"the copy is not up to date: {message}")
        last_message = message
        stdin.write(text.encode())
        stdin.flush()


def _serve_cluster(target_name: TargetName, run: str | None, listener: socket.socket) -> None:
    """Show the MLflow of a cluster until Ctrl-C.

    Raises:
        TargetError: The gateway or MLflow does not answer.
    """
    from trialplane.client.kubernetes import KubernetesTarget
    from trialplane.client.pages import Pages  # imports urllib3, which would delay `--help`

    target = KubernetesTarget(target_name.context, target_name.namespace)
    run_and_job = run_to_show(run, target_name)
    gateway = target.gateway
    gateway.check_mlflow()  # before the start, so that an error ends the command
    source, workspace = _with_report_page(gateway.mlflow, run, target_name), target.cluster.namespace
    with Pages(
        source, listener, start=lambda: mlflow_page(gateway.mlflow, run_and_job, workspace), report=output.note
    ) as pages:
        _print_addresses(pages, run_and_job is not None)
        output.note(f"Showing the results in {target.cluster.location}; Ctrl-C stops it")
        _wait_for_signal()


def _wait_for_signal() -> None:
    signal.pause()


def _with_report_page(source: Source, run: str | None, target_name: TargetName, server: str = "MLflow") -> Source:
    """Return a source that also answers requests for the page of a run, which links to the server by its name.

    This is `source` itself if there is no run, if the run cannot be read, or if plotly is not installed.
    """
    from trialplane.client.study_page import StudyPage  # imports urllib3, which would delay `--help`
    from trialplane.pages import page
    from trialplane.pages.content import PageContext

    try:
        handle = names.find_run(run, target_name)
        page.plotly_file()  # raises if it is not installed

        def page_context() -> PageContext:
            is_named = handle.job.name in names.jobs()
            return PageContext(handle.target.name.flags, is_named=is_named, prices=None, now=time.time())

        return StudyPage(handle, page_context, server).add_to(source)
    except (TargetError, InputError):
        return source


def _print_addresses(pages: Pages, has_report: bool) -> None:
    """Print the addresses of pages."""
    output.note(pages.address)
    if has_report:
        output.note(f"{pages.page('/-/report')}  (the page of `platform report`, live)")


def run_to_show(run: str | None, target_name: TargetName) -> tuple[str, Job] | None:
    """Return the run to show, by default the newest, and its job; None if there is none.

    Raises:
        RunNotFound: There is no run with this name.
        TargetError: The named run cannot be read.
    """
    try:
        handle = names.find_run(run, target_name)
        return handle.name, handle.job
    except (RunNotFound, TargetError):
        if run is not None:
            raise
        return None  # MLflow may still have other results


def mlflow_page(source: Source, run_and_job: tuple[str, Job] | None, workspace: str = "") -> str:
    """Return the path of MLflow's page with the trials of a run, best first, and their curves.

    Without a run, or if MLflow has no records of its job yet, this is the path of the start page.

    Args:
        source: Source of MLflow's pages.
        run_and_job: Name of the run and its job; None for the start page.
        workspace: MLflow's workspace of the run's namespace on a cluster; "" on this machine.
    """
    import urllib3

    workspace_field = {"workspace": workspace} if workspace else {}  # without it, the pages of a cluster ask for one
    start_page = f"/#/experiments?{urllib.parse.urlencode(workspace_field)}" if workspace else "/"
    if run_and_job is None:
        return start_page
    run, job = run_and_job
    query = urllib.parse.urlencode({"experiment_name": job.name})
    try:
        with source("GET", f"/api/2.0/mlflow/experiments/get-by-name?{query}", b"") as response:
            experiment_id = urllib.parse.quote(json.loads(response.read())["experiment"]["experiment_id"])
    except (errors.TrialplaneError, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError):
        return start_page  # MLflow does not answer
    except (ValueError, KeyError, TypeError):
        return start_page  # the experiment does not exist yet
    objective = job.objectives[0]
    view_fields = {
        **workspace_field,
        "workflowType": "machine_learning",  # otherwise, a first visit shows the pages for language models
        "searchFilter": f"tags.`{labels.KIND}` = 'trial' and tags.`{labels.RUN}` = '{run}'",
        "orderByKey": f"metrics.`{objective.metric}`",
        "orderByAsc": "true" if objective.direction == "minimize" else "false",
        "compareRunsMode": "CHART",
    }
    return f"/#/experiments/{experiment_id}/runs?{urllib.parse.urlencode(view_fields, quote_via=urllib.parse.quote)}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, as the login would be sent to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, by which urllib raises the answer as an `HTTPError`."""


def mlflow_address(uri: str, run: str, job: Job) -> str:
    """Return the address of a run's records in the MLflow at an HTTP address, without a login.

    If MLflow does not tell where they are, for example before the first export, this is the address of the server.
    """
    from trialplane.wire import mlflow  # imports messages of the ledger, which would delay `--help`

    parts = urllib.parse.urlsplit(uri)  # such as https://user:password@mlflow.example.com:5000
    host_and_port = parts.netloc.rpartition("@")[2]
    server = parts._replace(netloc=host_and_port).geturl().rstrip("/")
    user, password = (urllib.parse.unquote(text or "") for text in (parts.username, parts.password))
    authorization = mlflow.authorization({env.MLFLOW_USERNAME: user, env.MLFLOW_PASSWORD: password})
    headers = {"Authorization": authorization} if authorization else {}
    opener = urllib.request.build_opener(_NoRedirects)

    def ask(method: str, target: str, body: bytes) -> Any:
        """Return the response to a GET request, the only one that `mlflow_page` sends; see `Source`."""
        return opener.open(urllib.request.Request(f"{server}{target}", headers=headers), timeout=_PATIENCE)

    return f"{server}{mlflow_page(ask, (run, job)).rstrip('/')}"


@contextlib.contextmanager
def _until_signal() -> Iterator[None]:
    """End the context if the user presses Ctrl-C, ends the process or closes the terminal."""
    # SIGINT needs a handler, too, because a shell ignores it for processes in the background.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old_handlers = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in zip(numbers, old_handlers, strict=True):
            signal.signal(number, handler)


def _serve(
    command: list[str], environ: dict[str, str], server: PrivateServer, feed: Callable[[IO[bytes]], None] | None = None
) -> int:
    """Run a server until it ends, and return its exit code.

    Args:
        command: Command line of the server.
        environ: Environment of the server.
        server: Socket of the server, which is also its standard input without `feed`.
        feed: Function that writes to the standard input of the server, in a thread of its own.
    """
    # The server has a session of its own, because a Ctrl-C in this one would make it print tracebacks. MLflow's server
    # imports modules from its working directory (uvicorn adds it to sys.path), so this must not be the user's.
    listener_fd = server.listener.fileno()
    stdin = listener_fd if feed is None else subprocess.PIPE
    child = subprocess.Popen(
        command, env=environ, stdin=stdin, pass_fds=[listener_fd], start_new_session=True, cwd=server.folder
    )
    try:
        server.listener.close()  # only the server needs it from here on
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
    """Return a socket that listens on a port of this machine; None selects the first free port.

    Raises:
        InputError: The port is in use, or no port is free.
    """
    ports = range(FIRST_PORT, FIRST_PORT + 100) if port is None else [port]
    for candidate in ports:
        with contextlib.suppress(OSError):  # the port is in use
            return socket.create_server((_LOOPBACK, candidate))
    if port is not None:
        raise InputError(f"port {port} is in use; omit --port to use a free one")
    raise InputError(f"no port from {ports[0]} to {ports[-1]} is free; name one with --port")
