"""Logs of runs: from the run's controller while it is active, and later from MLflow, to which controllers upload them.

Answers are not trusted, because trials can start programs in the controller's pod, and MLflow's records come from trials.
So the size and the duration of each answer are limited, and redirects are not followed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from trialplane import errors
from trialplane.wire import env, escapes, labels, logs, mlflow
from trialplane.wire.ledger import Address
from trialplane.wire.logs import Piece

T = TypeVar("T")

STATUS_SECONDS = 0.5  # time limit of a controller's status: a user waits, and the status in the ledger is recent enough
LOG_SECONDS = 5.0  # time limit of a piece of a log from a controller
MLFLOW_SECONDS = 20.0  # time limit of a request to MLflow
_MAX_STATUS = 1 << 20  # limit of a controller's status, in bytes
_MAX_JSON = 4 << 20  # limit of an answer of MLflow's API, in bytes
_CHUNK = 1 << 16  # bytes that are read at once


class NoLog(Exception):
    """Error for a log that is missing or unavailable. Its text is the reason, for users."""


@dataclasses.dataclass(frozen=True)
class LogId:
    """Identifies a log of a run: of an attempt, of a collection's worker, or of the controller.

    Attributes:
        trial: Number of the trial. None for the controller's log.
        attempt: Number of the attempt at this trial, from 1.
        number: Number in the ledger of the attempt that began its series, which identifies the trial's run in MLflow.
        worker: Number of the worker. None for the log of an attempt.
    """

    trial: int | None = None
    attempt: int = 1
    number: int = 0
    worker: int | None = None

    @property
    def file(self) -> str:
        """Name of the log among the artifacts of its MLflow run."""
        if self.trial is None:
            return "controller.log"
        return f"attempt-{self.attempt}.log" if self.worker is None else f"worker-{self.worker}.log"

    def __str__(self) -> str:
        """Return the log in words, as the subject of a sentence."""
        if self.trial is None:
            return "the controller's log"
        part = f"attempt {self.attempt}" if self.worker is None else f"worker {self.worker}"
        return f"the log of trial {self.trial}, {part},"


@dataclasses.dataclass(frozen=True)
class Controllers:
    """Client of the status servers of active controllers.

    Attributes:
        url: URL of a controller's status server, with the placeholder `{run}` for the name of the run.
    """

    url: str

    def status(self, run: str) -> dict[str, Any] | None:
        """Return the status of a run from its controller. None if the controller does not answer with a valid one."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            url = f"{self.url.format(run=run)}/status"
            status = json.loads(fetch(url, STATUS_SECONDS, lambda reply: _read_whole(reply, _MAX_STATUS)) or b"{}")
            if isinstance(status, dict) and status.get("run") == run:
                return status
        return None

    def log(self, run: str, key: str, log_id: LogId, start: int) -> Piece | None:
        """Return a piece of a log from the run's controller. None if the controller does not have the log.

        Args:
            run: Name of the run.
            key: Digest of the run's token, which authenticates the gateway to the controller.
            log_id: Log.
            start: Offset of the piece.

        Raises:
            OSError: The controller does not answer.
        """
        query: dict[str, int] = {"from": start}
        if log_id.trial is not None:
            query |= {"trial": log_id.trial, "attempt": log_id.attempt}
            if log_id.worker is not None:
                query["worker"] = log_id.worker
        url = f"{self.url.format(run=run)}/log?{urllib.parse.urlencode(query)}"
        data = fetch(url, LOG_SECONDS, lambda reply: reply.read(logs.PIECE), {logs.KEY_HEADER: key})
        return None if data is None else Piece(data, start + len(data))


@dataclasses.dataclass(frozen=True)
class _MlflowRun:
    """A run of MLflow, with its tags by name."""

    run_id: str
    tags: dict[str, str]


