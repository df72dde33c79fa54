"""Starts, wakes, restarts and ends the process that exports a run to MLflow (`trialplane.exporter`).

MLflow takes 30 ms of processor time per trial (measured on its SQLite store). A thread would take this time from the
controller, and wait whenever MLflow answers slowly. So another process reads the ledger and writes to MLflow. Nothing is
lost if it dies: a new exporter compares MLflow with the ledger and continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable

from trialplane import errors
from trialplane.training import process
from trialplane.wire import env, records
from trialplane.wire.exports import End, Order, Progress
from trialplane.wire.paths import RunPaths

END_WAIT = 30.0  # seconds for the exporter to end
NICENESS = 5  # lets trials and the controller go first, also while they import; 10 took minutes to start on a full machine


class ExporterProcess:
    """The exporter of one run.

    Args:
        run: Paths of the run.
        order: Message to the exporter that names the run's ledger.
        uri: Tracking URI of MLflow.
        token: Token for MLflow, which the gateway requires; "" for none.

    Attributes:
        progress: Newest progress that the exporter has reported.
    """

    def __init__(self, run: RunPaths, order: Order, uri: str, *, token: str = "") -> None:
        self._run = run
        self._order = order
        self._uri = uri
        self._token = token
        self._end: End | None = None
        self._partial_line = b""  # the beginning of a message whose rest has not arrived
        self._unsent = b""  # messages that the exporter's pipe had no room for
        self.progress = Progress()
        self._is_complete: bool | None = None  # result of `close`; None before it is called
        self._ended_trials = 0  # number of trials that have ended when `send_end` is called; 0 if it is unknown
        self._start()

    def wake(self) -> None:
        """Tell the exporter that the ledger may have grown, and receive its messages."""
        if not self._unsent:  # a full pipe has enough lines to wake it
            self._send(b"\n")
        self.tick()

    def tick(self) -> None:
        """Exchange messages with the exporter without waiting; restart it if it has died."""
        self._exchange(timeout=0)

    def send_end(self, run_end: End, trials: int = 0) -> None:
        """Tell the exporter that the run has ended. The exporter's process then exits as soon as everything is in MLflow.

        Args:
            run_end: Last state of the run.
            trials: Number of trials that have ended; 0 if it is unknown.
        """
        self._end, self._ended_trials = run_end, trials
        self._send(records.to_json(run_end).encode() + b"\n")

    @property
    def trouble(self) -> str:
        """The reason why MLflow lacks records; "" if it lacks none, or only those that are being written."""
        return self.progress.away or self.progress.trouble

    def close(
        self,
        patience: float,
        is_stopped: Callable[[], bool] = lambda: False,
        show: Callable[[str], None] = lambda text: None,
    ) -> bool:
        """End the exporter; if `send_end` was called, first wait until everything is in MLflow.

        A second call does nothing and returns the same result.

        Args:
            patience: Seconds to wait without progress.
            is_stopped: Returns whether to stop waiting.
            show: Shows the user a text on what the run waits for.

        Returns:
            Whether everything is in MLflow. If not, an exporter that `resume` starts writes the rest.
        """
        if self._is_complete is not None:
            return self._is_complete
        if self._end is not None:
            self._wait_until_recorded(patience, is_stopped, show)
        self._is_complete = self._end is not None and self.process.poll() == errors.EXIT_OK
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        deadline = time.monotonic() + END_WAIT
        while self.process.poll() is None and time.monotonic() < deadline and not is_stopped():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.2)
        if self.process.poll() is None:
            self._kill()
        return self._is_complete

    def _wait_until_recorded(self, patience: float, is_stopped: Callable[[], bool], show: Callable[[str], None]) -> None:
        """Wait until the exporter exits, as it does when everything is in MLflow. For the arguments see `close`."""
        deadline, previous = time.monotonic() + patience, self.progress
        while self.process.poll() is None and time.monotonic() < deadline and not is_stopped():
            show(self._progress_message())
            self._exchange(timeout=0.2)
            has_moved_on = (self.progress.ended, self.progress.files) != (previous.ended, previous.files)
            if has_moved_on:
                previous, deadline = self.progress, time.monotonic() + patience

    def _progress_message(self) -> str:
        """Return a text for the user: how many trials are in MLflow, and after the last one how many files are missing."""
        progress = self.progress
        if progress.trials < self._ended_trials:
            return f"recording in MLflow: {progress.trials} of {self._ended_trials} trials"
        if progress.files:
            return f"recording in MLflow: {errors.counted(progress.files, 'file')} left"
        return "recording in MLflow"

    def _start(self) -> None:
        """Start the process; send it the order, and the run's end if it is known."""
        environment = {
            **os.environ,
            # MLflow's client must not repeat a request by itself. The exporter does that, and has to know of a failure soon.
            # The client would also repeat `create_run` after its response was lost, and so create two runs.
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
            "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
            env.MLFLOW_TRACKING_URI: self._uri,  # not an argument, which other users can read: it may hold a password
            **({env.MLFLOW_TOKEN: self._token} if self._token else {}),
        }
        with self._run.controller_log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trialplane.exporter", str(self._run.root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                bufsize=0,
                preexec_fn=_prepare_process,
            )
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._send(records.to_json(self._order).encode() + b"\n")
        if self._end is not None:
            self.send_end(self._end, self._ended_trials)

    def _restart(self) -> None:
        """Start a new process after one has died."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self._partial_line = self._unsent = b""
        self._start()

    def _kill(self) -> None:
        """Kill the process. Nothing is lost: another exporter can continue."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a file system that hangs may hold even a killed process
            self.process.wait(timeout=END_WAIT)

    def _send(self, lines: bytes = b"") -> None:
        """Send lines to the exporter, after those that are unsent, as far as the pipe has room for them."""
        self._unsent += lines
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the exporter has died; `_exchange` detects that and restarts it
            written_count = self.process.stdin.write(self._unsent) or 0  # None if the pipe is full
            self._unsent = self._unsent[written_count:]

    def _exchange(self, timeout: float) -> None:
        """Send what is unsent, and receive the exporter's messages. Restart the exporter if it has died.

        Args:
            timeout: Seconds to wait at most for the first message.
        """
        if self._unsent:
            self._send()
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], max(0.0, timeout))[0]:
            return
        received = os.read(stdout.fileno(), 65536)
        if not received:  # it has closed its output
            self._handle_exit()
            return
        *complete_lines, self._partial_line = (self._partial_line + received).split(b"\n")
        for line in complete_lines:
            self.progress = records.from_dict(Progress, json.loads(line))

    def _handle_exit(self) -> None:
        """Restart an exporter that has closed its output, unless it has exited because everything is in MLflow."""
        try:
            exit_code: int | None = self.process.wait(timeout=END_WAIT)
        except subprocess.TimeoutExpired:
            exit_code = None
            self._kill()
        has_finished = exit_code == errors.EXIT_OK and self._end is not None
        if not has_finished:
            self._restart()


def _prepare_process() -> None:
    """Lower the priority of a new exporter before its program starts, and let the kernel kill it with this process."""
    process.end_with_parent()
    os.nice(NICENESS)
    os.setsid()
    # Where Linux schedules sessions as groups, niceness only counts within a session, so the session gets one too.
    with contextlib.suppress(OSError):  # this kernel does not schedule sessions as groups
        os.write(os.open("/proc/self/autogroup", os.O_WRONLY), str(NICENESS).encode())
