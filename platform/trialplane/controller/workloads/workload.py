"""The loop's interface to the work of a run, which differs between the kinds of jobs.

A workload has the slots in which attempts run. It passes their events to the loop, answers them, and computes the progress
of the run. Each kind of job has a subclass.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterator

from trialplane.controller.endings import Ending
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import Pool, SlotEvent, SlotReady
from trialplane.wire import messages
from trialplane.wire.progress import RunProgress
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass

log = logging.getLogger(__name__)


class Workload(abc.ABC):
    """The work of one run. Each attempt of the ledger runs in one slot, or in a gang of them.

    Args:
        ledger: Ledger of the run.
        slots: Slots in which its attempts run.
    """

    def __init__(self, ledger: Ledger, slots: Pool) -> None:
        self._ledger = ledger
        self._slots = slots

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return self._slots.nodes

    @property
    def ready(self) -> int:
        """The number of slots with a warm template."""
        return self._slots.ready

    @property
    def trouble(self) -> str:
        """A message about a slot that does not start, with the reason; "" if all start."""
        return self._slots.trouble

    @property
    def idle(self) -> list[int]:
        """The slots in which an attempt can be started."""
        return self._slots.idle

    def running(self) -> dict[int, TrialRequest]:
        """Return the attempt in each slot that has one, by slot."""
        return self._slots.running()

    def resize(self, parallel: int, startable: int) -> None:
        """Set the number of slots to the desired one, or to a smaller one if fewer attempts are left.

        Towards the end of a run only the slots of running attempts remain, so that the GPUs of the others are released. A
        retry gets the slot of the attempt that it repeats, or the replacement of that slot.

        Args:
            parallel: Desired number of slots.
            startable: Number of attempts that may start now or later.
        """
        size = max(1, min(parallel, startable + self._ledger.counts.running))
        if size != self._slots.size:
            log.info("resizing from %d to %d slots", self._slots.size, size)
            self._slots.resize(size)

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start an attempt in an idle slot."""
        self._slots.start(slot, request)

    def stop(self, slot: int, message: str) -> None:
        """Let the attempt in a slot save itself and end, see `Pool.stop`."""
        self._slots.stop(slot, message)

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Kill the attempt in a slot, see `Pool.kill`."""
        self._slots.kill(slot, failure, message)

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """Yield the attempts' events, waiting at most `timeout` seconds for the first.

        The reports in an event are recorded before it is yielded. After the caller has handled the event of a running
        attempt, it is answered: with the step at which the attempt is pruned, or None, and with a parameter that it has
        requested.

        Raises:
            EntrypointError, SlotError: As `Pool.events`.
        """
        for event in self._slots.events(timeout):
            if isinstance(event, SlotReady):
                yield event
                continue
            prune_at: int | None = None
            for index, report in enumerate(event.reports):
                if self._take_report(report) and event.outcome is None:  # the late reports of a trial that has ended stay
                    prune_at = report.step
                    event = event.with_first_reports(index + 1)  # drops reports that the process has sent since
                    break
            yield event
            if event.outcome is None:
                if event.awaits_record:
                    self._ledger.write_reports(patient=True)
                parameter = event.requested_parameter
                suggested = None if parameter is None else self._suggest(event.request, parameter)
                self._slots.answer(event.slot, prune_at, suggested)

    def _take_report(self, report: TrialReport) -> bool:
        """Record a report; return whether the attempt is pruned."""
        return self._ledger.report(report)

    def _suggest(self, request: TrialRequest, parameter: messages.Suggest) -> messages.Suggested:
        """Return the answer to an attempt that requests a parameter: a refusal, as only a study draws parameters."""
        return messages.Suggested(value=None, error=f"{self._ledger.job.title} draws no parameters")

    def record_end(self, request: TrialRequest, outcome: TrialOutcome) -> None:  # noqa: B027  only a study uses it
        """Record the end of an attempt, after it was written to the ledger."""

    def failure_ending(self) -> Ending | None:
        """Return the run's ending if the failures so far end it; otherwise None."""
        return None

    @abc.abstractmethod
    def final_ending(self) -> Ending:
        """Return the run's ending when no trial runs and none can be started."""

    @property
    @abc.abstractmethod
    def progress(self) -> RunProgress:
        """The progress of the run."""

    def eta(self, now: float, rate: float | None) -> float | None:
        """Return the seconds until every trial has ended; None while unknown.

        Args:
            now: Current time in seconds since the epoch.
            rate: Number of trials that end per second; None if unknown.
        """
        return self._unended / rate if rate else None

    @property
    def _unended(self) -> float:
        """The number of trials that have not ended; a running one may count as a fraction."""
        return self._ledger.job.trials - self._ledger.counts.ended

    def send_files(self, may_continue: Callable[[], bool], show: Callable[[str], None]) -> list[str]:
        """Send the files that the job keeps of its trials to MLflow, see `FileSender.run`. Only a study keeps any."""
        return []

    def close(self) -> None:
        """End all slots."""
        self._slots.close()
