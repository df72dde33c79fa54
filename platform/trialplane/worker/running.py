"""The trial that runs in a slot: its process, its messages so far, and its limits of time and memory.

It starts nothing and communicates only with the process; the rest is the slot's. Actions at later times are in `Timers`:

    timer         set by                          when it is due
    deadline      the start                       SIGABRT: the trial took too long. Moves with the controller's answers
    linger        the outcome                     SIGABRT: the process still has not exited
    abort         SIGABRT                         SIGKILL: the process has written its stacks, or never will
    exit notice   the outcome                     the controller learns that the process has not exited
    hand over     a report, a request             messages of the process go to the controller
    exchange      a message of a collection       the same
    log           the start, each handing over    the same, if the log is sent and has grown
    read          the start, each reading         a program's metrics are read from what it has written
    template      a task of the template          SIGKILL for the template, which does not answer (slot.py)

Only the slot's thread uses them, and only while it waits for the process. Limits that must not wait for the controller
have a thread: the limit of memory, and the time to end after SIGTERM.
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
from trialplane.worker import outcomes, pausing, sessions, shipping, stopping
from trialplane.worker.channel import Channel
from trialplane.worker.collect.exchange import Exchange
from trialplane.worker.metrics.reader import INTERVAL, Reader
from trialplane.worker.timers import Timers

FLUSH_INTERVAL = 0.5  # seconds between events of a trial that does not wait for answers
LOG_INTERVAL = 2.0  # seconds between reads of a log that is sent
WATCH_INTERVAL = 1.0  # seconds between checks of what other threads or processes change
ABORT_GRACE = 2.0  # seconds between SIGABRT, which writes the stacks to the log, and SIGKILL
OVER_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for a program that was pruned, or that a stop rule ended
SEND_PATIENCE = 60.0  # seconds for the process to read what the slot sends, which is never much
MOST_SUGGESTIONS = 10_000  # requests of an objective for parameters; it may have a tenth as many parameters
STOP_MARGIN = 2.0  # seconds on top of a trial's grace, which it enforces itself, to report how it ended
TEMPLATE_PATIENCE = 60.0  # seconds for the template to start the process, or to report its exit; either takes milliseconds
EXIT_NOTICE = 5.0  # seconds after its result, before a process that has not exited is worth a message
KILLED_PATIENCE = 10.0  # the same for a process that is to be killed, as a user waits for it

# Timers of which an unread message may be the end: the result they wait for, or a report that waits for an answer.
AFTER_MESSAGES = ("deadline", "linger", "exchange")

Messages = tuple[messages.FromSlot, ...]


@dataclasses.dataclass
class Running:
    """The trial that runs now. `kill` and `stop` may be called from another thread than the slot's."""

    config: records.SlotConfig
    request: records.TrialRequest
    channel: Channel[messages.ToTrial, messages.FromTrial]
    workdir: Path
    began: float
    pid: int = 0
    handle: int | None = None  # descriptor of the process (pidfd): unlike its pid it is never reused
    template_since: float | None = None  # since when the template's answer is due: the process has started, or exited
    template_end: str = "died"  # how the template ended, if it ended first
    method: str = ""
    reader: Reader | None = None  # of a program's metrics
    timers: Timers[Messages | None] = dataclasses.field(default_factory=Timers)  # an action returns what to hand over
    is_open: bool = True  # the channel, at the process's end
    size: int = 0  # bytes of its log, written before it ended
    printed: int | None = None  # bytes of its log when it exited; the rest is not from this process
    suggestion_requests: int = 0
    names: set[str] = dataclasses.field(default_factory=set)  # of the parameters that it has requested
    is_repeated: bool = False  # whether its newest request is for one of those
    over: tuple[TrialState, str] | None = None  # an end that the slot has decided: pruned, paused, or a stop rule
    reports: list[records.TrialReport] = dataclasses.field(default_factory=list)
    taken: list[records.TrialReport] = dataclasses.field(default_factory=list)  # those that the controller received last
    exited: messages.TrialExited | None = None  # how the process ended; None also when the template is gone
    last: Mapping[str, float] = dataclasses.field(default_factory=dict)  # metrics of the newest report
    final: records.TrialOutcome | None = None  # the outcome that the process reported
    final_at: float = 0.0  # by the monotonic clock, as all times here but `began`
    is_overdue: bool = False  # whether it was killed because it had not ended long after that
    killed: tuple[FailureClass, str] | None = None
    stopping: str = ""  # why a stop was requested
    stopped_at: float = 0.0
    grace_timer: threading.Timer | None = None  # kills a process that does not stop
    log: shipping.Log | None = None  # when it is shipped
    reported_at: float = 0.0  # when the process sent its newest report
    taken_at: float = dataclasses.field(default_factory=lambda: time.monotonic())  # of the newest event, or the start
    credited_until: float = 0.0  # up to when the controller's time has been added to the deadline
    blocked: bool = False  # whether the process waits for the answer to a report, if it is prunable
    waiting: bool = False  # whether the controller has that report
    suggestion: messages.Suggest | None = None  # the request on which the process waits, until it is handed over
    exchange: Exchange | None = None  # of a collection's trial
    pause: pausing.Pause = dataclasses.field(init=False)  # of a program, and of what libraries log
    is_gone: threading.Event = dataclasses.field(default_factory=threading.Event)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    sending: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.pause = pausing.Pause(self.request.segment)
        self.channel.set_patience(SEND_PATIENCE)
        now = time.monotonic()
        if self.request.timeout is not None:
            self.timers.set("deadline", now + self.request.timeout, self._check_deadline)
        if self.reader is not None:
            self.timers.set("read", now, self.read_metrics)
        if self.log is not None:
            self.timers.set("log", now + LOG_INTERVAL, self._take_any)

    def send(self, message: messages.ToTrial) -> None:
        """Send a message to the process, unless it is gone. May be called from any thread."""
        with self.sending, contextlib.suppress(OSError):  # an ended process has closed its end, and the slot the other
            try:
                self.channel.send(message)
            except TimeoutError:
                text = f"did not read its slot's messages within {SEND_PATIENCE:g} s"
                self.kill(FailureClass.INVALID, f"the process {text}, and was killed for that")

    def due(self) -> Messages | None:
        """Run the actions that are due, until one returns messages for the controller."""
        reads_first = self.exchange is not None or self.request.prunable
        unread = reads_first and self.is_open and self.channel.is_readable()
        for action in self.timers.due(without=AFTER_MESSAGES if unread else ()):
            if (taken := action()) is not None:
                return taken
        return None

    def take(self) -> Messages:
        """Return the trial's messages so far, for the controller."""
        self.taken_at = time.monotonic()
        self.timers.cancel("hand over", "exchange")
        if self.log is not None:
            self.timers.set("log", self.taken_at + LOG_INTERVAL, self._take_any)
        reports, self.taken, self.reports = self.reports, self.reports, []
        self.waiting = self.blocked
        log = b"" if self.log is None else self.log.grown()
        news: Messages = () if self.exchange is None else self.exchange.news()
        if self.suggestion is not None:
            news, self.suggestion = (*news, self.suggestion), None
        return (*piece(log), *reports, *news)

    def _take_any(self) -> Messages | None:
        return self.take() or None

    def _notice_exit(self) -> Messages:
        return (*self.take(), messages.Exiting())

    def receive(self) -> bool:
        """Read what the process has sent; False when its channel is closed, or it is killed for an invalid message."""
        try:
            for message in self.channel.read():
                if isinstance(message, messages.Reported):
                    self.reported(message)
                elif isinstance(message, messages.Suggest):
                    self.request_suggestion(message)
                elif isinstance(message, messages.Ended):
                    self.returned(message.outcome)
                elif isinstance(message, messages.Printed):
                    self.printed = message.printed
                else:
                    assert self.exchange is not None, "only a collection's process may send these messages"
                    self.exchange.receive(message)
                    if (moment := self.exchange.report_at) is not None:
                        self.timers.set("exchange", moment, self.take)
        except (EOFError, errors.MessageError) as error:
            if isinstance(error, errors.MessageError):
                self.kill(FailureClass.INVALID, f"{error}; the process was killed")
            self.is_open = False
            self.timers.cancel("read", "exchange")  # the rest is reported with its end
        return self.is_open

    def _hand_over(self) -> None:
        """Schedule the handing over of messages: at once if the process, or a study's pruner, waits for them."""
        is_urgent = self.request.prunable or self.suggestion is not None
        self.timers.set("hand over", time.monotonic() if is_urgent else self.taken_at + FLUSH_INTERVAL, self.take)

    def reported(self, report: messages.Reported) -> None:
        """Handle a report of a step.

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
        self._hand_over()
        self.last, self.reported_at = report.metrics, report.sent
        self.blocked = self.request.prunable and report.waits
        if self.reader is not None:
            self.reader.leave_out(report.metrics)
        if not report.waits:
            self._stop_early(report.step, report.metrics)

    def request_suggestion(self, suggest: messages.Suggest) -> None:
        """Handle a request for the value of a parameter.

        Raises:
            MessageError: its parameters were drawn before it began, it has not waited for the last answer, or it sends too
                many requests.
        """
        if not self.request.objectives:
            raise errors.MessageError("a trial sent a request for a parameter, and only an objective of Optuna may")
        if self.suggestion is not None:
            raise errors.MessageError("a trial sent two requests for parameters at once; send them one after another")
        self.suggestion_requests += 1
        if self.suggestion_requests > MOST_SUGGESTIONS:
            raise errors.MessageError(
                f"a trial sent more than {MOST_SUGGESTIONS} requests for parameters; request each of them once"
            )
        self.suggestion, self.is_repeated = suggest, suggest.name in self.names
        self.names.add(suggest.name)
        self._hand_over()

    def read_metrics(self, *, ended: bool = False) -> None:
        """Read what a program has written, and make reports of the metrics in it."""
        if self.reader is None:
            return
        now = time.monotonic()
        if not ended:
            if self.final is not None:
                return  # what its exit hooks print is read at the end
            self.timers.set("read", now + INTERVAL, self.read_metrics)
            with contextlib.suppress(OSError):  # there is no log yet
                size = self.reader.log.stat().st_size
                if not self.channel.is_readable():  # then the program had not ended before
                    self.size = size
        for step, metrics in self.reader.read(now, ended=ended, printed=self.printed if ended else self.size):
            if self.over is not None:
                return  # what it wrote after its end does not count
            self.reports.append(records.TrialReport(self.request.number, step, metrics, time.time(), ""))
            self._hand_over()
            self.last = {**self.last, **metrics}
            self._stop_early(step, metrics)

    def returned(self, outcome: records.TrialOutcome) -> None:
        """Handle the process's report of how the job's function ended.

        Raises:
            MessageError: the outcome is inconsistent.
        """
        is_whole = self.request.node == 0 and self.reader is None  # those of a program are read
        may_pause = self.request.segment is not None and self.request.segment.rung > 0
        if wrong := _flaw(outcome, self.request.metrics if is_whole else (), may_pause=may_pause):
            raise errors.MessageError(f"a trial sent an outcome {wrong}")
        outcome = dataclasses.replace(outcome, **_bounded(outcome, self.request))
        self.final = dataclasses.replace(outcome, number=self.request.number, started=self._possible(outcome.started))
        self.final_at = time.monotonic()
        self.timers.cancel("deadline")
        self.timers.set("linger", self.final_at + self.config.linger, self._check_linger)  # only exit hooks are left
        self.timers.set("exit notice", self.final_at + EXIT_NOTICE, self._notice_exit)

    def answer(self, prune_at: int | None, suggested: messages.Suggested | None = None) -> None:
        """Answer the report or request on which the process is blocked; postpone its deadline by the time that took.

        A process that is not blocked is ended if it is pruned, and its outcome has the metrics of that step.

        It also moves if the process does not wait for an answer: its messages were not read in that time, so it may have
        been blocked on a full channel. It moves once for each parameter: an objective that asks for one again and again has
        no time for that but its own.
        """
        now, since = time.monotonic(), self.reported_at if self.waiting else self.taken_at
        is_its_own = suggested is not None and self.is_repeated
        if self.request.worker is None and not is_its_own:
            self.timers.postpone("deadline", now - max(since, self.credited_until))
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
        """Record that the process has started; a kill or stop may have been requested before."""
        with self.lock:
            self.pid, self.method, self.handle, self.template_since = pid, method, handle, None
            self.timers.cancel("template")
            if self.killed:
                self._signal(signal.SIGKILL)
            elif self.stopping or self.over is not None:
                self._signal(signal.SIGTERM)

    def template_patience(self) -> float:
        """Seconds in which the template must answer."""
        return KILLED_PATIENCE if self.killed is not None else TEMPLATE_PATIENCE

    def ended(self) -> None:
        """Record that the process is gone; it is not signaled from now on."""
        self.is_gone.set()
        with self.lock:
            if self.handle is not None:
                os.close(self.handle)
                self.handle = None
            if self.grace_timer is not None:
                self.grace_timer.cancel()

    def kill(self, failure: FailureClass, message: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the process as `failure`; the first call decides the reason."""
        with self.lock:
            if self.killed is None:
                self.killed = (failure, message)
                self._signal(number)

    def stop(self, message: str) -> None:
        """Request the process to save a checkpoint and end, and kill it if it has not done so in time."""
        grace = self.config.grace
        with self.lock:
            if self.killed is not None or self.stopping:
                return
            self.stopping, self.stopped_at = message, time.monotonic()
            text = f"{message}; it had not ended {grace:g} s after SIGTERM and was killed"
            self._terminate(grace + STOP_MARGIN, FailureClass.LOST, text)

    def _stop_early(self, step: int, metrics: Mapping[str, float]) -> None:
        """End a program whose report meets one of the job's stop rules, as complete, or that is at a rung, as paused."""
        if rule := stopping.early(self.request.stop, step, metrics):
            self._end_as(TrialState.COMPLETE, f"stopped at step {step}: {rule}")
        self.pause.report(step, metrics)
        if self.pause.requested:
            self._end_as(TrialState.PAUSED, f"paused after step {step}")

    def _end_as(self, state: TrialState, message: str) -> None:
        """End a program whose outcome is decided: by SIGTERM, and if it has not ended in time by SIGKILL."""
        with self.lock:
            if self.killed is not None or self.over is not None:
                return
            if self.final is not None and state is not TrialState.PRUNED:
                return  # it has a result of its own
            self.over = state, message
            grace = self.config.grace if state is TrialState.PAUSED else OVER_GRACE  # to save a checkpoint
            text = f"had not ended {grace:g} s after it was {message}"
            if not self.is_gone.is_set():
                self._terminate(grace, FailureClass.TIMEOUT, text)

    def watch_memory(self, limit: int) -> None:
        """Kill the process when it and its descendants use more than `limit` bytes; return when it is gone.

        For a separate thread: a slot checks nothing while it waits for the controller's answer.
        """
        while not self.is_gone.wait(WATCH_INTERVAL):
            used = sessions.memory(self.pid, enough=limit) if self.pid else 0
            if used > limit:
                text = f"used {used / 2**30:.1f} GiB of memory, over its limit of {limit / 2**30:.1f} GiB"
                self.kill(FailureClass.CRASHED, f"{text}; raise resources.memory")

    def _check_deadline(self) -> None:
        """Kill a process that is over its time."""
        if self.killed is not None or self.final is not None:
            return
        worker = self.request.worker is not None
        if self.exchange is not None and worker:  # its time is that of its next result, and begins again in other threads
            now, deadline = time.monotonic(), self.exchange.deadline
            if deadline is None or now < deadline:
                soon = now + WATCH_INTERVAL
                self.timers.set("deadline", soon if deadline is None else min(deadline, soon), self._check_deadline)
                return
        limit = f"its limit of {self.request.timeout:g} s"
        text = f"had no result within {limit}, raise collect.timeout" if worker else f"took longer than {limit}"
        self._abort(f"{text}; its log ends with the stacks of its threads")

    def _check_linger(self) -> None:
        """Kill a process that has not ended long after its outcome."""
        if self.killed is None:
            self.is_overdue = True
            self._abort("")

    def _abort(self, text: str) -> None:
        """Kill the process, which first writes the stacks of its threads."""
        self.kill(FailureClass.TIMEOUT, text, signal.SIGABRT)
        self.timers.set("abort", time.monotonic() + ABORT_GRACE, self._kill_aborted)

    def _kill_aborted(self) -> None:
        with self.lock:
            self._signal(signal.SIGKILL)

    def outcome(self, code: int | None, lost: str) -> records.TrialOutcome:
        """The outcome that the trial reported, or one for a process that reported none.

        Args:
            code: exit code of its process; None if the template that would know it is gone.
            lost: the message if the template is gone.
        """
        outcome = self.final or records.TrialOutcome(
            number=self.request.number, state=TrialState.FAILED, metrics=self.last, started=self.began
        )
        if self.over is not None:
            state, text = self.over
            decided = records.TrialOutcome(self.request.number, state, metrics=self.last, message=text, started=self.began)
            if state is TrialState.COMPLETE and self.reader is not None:
                return self._completed(dataclasses.replace(decided, early=True), self.reader)
            return decided
        if self.final is not None and self.reader is not None:
            if self.final.state is TrialState.COMPLETE:
                outcome = self._completed(self.final, self.reader)
            else:
                outcome = dataclasses.replace(outcome, metrics={**self.last, **outcome.metrics})
        if self.final is None and self.killed is None and self.reader is not None and code == 0:
            # A script that ended by `os._exit(0)`, or was replaced by another program that ended well: as a command does.
            return self._completed(dataclasses.replace(outcome, state=TrialState.COMPLETE), self.reader)
        if self.final is None:
            failure, text = self.killed or _unexplained(code, self.config.grace, lost)
            if self.killed is None and self.stopping and failure is FailureClass.LOST:
                text = f"{self.stopping}: {text}"
            return dataclasses.replace(outcome, failure=failure, message=text)
        if self.is_overdue:
            late = (
                f"its process had not ended {self.config.linger:g} s after run(ctx) and was killed (does an exit hook "
                "hang?), see budget.exit_timeout; its log ends with the stacks of its threads"
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
        # A program that ends after SIGTERM may not have done all of its work.
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
        """Clamp a time since the epoch to the lifetime of the process; `seconds` may be NaN."""
        return min(max(self.began, seconds), time.time())

    def _terminate(self, seconds: float, failure: FailureClass, message: str) -> None:
        """Send SIGTERM, and kill the process if it has not ended in so many seconds; with the lock held."""
        self.grace_timer = threading.Timer(seconds, self.kill, (failure, message))
        self.grace_timer.daemon = True
        self.grace_timer.start()
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the process, if it has started and not ended; with the lock held."""
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)


def piece(log: bytes) -> tuple[messages.LogGrown, ...]:
    """A piece of the trial's log as a message, if there is one."""
    return (messages.LogGrown(log),) if log else ()


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


def _bounded(report: messages.Reported | records.TrialOutcome, request: records.TrialRequest) -> dict[str, Any]:
    """The fields of a report or an outcome that change when it has more metrics than one may; those that count stay."""
    needed = {*request.metrics, *request.reported, *(rule.metric for rule in request.stop)}
    named = [name for name in report.metrics if name in needed or len(name) <= records.NAME]
    named = sorted(named, key=lambda name: name not in needed)[: records.METRICS]
    if len(named) == len(report.metrics):
        return {}
    text = (
        f"of {len(report.metrics):,} metrics {len(named):,} were recorded: a report or a result has {records.METRICS:,} at "
        f"most, with names of up to {records.NAME} characters; return more as a list or an array"
    )
    return {
        "metrics": {name: report.metrics[name] for name in named},
        "remark": "; ".join(filter(None, (report.remark, text))),
    }


def _flaw(outcome: records.TrialOutcome, needed: tuple[str, ...], *, may_pause: bool) -> str:
    """Return the defect of an outcome from a process, which may run any code; "" if it has none.

    Args:
        outcome: as the process sent it.
        needed: metrics that it must hold if it is complete.
        may_pause: whether it may be paused at a rung.
    """
    if outcome.state not in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.PAUSED, TrialState.FAILED):
        return f"of state {outcome.state}"
    if outcome.state is TrialState.PAUSED and not may_pause:
        return "of state PAUSED, and its trial is at no rung"
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
