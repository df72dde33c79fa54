"""The supervisor of a trial's ranks: the trial process itself, when the trial is more than one process.

It forks one process per rank, or spawns it if a fork would not be clean (policies.spawn), and waits for the next event: a
message of a rank, its exit, a signal, or the slot's answer. `verdict` decides the outcome, and what the other ranks do.

One failed rank ends all others. The trial's outcome is then the failure that caused the others (wire/causes.py). Ranks that
hang after rank 0 has returned are ended after `linger`, and the result counts. SIGTERM is passed on, so that ranks save a
checkpoint. So is SIGABRT, by which a slot ends a trial over its time limit, so that the ranks write their stacks to the log.
Ranks stay in the trial's session, where the slot measures their memory, and die with the supervisor.

The supervisor must not compute, start a thread or import the job's modules, because it forks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trialplane import errors
from trialplane.policies import spawn
from trialplane.wire import env, messages, ranks, records
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import context
from trialplane.worker.channel import TrialChannel
from trialplane.worker.ranks import meeting, rank, starting
from trialplane.worker.ranks.stragglers import Stragglers
from trialplane.worker.ranks.verdict import NextStep, Verdict
from trialplane.worker.timers import Timers

SETTLE = 1.0  # seconds to wait for the cause of a failure that may be a consequence
ENDING_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for ranks of a trial that has failed: they may be writing a file
PRUNED_GRACE = 1.0  # seconds for ranks of a trial that was pruned or paused, or that a stop rule ended
ABORT_GRACE = 1.5  # seconds for all ranks to write their stacks; the slot kills after 2
TIMES_INTERVAL = 10.0  # seconds between two reports of the times of ranks from a node other than 0


def perform(
    job_function: context.JobFunction | None, message: messages.RunTrial, channel: TrialChannel
) -> records.TrialOutcome:
    """Perform the role of a trial of several processes on one node: run its ranks, and return the outcome."""
    return Supervisor(job_function, message.config, message.request, workdir=Path(message.workdir), channel=channel).run()


class Supervisor:
    """The ranks of one trial on this node. If `job_function` is None, each rank imports it."""

    def __init__(
        self,
        job_function: context.JobFunction | None,
        config: records.SlotConfig,
        request: records.TrialRequest,
        workdir: Path,
        channel: TrialChannel,
    ) -> None:
        self._work = rank.TrialWork(job_function, config, request, workdir)
        self._config = config
        self._request = request
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._ranks: list[starting.Rank] = []
        self._stragglers = Stragglers(config.ranks)
        self._slowest_metrics: dict[str, float] = {}  # the slowest rank as metrics of reports; empty if no rank is slow
        self._last_metrics: Mapping[str, float] = {}  # metrics of rank 0's newest report
        self._times_due_at = 0.0  # by the monotonic clock
        self._peak_memory = 0  # sum of the ranks' largest resident sets, in bytes
        node_ranks = [placement.rank for placement in self._placements("")]  # their numbers do not depend on the address
        self._verdict = Verdict(request.number, node_ranks, config.grace)
        self._wake_sockets: tuple[socket.socket, ...] = ()  # pair to which the numbers of received signals are written
        self._is_aborted = False
        self._is_slot_gone = False
        self._is_answer_due = False  # whether rank 0 may wait for an answer of the slot
        self._timers: Timers[None] = Timers()

    def run(self) -> records.TrialOutcome:
        """Run all ranks to their end; return the trial's outcome.

        After SIGABRT this process ends by the same signal instead, once its ranks have ended.
        """
        self._watch_signals()
        with contextlib.closing(self._rendezvous()) as port:
            with starting.block_sigterm():
                self._start(port.address)
            self._selector.register(self._channel, selectors.EVENT_READ, self._handle_slot_channel)
            while any(not rank_process.has_ended for rank_process in self._ranks):
                for key, _ in self._selector.select(self._timers.until_next()):
                    key.data()  # the handler that was registered for the event
                for action in self._timers.due():
                    action()
        for rank_process in self._ranks:
            if rank_process.forwarder is not None:
                rank_process.forwarder.close()
        if self._is_aborted:
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGABRT)
        with contextlib.suppress(OSError):  # the slot has ended
            self._channel.flush(wait=True)
        return dataclasses.replace(self._verdict.outcome(self._last_metrics), peak_memory=self._peak_memory)

    def _watch_signals(self) -> None:
        """Let SIGTERM and SIGABRT wake the loop, which handles them between other events."""
        self._wake_sockets = wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGABRT):
            signal.signal(number, lambda *_: None)  # the number of a signal with a handler is written to `wake_write`
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self._selector.register(wake_read, selectors.EVENT_READ, functools.partial(self._handle_signals, wake_read))

    # --- start

    def _rendezvous(self) -> meeting.Port | meeting.RemotePort:
        """Return the rendezvous of the ranks, which a slot holds if the trial has several nodes."""
        return meeting.Port() if self._config.nodes == 1 else meeting.RemotePort(self._request.rendezvous)

    def _placements(self, address: str) -> list[rank.Placement]:
        """Return the placements of this node's ranks, with the address of the rendezvous."""
        return [rank.placement_of(self._work, local_rank, address) for local_rank in range(self._config.ranks)]

    def _start(self, address: str) -> None:
        """Start all ranks with the rendezvous `address`, and register the handlers of their messages, exits and output."""
        reasons = spawn.reasons_not_to_fork()
        if reasons:
            self._log(f"ranks are spawned, not forked: {'; '.join(reasons)}")
        start = starting.spawn if reasons else starting.fork
        for placement in self._placements(address):
            started = start(self._work, placement, self._close_inherited)
            self._ranks.append(started)
            self._selector.register(started.channel, selectors.EVENT_READ, functools.partial(self._read, started))
            self._selector.register(started.pidfd, selectors.EVENT_READ, functools.partial(self._handle_exit, started))
            if started.forwarder is not None:
                handler = functools.partial(self._forward_output, started.forwarder)
                self._selector.register(started.forwarder.source, selectors.EVENT_READ, handler)

    def _close_inherited(self) -> None:
        """Close the supervisor's descriptors and reset its signals, in a forked rank."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for wake_socket in self._wake_sockets:
            wake_socket.close()
        self._channel.close()
        self._selector.close()
        for rank_process in self._ranks:
            rank_process.channel.close()
            os.close(rank_process.pidfd)
            if rank_process.forwarder is not None:
                os.close(rank_process.forwarder.source)

    # --- events of ranks

    def _read(self, rank_process: starting.Rank) -> bool:
        """Read and handle messages of a rank; return False if its channel is closed."""
        if rank_process.channel.fileno() < 0:  # closed by `_handle_exit`, whose event came together with this one
            return False
        try:
            for message in rank_process.channel.read():
                self._handle_message(rank_process, message)
        except (EOFError, errors.MessageError) as error:
            self._selector.unregister(rank_process.channel)
            rank_process.channel.close()
            if isinstance(error, errors.MessageError):
                outcome = records.TrialOutcome(
                    self._request.number, TrialState.FAILED, FailureClass.INVALID, message=str(error)
                )
                self._apply(self._verdict.handle_outcome(rank_process.placement.rank, outcome))
            return False
        return True

    def _handle_message(self, rank_process: starting.Rank, message: messages.FromRank) -> None:
        """Handle one message of a rank: a step's duration, a report, a wait for its record, or the outcome.

        A report is passed on to the slot with the supervisor's own metrics: the slowest rank, and the times of ranks.
        """
        match message:
            case messages.Pulsed():
                self._handle_pulse(rank_process, message)
            case messages.Reported():
                self._last_metrics = {**message.metrics, **self._slowest_metrics}
                self._report(dataclasses.replace(message, metrics={**self._last_metrics, **self._take_step_seconds()}))
            case messages.Confirm():
                self._report(message)
            case messages.Ended():
                self._apply(self._verdict.handle_outcome(rank_process.placement.rank, message.outcome))

    def _handle_pulse(self, rank_process: starting.Rank, message: messages.Pulsed) -> None:
        """Compare a rank's seconds per step with the others', and log a rank that has become slow or has caught up.

        On a node without rank 0, also report the times of the node's ranks, once in `TIMES_INTERVAL` seconds.
        """
        straggler_change = self._stragglers.pulse(rank_process.placement.rank, message.step, message.seconds)
        if straggler_change is not None:
            self._log(straggler_change.text())
        slowest = self._stragglers.slowest
        self._slowest_metrics = {}
        if slowest is not None:
            self._slowest_metrics = {ranks.SLOWEST_RANK: float(slowest.rank), ranks.SLOWEST_RANK_FACTOR: slowest.factor}
        now = time.monotonic()
        lacks_rank_0 = self._request.node > 0  # on rank 0's node, the times go with the reports of the job
        if lacks_rank_0 and self._stragglers.has_all_times and now >= self._times_due_at:
            times = self._take_step_seconds()
            if times:
                self._times_due_at = now + TIMES_INTERVAL
                self._report(messages.Reported(message.step, metrics=times, time=time.time(), sent=now, waits=False))

    def _take_step_seconds(self) -> dict[str, float]:
        """Return the seconds per step of this node's ranks that have reported since the last call, as metrics.

        {} if the trial has too many ranks for a report.
        """
        if self._config.ranks * self._config.nodes > ranks.MAX_TIMED:
            return {}
        return ranks.as_metrics(self._stragglers.take_times())

    def _report(self, message: messages.Reported | messages.Confirm) -> None:
        """Send a message to the slot; what the channel does not accept now is sent when it can be written."""
        waits_for_answer = isinstance(message, messages.Confirm) or (message.waits and self._request.prunable)
        self._is_answer_due = self._is_answer_due or waits_for_answer
        with contextlib.suppress(OSError):  # the slot has ended
            self._channel.send(message, wait=False)
        self._watch_channel()
        if self._is_slot_gone:  # so rank 0 gets the answer from here, to save a checkpoint
            self._answer(messages.AnswerReport())

    def _handle_exit(self, rank_process: starting.Rank) -> None:
        """Reap a rank's process that has ended, handle its last messages, and then its exit code."""
        self._selector.unregister(rank_process.pidfd)
        _, status, usage = os.wait4(rank_process.pid, 0)
        os.close(rank_process.pidfd)
        rank_process.has_ended = True
        self._peak_memory += usage.ru_maxrss * 1024  # from KiB
        while rank_process.channel.fileno() >= 0 and rank_process.channel.is_readable() and self._read(rank_process):
            pass
        if not self._is_aborted:
            self._apply(self._verdict.handle_exit(rank_process.placement.rank, os.waitstatus_to_exitcode(status)))

    # --- ending

    def _handle_signals(self, wake: socket.socket) -> None:
        """Handle the signals that this process has received: pass SIGTERM and SIGABRT on, and limit the time to end."""
        with contextlib.suppress(BlockingIOError):
            for number in wake.recv(4096):  # each byte is the number of a signal
                if number == signal.SIGTERM:
                    self._log(f"SIGTERM: ranks have {self._config.grace:g} s to save a checkpoint and end")
                    if not self._verdict.is_stopping and self._verdict.decision is None:
                        self._verdict.is_stopping = True
                        self._apply(NextStep.STOP)
                elif number == signal.SIGABRT:
                    self._is_aborted = True
                    self._signal(signal.SIGABRT)
                    self._kill_in(ABORT_GRACE)

    def _apply(self, next_step: NextStep) -> None:
        """Take the verdict's next step for the ranks that still run (see `NextStep`), and log its remarks."""
        now = time.monotonic()
        # The first failure, or the result, sets its timer; later ones do not move it.
        if next_step is NextStep.SETTLE and "settle" not in self._timers:
            self._timers.set("settle", now + SETTLE, self._settle)
        elif next_step is NextStep.RESULT and "linger" not in self._timers:
            self._timers.set("linger", now + self._config.linger, self._end_lingering)
        elif next_step is NextStep.STOP:
            self._timers.set("overdue", now + self._config.grace, self._end_overdue)
            self._signal(signal.SIGTERM)
        elif next_step is NextStep.END:
            self._timers.cancel("settle", "linger", "overdue")  # the end below replaces them
            self._kill_in(min(PRUNED_GRACE if self._verdict.is_ended_early else ENDING_GRACE, self._config.grace))
            self._signal(signal.SIGTERM)
        for remark in self._verdict.remarks:
            self._log(remark)
        self._verdict.remarks.clear()

    def _settle(self) -> None:
        """Decide the cause of a failure, once the other ranks have had time to report it, and end the ranks."""
        self._verdict.decide_cause()
        self._apply(NextStep.END)

    def _end_lingering(self) -> None:
        """End ranks that still run long after rank 0 has returned, by SIGABRT, so that they write their stacks."""
        self._verdict.record_late(self._running_ranks(), self._config.linger)
        self._apply(NextStep.GO_ON)  # logs the remark
        self._signal(signal.SIGABRT)
        self._kill_in(ABORT_GRACE)

    def _end_overdue(self) -> None:
        """Kill ranks that have not ended within their grace after SIGTERM."""
        self._verdict.record_overdue(self._running_ranks())
        self._signal(signal.SIGKILL)

    def _kill_in(self, seconds: float) -> None:
        self._timers.set("kill", time.monotonic() + seconds, lambda: self._signal(signal.SIGKILL))

    def _running_ranks(self) -> list[int]:
        return [rank_process.placement.rank for rank_process in self._ranks if not rank_process.has_ended]

    def _signal(self, number: signal.Signals) -> None:
        for rank_process in self._ranks:
            if not rank_process.has_ended:
                signal.pidfd_send_signal(rank_process.pidfd, number)  # a zombie accepts a signal too

    # --- to and from the slot, and the log

    def _handle_slot_channel(self) -> None:
        """Handle the slot's channel: send buffered reports, and pass answers to reports on to rank 0."""
        with contextlib.suppress(OSError):
            self._channel.flush()
        self._watch_channel()
        if self._channel.is_readable():
            try:
                for answer in self._channel.read():
                    assert isinstance(answer, messages.AnswerReport), "a slot sends only answers to a trial that runs"
                    self._answer(answer)
            except EOFError:
                self._selector.unregister(self._channel)  # the template ends this process next
                self._is_slot_gone = True
                self._answer(messages.AnswerReport())  # in a pod that is removed, ranks have the time to save a checkpoint
                if not self._verdict.is_stopping and env.GRACE not in os.environ:
                    # Nothing records their reports now, and a retry would continue behind steps without reports.
                    self._signal(signal.SIGKILL)

    def _answer(self, answer: messages.AnswerReport) -> None:
        """Send an answer to rank 0 if it may wait for one."""
        if self._is_answer_due:
            self._is_answer_due = False
            with contextlib.suppress(OSError):  # rank 0 is gone
                self._ranks[0].channel.send(answer)

    def _watch_channel(self) -> None:
        """Wait for the slot's channel to be writable, too, while reports are buffered."""
        if self._channel in self._selector.get_map():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.has_unsent else 0)
            self._selector.modify(self._channel, events, self._handle_slot_channel)

    def _forward_output(self, forwarder: starting.LineForwarder) -> None:
        """Forward new output of a rank; watch it no longer once the rank has closed its end."""
        if not forwarder.pump():
            self._selector.unregister(forwarder.source)

    def _log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            starting.write_all(sys.stdout.fileno(), f"supervisor: {text}\n".encode())