@dataclasses.dataclass(frozen=True)
class MlflowLogs:
    """Client of MLflow's API that reads logs, which are artifacts of MLflow runs.

    Attributes:
        url: URL of the server.
        authorization: Value of the header `Authorization`, or "".
    """

    url: str
    authorization: str = dataclasses.field(default="", repr=False)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> MlflowLogs | None:
        """Return the client for the server that the variables of MLflow's own client name. None if they name no server."""
        url = environ.get(env.MLFLOW_TRACKING_URI, "").rstrip("/")
        if not url.startswith(("http://", "https://")):
            return None
        return cls(url, mlflow.authorization(environ))

    def log(self, address: Address, job: str, submission: Mapping[str, Any], log_id: LogId, start: int) -> Piece:
        """Return a piece of a complete log.

        Args:
            address: Address of the run.
            job: Name of the run's job, which is the name of its MLflow experiment.
            submission: Submission of the run, by field.
            log_id: Log.
            start: Offset of the piece.

        Raises:
            NoLog: MLflow does not have the log, or does not answer.
        """
        try:
            piece = None
            run_id = self._run_id(address, job, submission, log_id)
            if run_id is not None:
                query = urllib.parse.urlencode({"path": f"logs/{log_id.file}", "run_uuid": run_id})
                piece = self._get(address, f"/get-artifact?{query}", lambda reply: _read_piece(reply, start))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:  # the last three: unexpected JSON
            url = escapes.mask_passwords(self.url)
            raise NoLog(f"MLflow at {url}, which stores it, does not answer: {errors.first_line(error):.200}") from error
        if piece is None:
            text = f"MLflow has no such log of {address.run}; the log of a killed controller is uploaded by the next one"
            raise NoLog(f"{text} (`platform resume {address.run}`)")
        return piece

    def _run_id(self, address: Address, job: str, submission: Mapping[str, Any], log_id: LogId) -> str | None:
        """Return the id of the MLflow run that has the log. None if there is no such MLflow run.

        The logs of trials and workers belong to the MLflow run of their trial, which is a child of the study's MLflow run.
        The controller's log belongs to the study's.
        """
        query = urllib.parse.urlencode({"experiment_name": job})
        answer = self._json(address, f"/api/2.0/mlflow/experiments/get-by-name?{query}")
        experiment = answer.get("experiment", {}).get("experiment_id")
        if not isinstance(experiment, str):
            return None
        identity = labels.identity(address.run, submission)
        study_filter = f"tags.`{labels.RUN}` = '{address.run}' and tags.`{labels.KIND}` = 'study'"
        studies = self._search(address, experiment, study_filter)
        study_id = next((study.run_id for study in studies if identity.items() <= study.tags.items()), None)
        if study_id is None or log_id.trial is None:
            return study_id
        trial_filter = f"tags.`{labels.PARENT}` = '{study_id}' and tags.`{labels.NUMBER}` = '{log_id.number}'"
        trials = self._search(address, experiment, trial_filter)
        return trials[0].run_id if trials else None

    def _search(self, address: Address, experiment: str, run_filter: str) -> list[_MlflowRun]:
        """Return the MLflow runs in an experiment that match a filter of MLflow's API."""
        request = {"experiment_ids": [experiment], "filter": run_filter, "max_results": 20}
        answer = self._json(address, "/api/2.0/mlflow/runs/search", json.dumps(request).encode())
        return [
            _MlflowRun(
                str(run["info"]["run_id"]),
                {str(tag["key"]): str(tag["value"]) for tag in run["data"].get("tags", [])},
            )
            for run in answer.get("runs", [])
        ]

    def _json(self, address: Address, path: str, body: bytes | None = None) -> dict[str, Any]:
        """Return an answer of MLflow's API. Empty if the status is 404.

        Raises:
            OSError: MLflow does not answer.
            ValueError: The answer is not a JSON object.
        """
        data = self._get(address, path, lambda reply: _read_whole(reply, _MAX_JSON), body)
        try:
            answer = json.loads(data or b"{}")
        except RecursionError as error:
            raise ValueError("it answered with JSON that is nested too deeply") from error
        if not isinstance(answer, dict):
            raise ValueError("its answer is not a JSON object")
        return answer

    def _get(
        self, address: Address, path: str, read: Callable[[http.client.HTTPResponse], T], body: bytes | None = None
    ) -> T | None:
        """Send a request to MLflow as a viewer of the run's namespace; see `fetch`."""
        headers = mlflow.caller_headers(address.namespace, mlflow.VIEWERS, "gateway")
        if self.authorization:
            headers["Authorization"] = self.authorization
        if body is not None:
            headers["Content-Type"] = "application/json"
        return fetch(f"{self.url}{path}", MLFLOW_SECONDS, read, headers, body)


