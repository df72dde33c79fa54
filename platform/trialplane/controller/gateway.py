"""`python -m trialplane.controller.gateway`: serves ledgers and logs of all runs to laptops, which have no password.

It is reached through the API server's service proxy. Reading requires the cluster's permission for that proxy, deleting also
the token of the chart's Secret; what a run is to be is in its Run, which the operator follows. A run is served as long as
its ledger exists, active or not. Answers are JSON except logs and code; an error is `{"error": text}`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import http.server
import json
import os
import shutil
import signal
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.controller.store import archive
from trialplane.controller.store.archive import Archive
from trialplane.plan import plan as planning
from trialplane.wire import cluster, env, labels, paths, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.states import RunState, TrialState

MAX_BODY = 4096  # bytes of a request's body
PIECE = 1 << 20  # bytes of a log in one answer
STATUS_SECONDS = 0.5  # for a controller to answer; a user waits for it, and the ledger's status is at most ten seconds old
IDLE_SECONDS = 60  # after which a quiet connection is closed
_UNENDED = (RunState.PENDING.value, RunState.RUNNING.value)
# Fields of a run without a controller, whatever its last status.
_IDLE: Mapping[str, Any] = {"running": 0, "slots_ready": 0, "nodes": [], "eta": None, "rate": None}


@dataclasses.dataclass(frozen=True)
class Answer:
    """The response to a request."""

    code: int
    body: bytes
    kind: str = "application/json"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Refusal(Exception):
    """A refused request, with its HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


