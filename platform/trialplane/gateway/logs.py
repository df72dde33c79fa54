"""Logs of runs: from the controller while there is one, afterwards from MLflow, to which every controller uploads them.

Answers are not trusted. A controller's container runs beside Ray's, in which trials can start programs, and MLflow has what
trials have written; so each answer is bounded in bytes and seconds, and no redirection is followed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trialplane import errors
from trialplane.wire import env, escapes, labels, logs, mlflow
from trialplane.wire.ledger import Address
from trialplane.wire.logs import Piece

T = TypeVar("T")

STATUS_SECONDS = 0.5  # for a controller's status; a user waits for it, and the ledger's is at most ten seconds old
LOG_SECONDS = 5.0
MLFLOW_SECONDS = 20.0
_MOST_JSON = 4 << 20  # bytes of an answer of MLflow's API
_CHUNK = 1 << 16


class NoLog(Exception):
    """The reason why there is no log, as a message for users."""


@dataclasses.dataclass(frozen=True)
class Chosen:
    """One log of a run: a trial's attempt, or its worker's; the controller's without a trial."""

    trial: int | None = None
    attempt: int = 1
    number: int = 0  # of the attempt in the ledger that began its series
    worker: int | None = None

    @property
    def file(self) -> str:
        """Its name among the artifacts of its MLflow run."""
        if self.trial is None:
            return "controller.log"
        return f"attempt-{self.attempt}.log" if self.worker is None else f"worker-{self.worker}.log"

    def __str__(self) -> str:
        if self.trial is None:
            return "the controller's log"
        part = f"attempt {self.attempt}" if self.worker is None else f"worker {self.worker}"
        return f"the log of trial {self.trial}, {part},"


