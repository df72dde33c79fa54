"""The loop's interface to a run's work: slots in which attempts run, their events, and the run's progress."""

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
        ledger: of the run.
        slots: where its attempts run.
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
        """Which slot does not start, and why; "" when all do."""
        return self._slots.trouble

    @property
    def idle(self) -> list[int]:
        """The slots in which an attempt can be started."""
        return self._slots.idle

    def running(self) -> dict[int, TrialRequest]:
        """Slot → the attempt in it."""
        return self._slots.running()

    def resize(self, parallel: int, unstarted: int) -> None:
        """Set the number of slots to the desired one, or to as many as attempts can use.

        Towards the end of a run that is the number of running attempts: a retry gets the slot of the attempt before, or its
        replacement. The GPUs of the others are released.

        Args:
            parallel: the desired number.
            unstarted: attempts that are still to start.
        """
        size = max(1, min(parallel, unstarted + self._ledger.counts.running))
        if size != self._slots.size:
            log.info("resizing from %d to %d slots", self._slots.size, size)
            self._slots.resize(size)

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start an attempt in an idle slot."""
        self._slots.start(slot, request)

    def stop(self, slot: int, message: str) -> None:
        """Let the attempt in a slot save itself and end; its outcome comes as an event."""
        self._slots.stop(slot, message)

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """End the attempt in a slot; its outcome comes as an event."""
        self._slots.kill(slot, failure, message)

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """The attempts' events, waiting at most `timeout` seconds for the first. Raises as `Pool.events`.

        By default each event is answered once the caller has handled it.
        """
        for event in self._slots.events(timeout):
            if isinstance(event, SlotReady):
                yield event
                continue
            # The first decision counts, as for a function, which ends there: the reports after it are not the trial's.
            pruned = next((index for index, report in enumerate(event.reports) if self._prunes(report)), None)
            prune_at = None if pruned is None else event.reports[pruned].step
            yield event if pruned is None else event.with_first(pruned + 1)
            if event.outcome is None:
                suggested = None if event.wanted is None else self._suggested(event.request, event.wanted)
                self._slots.answer(event.slot, prune_at, suggested)

    def _prunes(self, report: TrialReport) -> bool:
        """Take a report; return whether the attempt is to be pruned."""
        return self._ledger.report(report)

    def _suggested(self, request: TrialRequest, parameter: messages.Suggest) -> messages.Suggested:
        """Draw a parameter that an attempt asks for."""
        return messages.Suggested(None, f"{self._ledger.job.title} draws no parameters")

    def ended(self, request: TrialRequest, outcome: TrialOutcome) -> None:  # noqa: B027  only a study uses it
        """Take the end of an attempt, as recorded in the ledger."""

    def failed(self) -> Ending | None:
        """The run's ending, if the failures so far end it."""
        return None

    @abc.abstractmethod
    def finished(self) -> Ending:
        """The run's ending, once every trial has ended."""

    @property
    @abc.abstractmethod
    def progress(self) -> RunProgress:
        """The progress of the run."""

    def eta(self, now: float, rate: float | None) -> float | None:
        """Seconds until every trial has ended; None while unknown.

        Args:
            now: seconds since the epoch.
            rate: trials that end per second.
        """
        return self._unended / rate if rate else None

    @property
    def _unended(self) -> float:
        """Trials that have not ended."""
        return self._ledger.job.trials - self._ledger.counts.ended

    def send_files(self, goes_on: Callable[[], bool], show: Callable[[str], None]) -> list[str]:
        """Send what the job keeps of its trials to MLflow, once they have ended; return a sentence on what MLflow lacks.

        Args:
            goes_on: whether the user lets the run continue.
            show: shows the user what the run waits for.
        """
        return []

    def close(self) -> None:
        """End all slots."""
        self._slots.close()