class Gateway:
    """Answers requests, independently of sockets.

    Args:
        runs: the database.
        token: allows changes; "" allows none.
        home: TRIALPLANE_HOME of controllers, where that is a volume; else None.
        status_url: of an active controller's status, with `{run}` in it.
        checkpoints: where trials keep theirs, where that is a volume; else None.
    """

    def __init__(
        self, runs: Archive, token: str, home: Path | None, status_url: str, checkpoints: Path | None = None
    ) -> None:
        self._runs = runs
        self._token = token
        self._home = home
        self._status_url = status_url
        self._checkpoints = checkpoints

    def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Answer:
        """The answer to one request, whatever it is."""
        try:
            return self._answer(method, target, headers)
        except Refusal as refusal:
            return _error(refusal.code, str(refusal))
        except errors.RunNotFound as error:
            return _error(404, str(error))
        except errors.LedgerLocked as error:
            return _error(409, str(error))
        except errors.LedgerError as error:
            return _error(503, str(error))
        except archive.DATABASE_ERRORS as error:
            foreign = getattr(error, "orig", None) or error
            text = f"the ledger's database does not answer: {errors.first_line(foreign)}; all records are safe"
            return _error(503, text)

    def _answer(self, method: str, target: str, headers: Mapping[str, str]) -> Answer:
        path, _, query = target.partition("?")
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        options = {name: values[-1] for name, values in urllib.parse.parse_qs(query).items()}
        match method, parts:
            case "GET", ["health"]:
                return _json({"status": "ok"})  # not the database's: without it, requests are still answered with the reason
            case "GET", ["runs"]:
                return _json(self._runs.runs())
            case "GET", ["runs", run, what]:
                return self._get(_named(run), what, options)
            case "DELETE", ["runs", run]:
                self._check_token(headers)
                return self._delete(_named(run))
        raise Refusal(404 if method == "GET" else 405, f"there is no {method} {path}")

    def _get(self, run: str, what: str, options: Mapping[str, str]) -> Answer:
        match what:
            case "status":
                return self._status(run)
            case "job":
                return _json(_there(self._runs.attribute(run, labels.LEDGER_JOB), run, what))
            case "submission":
                return _json(_there(self._runs.attribute(run, labels.LEDGER_SUBMISSION), run, what))
            case "code":
                return Answer(200, _there(self._runs.code(run), run, what), "application/gzip")
            case "attempts":
                return _json(self._runs.attempts(run))
            case "ends":
                place, rows = self._runs.ends(run, _number(options, "after", 0))
                return _json({"place": place, "rows": rows})
            case "whole":
                attempts, alive = self._runs.whole(run, _number(options, "after", 0))
                return _json({"attempts": attempts, "alive": alive})
            case "log":
                return self._log(run, options)
            case "checkpoints":
                return self._saved(run)
        raise Refusal(404, f"a run has no {what}")

    def _status(self, run: str) -> Answer:
        """The status from an active controller, which is newer, or else the ledger's."""
        known = self._runs.attribute(run, labels.LEDGER_STATUS)
        alive = self._runs.is_alive(run)
        if alive:
            # The service may be going away or have no process behind it: then the ledger's status serves.
            url = self._status_url.format(run=run)
            with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=STATUS_SECONDS) as reply:
                current = json.loads(reply.read(PIECE))
                known = current if isinstance(current, dict) and current.get("run") == run else known
        status = _there(known, run, "status")
        desired = self._runs.attribute(run, labels.LEDGER_DESIRED) or {}
        target, state = None if alive else desired.get("state"), status.get("state")
        # A run that was paused, never started or was killed with its pod has no controller that would record its end.
        if target == RunState.CANCELLED.value and state in (*_UNENDED, RunState.PAUSED.value):
            status = {**status, **_IDLE, "state": RunState.CANCELLED.value, "reason": "cancelled by the user"}
        elif target == RunState.PAUSED.value and state in _UNENDED:
            reason = f"paused by the user; `platform resume {run}` continues it"
            status = {**status, **_IDLE, "state": RunState.PAUSED.value, "reason": reason}
        return _json({"status": status, "alive": alive, "desired": desired})

    def _log(self, run: str, options: Mapping[str, str]) -> Answer:
        """A piece of a log."""
        alive = self._runs.is_alive(run)
        start = _number(options, "from", 0)
        growing = alive
        if "trial" not in options:
            self._runs.attribute(run, labels.LEDGER_JOB)  # raises for an unknown run
            file, what = self._files(run).controller_log, "the controller's log"
        else:
            trial = _number(options, "trial", 0)
            rows = self._runs.attempts_at(run, trial)
            if "attempt" in options:
                rows = [row for row in rows if row.attempt == _number(options, "attempt", 1)]
            if not rows:
                raise Refusal(404, f"{run} has not started that attempt at trial {trial}")
            row = rows[-1]
            worker = _number(options, "worker", 0) if "worker" in options else None
            file = self._files(run).trial_log(trial, row.attempt, worker)
            who = f"attempt {row.attempt}" if worker is None else f"worker {worker}"
            what = f"the log of trial {trial}, {who},"
            growing = alive and row.state is TrialState.RUNNING
        if "worker" in options and file.parent.exists() and not file.exists():
            raise Refusal(404, f"{what} is not there: no such worker, or it has printed nothing yet")
        try:
            with file.open("rb") as log:
                size = os.fstat(log.fileno()).st_size
                log.seek(start)
                data = log.read(PIECE)
        except OSError as error:
            raise Refusal(404, f"{what} is not there: {error.strerror}; {_ARTIFACT}") from error
        growing = growing or start + len(data) < size
        progress = {"X-Trialplane-Next": str(start + len(data)), "X-Trialplane-Growing": str(int(growing))}
        return Answer(200, data, "text/plain; charset=utf-8", progress)

    def _saved(self, run: str) -> Answer:
        """Whether a training has saved a checkpoint that another run can start from."""
        self._runs.attribute(run, labels.LEDGER_JOB)  # raises for an unknown run
        if self._checkpoints is None:
            raise Refusal(404, "checkpoints are on no volume here")
        folder = Path(paths.trial_checkpoints(str(self._checkpoints), run, 0))
        try:
            return _json({"saved": paths.is_saved(folder)})
        except OSError as error:
            raise Refusal(404, f"{folder} cannot be read: {error.strerror}") from error

    def _files(self, run: str) -> RunPaths:
        if self._home is None:
            raise Refusal(404, f"logs of controllers are on no volume here; {_ARTIFACT}")
        return RunPaths.of(self._home, run)

    def _delete(self, run: str) -> Answer:
        self._runs.delete(run)
        folders = [] if self._home is None else [RunPaths.of(self._home, run).root]
        folders += [] if self._checkpoints is None else [self._checkpoints / run]
        left = [complaint for folder in folders for complaint in _remove(folder)]
        if left:
            where = " and ".join(str(folder) for folder in folders)
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            text = f"{run} is forgotten, but not all its files could be removed: {left[0]}{more}"
            raise Refusal(500, f"{text}; remove what is left in {where}, as the gateway's pod sees it")
        return _json({"deleted": run})

    def _check_token(self, headers: Mapping[str, str]) -> None:
        if not self._token:
            raise Refusal(403, f"this gateway changes nothing: its {env.GATEWAY_TOKEN} is not set")
        given = headers.get(cluster.TOKEN_HEADER) or ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Refusal(403, f"the header {cluster.TOKEN_HEADER} must hold the token of the chart's Secret")


