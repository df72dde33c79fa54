"""The controller's loop: starts attempts, records their ends, and ends the run when its trials or its budgets are used up.

One thread. Slots answer with events. The loop waits for the database only while it is away, and never for MLflow. What
differs between kinds of runs is in the workload.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from trialplane import errors
from trialplane.controller import arrival, endings
from trialplane.controller.desired import DesiredState
from trialplane.controller.endings import Ending
from trialplane.controller.exporter_process import ExporterProcess
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import SlotReady, SlotTrial
from trialplane.controller.status import StatusBoard
from trialplane.controller.workloads.workload import Workload
from trialplane.wire.messages import LogGrown
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, RunState

log = logging.getLogger(__name__)

WAIT = 0.25  # seconds; how soon the loop handles a signal when no slot has an event
_GROWING = 1.0  # seconds within which the ledger has the reports of an event
_LONGEST_REMARK = 1000  # characters of a trial's remark, which its code may make of any length
_LONGEST_MESSAGE = 10_000  # the same of why it ended
_MOST_ANSWERED = 100  # trials that are answered by earlier results, before the loop looks at its slots again
_MOST_WARNINGS = 100  # in the status, which is written often


class Loop:
    """Drives one run to its end.

    Attributes:
        worked: seconds since its first slot was ready, with those of former controllers; see `RunStatus`.

    Args:
        run: the run's files.
        ledger: the run's.
        workload: the work of its slots.
        exporter: to MLflow.
        board: publishes the status.
        base: the constant part of the status.
        desired: the desired state of the run, which the loop polls.
    """

    def __init__(
        self,
        run: RunPaths,
        ledger: Ledger,
        workload: Workload,
        exporter: ExporterProcess,
        board: StatusBoard,
        base: RunStatus,
        desired: DesiredState,
    ) -> None:
        self._run = run
        self._job = ledger.job
        self._ledger = ledger
        self._workload = workload
        self._exporter = exporter
        self._board = board
        self._base = base
        self._desired = desired
        self._is_dry = False  # nothing is left to start, unless a running trial is retried
        self._is_full = False  # the ledger takes no new attempt, until a trial ends or another run makes room
        self._ending: Ending | None = None
        self._hurry = False
        self._stopping: set[int] = set()  # numbers of attempts that the user has stopped
        self.worked = base.worked
        self._since: float | None = None  # up to when `worked` counts, by the monotonic clock; None until a slot is ready
        self._ended_before = ledger.counts.ended
        self._growing_until = 0.0  # by the monotonic clock, the ledger may be written until then
        self._warnings: dict[str, None] = {}  # those already logged, in order
        self._warned_kinds: set[str] = set()  # kinds of trials' remarks of which the first became a warning

    def run(self) -> Ending:
        """Run until the end and return how it ended; the ends of all attempts are in the ledger by then."""
        while True:
            self._check_end()
            if self._ending is None and not self._is_full:
                self._start_all()
            elif self._ending is not None and self._ending.kill:
                self._end_all(self._ending)  # in each iteration, as a process that is just starting takes no message yet
            self._resize()
            if not self._ledger.counts.running and (self._ending or self._ledger.is_done):
                ending = self._end()
                self._send_files(ending)
                return ending
            for event in self._workload.events(WAIT):
                if isinstance(event, SlotReady):
                    self._since = self._since or time.monotonic()
                else:
                    self._take(event)
            self._ledger.write_reports()
            for remark in (self._ledger.pruning.complaint, *self._ledger.remarks):
                if remark:
                    self._warn(remark)
            if time.monotonic() < self._growing_until:
                self._exporter.wake()
            else:
                self._exporter.tick()
            self.show(
                RunState.RUNNING, "the running trials save themselves and end" if self._stopping else self._workload.trouble
            )

    def show(self, state: RunState, reason: str = "") -> None:
        """Put the run's status on the board."""
        self._board.show(self._status(state, reason))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the run, in the order in which they arose."""
        return tuple(self._warnings)

    def _warn(self, text: str) -> None:
        """Add and log a warning, once; no more than `_MOST_WARNINGS` are kept."""
        text = errors.shortened(text, _LONGEST_REMARK)
        if len(self._warnings) >= _MOST_WARNINGS:
            text = "there are more warnings, which are left out"
        if text not in self._warnings:
            self._warnings[text] = None
            log.warning("%s", text)

    # Starting

    def _resize(self) -> None:
        parallel = self._desired.parallel()
        if parallel is not None:
            self._base = dataclasses.replace(self._base, parallel=parallel)
            self._workload.resize(parallel, 0 if self._is_dry or self._ending else self._ledger.unstarted)

    def _start_all(self) -> None:
        """Start an attempt in every idle slot while there are any left."""
        idle, answered = self._workload.idle, 0
        while idle and answered < _MOST_ANSWERED:
            try:
                request = self._ledger.ask()
            except errors.LedgerFull as error:
                if not self._ledger.counts.running:
                    raise
                self._is_full = True  # those that run have their results recorded first
                self._warn(f"no further trial is started: {error}")
                return
            if request is None:
                self._is_dry = not self._ledger.counts.paused  # those may be promoted
                break
            self._growing_until = time.monotonic() + _GROWING
            if (answer := self._ledger.answer(request)) is not None:
                answered += 1
                self._record_end(request, answer)
            else:
                self._workload.start(idle.pop(0), request)
        self._end_dropped()

    def _end_dropped(self) -> None:
        """Take note of paused trials that will not continue."""
        for request, outcome in self._ledger.take_dropped():
            self._workload.ended(request, outcome)
            self._log_end(request, outcome)

    # Recording

    def _take(self, event: SlotTrial) -> None:
        """Record the messages of an attempt."""
        self._growing_until = time.monotonic() + _GROWING
        for message in event.messages:
            if isinstance(message, LogGrown):
                arrival.add_to_log(self._run, event.request, message.data)
        for report in event.reports:
            if report.remark:
                self._warn(report.remark)
        if event.outcome is not None:
            self._take_end(event, event.outcome)

    def _take_end(self, event: SlotTrial, outcome: TrialOutcome) -> None:
        number = outcome.number
        request = next((r for r in self._ledger.running() if r.number == number), None)
        if request is None:
            log.warning("slot %d sent a late result of attempt %d, which is ignored", event.slot, number)
            return
        if event.arrays is not None:
            arrival.arrays_to_file(event.arrays, self._run.packed(number))
        if event.store is not None:
            arrival.unpack_store(self._run, number, event.store)
        self._record_end(request, dataclasses.replace(_bounded(self._as_stopped(outcome)), slot=event.slot))

    def _record_end(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        ended = self._ledger.tell(outcome)
        assert ended is not None
        self._is_dry = self._is_full = False
        self._workload.ended(request, ended)
        self._log_end(request, ended)
        self._end_dropped()
        remark = ended.remark and f"{self._job.noun} {request.trial}: {ended.remark}"
        for kind, text in (("advice", ended.advice), ("remark", remark)):
            if text and kind not in self._warned_kinds:  # once: the next trial gives the same with other seconds or files
                self._warned_kinds.add(kind)
                self._warn(text)

    def _log_end(self, request: TrialRequest, ended: TrialOutcome) -> None:
        name = f"{self._job.noun} {request.trial}" + (f" (attempt {request.attempt})" if request.attempt > 1 else "")
        if ended.failure is None:
            log.info("%s: %s%s", name, ended.state.value, f"; {ended.message}" if ended.message else "")
        else:
            again = "; it is retried" if ended.retried else ""
            log.warning("%s: %s: %s%s", name, ended.failure.value, ended.message, again)

    # Ending

    def _check_end(self) -> None:
        """Check whether the user, a budget or a failure ends the run."""
        if self._since is not None:
            before, self._since = self._since, time.monotonic()
            self.worked += self._since - before
        if (by_user := self._desired.ending()) is not None:
            self._ending = endings.of(self._ending, by_user)
            self._hurry = self._hurry or by_user.hurry  # whichever ending counts
        ledger = self._ledger
        candidates = (*endings.of_budgets(self._job, ledger.counts, ledger.best, self.worked), self._workload.failed())
        for ending in candidates:
            if ending is not None:
                self._ending = endings.of(self._ending, ending)

    def _end_all(self, ending: Ending) -> None:
        """End the running trials; those that keep checkpoints get time to save one when the user ends the run."""
        for slot, request in self._workload.running().items():
            if ending.by_user and self._job.keeps_checkpoints and not self._hurry:
                self._stopping.add(request.number)
                self._workload.stop(slot, ending.of_trials)
            else:
                self._workload.kill(slot, FailureClass.STOPPED, ending.of_trials)

    def _as_stopped(self, outcome: TrialOutcome) -> TrialOutcome:
        """The outcome of a trial that the user has stopped: it uses up no retry, however its process ended."""
        if outcome.number not in self._stopping:
            return outcome
        self._stopping.discard(outcome.number)
        if outcome.failure not in (FailureClass.LOST, FailureClass.CRASHED):
            return outcome  # it ended by itself, within its grace period
        return dataclasses.replace(outcome, failure=FailureClass.STOPPED)

    def _end(self) -> Ending:
        """The run's ending, once nothing runs."""
        if self._ending is None or (self._ending.state is RunState.PAUSED and self._ledger.is_done):
            return self._workload.finished()  # also when the last trial completed within its grace period
        return self._ending

    def _send_files(self, ending: Ending) -> None:
        """Send the files that the job keeps to MLflow, unless the run is to continue."""
        if ending.state is not RunState.PAUSED:

            def show(text: str) -> None:
                self._exporter.tick()
                self.show(RunState.RUNNING, text)

            def goes_on() -> bool:
                return not ending.by_user and self._desired.ending() is None

            for remark in self._workload.send_files(goes_on, show):
                self._warn(remark)

    # Showing

    def _status(self, state: RunState, reason: str) -> RunStatus:
        counts, now = self._ledger.counts, time.time()
        ended_since_start, seconds = counts.ended - self._ended_before, self.worked - self._base.worked
        rate = ended_since_start / seconds if ended_since_start and seconds > 0 else None
        return dataclasses.replace(
            self._base,
            state=state,
            reason=reason,
            **counts.shown(),
            slots_ready=self._workload.ready,
            nodes=() if self._desired.parallel() is None else self._workload.nodes,
            best=self._ledger.best,
            rate=rate,
            eta=self._workload.eta(now, rate) if state is RunState.RUNNING else None,
            worked=self.worked,
            progress=self._workload.progress,
            ended=now if state is not RunState.RUNNING else None,
            updated=now,
            mlflow=self._exporter.trouble,
            warnings=self.warnings,
        )


def _bounded(outcome: TrialOutcome) -> TrialOutcome:
    """The outcome with bounded texts, as they get into warnings and into the reason for which a run ends.

    Its step comes from its reports, and not from what its process says.
    """
    return dataclasses.replace(
        outcome,
        step=0,
        message=errors.shortened(outcome.message, _LONGEST_MESSAGE),
        place=errors.shortened(outcome.place, _LONGEST_REMARK),
        advice=errors.shortened(outcome.advice, _LONGEST_REMARK),
        remark=errors.shortened(outcome.remark, _LONGEST_REMARK),
    )