@dataclasses.dataclass(frozen=True)
class Controllers:
    """The controllers that work, at the servers of their status.

    Attributes:
        url: of one, with `{run}` in it.
    """

    url: str

    def status(self, run: str) -> dict[str, Any] | None:
        """The status that a controller gives of this run; None if it gives none that can be read."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            status = json.loads(fetch(f"{self.url.format(run=run)}/status", STATUS_SECONDS, _bounded(logs.PIECE)) or b"{}")
            if isinstance(status, dict) and status.get("run") == run:
                return status
        return None

    def log(self, run: str, key: str, chosen: Chosen, start: int) -> Piece | None:
        """A piece of a log that grows; None if the controller has none.

        Args:
            run: its name.
            key: the hash of its token, by which its controller knows the gateway.
            chosen: which log.
            start: the offset.

        Raises:
            OSError: it does not answer.
        """
        query: dict[str, int] = {"from": start}
        if chosen.trial is not None:
            query |= {"trial": chosen.trial, "attempt": chosen.attempt}
            query |= {} if chosen.worker is None else {"worker": chosen.worker}
        url = f"{self.url.format(run=run)}/log?{urllib.parse.urlencode(query)}"
        data = fetch(url, LOG_SECONDS, lambda reply: reply.read(logs.PIECE), {logs.KEY_HEADER: key})
        return None if data is None else Piece(data, start + len(data))


@dataclasses.dataclass(frozen=True)
class Mlflow:
    """Artifacts of runs, by MLflow's API.

    Attributes:
        url: of the server.
        authorization: a header, or "".
    """

    url: str
    authorization: str = dataclasses.field(default="", repr=False)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Mlflow | None:
        """MLflow as its own clients find it; None without the URL of a server."""
        url = environ.get(env.MLFLOW_TRACKING_URI, "").rstrip("/")
        if not url.startswith(("http://", "https://")):
            return None
        return cls(url, mlflow.authorization(environ))

    def log(self, address: Address, job: str, submission: Mapping[str, Any], chosen: Chosen, start: int) -> Piece:
        """A piece of a log that has ended.

        Args:
            address: the run.
            job: the name of its job, and so of its experiment.
            submission: the facts of it.
            chosen: which log.
            start: the offset.

        Raises:
            NoLog: MLflow has none, or does not answer.
        """
        try:
            run_id = self._run(address, job, submission, chosen)
            query = urllib.parse.urlencode({"path": f"logs/{chosen.file}", "run_uuid": run_id or ""})
            piece = self._get(address, f"/get-artifact?{query}", lambda reply: _piece(reply, start)) if run_id else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:  # the latter: JSON of another shape
            url = escapes.mask_passwords(self.url)
            raise NoLog(f"MLflow at {url}, which keeps it, does not answer: {errors.first_line(error):.200}") from error
        if piece is None:
            text = f"MLflow has no such log of {address.run}; the log of a killed controller is uploaded by the next one"
            raise NoLog(f"{text} (`platform resume {address.run}`)")
        return piece

    def _run(self, address: Address, job: str, submission: Mapping[str, Any], chosen: Chosen) -> str | None:
        """The id of the MLflow run that has the log."""
        query = urllib.parse.urlencode({"experiment_name": job})
        answer = self._json(address, f"/api/2.0/mlflow/experiments/get-by-name?{query}")
        experiment = answer.get("experiment", {}).get("experiment_id")
        if not isinstance(experiment, str):
            return None
        identity = labels.identity(address.run, submission)
        studies = self._search(
            address, experiment, f"tags.`{labels.RUN}` = '{address.run}' and tags.`{labels.KIND}` = 'study'"
        )
        parents = [id_ for id_, tags in studies if identity.items() <= tags.items() and labels.STATE in tags]
        if chosen.trial is None or not parents:
            return parents[0] if parents else None
        query = f"tags.`{labels.PARENT}` = '{parents[0]}' and tags.`{labels.NUMBER}` = '{chosen.number}'"
        return next((id_ for id_, _ in self._search(address, experiment, query)), None)

    def _search(self, address: Address, experiment: str, query: str) -> list[tuple[str, dict[str, str]]]:
        """Ids and tags of runs."""
        request = {"experiment_ids": [experiment], "filter": query, "max_results": 20}
        answer = self._json(address, "/api/2.0/mlflow/runs/search", json.dumps(request).encode())
        return [
            (str(run["info"]["run_id"]), {str(tag["key"]): str(tag["value"]) for tag in run["data"].get("tags", [])})
            for run in answer.get("runs", [])
        ]

    def _json(self, address: Address, path: str, body: bytes | None = None) -> dict[str, Any]:
        """An answer of the API; empty when MLflow answers 404."""
        data = self._get(address, path, _bounded(_MOST_JSON), body)
        try:
            answer = json.loads(data or b"{}")
        except RecursionError as error:
            raise ValueError("it answered with JSON that is nested too deeply") from error
        if not isinstance(answer, dict):
            raise ValueError("it answered with something else than a JSON object")
        return answer

    def _get(
        self, address: Address, path: str, take: Callable[[http.client.HTTPResponse], T], body: bytes | None = None
    ) -> T | None:
        headers = mlflow.caller_headers(address.namespace, mlflow.VIEWERS, "gateway")
        headers |= {"Authorization": self.authorization} if self.authorization else {}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        return fetch(f"{self.url}{path}", MLFLOW_SECONDS, take, headers, body)


def _piece(reply: http.client.HTTPResponse, start: int) -> Piece:
    """The piece of a log at an offset of the log as it was written, of which MLflow may have the end only."""
    head = reply.read(logs.NOTICE_BYTES)
    missing, length = logs.parse_notice(head)
    if start <= missing:
        data = head + reply.read(logs.PIECE - len(head)) if len(head) == logs.NOTICE_BYTES else head
        data = data if start == 0 else data[length:]
        return Piece(data, missing + len(data) - (length if start == 0 else 0))
    skipped = start - missing + length
    if skipped < len(head):
        data = head[skipped:]
    else:
        data, remaining = b"", skipped - len(head)
        while remaining and (dropped := len(reply.read(min(remaining, _CHUNK)))):
            remaining -= dropped
    data += reply.read(logs.PIECE - len(data))
    return Piece(data, start + len(data))


def _bounded(most: int) -> Callable[[http.client.HTTPResponse], bytes]:
    def take(reply: http.client.HTTPResponse) -> bytes:
        data = reply.read(most + 1)
        if len(data) > most:
            raise ValueError(f"it answered with more than {most} bytes")
        return data

    return take


def fetch(
    url: str,
    seconds: float,
    take: Callable[[http.client.HTTPResponse], T],
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> T | None:
    """Return what `take` reads from an answer's body; None without one (404).

    Args:
        url: with its query.
        seconds: for all of it: a peer that answers byte by byte holds no thread longer.
        take: reads the body, a bounded part of it.
        headers: of the request.
        body: makes it a POST.

    Raises:
        OSError: no answer in time, or one of another status.
    """
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    is_late = threading.Event()
    with contextlib.closing(connection):
        connection.connect()
        peer = connection.sock  # which the answer may take over

        def cut() -> None:
            is_late.set()
            with contextlib.suppress(OSError):
                socket.socket.shutdown(peer, socket.SHUT_RDWR)

        timer = threading.Timer(seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("GET" if body is None else "POST", target, body, dict(headers or {}))
            reply = connection.getresponse()
            if reply.status == http.client.NOT_FOUND:
                return None
            if reply.status != http.client.OK:
                raise ConnectionError(f"it answered with HTTP status {reply.status}")
            result = take(reply)
        except (OSError, http.client.HTTPException) as error:
            # A peer that still writes to a connection that was cut resets it; the socket's own limit may come first.
            if is_late.is_set() or isinstance(error, TimeoutError):
                raise _late(seconds) from error
            if isinstance(error, OSError):
                raise
            raise ConnectionError(f"it answered with no HTTP: {errors.first_line(error)}") from error
        finally:
            timer.cancel()
    if is_late.is_set():
        raise _late(seconds)
    return result


def _late(seconds: float) -> TimeoutError:
    return TimeoutError(f"no whole answer within {seconds:g} s")