def _read_piece(reply: http.client.HTTPResponse, start: int) -> Piece:
    """Read a piece of a log from an artifact of MLflow.

    The artifact has the whole log, or only its end. In the latter case it begins with a notice that says how many bytes at
    the log's beginning are missing. The notice itself is not part of the log.

    Args:
        reply: Response whose body is the artifact.
        start: Offset of the piece in the complete log.

    Returns:
        The piece. If `start` is in the missing part, the piece begins after this part. A piece for offset 0 then also has
        the notice, so that a reader of the whole log sees it.
    """
    head = reply.read(logs.NOTICE_BYTES)
    missing, notice_length = logs.parse_notice(head)
    # The notice is followed by the log from offset `missing` on. If the notice has 60 bytes, and 1000 bytes are missing,
    # position 65 in the artifact is offset 1005 in the log.
    position = 0 if start == 0 else notice_length + max(0, start - missing)  # of the piece in the artifact
    data = head[position:]
    _skip(reply, max(0, position - len(head)))
    data += reply.read(logs.PIECE - len(data))
    end_position = position + len(data)
    return Piece(data, missing + end_position - notice_length)


def _skip(reply: http.client.HTTPResponse, count: int) -> None:
    """Skip this number of bytes of a response's body; stop at the end of the body."""
    while count > 0:
        skipped = reply.read(min(count, _CHUNK))
        if not skipped:
            return
        count -= len(skipped)


def _read_whole(reply: http.client.HTTPResponse, limit: int) -> bytes:
    """Return the body of a response. Raise ValueError if it is larger than `limit`, in bytes."""
    data = reply.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it answered with more than {limit} bytes")
    return data


def fetch(
    url: str,
    seconds: float,
    read: Callable[[http.client.HTTPResponse], T],
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> T | None:
    """Send an HTTP request and return what `read` returns for the response. None if the status is 404.

    Args:
        url: URL with its query.
        seconds: Time limit of the whole exchange, even if the peer sends byte by byte.
        read: Function that reads a limited part of the response's body.
        headers: Headers of the request.
        body: Body of the request, which is then a POST instead of a GET.

    Raises:
        OSError: There is no complete response in time, or its status is neither 200 nor 404.
    """
    parts = urllib.parse.urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection_class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connection_class(parts.hostname or "", parts.port, timeout=seconds)
    with contextlib.closing(connection):
        connection.connect()
        with _time_limit(connection.sock, seconds):
            connection.request("GET" if body is None else "POST", target, body, dict(headers or {}))
            with connection.getresponse() as reply:
                if reply.status == http.client.NOT_FOUND:
                    return None
                if reply.status != http.client.OK:
                    raise ConnectionError(f"it answered with HTTP status {reply.status}")
                return read(reply)


@contextlib.contextmanager
def _time_limit(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Limit the duration of a block that uses a connection: shut the connection down when the time is over.

    Raises:
        TimeoutError: The block did not end in time.
        ConnectionError: The peer's data are not HTTP.
    """
    is_late = threading.Event()
    late_text = f"no complete answer within {seconds:g} s"

    def shut_down() -> None:
        """End the exchange, because its time is over."""
        is_late.set()
        with contextlib.suppress(OSError):  # the peer has closed the connection already
            # Not the method of a TLS socket, which would also drop the state that a read in the other thread uses.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        # Both mean a timeout: the timer's shutdown, after which reads fail in several ways, and the socket's own limit.
        if is_late.is_set() or isinstance(error, TimeoutError):
            raise TimeoutError(late_text) from error
        if isinstance(error, OSError):
            raise
        raise ConnectionError(f"its answer is not HTTP: {errors.first_line(error)}") from error
    finally:
        timer.cancel()
    if is_late.is_set():  # the shutdown looked like the end of the body, which is thus incomplete
        raise TimeoutError(late_text)
