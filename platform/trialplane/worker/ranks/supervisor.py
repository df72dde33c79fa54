"""The supervisor of a trial's ranks: the trial process itself, when the trial is more than one process.

It forks one process per rank, or spawns it when a fork would not be clean (policies.spawn), and waits for the next event: a
message of a rank, its end, a signal, the slot's answer. Nothing is polled. One failed rank ends all others, and the trial's
outcome is the first failure that is a cause; see wire/causes.py for consequences. Ranks that hang after rank 0 has returned
are ended after `linger`, and the result counts. SIGTERM is passed on, so that ranks save a checkpoint, and so is SIGABRT, by
which a slot ends a trial over its time limit: the stacks are in the log. Ranks stay in the trial's session, where the slot
measures their memory, and die with the supervisor.

Must not compute, import what the job imports, or start a thread: it forks.
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
from trialplane.wire import messages, records
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import context
from trialplane.worker.channel import TrialChannel
from trialplane.worker.ranks import meeting, rank, starting
from trialplane.worker.ranks.stragglers import Stragglers
from trialplane.worker.ranks.verdict import Next, Verdict
from trialplane.worker.timers import Timers

SETTLE = 1.0  # seconds to wait for the cause of a failure that may be a consequence
ENDING_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for ranks of a trial that has failed: they may be writing a file
OVER_GRACE = 1.0  # the same for one that was pruned, or that a stop rule ended: it does not continue
ABORT_GRACE = 1.5  # seconds for the stacks of all ranks; the slot gives 2


def perform(run: context.Run | None, message: messages.RunTrial, channel: TrialChannel) -> records.TrialOutcome:
    """The role of a trial of several processes, on one of its nodes: start its ranks and determine the outcome."""
    return Supervisor(run, message.config, message.request, Path(message.workdir), channel).run()


class Supervisor:
    """The ranks of one trial on this node.

    Args:
        run: the job's function; None where it is not imported yet, which each rank then does.
        config: of the slot.
        request: the trial's.
        workdir: its scratch folder.
        channel: to the slot.
    """

    def __init__(
        self,
        run: context.Run | None,
        config: records.SlotConfig,
        request: records.TrialRequest,
        workdir: Path,
        channel: TrialChannel,
    ) -> None:
        self._job = rank.Job(run, config, request, workdir)
        self._config = config
        self._request = request
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._ranks: list[starting.Rank] = []
        self._stragglers = Stragglers(config.ranks)
        self._remarks: dict[str, float] = {}  # the supervisor's own metrics, added to reports while they apply
        self._last: Mapping[str, float] = {}  # metrics of rank 0's newest report
        self._peak = 0  # sum of the ranks' largest resident sets
        self._verdict = Verdict(request.number, [each.rank for each in self._placements("")], config.grace)
        self._wake: tuple[socket.socket, ...] = ()
        self._aborted = False
        self._timers: Timers[None] = Timers()

    def run(self) -> records.TrialOutcome:
        """Run all ranks to their end; return the trial's outcome."""
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGABRT):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self._selector.register(wake_read, selectors.EVENT_READ, functools.partial(self._signalled, wake_read))
        with contextlib.closing(self._meeting()) as port:
            self._wake = (wake_read, wake_write)
            with starting.no_stop_in_between():
                self._start(port.address)
            self._selector.register(self._channel, selectors.EVENT_READ, self._answered)
            while any(not each.ended for each in self._ranks):
                for key, _ in self._selector.select(self._timers.until_next()):
                    key.data()
                for act in self._timers.due():
                    act()
        for each in self._ranks:
            if each.lines is not None:
                each.lines.close()
        if self._aborted:
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGABRT)
        with contextlib.suppress(OSError):  # the slot is gone
            self._channel.flush(wait=True)
        return dataclasses.replace(self._verdict.outcome(self._last), peak_memory=self._peak)

    # --- start

    def _meeting(self) -> meeting.Port | meeting.Elsewhere:
        """The rendezvous of the ranks of all nodes."""
        return meeting.Port() if self._config.nodes == 1 else meeting.Elsewhere(self._request.rendezvous)

    def _placements(self, address: str) -> list[rank.Placement]:
        return [rank.placement_of(self._job, local, address) for local in range(self._config.ranks)]

    def _start(self, address: str) -> None:
        reasons = spawn.reasons_not_to_fork()
        if reasons:
            self._log(f"ranks are spawned, not forked: {'; '.join(reasons)}")
        make = starting.spawn if reasons else starting.fork
        for placement in self._placements(address):
            each = make(self._job, placement, self._leave)
            self._ranks.append(each)
            self._selector.register(each.channel, selectors.EVENT_READ, functools.partial(self._read, each))
            self._selector.register(each.handle, selectors.EVENT_READ, functools.partial(self._ended, each))
            if each.lines is not None:
                self._selector.register(each.lines.source, selectors.EVENT_READ, functools.partial(self._pump, each.lines))

    def _leave(self) -> None:
        """Close the supervisor's descriptors in a fork."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for wake in self._wake:
            wake.close()
        self._channel.close()
        self._selector.close()
        for each in self._ranks:
            each.channel.close()
            os.close(each.handle)
            if each.lines is not None:
                os.close(each.lines.source)

    # --- events of ranks

    def _read(self, each: starting.Rank) -> bool:
        """Read what a rank has sent; False when its channel is closed."""
        if each.channel.fileno() < 0:  # in the same round, by `_ended`
            return False
        try:
            for message in each.channel.read():
                self._receive(each, message)
        except (EOFError, errors.MessageError) as error:
            self._selector.unregister(each.channel)
            each.channel.close()
            if isinstance(error, errors.MessageError):
                outcome = records.TrialOutcome(
                    self._request.number, TrialState.FAILED, FailureClass.INVALID, message=str(error)
                )
                self._follow(self._verdict.reported(each.placement.rank, outcome))
            return False
        return True

    def _receive(self, each: starting.Rank, message: messages.FromRank) -> None:
        match message:
            case messages.Pulsed():
                self._pulsed(each, message)
            case messages.Reported():
                self._last = {**message.metrics, **self._remarks}
                with contextlib.suppress(OSError):  # the slot is gone
                    self._channel.send(dataclasses.replace(message, metrics=self._last), wait=False)
                self._watch_channel()
            case messages.Ended():
                self._follow(self._verdict.reported(each.placement.rank, message.outcome))

    def _pulsed(self, each: starting.Rank, message: messages.Pulsed) -> None:
        news = self._stragglers.pulse(each.placement.rank, message.step, message.seconds)
        if news is not None:
            self._log(news.text())
        worst = self._stragglers.slowest
        self._remarks = {} if worst is None else {"slowest_rank": float(worst.rank), "slowest_rank_factor": worst.factor}

    def _ended(self, each: starting.Rank) -> None:
        """Handle the end of a rank's process."""
        self._selector.unregister(each.handle)
        _, status, usage = os.wait4(each.pid, 0)
        os.close(each.handle)
        each.ended = True
        self._peak += usage.ru_maxrss * 1024
        while each.channel.fileno() >= 0 and each.channel.is_readable() and self._read(each):
            pass
        if not self._aborted:
            self._follow(self._verdict.ended(each.placement.rank, os.waitstatus_to_exitcode(status)))

    # --- ending

    def _signalled(self, wake: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in wake.recv(4096):
                if number == signal.SIGTERM:
                    self._log(f"SIGTERM: ranks have {self._config.grace:g} s to save a checkpoint and end")
                    if not self._verdict.stopping and self._verdict.decided is None:
                        self._verdict.stopping = True
                        self._follow(Next.STOP)
                elif number == signal.SIGABRT:
                    self._aborted = True
                    self._signal(signal.SIGABRT)
                    self._kill_in(ABORT_GRACE)

    def _follow(self, step: Next) -> None:
        """Apply the next step to the ranks that still run."""
        now = time.monotonic()
        if step is Next.SETTLE and "settle" not in self._timers:
            self._timers.set("settle", now + SETTLE, self._settle)
        elif step is Next.RESULT and "left" not in self._timers:
            self._timers.set("left", now + self._config.linger, self._end_left)
        elif step is Next.STOP:
            self._timers.set("overdue", now + self._config.grace, self._end_overdue)
            self._signal(signal.SIGTERM)
        elif step is Next.END:
            decided = self._verdict.decided
            is_over = decided is not None and (decided.early or decided.state in (TrialState.PRUNED, TrialState.PAUSED))
            self._timers.cancel("settle", "left", "overdue")
            self._kill_in(min(OVER_GRACE if is_over else ENDING_GRACE, self._config.grace))
            self._signal(signal.SIGTERM)
        for remark in self._verdict.remarks:
            self._log(remark)
        self._verdict.remarks.clear()

    def _settle(self) -> None:
        """End the ranks after a failure, once the other ranks had time to report theirs."""
        self._verdict.settled()
        self._follow(Next.END)

    def _end_left(self) -> None:
        """End ranks that still run long after rank 0 has returned; first they write their stacks."""
        self._verdict.record_late(self._running_ranks(), self._config.linger)
        self._follow(Next.GO_ON)  # logs the remark
        self._signal(signal.SIGABRT)
        self._kill_in(ABORT_GRACE)

    def _end_overdue(self) -> None:
        """Kill ranks that have not ended within their grace after SIGTERM."""
        self._verdict.overdue(self._running_ranks())
        self._signal(signal.SIGKILL)

    def _kill_in(self, seconds: float) -> None:
        self._timers.set("kill", time.monotonic() + seconds, lambda: self._signal(signal.SIGKILL))

    def _running_ranks(self) -> list[int]:
        return [each.placement.rank for each in self._ranks if not each.ended]

    def _signal(self, number: signal.Signals) -> None:
        for each in self._ranks:
            if not each.ended:
                signal.pidfd_send_signal(each.handle, number)  # a zombie accepts it too

    # --- to and from the slot, and the log

    def _answered(self) -> None:
        """Handle the slot's channel: it can be written again, or has an answer to a report of rank 0."""
        with contextlib.suppress(OSError):
            self._channel.flush()
        self._watch_channel()
        if self._channel.is_readable():
            try:
                for answer in self._channel.read():
                    assert isinstance(answer, messages.AnswerReport), "a slot sends only answers to a trial that runs"
                    with contextlib.suppress(OSError):  # rank 0 is gone
                        self._ranks[0].channel.send(answer)
            except EOFError:
                self._selector.unregister(self._channel)  # the template ends this process next

    def _watch_channel(self) -> None:
        if self._channel in self._selector.get_map():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.has_unsent else 0)
            self._selector.modify(self._channel, events, self._answered)

    def _pump(self, lines: starting.Lines) -> None:
        if not lines.pump():
            self._selector.unregister(lines.source)

    def _log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            starting.write_all(sys.stdout.fileno(), f"supervisor: {text}\n".encode())
