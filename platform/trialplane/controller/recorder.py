"""The controller's side of recording: events are appended to a spool on disk, and a separate process writes them to MLflow.

MLflow takes 30 ms of processor time per trial (measured on its SQLite store), which a thread would take from the
controller. So the controller appends one line per event to `spool/events.jsonl` and continues; the writer process
(`mlflow_writer`) reads the lines, whether MLflow answers now or in two minutes, and reports its progress. After a crash
the writer resumes where it was, and the controller adds the events that the ledger has and the spool lacks. So in the end
MLflow holds exactly what the ledger holds, without duplicates.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from trialplane import errors
from trialplane.training import process
from trialplane.wire import env, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest

log = logging.getLogger(__name__)

END_WAIT = 30.0  # seconds the writer may take to end


class Recorder:
    """Appends events to the spool and keeps the writer process running.

    Args:
        run: the run's files.
        uri: MLflow's tracking URI.
        keeps_folder: whether the run's folder outlives this controller. In a pod it may not: then a former controller's
            records are looked up in MLflow, which keeps all logs.
        token: that MLflow asks for, as the gateway does; "" for none.
    """

    def __init__(self, run: RunPaths, uri: str, *, keeps_folder: bool = True, token: str = "") -> None:
        self._run = run
        self._token = token
        self._uri = uri
        self._keeps_folder = keeps_folder
        run.spool.mkdir(parents=True, exist_ok=True)
        self._seen: set[tuple[str, int]] = set()  # (kind, number) of events in the spool
        self._steps: dict[int, int] = {}  # number → last step reported, of attempts that have not ended
        self._read_spool()
        self._spool = run.events.open("ab")
        self._partial = b""
        self._done = 0  # bytes of the spool that are in MLflow
        self._left = 0  # files on their way there
        self._files = ""  # why files are missing in MLflow
        self.away = ""
        self._complete: bool | None = None  # what `close` answered
        self._ends: list[int] = []  # bytes of the spool up to the end of each attempt
        self._is_over = False  # whether no event will follow
        self._writer = self._start_writer()

    def catch_up(self, attempts: Iterable[tuple[TrialRequest, TrialOutcome | None]]) -> int:
        """Adds to the spool what the ledger holds and the spool lacks, after a crash between the two.

        Args:
            attempts: each with its outcome, unless it is running.

        Returns:
            The number of attempts that were added.
        """
        count = 0
        for request, outcome in attempts:
            started = self.has("started", request.number)
            ended = outcome is None or self.has("ended", request.number)
            if not started:
                self.started(request, uses_mlflow=True)  # its trial may have created its run
            if outcome is not None and not ended:
                self.ended(request, outcome)
            count += not (started and ended)
        return count

    def study(self, facts: Mapping[str, Any]) -> None:
        """Records that the study starts or resumes, with names, parameters and tags of the parent run."""
        self._append("study", {"facts": facts})

    def started(self, request: TrialRequest, *, uses_mlflow: bool) -> None:
        """Record that an attempt starts.

        Args:
            request: the attempt's.
            uses_mlflow: whether its trial may create its MLflow run at once.
        """
        self._append("started", {"request": request, "uses_mlflow": uses_mlflow}, request.number)

    def reported(self, reports: Iterable[TrialReport]) -> None:
        """Records metrics of steps."""
        for report in reports:
            self._note_step(report.number, report.step)
            self._append("report", {"report": report})

    def ended(self, request: TrialRequest, outcome: TrialOutcome, arrays: Path | None = None) -> None:
        """Records an attempt's end; `arrays` is the file of its packed arrays, by default a former controller's."""
        if arrays is None and outcome.arrays and (left := self._run.packed(outcome.number)).exists():
            arrays = left
        event: dict[str, Any] = {"outcome": outcome, "trial": request.trial, "attempt": request.attempt}
        # The writer may have been killed after it read the reports.
        event["step"] = max(outcome.step, self._steps.pop(request.number, 0))
        event["keep_log"] = not self._keeps_folder
        event["params"] = request.params
        self._append("ended", {**event, "arrays": None if arrays is None else str(arrays)}, request.number)
        self._ends.append(self._spool.tell())

    def best(self, metric: str, value: float, trial: int, ended: int) -> None:
        """Records a new best trial of the study, after `ended` trials."""
        self._append("best", {"metric": metric, "value": value, "trial": trial, "ended": ended, "time": time.time()})

    def study_ended(self, state: str, reason: str) -> None:
        """Records that the study ended or was paused, the last event; the writer ends once it has written all of them."""
        event = {"state": state, "reason": reason, "time": time.time(), "keep_log": not self._keeps_folder}
        self._append("study_ended", event)
        self._is_over = True
        self._tell_writer(b"end\n")

    def has(self, kind: str, number: int) -> bool:
        """Whether the spool holds the event of that kind for that attempt."""
        return (kind, number) in self._seen

    def tick(self) -> None:
        """Receives the writer's messages; restarts one that died."""
        self._receive(0)

    @property
    def trouble(self) -> str:
        """Why MLflow lacks something; "" when nothing is missing, or only for a moment."""
        return self.away or self._files

    @property
    def behind(self) -> int:
        """Bytes of the spool that are not in MLflow yet."""
        return self._spool.tell() - self._done

    def close(
        self,
        patience: float,
        stopped: Callable[[], bool] = lambda: False,
        show: Callable[[str], None] = lambda text: None,
    ) -> bool:
        """Waits until everything is in MLflow and ends the writer; a second call returns the same result.

        Args:
            patience: seconds to wait while MLflow does not answer.
            stopped: whether to stop waiting.
            show: tells the user what is waited for.

        Returns:
            Whether everything was written; the rest stays in the spool and is written at the next `resume`.
        """
        if self._complete is None:
            self._complete = self._close(patience, stopped, show)
        return self._complete

    def _close(self, patience: float, stopped: Callable[[], bool], show: Callable[[str], None]) -> bool:
        deadline = time.monotonic() + patience
        before = self._done, self._left
        while (self.behind or self._left) and time.monotonic() < deadline and not stopped():
            show(self._waiting_for())
            self._receive(0.2)
            self.tick()
            if (self._done, self._left) != before:
                before, deadline = (self._done, self._left), time.monotonic() + patience
        complete = not self.behind and not self._left
        if complete:
            self._tell_writer(b"end\n")
        elif self._writer.stdin is not None:
            self._writer.stdin.close()
        deadline = time.monotonic() + END_WAIT
        while self._writer.poll() is None and time.monotonic() < deadline and not stopped():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._writer.wait(timeout=0.2)
        if self._writer.poll() is None:
            self._writer.kill()  # safe at any moment: the next one resumes where it was
            self._writer.wait()
        self._spool.close()
        return complete

    def _waiting_for(self) -> str:
        """What MLflow has not got yet."""
        done = sum(end <= self._done for end in self._ends)
        if done < len(self._ends):
            return f"recording in MLflow: {done} of {len(self._ends)} trials"
        return f"recording in MLflow: {errors.counted(self._left, 'file')} left" if self._left else "recording in MLflow"

    def _append(self, kind: str, event: Mapping[str, Any], number: int | None = None) -> None:
        if number is not None:
            self._seen.add((kind, number))
        line = json.dumps({"kind": kind, **records.to_dict(event)}, allow_nan=False, default=str).encode() + b"\n"
        try:
            self._spool.write(line)
            self._spool.flush()
        except OSError as error:
            raise unavailable(self._run, self._run.events, error) from error

    def _read_spool(self) -> None:
        """Indexes the spool's events, cuts off an unfinished last line, and moves damaged lines to another file."""
        if not self._run.events.exists():
            return
        damaged: list[tuple[int, bytes]] = []
        with self._run.events.open("r+b") as spool:
            end = 0
            for line in spool:
                if not line.endswith(b"\n"):
                    break
                if not line.isspace():
                    try:
                        self._note_event(json.loads(line))
                    except (ValueError, KeyError, TypeError):
                        damaged.append((end, line))
                end += len(line)
            spool.truncate(end)
            if damaged:
                self._set_aside(spool, damaged)

    def _note_event(self, event: Mapping[str, Any]) -> None:
        """Notes an event of the spool."""
        if event["kind"] == "started":
            self._seen.add(("started", int(event["request"]["number"])))
        elif event["kind"] == "report":
            self._note_step(int(event["report"]["number"]), int(event["report"]["step"]))
        elif event["kind"] == "ended":
            number = int(event["outcome"]["number"])
            self._steps.pop(number, None)
            if ("started", number) in self._seen:  # else the writer cannot know its run; both are recorded again
                self._seen.add(("ended", number))

    def _set_aside(self, spool: BinaryIO, damaged: Sequence[tuple[int, bytes]]) -> None:
        """Copies damaged lines into another file and blanks them, so that all others keep their offsets."""
        aside = self._run.damaged_events
        try:
            with aside.open("ab") as file:
                file.writelines(line for _, line in damaged)
            for begin, line in damaged:
                spool.seek(begin)
                spool.write(b" " * (len(line) - 1))
            spool.flush()
        except OSError as error:
            raise unavailable(self._run, self._run.events, error) from error
        log.warning(
            "%s of %s cannot be read, as after a power cut, and moved to %s; the events are recorded again from the ledger",
            *(errors.counted(len(damaged), "line"), self._run.events, aside),
        )

    def _note_step(self, number: int, step: int) -> None:
        self._steps[number] = max(step, self._steps.get(number, 0))

    def _start_writer(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            # The writer retries by itself while MLflow is away, so a failure must be reported quickly. And requests would
            # send `create_run` again when its response was lost, and create two runs.
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
            "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
            env.MLFLOW_TRACKING_URI: self._uri,  # not an argument, which other users can read: it may hold a password
            **({env.MLFLOW_TOKEN: self._token} if self._token else {}),
        }
        command = [sys.executable, "-P", "-m", "trialplane.controller.mlflow_writer", str(self._run.root)]
        with self._run.controller_log.open("ab") as log:
            writer = subprocess.Popen(
                command if self._keeps_folder else [*command, "--look"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                bufsize=0,
                preexec_fn=process.end_with_parent,  # it may be stopped, or import for long
            )
        self._writer = writer
        if self._is_over:
            self._tell_writer(b"end\n")
        return writer

    def _revive(self) -> None:
        for pipe in (self._writer.stdin, self._writer.stdout):
            assert pipe is not None
            pipe.close()
        self._partial = b""
        self._writer = self._start_writer()

    def _tell_writer(self, line: bytes) -> None:
        assert self._writer.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; `_receive` starts it again
            self._writer.stdin.write(line)

    def _receive(self, timeout: float) -> None:
        """Receives the writer's messages, waiting at most `timeout` seconds for the first."""
        stdout = self._writer.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], max(0.0, timeout))[0]:
            return
        data = os.read(stdout.fileno(), 65536)
        if not data:
            if self._writer.wait() or not self._is_over:  # else it has written everything
                self._revive()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "done" in message:
                self._done, self._left, self._files = message["done"], message["left"], message["trouble"]
            self.away = message.get("away", "")


def unavailable(run: RunPaths, file: Path | str, error: OSError) -> errors.LedgerUnavailable:
    """The error for a file of a run that cannot be written, which ends the controller; the run can be resumed."""
    return errors.LedgerUnavailable(
        f"cannot write {file}: {error.strerror}; all records are safe. Make room and type `platform resume {run.root.name}`"
    )
