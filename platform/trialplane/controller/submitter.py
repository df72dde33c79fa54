"""`python -m trialplane.controller.submitter`: hands a run's controller to Ray and stays until it has ended.

It waits for the head, submits the job under KubeRay's id, prints the job's log as it grows, and submits again to a new head
that does not have the job: with a head pod the Ray job is lost, but not the study, which is in the ledger. It exits with 0
once the job has ended, even if that failed: KubeRay reads the job's state from Ray, and would restart a failed submitter.
Standard library only, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trialplane.wire import env

PAUSE = 1.0  # seconds between checks of a job
LONGEST_PAUSE = 10.0  # seconds between checks if the log is long: Ray sends all of it each time
SECONDS = 20.0  # for one answer
PIECE = 1 << 16  # bytes of a log that are held at once
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_OPENING = re.compile(rb'\s*\{\s*"logs"\s*:\s*"')
# The complete part of a JSON string: no half of an escape, nor of a surrogate pair.
_WHOLE = re.compile(rb'(?:[^"\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[0-9a-fA-F]{4}\\u[0-9a-fA-F]{4})*+')


class Away(Exception):
    """The head does not answer, or not yet as expected."""


class Refused(Exception):
    """The head refuses the request for good."""


class Dashboard:
    """The job API of Ray's dashboard.

    Args:
        address: `host:port`, or a URL.
        token: of Ray's token authentication, or "".
    """

    def __init__(self, address: str, token: str) -> None:
        self._address = urllib.parse.urlsplit(address if "://" in address else f"http://{address}").netloc
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def job(self, submission: str) -> Mapping[str, Any] | None:
        """The description of a job, or None if the head does not have it.

        Raises:
            Away: it does not answer.
            Refused: the token is wrong.
        """
        status, data = self._ask("GET", f"/api/jobs/{submission}")
        if status == 404:
            return None
        return dict(_json(data)) if status == 200 else _raise(status, data)

    def submit(self, submission: str, entrypoint: str) -> None:
        """Submits a job, unless it already exists. Raises as `job`."""
        body = json.dumps({"submission_id": submission, "entrypoint": entrypoint})
        status, data = self._ask("POST", "/api/jobs/", body)
        if status != 200 and b"already exists" not in data:
            _raise(status, data)

    def log(self, submission: str, place: int) -> Iterator[tuple[str, int]]:
        """The part of a job's log after a place, in pieces, each with the place after it; nothing if there is no log yet.

        Ray sends the whole log each time. It may be larger than this pod's memory, so it is streamed.

        Args:
            submission: the job's id.
            place: 0, or the place of an earlier piece. In a shorter log, which must be another job's, the
                next place is 0.

        Raises:
            Away: it does not answer, or not to the end; the pieces so far count.
        """
        with self._answer("GET", f"/api/jobs/{submission}/logs") as reply:
            if reply.status == 200:
                yield from _beyond(reply, place)

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        with self._answer(method, path, body) as reply:
            return reply.status, reply.read()

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, body: str | None = None) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._address, timeout=SECONDS)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **self._headers})
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Away(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()


def _beyond(reply: http.client.HTTPResponse, place: int) -> Iterator[tuple[str, int]]:
    """The string in `{"logs": "…"}` after a place, which counts the bytes of the encoded string."""
    data = reply.read(PIECE)
    opening = _OPENING.match(data)
    if opening is None:
        raise Away(f"no log: {data[:200]!r}")
    data = data[opening.end() :]
    passed = 0
    while passed + len(data) < place:
        passed += len(data)
        data = reply.read(PIECE)
        if not data:
            yield "", 0
            return
    data = data[place - passed :]
    while True:
        whole = _WHOLE.match(data)
        assert whole is not None, "the pattern also matches the empty string"
        if whole.end():
            place += whole.end()
            yield str(json.loads(b'"' + whole.group() + b'"', strict=False)), place
        data = data[whole.end() :]
        if data.startswith(b'"'):
            return
        more = reply.read(PIECE)
        if not more:
            raise Away("the log was cut off")
        data += more


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise Away(f"no JSON: {data[:200]!r}") from error


def _raise(status: int, data: bytes) -> Any:
    text = data.decode(errors="replace").strip()
    last = text.splitlines()[-1] if text else ""
    if status in (400, 401, 403, 422):
        raise Refused(f"HTTP {status}: {last}")
    raise Away(f"HTTP {status}: {last}")


class Submitter:
    """Submits one job and follows it to its end.

    Args:
        dashboard: of the head.
        submission: the job's id.
        entrypoint: its command.
        pause: sleeps for that many seconds.
    """

    def __init__(
        self, dashboard: Dashboard, submission: str, entrypoint: str, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._dashboard = dashboard
        self._submission = submission
        self._entrypoint = entrypoint
        self._pause = pause
        self._shown = 0  # how far the log of the current head's job has been printed
        self._submitted = 0
        self._away = ""

    def run(self) -> int:
        """Submits and follows the job until it has ended; the exit code."""
        while True:
            try:
                ended = self._look()
            except Away as error:
                if not self._away:  # once per outage
                    _print("the head does not answer yet" if not self._submitted else "the head is away", str(error))
                self._away = str(error)
            except Refused as error:
                _print("Ray refuses the job", str(error))
                return 1
            else:
                self._away = ""
                if ended is not None:
                    return ended
            self._pause(min(PAUSE + self._shown / 1e6, LONGEST_PAUSE))

    def _look(self) -> int | None:
        job = self._dashboard.job(self._submission)
        if job is None:
            if self._submitted:
                _print("a new head does not have the job, which is submitted again", "the study continues where it was")
            self._dashboard.submit(self._submission, self._entrypoint)
            self._submitted += 1
            self._shown = 0
            return None
        self._submitted = self._submitted or 1  # by a submitter before this one
        self._show()
        if job.get("status") not in ENDED:
            return None
        message = str(job.get("message") or "")
        _print(f"the Ray job {job['status']}", message.strip().splitlines()[0] if message.strip() else "")
        return 0

    def _show(self) -> None:
        """Prints the new part of the job's log."""
        for text, place in self._dashboard.log(self._submission, self._shown):
            sys.stdout.write(text)
            sys.stdout.flush()
            self._shown = place


def _print(what: str, more: str) -> None:
    sys.stdout.write(f"[submitter] {what}{': ' if more else ''}{more}\n")
    sys.stdout.flush()


def main() -> int:
    """Follows the job that the environment names."""
    # PID 1 of a container has no default signal handlers, and SIGTERM would have no effect.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    needed = (env.RAY_DASHBOARD_ADDRESS, env.RAY_JOB_SUBMISSION_ID, env.ENTRYPOINT)
    missing = [name for name in needed if not os.environ.get(name)]
    if missing:
        _print(f"{', '.join(missing)} must be set", "KubeRay sets what begins with RAY_")
        return 2
    address, submission, entrypoint = (os.environ[name] for name in needed)
    return Submitter(Dashboard(address, os.environ.get(env.RAY_AUTH_TOKEN, "")), submission, entrypoint).run()


if __name__ == "__main__":
    sys.exit(main())
