"""The trial that runs in a slot: its process, its messages so far, and its limits of time and memory.

It starts nothing and communicates only with the process; the rest is the slot's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.wire import messages, records
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import outcomes, sessions, shipping, stopping
from trialplane.worker.channel import Channel
from trialplane.worker.collect.exchange import Exchange
from trialplane.worker.metrics.reader import INTERVAL, Reader

WATCH_INTERVAL = 1.0  # seconds between checks of the trial's memory
ABORT_GRACE = 2.0  # seconds between SIGABRT, which writes the stacks to the log, and SIGKILL
OVER_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for a program that was pruned, or that a stop rule ended
SEND_PATIENCE = 60.0  # seconds for the process to read what the slot sends, which is never much
MOST_ASKED = 10_000  # requests of an objective for parameters, of which it may have a tenth
STOP_MARGIN = 2.0  # seconds on top of a trial's grace, which it enforces itself, to report how it ended
TEMPLATE_PATIENCE = 60.0  # seconds for the template to start the process, or to report its exit; either takes milliseconds
EXIT_NOTICE = 5.0  # seconds after its result, before a process that has not exited is worth a message
KILLED_PATIENCE = 10.0  # the same for a process that is to be killed, as somebody waits for that


@dataclasses.dataclass
class Running:
    """The trial that runs now. `kill` and `stop` may be called from another thread than the slot's."""

    request: records.TrialRequest
    channel: Channel[messages.ToTrial, messages.FromTrial]
    workdir: Path
    began: float
    deadline: float | None
    pid: int = 0
    handle: int | None = None  # descriptor of the process (pidfd): unlike its pid it is never reused
    template_since: float | None = None  # since when the template owes an answer: that it has started, or has exited
    template_end: str = "died"  # how the template went, where it went first
    method: str = ""
    reader: Reader | None = None  # of a program's metrics
    size: int = 0  # bytes of its log, of which it had not ended before
    printed: int | None = None  # bytes of its log when it exited; what follows is of others
    read_at: float = 0.0  # when it reads next
    asked: int = 0  # requests for parameters
    names: set[str] = dataclasses.field(default_factory=set)  # of the parameters that it has asked for
    is_repeated: bool = False  # whether its newest request is for one of those
    over: tuple[TrialState, str] | None = None  # how it ends, where the process was not told: pruned, or by a stop rule
    reports: list[records.TrialReport] = dataclasses.field(default_factory=list)
    taken: list[records.TrialReport] = dataclasses.field(default_factory=list)  # those that the controller received last
    exited: messages.TrialExited | None = None  # how the process ended; None also when the template is gone
    last: Mapping[str, float] = dataclasses.field(default_factory=dict)  # metrics of the newest report
    final: records.TrialOutcome | None = None  # the outcome that the process reported
    final_at: float = 0.0  # by the monotonic clock, as all times here but `began`
    exit_notice_at: float | None = None  # when the controller is to hear that it has not exited
    is_overdue: bool = False  # whether it was killed because it had not ended long after that
    killed: tuple[FailureClass, str] | None = None
    kill_at: float | None = None
    stopping: str = ""  # why a stop was requested
    stopped_at: float = 0.0
    timer: threading.Timer | None = None  # kills a process that does not stop
    flush_at: float = 0.0
    log: shipping.Log | None = None  # when it is shipped
    log_at: float = 0.0  # when to read it next
    reported_at: float = 0.0  # when the process sent its newest report
    taken_at: float | None = None  # when the controller received the newest event
    credited_until: float = 0.0  # up to when the controller's time has been added to the deadline
    blocked: bool = False  # whether the process waits for the answer to a report, if it is prunable
    waiting: bool = False  # whether the controller has that report
    wanted: messages.Suggest | None = None  # the parameter that the process waits for, until the controller has that
    exchange: Exchange | None = None  # of a collection's trial
    is_gone: threading.Event = dataclasses.field(default_factory=threading.Event)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    sending: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.channel.set_patience(SEND_PATIENCE)

    def send(self, message: messages.ToTrial) -> None:
        """Sends a message to the process, unless it is gone. May be called from any thread."""
        with self.sending, contextlib.suppress(OSError):  # an ended process has closed its end, and the slot the other
            try:
                self.channel.send(message)
            except TimeoutError:
                text = f"did not read its slot's messages within {SEND_PATIENCE:g} s"
                self.kill(FailureClass.INVALID, f"the process {text}, and was killed for that")

    def reported(self, report: messages.Reported) -> None:
        """Handles a report of a step.

        Raises:
            MessageError: the step is out of range.
        """
        if not 0 <= report.step < records.STEPS:
            raise errors.MessageError(f"a trial sent a report of step {report.step}; they go from 0 to {records.STEPS - 1}")
        if self.over is not None and not report.waits:
            return  # what it reports after its end does not count
        report = dataclasses.replace(report, **_bounded(report, self.request))
        when = self._possible(report.time)
        self.reports.append(records.TrialReport(self.request.number, report.step, report.metrics, when, report.remark))
        self.last, self.reported_at = report.metrics, report.sent
        self.blocked = self.request.prunable and report.waits
        if self.reader is not None:
            self.reader.leave_out(report.metrics)
        if not report.waits:
            self._stop_early(report.step, report.metrics)

    def wants(self, suggest: messages.Suggest) -> None:
        """Handles a request for the value of a parameter.

        Raises:
            MessageError: its parameters were drawn before it began, it has not waited for the last answer, or it never stops
                to ask.
        """
        if not self.request.objectives:
            raise errors.MessageError("a trial sent a request for a parameter, and only an objective of Optuna may")
        if self.wanted is not None:
            raise errors.MessageError("a trial sent two requests for parameters at once; ask for them one after another")
        self.asked += 1
        if self.asked > MOST_ASKED:
            raise errors.MessageError(
                f"a trial sent more than {MOST_ASKED} requests for parameters; ask once for each of them"
            )
        self.wanted, self.is_repeated = suggest, suggest.name in self.names
        self.names.add(suggest.name)

    def read(self, *, ended: bool = False) -> None:
        """Reads what a program has written, and makes reports of the metrics in it."""
        if self.reader is None:
            return
        now = time.monotonic()
        self.read_at = now + INTERVAL
        if not ended:
            if self.final is not None:
                return  # what its exit hooks print is read at the end
            with contextlib.suppress(OSError):  # there is no log yet
                size = self.reader.log.stat().st_size
                if not self.channel.is_readable():  # then the program had not ended before
                    self.size = size
        for step, metrics in self.reader.read(now, ended=ended, printed=self.printed if ended else self.size):
            if self.over is not None:
                return  # what it wrote after its end does not count
            self.reports.append(records.TrialReport(self.request.number, step, metrics, time.time(), ""))
            self.last = {**self.last, **metrics}
            self._stop_early(step, metrics)

    def returned(self, outcome: records.TrialOutcome) -> None:
        """Handles the process's report of how the job's function ended.

        Raises:
            MessageError: the outcome is inconsistent.
        """
        is_whole = self.request.node == 0 and self.reader is None  # those of a program are read
        if wrong := _flaw(outcome, self.request.metrics if is_whole else ()):
            raise errors.MessageError(f"a trial sent an outcome {wrong}")
        outcome = dataclasses.replace(outcome, **_bounded(outcome, self.request))
        self.final = dataclasses.replace(outcome, number=self.request.number, started=self._possible(outcome.started))
        self.final_at = time.monotonic()
        self.exit_notice_at = self.final_at + EXIT_NOTICE

    def answer(self, prune_at: int | None, suggested: messages.Suggested | None = None) -> None:
        """Answers the report or request on which the process is blocked, if any; its deadline moves by the time that took.

        A process that is not blocked is ended if it is pruned, and its outcome has the metrics of that step.

        It also moves if the process does not wait for an answer: its messages were not read in that time, so it may have
        been blocked on a full channel. It moves once for each parameter: an objective that asks for one again and again has
        no time for that but its own.
        """
        since = self.reported_at if self.waiting else self.taken_at
        if since is not None:
            now = time.monotonic()
            is_its_own = suggested is not None and self.is_repeated
            if self.deadline is not None and not is_its_own:
                self.deadline += now - max(since, self.credited_until)
            self.credited_until = now
        if self.waiting:
            self.waiting = self.blocked = False
            self.send(messages.AnswerReport(prune_at))
        elif prune_at is not None:
            self.last = next((report.metrics for report in reversed(self.taken) if report.step == prune_at), self.last)
            self._end_as(TrialState.PRUNED, f"pruned at step {prune_at}")
        if suggested is not None:
            self.send(suggested)

    def started(self, pid: int, method: str, handle: int) -> None:
        """Records that the process has started, perhaps only after it was to be ended."""
        with self.lock:
            self.pid, self.method, self.handle, self.template_since = pid, method, handle, None
            if self.killed:
                self._signal(signal.SIGKILL)
            elif self.stopping or self.over is not None:
                self._signal(signal.SIGTERM)

    def template_patience(self) -> float:
        """Seconds for which the template may take to answer."""
        return KILLED_PATIENCE if self.killed is not None else TEMPLATE_PATIENCE

    def ended(self) -> None:
        """Records that the process is gone; it is not signalled from now on."""
        self.is_gone.set()
        with self.lock:
            if self.handle is not None:
                os.close(self.handle)
                self.handle = None
            if self.timer is not None:
                self.timer.cancel()

    def kill(self, failure: FailureClass, message: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kills the process as `failure`; the first call decides the reason."""
        with self.lock:
            if self.killed is None:
                self.killed = (failure, message)
                self._signal(number)

    def stop(self, message: str, grace: float) -> None:
        """Requests the process to save a checkpoint and end, and kills it if it has not done so in time."""
        with self.lock:
            if self.killed is not None or self.stopping:
                return
            self.stopping, self.stopped_at = message, time.monotonic()
            text = f"{message}; it had not ended {grace:g} s after SIGTERM and was killed"
            self._terminate(grace + STOP_MARGIN, FailureClass.LOST, text)

    def _stop_early(self, step: int, metrics: Mapping[str, float]) -> None:
        """Ends a program whose report meets one of the job's stop rules, as complete."""
        if why := stopping.early(self.request.stop, step, metrics):
            self._end_as(TrialState.COMPLETE, f"stopped at step {step}: {why}")

    def _end_as(self, state: TrialState, message: str) -> None:
        """Ends a program whose outcome is decided: by SIGTERM, and if it has not ended in time by SIGKILL."""
        with self.lock:
            if self.killed is not None or self.over is not None:
                return
            if self.final is not None and state is TrialState.COMPLETE:
                return  # it has a result of its own
            self.over = state, message
            text = f"had not ended {OVER_GRACE:g} s after it was {message}"
            if not self.is_gone.is_set():
                self._terminate(OVER_GRACE, FailureClass.TIMEOUT, text)

    def watch_memory(self, limit: int) -> None:
        """Kills the process when it and its descendants use more than `limit` bytes; returns when it is gone.

        For a separate thread: a slot checks nothing while it waits for the controller's answer.
        """
        while not self.is_gone.wait(WATCH_INTERVAL):
            used = sessions.memory(self.pid, enough=limit) if self.pid else 0
            if used > limit:
                text = f"used {used / 2**30:.1f} GiB of memory, over its limit of {limit / 2**30:.1f} GiB"
                self.kill(FailureClass.CRASHED, f"{text}; raise resources.memory")

    def enforce_limits(self, linger: float) -> float | None:
        """Kills the process when it is over its time; returns the seconds until the next check, None for never.

        Args:
            linger: seconds it may take to end after it has reported its outcome.
        """
        now = time.monotonic()
        if self.exchange is not None and self.request.worker is not None:
            self.deadline = self.exchange.deadline
        if self.kill_at is not None:
            if now < self.kill_at:
                return self.kill_at - now
            with self.lock:
                self._signal(signal.SIGKILL)
            self.kill_at = None
        if self.killed is not None:
            return None
        if self.final is not None:  # only the job's exit hooks are left
            if now < self.final_at + linger:
                return self.final_at + linger - now
            self.is_overdue = True
            self.kill(FailureClass.TIMEOUT, "", signal.SIGABRT)
            self.kill_at = now + ABORT_GRACE
            return ABORT_GRACE
        waits = []
        if self.deadline is not None:
            if now >= self.deadline:
                limit = f"its limit of {self.request.timeout:g} s"
                worker = self.request.worker is not None
                text = f"had no result within {limit}, raise collect.timeout" if worker else f"took longer than {limit}"
                text += "; its log ends with the stacks of its threads"
                self.kill(FailureClass.TIMEOUT, text, signal.SIGABRT)
                self.kill_at = now + ABORT_GRACE
                return ABORT_GRACE
            waits.append(self.deadline - now)
        if self.request.worker is not None:
            waits.append(WATCH_INTERVAL)  # another thread may just have handed it units
        return min(waits, default=None)

    def outcome(self, code: int | None, grace: float, linger: float, lost: str) -> records.TrialOutcome:
        """The outcome that the trial reported, or one for a process that reported none.

        Args:
            code: exit code of its process; None if the template that would know it is gone.
            grace: seconds it had after SIGTERM.
            linger: seconds it had to end after its report.
            lost: the message if the template is gone.
        """
        outcome = self.final or records.TrialOutcome(
            number=self.request.number, state=TrialState.FAILED, metrics=self.last, started=self.began
        )
        if self.over is not None:
            state, text = self.over
            made = records.TrialOutcome(self.request.number, state, metrics=self.last, message=text, started=self.began)
            if state is TrialState.COMPLETE and self.reader is not None:
                return self._completed(dataclasses.replace(made, early=True), self.reader)
            return made
        if self.final is not None and self.reader is not None:
            if self.final.state is TrialState.COMPLETE:
                outcome = self._completed(self.final, self.reader)
            else:
                outcome = dataclasses.replace(outcome, metrics={**self.last, **outcome.metrics})
        if self.final is None and self.killed is None and self.reader is not None and code == 0:
            # A script that ended by `os._exit(0)`, or was replaced by another program that ended well: as a command does.
            return self._completed(dataclasses.replace(outcome, state=TrialState.COMPLETE), self.reader)
        if self.final is None:
            failure, text = self.killed or _unexplained(code, grace, lost)
            if self.killed is None and self.stopping and failure is FailureClass.LOST:
                text = f"{self.stopping}: {text}"
            return dataclasses.replace(outcome, failure=failure, message=text)
        if self.is_overdue:
            late = (
                f"its process had not ended {linger:g} s after run(ctx) and was killed (does an exit hook hang?), see "
                "budget.exit_timeout; its log ends with the stacks of its threads"
            )
            return dataclasses.replace(outcome, message="; ".join(filter(None, (outcome.message, late))))
        if self.stopping and outcome.failure is FailureClass.LOST:
            return dataclasses.replace(outcome, message=f"{self.stopping}: {outcome.message}")
        return outcome

    def _completed(self, outcome: records.TrialOutcome, reader: Reader) -> records.TrialOutcome:
        """The outcome of a program that ended well, with the metrics that were read."""
        metrics = {**reader.newest, **outcome.metrics}
        for name in self.request.reported:  # the best report counts: one that diverges at the end has had a value
            if name in reader.finite and not math.isfinite(metrics.get(name, math.nan)):
                metrics[name] = reader.finite[name]
        # Whether a program that ends after SIGTERM had done all of its work, only it knows.
        if self.stopping and (self.final is None or self.stopped_at < self.final_at):
            failure, text, at = FailureClass.LOST, "it ended after SIGTERM", ""
        elif missing := [name for name in self.request.metrics if not math.isfinite(metrics.get(name, math.nan))]:
            at = "; ".join(f"{name} is {'not finite' if name in metrics else 'missing'}" for name in missing)
            failure, text = FailureClass.INVALID, reader.missing(missing, metrics)
        else:
            remarks = (outcome.message, *reader.remarks, *stopping.unreported(self.request.stop, metrics))
            return dataclasses.replace(outcome, metrics=metrics, message="; ".join(filter(None, remarks)))
        return dataclasses.replace(
            outcome, state=TrialState.FAILED, failure=failure, message=text, metrics=metrics, place=at
        )

    def _possible(self, seconds: float) -> float:
        """Clamps a time since the epoch to the lifetime of the process; `seconds` may be NaN."""
        return min(max(self.began, seconds), time.time())

    def _terminate(self, seconds: float, failure: FailureClass, message: str) -> None:
        """Sends SIGTERM, and kills the process if it has not ended in so many seconds; with the lock held."""
        self.timer = threading.Timer(seconds, self.kill, (failure, message))
        self.timer.daemon = True
        self.timer.start()
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Signals the process, if it has started and not ended; with the lock held."""
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)


def taken_from(config: records.SlotConfig, request: records.TrialRequest) -> messages.Direction[messages.FromTrial]:
    """The messages that are accepted from the process of such a trial."""
    if config.role == "trial":
        return messages.FROM_TRIAL
    return messages.FROM_LEARNER if request.worker is None else messages.FROM_WORKER


def with_arrays(outcome: records.TrialOutcome, file: Path) -> tuple[records.TrialOutcome, str | None]:
    """The outcome and the file of its arrays; INVALID if the process has not written the file it announced."""
    if not file.is_symlink() and file.is_file() and file.stat().st_size == outcome.arrays:
        return outcome, str(file)
    text = f"the {outcome.arrays:,} bytes of arrays of its result are not in {file}"
    failed = dataclasses.replace(outcome, state=TrialState.FAILED, failure=FailureClass.INVALID, message=text, arrays=0)
    return failed, None


def _bounded(found: messages.Reported | records.TrialOutcome, request: records.TrialRequest) -> dict[str, Any]:
    """The fields of a report or an outcome that change when it has more metrics than one may; those that count stay."""
    needed = {*request.metrics, *request.reported, *(rule.metric for rule in request.stop)}
    named = [name for name in found.metrics if name in needed or len(name) <= records.NAME]
    named = sorted(named, key=lambda name: name not in needed)[: records.METRICS]
    if len(named) == len(found.metrics):
        return {}
    text = (
        f"of {len(found.metrics):,} metrics {len(named):,} were recorded: a report or a result has {records.METRICS:,} at "
        f"most, with names of up to {records.NAME} characters; return more as a list or an array"
    )
    return {
        "metrics": {name: found.metrics[name] for name in named},
        "remark": "; ".join(filter(None, (found.remark, text))),
    }


def _flaw(outcome: records.TrialOutcome, needed: tuple[str, ...]) -> str:
    """What is wrong with an outcome from a process, which may run any code; "" if nothing.

    Args:
        outcome: as the process sent it.
        needed: metrics that it must hold if it is complete.
    """
    if outcome.state not in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED):
        return f"of state {outcome.state}"
    if (outcome.state is TrialState.FAILED) != (outcome.failure is not None):
        return f"of state {outcome.state} with failure {outcome.failure}"
    if outcome.arrays < 0 or outcome.peak_memory < 0:
        return "with a negative number of bytes"
    missing = [name for name in needed if not math.isfinite(outcome.metrics.get(name, math.nan))]
    return f"without a finite number for {', '.join(missing)}" if missing and outcome.state is TrialState.COMPLETE else ""


def _unexplained(code: int | None, grace: float, lost: str) -> tuple[FailureClass, str]:
    """The failure of a process that ended without reporting an outcome."""
    if code is None:
        return FailureClass.LOST, lost
    if code == -signal.SIGTERM:  # it had no handler yet, or the job does not handle it
        return FailureClass.LOST, "stopped by SIGTERM at once, without a checkpoint"
    if code == -signal.SIGALRM:
        return FailureClass.LOST, f"stopped by SIGTERM; it had not ended after {grace:g} s, see ctx.stopping"
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (probably by the kernel, out of memory)" if -code == signal.SIGKILL else ""
        return FailureClass.CRASHED, f"the process was killed by {name}{hint}"
    return FailureClass.INVALID if code == 0 else FailureClass.CRASHED, f"the process {outcomes.without_result(code)}"
