"""What the loop knows of a run's work: slots in which attempts run, what their events are, and how the run stands."""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterator

from trialplane.controller.endings import Ending
from trialplane.controller.gangs import GangPool
from trialplane.controller.ledger import Ledger
from trialplane.controller.slot_events import SlotEvent, SlotReady
from trialplane.controller.slots import SlotPool
from trialplane.wire.progress import RunProgress
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass

log = logging.getLogger(__name__)


class Workload(abc.ABC):
    """The work of one run. Each attempt of the ledger runs in one slot, or in a gang of them.

    Attributes:
        noun: what a trial of the run is called.

    Args:
        ledger: of the run.
        slots: where its attempts run.
    """

    noun = "trial"

    def __init__(self, ledger: Ledger, slots: SlotPool | GangPool) -> None:
        self._ledger = ledger
        self._slots = slots

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return self._slots.nodes

    @property
    def ready(self) -> int:
        """How many slots have a warm template."""
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
        """Has as many slots as the user wants and attempts can use.

        Towards the end of a run those are as many as run: an attempt that is tried again finds the slot it had, or its
        successor. The others' GPUs are free for somebody else.

        Args:
            parallel: how many the user wants.
            unstarted: attempts that are still to start.
        """
        size = max(1, min(parallel, unstarted + self._ledger.counts.running))
        if size != self._slots.size:
            log.info("%d slots instead of %d", size, self._slots.size)
            self._slots.resize(size)

    def start(self, slot: int, request: TrialRequest) -> None:
        """Starts an attempt in an idle slot."""
        self._slots.start(slot, request)

    def stop(self, slot: int, message: str) -> None:
        """Lets the attempt in a slot save itself and end; its outcome comes as an event."""
        self._slots.stop(slot, message)

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Ends the attempt in a slot; its outcome comes as an event."""
        self._slots.kill(slot, failure, message)

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """What comes of the attempts, waiting at most `timeout` seconds for the first. Raises as `SlotPool.take`.

        Each is answered when the caller is done with it.
        """
        for event in self._slots.events(timeout):
            if isinstance(event, SlotReady):
                yield event
                continue
            prunes = [self._prunes(report) for report in event.reports]
            yield event
            if event.outcome is None:
                self._slots.answer(event.slot, prune=bool(prunes) and prunes[-1])  # the newest one decides

    def _prunes(self, report: TrialReport) -> bool:
        """Takes a report; whether the attempt is to end as pruned."""
        return False

    def ended(self, request: TrialRequest, outcome: TrialOutcome) -> None:  # noqa: B027  a study alone has a use for it
        """Takes the end of an attempt, as the ledger has it."""

    def failed(self) -> Ending | None:
        """The run's ending, when what has failed so far ends it."""
        return None

    @abc.abstractmethod
    def finished(self) -> Ending:
        """The run's ending, when every trial has ended."""

    @property
    @abc.abstractmethod
    def progress(self) -> RunProgress:
        """How far the run is."""

    def eta(self, now: float, rate: float | None) -> float | None:
        """Seconds until every trial has ended; None while nobody can tell.

        Args:
            now: seconds since the epoch.
            rate: trials that end in a second.
        """
        return self._left / rate if rate else None

    @property
    def _left(self) -> float:
        """Trials that have not ended."""
        return self._ledger.job.trials - self._ledger.counts.ended

    def close(self) -> None:
        """Ends all slots."""
        self._slots.close()