_ARTIFACT = "when the run ends it is an artifact of the MLflow run, in the folder `logs`"


def _named(run: str) -> str:
    """A run's name, which also names a folder."""
    if planning.check_name(run):
        raise Refusal(404, f"{run!r} is not the name of a run")
    return run


def _remove(folder: Path) -> list[str]:
    """Removes a folder as far as possible; returns what could not be removed, and why."""
    left = []

    def note(_call: Any, path: str, error: Any) -> None:
        if not isinstance(error[1], FileNotFoundError):
            left.append(f"{path}: {error[1].strerror}")

    shutil.rmtree(folder, onerror=note)
    return left


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(400, f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _there(value: Any, run: str, what: str) -> Any:
    if value is None:
        raise Refusal(404, f"the ledger has no {what} of {run}")
    return value


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(records.to_dict(value), separators=(",", ":")).encode())


def _error(code: int, text: str) -> Answer:
    return Answer(code, json.dumps({"error": text}).encode())


def serve(gateway: Gateway, host: str, port: int) -> http.server.ThreadingHTTPServer:
    """The server, bound and not yet serving."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_SECONDS

        def handle_any(self) -> None:
            text = self.headers.get("Content-Length", "0")
            length = int(text) if text.isascii() and text.isdigit() else -1
            if not 0 <= length <= MAX_BODY or self.headers.get("Transfer-Encoding"):
                self.close_connection = True  # the body stays unread
                self._send(_error(413, f"a request's body must state its length, of at most {MAX_BODY} bytes"))
                return
            self.rfile.read(length)  # no request needs one
            self._send(gateway.answer(self.command, self.path, dict(self.headers.items())))

        do_GET = do_PUT = do_DELETE = do_POST = handle_any

        def _send(self, answer: Answer) -> None:
            with contextlib.suppress(ConnectionError):
                self.send_response(answer.code)
                headers = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), **answer.headers}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
            if self.path != "/health":
                sys.stderr.write(f"{self.address_string()} {format % args}\n")

    server = http.server.ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    return server


def main() -> int:
    """Serves until SIGTERM."""
    url = os.environ.get(env.LEDGER, "")
    if not url:
        sys.stderr.write(f"{env.LEDGER} must be the URL of the database\n")
        return errors.EXIT_BAD_INPUT
    # Only if the folder is mounted: the gateway itself writes none.
    home = paths.home() if os.environ.get(env.HOME) and paths.home().is_dir() else None
    status_url = f"http://{cluster.head_service('{run}')}:{cluster.STATUS_PORT}/status"
    runs = Archive(url)
    place = os.environ.get(env.CHECKPOINTS)
    token = os.environ.get(env.GATEWAY_TOKEN, "")
    gateway = Gateway(runs, token, home, status_url, Path(place) if place else None)
    server = serve(gateway, "", cluster.GATEWAY_PORT)
    # PID 1 of a container has no default signal handlers. `shutdown` blocks, so it is called in another thread.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    runs.close()
    return errors.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
