"""The controller's loop: starts attempts, records their ends, and ends the run when its trials or its budgets are used up.

An attempt is one execution of a trial in a slot, which is a process that runs one trial at a time. The ledger, the run's
database, decides which attempt starts next. The workload has the slots, and everything that differs between the kinds of
runs.

The loop runs in one thread and waits for the events of slots. It waits for the database only while that does not answer, and
never for MLflow: another process, the exporter, copies the ledger to MLflow.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time

from trialplane import errors
from trialplane.controller import arrival, endings
from trialplane.controller.desired import DesiredState
from trialplane.controller.endings import Ending
from trialplane.controller.exporter_process import ExporterProcess
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import SlotTrial
from trialplane.controller.promotion import Promotion
from trialplane.controller.status import StatusBoard
from trialplane.controller.workloads.workload import Workload
from trialplane.wire.costs import Usage
from trialplane.wire.messages import LogGrown
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, RunState

log = logging.getLogger(__name__)

WAIT = 0.25  # longest wait for an event in seconds, which is also the longest delay before a signal is handled
_GROWTH_SECONDS = 1.0  # seconds after an event in which its reports are written to the ledger
_LONGEST_REMARK = 1000  # characters of a remark, which a trial's code may make as long as it likes
_LONGEST_MESSAGE = 10_000  # characters of the message about a trial's end
_MOST_ANSWERED = 100  # starts and ends in a row of attempts that need no training, before the loop handles events again
_MOST_WARNINGS = 100  # warnings in the status, which is written often


class Loop:
    """Drives one run to its end.

    Args:
        run: Paths of the run.
        ledger: Ledger of the run.
        workload: Work of its slots.
        exporter: Process that exports to MLflow.
        board: Board that publishes the status.
        base: Status with the values that do not change while the loop runs, such as the run's name.
        desired: State that the user wants the run to have: running, paused or cancelled, and its number of slots.

    Attributes:
        worked: Seconds since the first slot was ready, including those of earlier controllers; see `RunStatus`.
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
        self._has_nothing_to_start = False  # whether no attempt can start before a running one has ended
        self._is_full = False  # whether the ledger refused a new attempt for lack of space, and no attempt has ended since
        self._ending: Ending | None = None
        self._hurry = False  # whether trials that are ended get no time to save a checkpoint
        self._stopping: set[int] = set()  # numbers of attempts that were told to save a checkpoint and end
        self.worked = base.worked
        self._counted_until: float | None = None  # time up to which `worked` counts; None until a slot is ready
        self._ended_at_start = ledger.counts.ended
        self._growing_until = 0.0  # time by the monotonic clock until which new records may get into the ledger
        self._warnings: dict[str, None] = {}  # in the order in which they arose
        self._warned_kinds: set[str] = set()  # "advice" or "remark", if a text of this kind has become a warning

    def run(self) -> Ending:
        """Run until the run ends; return its ending. The ends of all attempts are then in the ledger."""
        while True:
            self._check_end()
            if self._ending is None and not self._is_full:
                answered_count = self._start_all()
            else:
                answered_count = self._end_answered(_MOST_ANSWERED, is_stuck=True)
            if self._ending is not None and self._ending.kill and not answered_count:
                self._end_running(self._ending)  # in each turn, because a process that is just starting ignores the message
            self._resize()
            is_over = self._ending is not None or self._ledger.is_done
            if is_over and not self._ledger.counts.running:
                ending = self._final_ending()
                self._send_files(ending)
                return ending
            for event in self._workload.events(0.0 if answered_count else WAIT):
                if isinstance(event, SlotTrial):
                    self._take_messages(event)
                elif self._counted_until is None:  # the first slot is ready, and the run begins to work
                    self._counted_until = time.monotonic()
            self._publish()

    def _publish(self) -> None:
        """Write new reports to the ledger, let the exporter read them, and show the status."""
        self._ledger.write_reports()
        for remark in (self._ledger.pruning.complaint, *self._ledger.remarks):
            if remark:
                self._warn(remark)
        if time.monotonic() < self._growing_until:
            self._exporter.wake()
        else:
            self._exporter.tick()
        reason = "the running trials save themselves and end" if self._stopping else self._workload.trouble
        self.show(RunState.RUNNING, reason)

    def show(self, state: RunState, reason: str = "") -> None:
        """Publish the run's status."""
        self._board.show(self._status(state, reason))

    @property
    def usage(self) -> Usage:
        """Hours that all attempts have used so far, and their cost."""
        return self._ledger.usage(self._base.prices)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the run, in the order in which they arose."""
        return tuple(self._warnings)

    def _warn(self, text: str) -> None:
        """Add a warning and log it, unless it exists already. After `_MOST_WARNINGS`, add only that there are more."""
        text = errors.shortened(text, _LONGEST_REMARK)
        if text in self._warnings:
            return
        if len(self._warnings) >= _MOST_WARNINGS:
            text = "there are more warnings, which are left out"
        if text not in self._warnings:
            self._warnings[text] = None
            log.warning("%s", text)

    # Starting

    def _resize(self) -> None:
        """Set the number of slots to the desired one, or to fewer if there are not as many attempts left to start."""
        parallel = self._desired.parallel()
        if parallel is None:  # on a laptop, where it cannot change
            return
        self._base = dataclasses.replace(self._base, parallel=parallel)
        nothing_starts = self._has_nothing_to_start or self._ending is not None
        self._workload.resize(parallel, 0 if nothing_starts else self._ledger.startable)

    def _start_all(self) -> int:
        """Start an attempt in every idle slot, as long as attempts are left.

        An attempt that takes over the end of an earlier one needs no slot.

        Returns:
            The number of starts and ends of such attempts, at most `_MOST_ANSWERED`. With that many, more may be due.
        """
        idle = self._workload.idle
        answered_count = 0
        while True:
            answered_count += self._end_answered(_MOST_ANSWERED - answered_count)
            if not idle or answered_count >= _MOST_ANSWERED:
                break
            request = self._ask(idle[0])
            if request is None:
                ended_count = 0 if self._is_full else self._end_answered(_MOST_ANSWERED - answered_count, is_stuck=True)
                if not ended_count:
                    break
                answered_count += ended_count  # an end may have made another start possible, so ask again
            elif self._ledger.answer(request):
                answered_count += 1
            else:
                self._workload.start(idle.pop(0), request)
        self._end_dropped()
        return answered_count

    def _ask(self, slot: int) -> TrialRequest | None:
        """Return the next attempt, which the ledger has recorded for a slot; None if none can start now."""
        try:
            request = self._ledger.ask(slot)
        except errors.LedgerFull as error:
            if not self._ledger.counts.running:
                raise
            self._is_full = True  # running attempts continue, as the ledger still takes their results
            self._warn(f"no further trial is started: {error}")
            return None
        if request is None:
            # Paused trials may still continue after another one has ended. Slots stay for them if many may at once.
            promotion = self._ledger.promotion
            needs_one_slot = isinstance(promotion, Promotion) and promotion.continues_one_by_one
            self._has_nothing_to_start = not self._ledger.counts.paused or needs_one_slot
        else:
            self._growing_until = time.monotonic() + _GROWTH_SECONDS
        return request

    def _end_answered(self, most: int, *, is_stuck: bool = False) -> int:
        """Record the ends that attempts take over from earlier ones and that are due; return their number.

        Args:
            most: Number of ends after which the others wait for the next call.
            is_stuck: Whether nothing can start before one of these attempts has ended, so that one ends although not due.
        """
        ended_count = 0
        for request, outcome in itertools.islice(self._ledger.take_answers(is_stuck=is_stuck), most):
            self._record_end(request, outcome)
            ended_count += 1
        return ended_count

    def _end_dropped(self) -> None:
        """Record the ends of paused trials that will not continue."""
        for request, outcome in self._ledger.take_dropped():
            self._workload.record_end(request, outcome)
            self._log_end(request, outcome)

    # Recording

    def _take_messages(self, event: SlotTrial) -> None:
        """Record the log lines, the remarks and the end in an event of an attempt. The workload has recorded its reports."""
        self._growing_until = time.monotonic() + _GROWTH_SECONDS  # the exporter is woken until then
        for message in event.messages:
            if isinstance(message, LogGrown):
                arrival.add_to_log(self._run, event.request, message.data)
        for report in event.reports:
            if report.remark:
                self._warn(report.remark)
        if event.outcome is not None:
            self._take_end(event, event.outcome)

    def _take_end(self, event: SlotTrial, outcome: TrialOutcome) -> None:
        """Record the end of an attempt, with the arrays and the MLflow store that came with it."""
        number = outcome.number
        request = next((request for request in self._ledger.running() if request.number == number), None)
        if request is None:
            log.warning("slot %d sent a late result of attempt %d, which is ignored", event.slot, number)
            return
        if event.arrays is not None:
            arrival.write_arrays(event.arrays, self._run.packed(number))
        if event.store is not None:
            arrival.unpack_store(self._run, number, event.store)
        outcome = _sanitize(self._count_as_stopped(outcome))
        self._record_end(request, dataclasses.replace(outcome, slot=event.slot))

    def _record_end(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Write the end of an attempt to the ledger, and add its advice and its remark to the warnings."""
        recorded = self._ledger.tell(outcome)
        assert recorded is not None
        self._has_nothing_to_start = self._is_full = False
        self._workload.record_end(request, recorded)
        self._log_end(request, recorded)
        self._end_dropped()
        remark = f"{self._job.noun} {request.trial}: {recorded.remark}" if recorded.remark else ""
        for kind, text in (("advice", recorded.advice), ("remark", remark)):
            if text and kind not in self._warned_kinds:  # one is enough: the texts of other trials differ in numbers only
                self._warned_kinds.add(kind)
                self._warn(text)

    def _log_end(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Log the end of an attempt."""
        name = f"{self._job.noun} {request.trial}" + (f" (attempt {request.attempt})" if request.attempt > 1 else "")
        if outcome.failure is None:
            log.info("%s: %s%s", name, outcome.state.value, f"; {outcome.message}" if outcome.message else "")
        else:
            is_retried = outcome.retried and outcome.failure is not FailureClass.STOPPED  # a stopped one only by `resume`
            consequence = "; it is retried" if is_retried else ""
            log.warning("%s: %s: %s%s", name, outcome.failure.value, outcome.message, consequence)

    # Ending

    def _check_end(self) -> None:
        """Count the time worked, and set the run's ending if the user, a budget or a failure ends it."""
        if self._counted_until is not None:
            now = time.monotonic()
            self.worked += now - self._counted_until
            self._counted_until = now
        if (requested := self._desired.ending()) is not None:
            self._ending = endings.select(self._ending, requested)
            self._hurry = self._hurry or requested.hurry  # even if another ending counts
        ledger = self._ledger
        budget_endings = endings.budget_endings(self._job, ledger.counts, ledger.best, worked=self.worked, usage=self.usage)
        for ending in (*budget_endings, self._workload.failure_ending()):
            if ending is not None:
                self._ending = endings.select(self._ending, ending)

    def _end_running(self, ending: Ending) -> None:
        """End the running trials. Those that keep checkpoints get time to save one, if the ending and the user allow it."""
        may_save = (ending.is_by_user or ending.saves) and self._job.keeps_checkpoints and not self._hurry
        for slot, request in self._workload.running().items():
            if may_save:
                self._stopping.add(request.number)
                self._workload.stop(slot, ending.trial_message)
            else:
                self._workload.kill(slot, FailureClass.STOPPED, ending.trial_message)

    def _count_as_stopped(self, outcome: TrialOutcome) -> TrialOutcome:
        """Return the outcome of an attempt, with the failure STOPPED if the loop has stopped it and its process died.

        STOPPED uses up no retry, unlike LOST or CRASHED, with which the outcome arrives. An attempt that ended by itself
        within its grace period keeps its outcome.
        """
        was_stopped = outcome.number in self._stopping
        self._stopping.discard(outcome.number)
        if was_stopped and outcome.failure in (FailureClass.LOST, FailureClass.CRASHED):
            return dataclasses.replace(outcome, failure=FailureClass.STOPPED)
        return outcome

    def _final_ending(self) -> Ending:
        """Return the run's ending, after the last attempt has ended.

        If nothing has ended the run before its last trial, the workload judges its trials. It also does if the run was
        paused or its hours or costs were used up, but the last trials ended by themselves within their grace period.
        """
        ending = self._ending
        if ending is None:
            return self._workload.final_ending()
        lets_trials_end = ending.state is RunState.PAUSED or ending.saves
        return self._workload.final_ending() if lets_trials_end and self._ledger.is_done else ending

    def _send_files(self, ending: Ending) -> None:
        """Send the files that the job keeps to MLflow, unless the run is paused and so continues later."""
        if ending.state is RunState.PAUSED:
            return

        def show(text: str) -> None:
            self._exporter.tick()
            self.show(RunState.RUNNING, text)

        def may_continue() -> bool:
            return not ending.is_by_user and self._desired.ending() is None

        for remark in self._workload.send_files(may_continue, show):
            self._warn(remark)

    # Showing

    def _status(self, state: RunState, reason: str) -> RunStatus:
        """Return the run's status while the loop runs, with the state and the reason for it."""
        counts, now = self._ledger.counts, time.time()
        ended_since_start = counts.ended - self._ended_at_start
        seconds = self.worked - self._base.worked
        rate = ended_since_start / seconds if ended_since_start and seconds > 0 else None  # ended trials per second
        is_local = self._desired.parallel() is None
        return dataclasses.replace(
            self._base,
            state=state,
            reason=reason,
            **counts.status_fields(),
            slots_ready=self._workload.ready,
            nodes=() if is_local else self._workload.nodes,
            best=self._ledger.best,
            rate=rate,
            eta=self._workload.eta(now, rate) if state is RunState.RUNNING else None,
            worked=self.worked,
            alive=now,
            usage=self.usage,
            progress=self._workload.progress,
            ended=now if state is not RunState.RUNNING else None,
            updated=now,
            mlflow=self._exporter.trouble,
            warnings=self.warnings,
        )


def _sanitize(outcome: TrialOutcome) -> TrialOutcome:
    """Return the outcome that a trial's process has sent, with shortened texts and the step reset to 0.

    The process runs the job's code, so its texts may have any length. They become part of warnings and of the reason for the
    run's end. The ledger takes the step from the reports.
    """
    return dataclasses.replace(
        outcome,
        step=0,
        message=errors.shortened(outcome.message, _LONGEST_MESSAGE),
        fingerprint=errors.shortened(outcome.fingerprint, _LONGEST_REMARK),
        advice=errors.shortened(outcome.advice, _LONGEST_REMARK),
        remark=errors.shortened(outcome.remark, _LONGEST_REMARK),
    )
