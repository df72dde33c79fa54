"""The controller's side of the export to MLflow: keeps the exporter running and wakes it when the ledger has grown.

MLflow takes 30 ms of processor time per trial (measured on its SQLite store), which a thread would take from the controller.
So a process of its own reads the ledger and writes to MLflow (`trialplane.exporter`), whether MLflow answers now or in two
minutes. Nothing is lost with it: the next one continues where MLflow is.
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

END_WAIT = 30.0  # seconds the exporter may take to end


class ExporterProcess:
    """The exporter of one run.

    Args:
        run: the run's files.
        order: where the run's ledger is.
        uri: MLflow's tracking URI.
        token: that MLflow asks for, as the gateway does; "" for none.
    """

    def __init__(self, run: RunPaths, order: Order, uri: str, *, token: str = "") -> None:
        self._run = run
        self._order = order
        self._uri = uri
        self._token = token
        self._end: End | None = None
        self._partial = b""
        self.progress = Progress()
        self._is_complete: bool | None = None  # the result of `close`
        self._trials = 0
        self._start()

    def wake(self) -> None:
        """Tell the exporter that the ledger may have grown."""
        self._tell(b"\n")
        self.tick()

    def tick(self) -> None:
        """Receive the exporter's messages; restart one that died."""
        self._receive(0)

    def end(self, end: End, trials: int = 0) -> None:
        """Tell the exporter how the run ended; it ends once all is in MLflow.

        Args:
            end: state of the run.
            trials: number of trials that have ended.
        """
        self._end, self._trials = end, trials or self._trials
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), True)  # this one must come through, and there is room for it
        self._tell(records.to_json(end).encode() + b"\n")

    @property
    def trouble(self) -> str:
        """The reason why MLflow lacks something; "" when nothing is missing, or only for a moment."""
        return self.progress.away or self.progress.trouble

    def close(
        self,
        patience: float,
        stopped: Callable[[], bool] = lambda: False,
        show: Callable[[str], None] = lambda text: None,
    ) -> bool:
        """Wait until everything is in MLflow, if `end` was called; a second call returns the same result.

        Args:
            patience: seconds to wait while MLflow does not answer.
            stopped: whether to stop waiting.
            show: shows the user what the run waits for.

        Returns:
            Whether everything was written; the rest is written by the next exporter, at `resume`.
        """
        if self._is_complete is None:
            self._is_complete = self._close(patience, stopped, show)
        return self._is_complete

    def _close(self, patience: float, stopped: Callable[[], bool], show: Callable[[str], None]) -> bool:
        deadline, before = time.monotonic() + patience, self.progress
        while self._end is not None and self.process.poll() is None and time.monotonic() < deadline and not stopped():
            show(self._waiting_for())
            self._receive(0.2)
            now = self.progress
            if (now.ended, now.files) != (before.ended, before.files):
                before, deadline = now, time.monotonic() + patience
        is_complete = self._end is not None and self.process.poll() == errors.EXIT_OK
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        deadline = time.monotonic() + END_WAIT
        while self.process.poll() is None and time.monotonic() < deadline and not stopped():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.2)
        if self.process.poll() is None:
            self.process.kill()  # safe at any moment: the next one continues where it was
            self.process.wait()
        return is_complete

    def _waiting_for(self) -> str:
        """The number of trials or files that MLflow lacks, in words."""
        progress = self.progress
        if progress.trials < self._trials:
            return f"recording in MLflow: {progress.trials} of {self._trials} trials"
        return (
            f"recording in MLflow: {errors.counted(progress.files, 'file')} left"
            if progress.files
            else "recording in MLflow"
        )

    def _start(self) -> None:
        environment = {
            **os.environ,
            # The exporter retries by itself while MLflow is away, so a failure must be reported quickly. And requests would
            # send `create_run` again when its response was lost, and create two runs.
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
                preexec_fn=process.end_with_parent,  # it may be stopped, or import for long
            )
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._tell(records.to_json(self._order).encode() + b"\n")
        if self._end is not None:
            self.end(self._end)

    def _restart(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self._partial = b""
        self._start()

    def _tell(self, line: bytes) -> None:
        assert self.process.stdin is not None
        # It died, and `_receive` starts it again; or it has not read thousands of lines, and does not need another one.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            self.process.stdin.write(line)

    def _receive(self, timeout: float) -> None:
        """Receive the exporter's messages, waiting at most `timeout` seconds for the first."""
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], max(0.0, timeout))[0]:
            return
        data = os.read(stdout.fileno(), 65536)
        if not data:
            if self.process.wait() or self._end is None:  # else it has written everything
                self._restart()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self.progress = records.from_dict(Progress, json.loads(line))
