"""Publishes the status of a run: in `status.json`, and over HTTP as `/status` and `/metrics`; in a cluster also its logs.

The port is on loopback by default. `/status` and `/metrics` contain no secrets. A log may contain some, so `/log` answers
only the gateway, which sends the hash of the run's token.
"""

from __future__ import annotations

import hmac
import http.server
import json
import logging
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import prometheus_client
from prometheus_client.core import GaugeMetricFamily, Metric, StateSetMetricFamily

from trialplane.wire import logs, ranks, records
from trialplane.wire.holder import Holder
from trialplane.wire.paths import RunPaths
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState
from trialplane.wire.units import WorkerStatus

log = logging.getLogger(__name__)

INTERVAL = 0.5  # seconds between writes of status.json while the run continues
RECORD_INTERVAL = 10.0  # seconds between calls of `record` while the run continues
_WORKER_NUMBERS = ("units", "items", "failed", "bytes")  # fields of `WorkerStatus` that become gauges
_INVALID = re.compile(r"[^a-zA-Z0-9_]")  # characters that the name of a Prometheus metric must not contain


class StatusBoard:
    """The newest status of a run, on disk and over HTTP.

    Args:
        run: Paths of the run.
        address: Host and port to bind; port 0 is a free one.
        record: Called with a status that is shown with `now`, and otherwise every `RECORD_INTERVAL` seconds.
        key: Key that a request for a log must have; with "" no log is served.

    Attributes:
        listener: Called with each status.
        port: Port of the HTTP server.
    """

    def __init__(
        self,
        run: RunPaths,
        address: tuple[str, int] = ("127.0.0.1", 0),
        record: Callable[[RunStatus], None] = lambda status: None,
        key: str = "",
    ) -> None:
        self._run = run
        self._key = key
        self._status: RunStatus | None = None
        self._last_write = 0.0  # by the monotonic clock
        self._is_written = True  # whether the last write succeeded
        self._record = record
        self._last_record = 0.0  # by the monotonic clock
        self.listener: Callable[[RunStatus], None] = lambda status: None
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)  # it calls `collect` for each page
        self._server = http.server.ThreadingHTTPServer(address, _handler(self.page))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="status", daemon=True).start()
        self.port = int(self._server.server_address[1])

    def write_address(self) -> None:
        """Write the HTTP server's port to the run's folder. Only the controller with the run's lock may call this."""
        _replace(self._run.controller, json.dumps(Holder.of_this_process().facts(port=self.port, started=time.time())))

    def show(self, status: RunStatus, *, now: bool = False) -> None:
        """Publish the newest status over HTTP and to the listener. Write it to status.json and record it at intervals.

        Args:
            status: The status.
            now: Whether to write and record it even if the last time was less than an interval ago.
        """
        self._status = status
        self.listener(status)
        if now or time.monotonic() - self._last_write >= INTERVAL:
            self._last_write = time.monotonic()
            self._write(status)
        if now or time.monotonic() - self._last_record >= RECORD_INTERVAL:
            self._last_record = time.monotonic()
            self._record(status)

    def _write(self, status: RunStatus) -> None:
        """Write status.json. If the disk is full the update is lost, and the run continues."""
        try:
            write_status(self._run, status)
        except OSError as error:
            if self._is_written:
                log.warning("%s cannot be written: %s; the run goes on", self._run.status, error.strerror)
            self._is_written = False
        else:
            self._is_written = True

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the newest status. Prometheus' registry calls this."""
        status = self._status
        if status is None:
            return
        yield from _run_metrics(status)
        progress = status.progress
        if isinstance(progress, CollectionProgress):
            yield from _gauges("trialplane_collection", "Of the current iteration.", status.run, progress.numbers)
            yield from _worker_gauges(status.run, progress.workers)
        elif progress.numbers:
            time_left = {} if status.eta is None else {"seconds_left": status.eta}
            description = "Reported by the training, or computed from that."
            numbers = {**ranks.without_seconds(progress.numbers), **time_left}
            yield from _gauges("trialplane_training", description, status.run, numbers)
            yield from _rank_gauges(status.run, ranks.seconds(progress.numbers))

    def page(self, target: str, key: str) -> tuple[str, bytes] | None:
        """Return the content type and the body of a page; None if there is no such page.

        Args:
            target: Path and query of the request.
            key: Key of the request; "" for none.
        """
        path, _, query = target.partition("?")
        if path == "/status" and self._status is not None:
            return "application/json", records.to_json(self._status).encode()
        if path == "/metrics":
            return prometheus_client.CONTENT_TYPE_LATEST, prometheus_client.generate_latest(self._registry)
        if path == "/log" and self._key and hmac.compare_digest(key.encode(), self._key.encode()):
            return self._log(query)
        return None

    def _log(self, query: str) -> tuple[str, bytes] | None:
        """Return the content type and a piece of a log of the run; None if there is no such log, or the query is invalid.

        The parameters of the query are numbers, so that it cannot name a file outside of the run's folder.
        """
        parameters = dict(urllib.parse.parse_qsl(query))
        if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in parameters.values()):
            return None
        numbers = {name: int(text) for name, text in parameters.items()}
        file = self._run.controller_log
        if "trial" in numbers:
            file = self._run.trial_log(numbers["trial"], numbers.get("attempt", 1), numbers.get("worker"))
        try:
            with file.open("rb") as stream:
                stream.seek(numbers.get("from", 0))
                return "text/plain; charset=utf-8", stream.read(logs.PIECE)
        except OSError:
            return None


