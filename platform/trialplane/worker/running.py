"""The trial that runs in a slot: its process, its messages so far, and its limits of time and memory.

A slot runs one trial after another for the controller, each in a process that its template forks. This module communicates
only with the trial's process. Messages are handed over to the controller as the result of its call to the slot. Actions at
later times are in `Timers`:

    timer         set by                          when it is due
    deadline      the start                       SIGABRT: the trial took too long. Moves with the controller's answers
    linger        the outcome                     SIGABRT: the process still has not exited
    abort         SIGABRT                         SIGKILL: the process has written its stacks, or never will
    samples       the start, each hand-over       the samples of system metrics go to the controller, if the job wants them
    exit notice   the outcome                     the controller is told that the process has not exited
    hand over     a report, a request             messages of the process go to the controller
    exchange      a message of a collection       messages of the process go to the controller
    log           the start, each hand-over       the log's new part goes to the controller, if the log is sent
    read          the start, each read            a program's metrics are read from its output and files
    template      a request to the template       SIGKILL for the template, which does not answer (slot.py)

Only the slot's thread uses the timers, and only while it waits for the process. Limits that must also hold while the slot
waits for the controller have a thread: the limit of memory, and the time to end after SIGTERM. So have samples of system
metrics, because a driver may take long to answer.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.wire import messages, ranks, records
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import pausing, sampling, sessions, shipping, stopping
from trialplane.worker.channel import Channel
from trialplane.worker.collect.exchange import Exchange
from trialplane.worker.metrics.reader import INTERVAL, Reader
from trialplane.worker.metrics.steps import Report
from trialplane.worker.timers import Timers

FLUSH_INTERVAL = 0.5  # seconds between events of a trial that does not wait for answers
LOG_INTERVAL = 2.0  # seconds between reads of a log that is sent
WATCH_INTERVAL = 1.0  # seconds between checks of a state that other threads or processes change
ABORT_GRACE = 2.0  # seconds between SIGABRT, which writes the stacks to the log, and SIGKILL
DECIDED_END_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for a program that was pruned, or that a stop rule ended
SEND_PATIENCE = 60.0  # seconds for the process to read a message of the slot; all of them are short
MAX_SUGGESTIONS = 10_000  # requests of an objective for parameters: ten times as many as it may have parameters
STOP_MARGIN = 2.0  # seconds to report the end, added to the trial's grace period, which the process enforces itself
TEMPLATE_PATIENCE = 60.0  # seconds for the template to start the process, or to report its exit; either takes milliseconds
EXIT_NOTICE = 5.0  # seconds between a result and the message that its process has not exited
KILLED_PATIENCE = 10.0  # seconds in place of TEMPLATE_PATIENCE once the process must be killed, because a user waits for it

# Timers that an unread message may cancel or move, because it may be the result, or a report that waits for an answer.
AFTER_MESSAGES = ("deadline", "linger", "exchange")

Messages = tuple[messages.FromSlot, ...]


class DecidedEnd(NamedTuple):
    """An end that the slot has decided for a trial: pruned, paused at a rung, or complete by a stop rule.

    Attributes:
        state: State of the outcome.
        message: Message of the outcome.
    """

    state: TrialState
    message: str


class Failure(NamedTuple):
    """A failure of a trial as its slot describes it.

    Attributes:
        failure: Class of the failure, by which the controller decides about a retry.
        message: Message for the user.
    """

    failure: FailureClass
    message: str


@dataclasses.dataclass
class RunningTrial:
    """The trial that runs in a slot now. `kill`, `stop` and `send` may be called from any thread, all else by the slot's.

    Several fields say how the trial ends. `trial_end.outcome_of` makes the outcome of them. `kill_reason` prevents a later
    `decided_end`.
    """

    config: records.SlotConfig
    request: records.TrialRequest
    channel: Channel[messages.ToTrial, messages.FromTrial]
    workdir: Path
    started_at: float
    pid: int = 0
    pidfd: int | None = None  # descriptor of the process: unlike its pid it is never reused
    template_asked_at: float | None = None  # when the template was last expected to report a start or an exit
    template_end_text: str = "died"  # how the template ended, for a message
    start_method: str = ""
    reader: Reader | None = None  # reads a program's metrics
    timers: Timers[Messages | None] = dataclasses.field(default_factory=Timers)  # an action returns messages to hand over
    is_open: bool = True  # whether messages of the process can still come
    log_size: int = 0  # bytes that the log had when the process still ran; other processes may write after its end
    printed_bytes: int | None = None  # size of the log as the process reported it at its exit; None if it has not
    suggestion_count: int = 0  # requests for parameters so far
    requested_names: set[str] = dataclasses.field(default_factory=set)  # parameters that it has requested
    is_request_repeated: bool = False  # whether its newest request is for a parameter that it had requested before
    decided_end: DecidedEnd | None = None
    reports: list[records.TrialReport] = dataclasses.field(default_factory=list)
    # Reports about which the pruner is not asked: what is read only at the end of a program. They come with the outcome.
    late_reports: list[records.TrialReport] = dataclasses.field(default_factory=list)
    # The reports that the controller received last.
    delivered_reports: list[records.TrialReport] = dataclasses.field(default_factory=list)
    exit_message: messages.TrialExited | None = None  # how the process ended; None also when the template is gone
    # Metrics of the newest report. Of a program, the newest value of each metric.
    last_metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    final_outcome: records.TrialOutcome | None = None  # as the process reported it
    final_outcome_at: float = 0.0  # by the monotonic clock, as all times here but `started_at`
    is_overdue: bool = False  # whether it was killed because it still ran long after its outcome
    kill_reason: Failure | None = None  # the failure as which it was killed
    stop_reason: str = ""  # why a stop was requested
    stop_requested_at: float = 0.0
    grace_timer: threading.Timer | None = None  # kills a process that does not stop
    log: shipping.Log | None = None  # reader of the log, if the log is sent to the controller
    samples: collections.deque[records.TrialReport] = dataclasses.field(default_factory=collections.deque)  # not handed over
    report_sent_at: float = 0.0  # when the process sent its newest report
    handed_over_at: float = dataclasses.field(default_factory=lambda: time.monotonic())  # of the newest messages; the start
    credited_until: float = 0.0  # time up to which the controller's time has been added to the deadline
    is_blocked: bool = False  # whether the process waits for AnswerReport
    is_answer_due: bool = False  # whether the controller has received what it must answer
    is_confirm_pending: bool = False  # whether a Confirm is not handed over yet
    pending_suggestion: messages.Suggest | None = None  # a request that is not handed over yet
    exchange: Exchange | None = None  # of a collection's trial
    pause: pausing.Pause = dataclasses.field(init=False)  # for programs, and for reports that do not wait for an answer
    is_gone: threading.Event = dataclasses.field(default_factory=threading.Event)  # set when the process has ended
    # For the process's descriptor, and for the fields that say how the process is ended.
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    send_lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)  # for messages to the process

    def __post_init__(self) -> None:
        """Set the timers of the start."""
        self.pause = pausing.Pause(self.request.segment)
        self.channel.set_patience(SEND_PATIENCE)
        now = time.monotonic()
        if self.request.timeout is not None:
            self.timers.set("deadline", now + self.request.timeout, self._check_deadline)
        if self.reader is not None:
            self.timers.set("read", now, self.read_metrics)
        if self.log is not None:
            self.timers.set("log", now + LOG_INTERVAL, self._take_messages_if_any)
        if self.config.system_metrics is not None:
            self.timers.set("samples", now + self.config.system_metrics, self._take_messages_if_any)

    def send(self, message: messages.ToTrial) -> None:
        """Send a message to the process, unless it has ended; kill it if it does not read. May be called from any thread."""
        with self.send_lock, contextlib.suppress(OSError):  # the channel is closed once the process has ended
            try:
                self.channel.send(message)
            except TimeoutError:
                text = f"did not read its slot's messages within {SEND_PATIENCE:g} s"
                self.kill(FailureClass.INVALID, f"the process {text}, and was killed for that")

    def run_due_actions(self) -> Messages | None:
        """Run the actions that are due until one returns messages for the controller, and return these; None if none does.

        `AFTER_MESSAGES` are left for the next call if the process has sent a message that may change them.
        """
        may_change_timers = self.exchange is not None or self.request.prunable
        has_unread = may_change_timers and self.is_open and self.channel.is_readable()
        for action in self.timers.due(without=AFTER_MESSAGES if has_unread else ()):
            due_messages = action()
            if due_messages is not None:
                return due_messages
        return None

    def take_messages(self) -> Messages:
        """Return all messages for the controller since the last hand-over: the log's new part, reports, and requests.

        They count as handed over: `answer` assumes that the controller has them.
        """
        self.handed_over_at = time.monotonic()
        self.timers.cancel("hand over", "exchange")
        if self.log is not None:
            self.timers.set("log", self.handed_over_at + LOG_INTERVAL, self._take_messages_if_any)
        if self.config.system_metrics is not None:
            self.timers.set("samples", self.handed_over_at + self.config.system_metrics, self._take_messages_if_any)
        self.delivered_reports, self.reports = self.reports, []
        self.is_answer_due = self.is_blocked
        new_log = b"" if self.log is None else self.log.next_piece()
        requests: Messages = () if self.exchange is None else self.exchange.news()
        if self.pending_suggestion is not None:
            requests = (*requests, self.pending_suggestion)
            self.pending_suggestion = None
        if self.is_confirm_pending:
            requests = (*requests, messages.Confirm())
            self.is_confirm_pending = False
        return (*log_messages(new_log), *self.delivered_reports, *self.take_samples(), *requests)

    def _take_messages_if_any(self) -> Messages | None:
        """Return the messages that were not handed over yet; None if there are none, so that the slot waits on."""
        return self.take_messages() or None

    def take_samples(self) -> Messages:
        """Return the samples of system metrics since the last hand-over. The process does not wait for answers to them."""
        return tuple(self.samples.popleft() for _ in range(len(self.samples)))

    def _notice_exit(self) -> Messages:
        """Return the messages that were not handed over yet, and one that the process still runs after its outcome."""
        return (*self.take_messages(), messages.Exiting())

    def receive(self) -> bool:
        """Read and handle the messages that the process has sent.

        Returns:
            False if no more messages can come: the process has closed its channel, or is killed for an invalid message.
        """
        try:
            for message in self.channel.read():
                if isinstance(message, messages.Reported):
                    self.handle_report(message)
                elif isinstance(message, messages.Suggest):
                    self.handle_suggestion_request(message)
                elif isinstance(message, messages.Confirm):
                    self.handle_confirm_request()
                elif isinstance(message, messages.Ended):
                    self.handle_outcome(message.outcome)
                elif isinstance(message, messages.Printed):
                    self.printed_bytes = message.printed
                else:
                    self._handle_exchange_message(message)
        except (EOFError, errors.MessageError) as error:
            if isinstance(error, errors.MessageError):
                self.kill(FailureClass.INVALID, f"{error}; the process was killed")
            self.is_open = False
            self.timers.cancel("read", "exchange")  # when the process has ended, the slot does both once more
        return self.is_open

    def _handle_exchange_message(self, message: messages.WorkerMessage | messages.LearnerMessage) -> None:
        """Pass a message of a collection's process on to the exchange, which decides when the controller gets the news."""
        assert self.exchange is not None, "only a collection's process may send these messages"
        self.exchange.receive(message)
        if self.exchange.report_at is not None:
            self.timers.set("exchange", self.exchange.report_at, self.take_messages)

    def _schedule_hand_over(self) -> None:
        """Schedule the hand-over of messages: at once if the process or the pruner waits for them, else with later ones."""
        is_urgent = self.request.prunable or self.is_confirm_pending or self.pending_suggestion is not None
        moment = time.monotonic() if is_urgent else self.handed_over_at + FLUSH_INTERVAL
        self.timers.set("hand over", moment, self.take_messages)

    def handle_report(self, report: messages.Reported) -> None:
        """Record a report of a step, and schedule its hand-over.

        A report whose sender does not wait for an answer may end the trial here, by the job's `stop` or by a rung. After
        such an end the trial's later reports are dropped.

        Raises:
            MessageError: The step is out of range.
        """
        if not 0 <= report.step <= records.MAX_STEP:
            raise errors.MessageError(f"a trial sent a report of step {report.step}; they go from 0 to {records.MAX_STEP}")
        if self.decided_end is not None and not report.waits:
            return  # a report whose sender waits is still handed over, as its process needs the answer
        report = dataclasses.replace(report, **_bounded_fields(report, self.request))
        self.reports.append(
            records.TrialReport(
                self.request.number,
                report.step,
                report.metrics,
                time=self._clamp_time(report.time),
                remark=report.remark,
                start_step=report.start_step,
            )
        )
        self._schedule_hand_over()
        self.last_metrics = ranks.without_seconds(report.metrics)
        self.report_sent_at = report.sent
        waits_for_pruner = self.request.prunable and report.waits
        self.is_blocked = self.is_blocked or waits_for_pruner
        if self.reader is not None:
            self.reader.leave_out(report.metrics)  # so that no value is recorded twice
        if not report.waits and self.request.node == 0:  # other nodes report the times of their ranks
            self._apply_end_rules(report.step, report.metrics)

    def handle_suggestion_request(self, suggest: messages.Suggest) -> None:
        """Record a request for the value of a parameter, and schedule its hand-over.

        Raises:
            MessageError: The job is not an Optuna objective, the last request is not answered yet, or there were too many
                requests.
        """
        if not self.request.directions:
            raise errors.MessageError("a trial sent a request for a parameter, and only an objective of Optuna may")
        if self.pending_suggestion is not None:
            raise errors.MessageError("a trial sent two requests for parameters at once; send them one after another")
        self.suggestion_count += 1
        if self.suggestion_count > MAX_SUGGESTIONS:
            raise errors.MessageError(
                f"a trial sent more than {MAX_SUGGESTIONS} requests for parameters; request each of them once"
            )
        self.pending_suggestion = suggest
        self.is_request_repeated = suggest.name in self.requested_names
        self.requested_names.add(suggest.name)
        self._schedule_hand_over()

    def handle_confirm_request(self) -> None:
        """Record that the process waits until its reports are in the ledger, and schedule their hand-over.

        Raises:
            MessageError: The trial is not paused at rungs, so it needs no confirmation.
        """
        if self.request.segment is None:
            raise errors.MessageError("a trial sent Confirm, and only a trial with rungs may")
        self.is_confirm_pending = self.is_blocked = True
        self.report_sent_at = time.monotonic()  # the process waits from now on
        self._schedule_hand_over()

    def read_metrics(self, *, ended: bool = False) -> None:
        """Read the new output and files of a program, and record reports of the metrics in them.

        Args:
            ended: Whether the process has ended, so that this is the last read.
        """
        if self.reader is None:
            return
        now = time.monotonic()
        if not ended:
            if self.final_outcome is not None:
                return  # the last read includes the output of the process's exit hooks
            self.timers.set("read", now + INTERVAL, self.read_metrics)
            self._update_log_size(self.reader.log)
        program_bytes = self.printed_bytes if ended else self.log_size  # what follows is of processes that outlive it
        self._record_read(self.reader.read(now, ended=ended, printed_bytes=program_bytes), self.reports)
        self._record_read(self.reader.late_reports, self.late_reports)

    def _record_read(self, read_reports: Iterable[Report], reports: list[records.TrialReport]) -> None:
        """Add what the reader has read to `reports`, and end the trial if it meets a rule."""
        for step, metrics in read_reports:
            if self.decided_end is not None:
                return  # metrics after the decided end do not count
            reports.append(records.TrialReport(self.request.number, step, metrics, time=time.time()))
            self._schedule_hand_over()
            self.last_metrics = {**self.last_metrics, **metrics}
            self._apply_end_rules(step, metrics)

    def _update_log_size(self, log: Path) -> None:
        """Record the size of the log, if the program still ran when it was read, so that all of it is the program's."""
        with contextlib.suppress(OSError):  # there is no log yet
            size = log.stat().st_size
            if not self.channel.is_readable():  # a program that ends sends a message first
                self.log_size = size

    def handle_outcome(self, outcome: records.TrialOutcome) -> None:
        """Record the outcome that the process has sent, and limit the time in which the process must exit.

        Raises:
            MessageError: The outcome is inconsistent.
        """
        must_have_metrics = self.request.node == 0 and self.reader is None  # a program's metrics are read by the slot
        may_pause = self.request.segment is not None and self.request.segment.rung > 0
        defect = _outcome_defect(outcome, self.request.metrics if must_have_metrics else (), may_pause=may_pause)
        if defect:
            raise errors.MessageError(f"a trial sent an outcome {defect}")
        outcome = dataclasses.replace(outcome, **_bounded_fields(outcome, self.request))
        self.final_outcome = dataclasses.replace(
            outcome, number=self.request.number, started=self._clamp_time(outcome.started)
        )
        self.final_outcome_at = time.monotonic()
        self.timers.cancel("deadline")
        self.timers.set("linger", self.final_outcome_at + self.config.linger, self._check_linger)  # only exit hooks are left
        self.timers.set("exit notice", self.final_outcome_at + EXIT_NOTICE, self._notice_exit)

    def answer(self, prune_at: int | None, suggested: messages.Suggested | None = None) -> None:
        """Pass the controller's answer on to the process, and postpone its deadline by the time that the answer took.

        A process that does not wait for the answer to a report is ended if it is pruned. Its outcome has the metrics of that
        step.

        Args:
            prune_at: Step at which the trial is pruned; None if it continues.
            suggested: Answer to a request for a parameter; None without a request.
        """
        self._credit_answer_time(is_repeated=suggested is not None and self.is_request_repeated)
        if self.is_answer_due:
            self.is_answer_due = self.is_blocked = False
            self.send(messages.AnswerReport(prune_at))
        elif prune_at is not None:
            for report in self.delivered_reports:
                if report.step == prune_at:
                    self.last_metrics = report.metrics
            self.late_reports = []  # they are of what followed
            self._decide_end(TrialState.PRUNED, f"pruned at step {prune_at}")
        if suggested is not None:
            self.send(suggested)

    def _credit_answer_time(self, *, is_repeated: bool) -> None:
        """Postpone the deadline by the time for which the controller has worked on its answer.

        It moves even if the process does not wait, because it may have been blocked on a full channel. A worker's deadline
        is in the exchange, and does not move.

        Args:
            is_repeated: Whether the answer is to a repeated request for a parameter. Then the deadline does not move, or an
                objective could extend its time by the same request again and again.
        """
        now = time.monotonic()
        # The process has waited since its report, or its messages were not read since they were handed over.
        asked_at = self.report_sent_at if self.is_answer_due else self.handed_over_at
        uncredited_since = max(asked_at, self.credited_until)  # no second is added to the deadline twice
        if self.request.worker is None and not is_repeated:
            self.timers.postpone("deadline", now - uncredited_since)
        self.credited_until = now

    def handle_start(self, pid: int, method: str, pidfd: int) -> None:
        """Record the started process, and send it the signal of a kill or stop that was requested before."""
        with self.lock:
            self.pid, self.start_method, self.pidfd = pid, method, pidfd
            self.template_asked_at = None  # the template has answered
            self.timers.cancel("template")
            if self.kill_reason:
                self._signal(signal.SIGKILL)
            elif self.stop_reason or self.decided_end is not None:
                self._signal(signal.SIGTERM)
        if self.config.system_metrics is not None and self.request.node == 0:
            threading.Thread(target=self._sample, args=(self.config.system_metrics,), name="sampler", daemon=True).start()

    def template_patience(self) -> float:
        """Return the time in which the template must answer, in seconds."""
        return KILLED_PATIENCE if self.kill_reason is not None else TEMPLATE_PATIENCE

    def handle_exit(self) -> None:
        """Record that the process has ended, so that no signal is sent to it."""
        self.is_gone.set()
        with self.lock:
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None
            if self.grace_timer is not None:
                self.grace_timer.cancel()

    def kill(self, failure: FailureClass, message: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the process by a signal; the outcome gets the failure and the message. Later calls have no effect."""
        with self.lock:
            if self.kill_reason is None:
                self.kill_reason = Failure(failure, message)
                self._signal(number)

    def stop(self, message: str) -> None:
        """Send SIGTERM, a request to save a checkpoint and end, and kill the process if it has not ended in time."""
        grace = self.config.grace
        with self.lock:
            if self.kill_reason is not None or self.stop_reason:
                return
            self.stop_reason, self.stop_requested_at = message, time.monotonic()
            text = f"{message}; it had not ended {grace:g} s after SIGTERM and was killed"
            self._terminate(grace + STOP_MARGIN, FailureClass.LOST, text)

    def _apply_end_rules(self, step: int, metrics: Mapping[str, float]) -> None:
        """End a trial that waits for no answer: complete if a report meets a stop rule, paused if it is at the rung.

        A program that has started over, and not continued from its checkpoint, is killed.
        """
        is_program = self.reader is not None
        has_trained = not self.pause.metrics.isdisjoint(metrics)
        if is_program and has_trained and self.pause.is_first_again(step):
            self.kill(FailureClass.INVALID, self.pause.restart_message(step))
            return
        rule = stopping.met_rule(self.request.stop, step, metrics)
        if rule:
            self._decide_end(TrialState.COMPLETE, f"stopped at step {step}: {rule}")
        self.pause.report(step, metrics)
        if self.pause.is_requested:  # without effect if a rule was met
            self._decide_end(TrialState.PAUSED, f"paused after step {step}")

    def _decide_end(self, state: TrialState, message: str) -> None:
        """Decide the state and the message of the outcome, and end the process: by SIGTERM, and by SIGKILL after a time.

        Does nothing if the process is killed, or its end was decided before. If it has sent a result, only the decision that
        it is pruned has an effect.
        """
        with self.lock:
            if self.kill_reason is not None or self.decided_end is not None:
                return
            if self.final_outcome is not None and state is not TrialState.PRUNED:
                return  # the result counts, unless the controller has pruned the trial
            self.decided_end = DecidedEnd(state, message)
            grace = self.config.grace if state is TrialState.PAUSED else DECIDED_END_GRACE  # a paused one saves a checkpoint
            if not self.is_gone.is_set():
                self._terminate(grace, FailureClass.TIMEOUT, f"had not ended {grace:g} s after it was {message}")

    def watch_memory(self, limit: int) -> None:
        """Kill the process when it and its descendants use more than `limit` bytes; return when it has ended.

        Runs in a thread of its own, because the slot's thread checks nothing while it waits for the controller's answer.
        """
        while not self.is_gone.wait(WATCH_INTERVAL):
            used = sessions.resident_memory(self.pid, limit=limit) if self.pid else 0
            if used > limit:
                text = f"used {used / 2**30:.1f} GiB of memory, over its limit of {limit / 2**30:.1f} GiB"
                remedy = f"raise resources.memory, at submit by `--set resources.memory={math.ceil(2 * limit / 2**30)}Gi`"
                self.kill(FailureClass.CRASHED, f"{text}; {remedy}")

    def _sample(self, interval: float) -> None:
        """Sample the use of the machine by the process and its descendants every `interval` s; return when it has ended.

        The interval doubles with time, so that a trial of weeks has a few thousand samples. Runs in a thread of its own.
        """
        sampler = sampling.Sampler(self.config, self.pid)
        step = 0
        while not self.is_gone.wait(interval):
            self.samples.append(records.TrialReport(self.request.number, step, metrics=sampler.sample(), time=time.time()))
            step += 1
            if step % sampling.SAMPLES_BEFORE_DOUBLING == 0:
                interval *= 2

    def _check_deadline(self) -> None:
        """Kill a process that has exceeded its time, unless it is killed already or has sent its outcome.

        The limit of a worker is for each of its results. The exchange has the deadline of the current one, which other
        threads move, so it is checked again after `WATCH_INTERVAL` at most.
        """
        if self.kill_reason is not None or self.final_outcome is not None:
            return
        limit = f"its limit of {self.request.timeout:g} s"
        overrun = f"took longer than {limit}"
        if self.request.worker is not None:
            assert self.exchange is not None, "a worker has an exchange"
            now, deadline = time.monotonic(), self.exchange.deadline
            if deadline is None or now < deadline:
                next_check = now + WATCH_INTERVAL if deadline is None else min(deadline, now + WATCH_INTERVAL)
                self.timers.set("deadline", next_check, self._check_deadline)
                return
            overrun = f"had no result within {limit}, raise collect.timeout"
        self._abort_process(f"{overrun}; its log ends with the stacks of its threads")

    def _check_linger(self) -> None:
        """Kill a process that has not ended long after its outcome, which counts all the same."""
        if self.kill_reason is None:
            self.is_overdue = True
            self._abort_process("")  # no message: the outcome that the process has sent counts

    def _abort_process(self, message: str) -> None:
        """Send SIGABRT, at which the process writes the stacks of its threads to its log, and later SIGKILL."""
        self.kill(FailureClass.TIMEOUT, message, signal.SIGABRT)
        self.timers.set("abort", time.monotonic() + ABORT_GRACE, self._kill_aborted)

    def _kill_aborted(self) -> None:
        """Kill a process that has had time to write its stacks."""
        with self.lock:
            self._signal(signal.SIGKILL)

    def _clamp_time(self, seconds: float) -> float:
        """Clamp a time since the epoch to the lifetime of the process; `seconds` may be NaN."""
        return min(max(self.started_at, seconds), time.time())

    def _terminate(self, seconds: float, failure: FailureClass, message: str) -> None:
        """Send SIGTERM, and kill the process as `failure` if it has not ended after so many seconds; with the lock held."""
        self.grace_timer = threading.Timer(seconds, self.kill, (failure, message))
        self.grace_timer.daemon = True
        self.grace_timer.start()
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the process, if it has started and not ended; with the lock held."""
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


def log_messages(log: bytes) -> tuple[messages.LogGrown, ...]:
    """Return a piece of the trial's log as a message; no message if the piece is empty."""
    return (messages.LogGrown(log),) if log else ()


def accepted_messages(config: records.SlotConfig, request: records.TrialRequest) -> messages.Direction[messages.FromTrial]:
    """Return the messages that are accepted from the process of a trial, by its slot's role."""
    if config.role == "trial":
        return messages.FROM_TRIAL
    return messages.FROM_LEARNER if request.worker is None else messages.FROM_WORKER


def _bounded_fields(report: messages.Reported | records.TrialOutcome, request: records.TrialRequest) -> dict[str, Any]:
    """Return the fields to change in a report or outcome with too many metrics or too long names: `metrics` and `remark`.

    Metrics that the job needs stay, before others. The mapping is empty if all metrics can stay.
    """
    needed = {*request.metrics, *request.reported, *(rule.metric for rule in request.stop)}
    allowed = [name for name in report.metrics if name in needed or len(name) <= records.MAX_NAME]
    recorded = sorted(allowed, key=lambda name: name not in needed)[: records.MAX_METRICS]  # the needed ones first
    if len(recorded) == len(report.metrics):
        return {}
    text = (
        f"of {len(report.metrics):,} metrics {len(recorded):,} were recorded: a report or a result has "
        f"{records.MAX_METRICS:,} at most, with names of up to {records.MAX_NAME} characters; return more as a list or an "
        "array"
    )
    return {
        "metrics": {name: report.metrics[name] for name in recorded},
        "remark": "; ".join(filter(None, (report.remark, text))),
    }


def _outcome_defect(outcome: records.TrialOutcome, needed: tuple[str, ...], *, may_pause: bool) -> str:
    """Return the defect of an outcome from a process, which may run any code; "" if it has none.

    A complete outcome must have the needed metrics, and only a trial that `may_pause` at a rung may be PAUSED.
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
    if missing and outcome.state is TrialState.COMPLETE:
        return f"without a finite number for {', '.join(missing)}"
    return ""