def _run_metrics(status: RunStatus) -> Iterator[Metric]:
    """Yield the metrics that runs of all kinds have: the state, counts of trials and attempts, and the best value."""
    state = StateSetMetricFamily("trialplane_run_state", "State of the run.", labels=["run"])
    state.add_metric([status.run], {known_state: known_state is status.state for known_state in RunState})
    yield state
    trials = GaugeMetricFamily("trialplane_trials", "Logical trials by state.", labels=["run", "state"])
    for trial_state in ("complete", "pruned", "failed", "running"):
        trials.add_metric([status.run, trial_state], getattr(status, trial_state))
    yield trials
    yield from _gauges("trialplane_attempts", "Attempts that were retried.", status.run, {"retried": status.retried})
    yield from _gauges("trialplane_trials", "Logical trials requested for the run.", status.run, {"asked": status.trials})
    yield from _gauges("trialplane_slots", "Slots whose template is warm.", status.run, {"ready": status.slots_ready})
    if status.best is not None and status.best.values:
        best_value = status.best.values[0]
        yield from _gauges("trialplane_best", "Best value of the first objective.", status.run, {"value": best_value})


def _gauges(prefix: str, description: str, run: str, numbers: Mapping[str, float]) -> Iterator[GaugeMetricFamily]:
    """Yield a gauge for each number of a run, named by the prefix and the number's name."""
    # A dict, because two names may become the same metric, and Prometheus allows each only once.
    values = {f"{prefix}_{_INVALID.sub('_', name)}": value for name, value in numbers.items()}
    for name, value in values.items():
        gauge = GaugeMetricFamily(name, description, labels=["run"])
        gauge.add_metric([run], value)
        yield gauge


def _rank_gauges(run: str, seconds: Mapping[int, float]) -> Iterator[GaugeMetricFamily]:
    """Yield a gauge of the seconds that each rank itself needs for a step, without waiting for others, if any are known."""
    if seconds:
        description = "Own seconds per step of a rank, without waiting for others."
        gauge = GaugeMetricFamily("trialplane_training_rank_seconds", description, labels=["run", "rank"])
        for rank, value in seconds.items():
            gauge.add_metric([run, str(rank)], value)
        yield gauge


def _worker_gauges(run: str, workers: Sequence[WorkerStatus]) -> Iterator[GaugeMetricFamily]:
    """Yield a gauge for each number of the workers, with one value per worker."""
    for name in _WORKER_NUMBERS if workers else ():
        gauge = GaugeMetricFamily(f"trialplane_worker_{name}", "Of a worker, in this iteration.", labels=["run", "worker"])
        for worker in workers:
            gauge.add_metric([run, str(worker.worker)], getattr(worker, name))
        yield gauge


def _handler(page: Callable[[str, str], tuple[str, bytes] | None]) -> type[http.server.BaseHTTPRequestHandler]:
    """Return a handler of HTTP requests that serves the results of `StatusBoard.page`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the page; with 404 if there is no such page."""
            content = page(self.path, self.headers.get(logs.KEY_HEADER) or "")
            content_type, body = content or ("text/plain", b"there are /status and /metrics\n")
            self.send_response(200 if content else 404)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
            return

    return Handler


def write_status(run: RunPaths, status: RunStatus) -> None:
    """Write the run's status.json."""
    _replace(run.status, records.to_json(status))


def _replace(file: Path, text: str) -> None:
    """Replace a file at once, so that a reader sees either the old text or the new one."""
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(file)
