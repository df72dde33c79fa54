"""The controller's state of each worker of a collection in one iteration, and its status. Pure."""

from __future__ import annotations

import dataclasses

from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass
from trialplane.wire.units import WorkerStatus

MAX_EMPTY = 3  # consecutive processes without any unit after which a worker is given up for the iteration
MAX_LOST = 10  # the same for lost ones: a pod may be lost, but not repeatedly before it has done anything


@dataclasses.dataclass
class WorkerSlot:
    """One worker.

    Attributes:
        index: its slot.
        request: what runs in the slot now.
        owed: units that it has requested and not received.
        last: whether it was informed that no more units follow.
        began: when its first unit was handed out.
        handed: units that the process has received.
        empty: processes in a row that ended before they had any.
        lost: the same for lost processes.
        failure: how its last process failed, if it did.
        newest: when the newest of its results arrived.
    """

    index: int
    request: TrialRequest | None = None
    owed: int = 0
    last: bool = False
    began: float | None = None
    handed: int = 0
    empty: int = 0
    lost: int = 0
    failure: TrialOutcome | None = None
    newest: float | None = None
    units: int = 0
    items: int = 0
    failed: int = 0
    bytes: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether it is not started again in this iteration."""
        return self.empty >= MAX_EMPTY or self.lost >= MAX_LOST

    def start(self, request: TrialRequest) -> None:
        """Record that a process starts."""
        self.request, self.owed, self.handed, self.last = request, 0, 0, False

    def end(self, failure: TrialOutcome | None) -> None:
        """Record that the process has ended, with or without a failure."""
        self.failure = failure
        if self.handed or failure is None:
            self.empty = self.lost = 0
        elif failure.failure is FailureClass.LOST:  # which may not be its fault
            self.lost += 1
        else:
            self.empty += 1
        self.request, self.owed = None, 0

    def close(self) -> None:
        """Record the end of the iteration, which ends the process without a failure."""
        self.last = True
        if self.request is not None:
            self.end(None)

    def arrived(self, items: int, size: int, now: float) -> None:
        """Record that one of its results reached the learner."""
        self.newest = now
        self.units += 1
        self.items += items
        self.bytes += size

    def status(self, now: float, node: str, works: bool, is_full: bool) -> WorkerStatus:
        """The worker's status for users.

        Args:
            now: by the clock of `began`.
            node: where its slot is, or "" while it is not ready.
            works: whether it has a unit to do.
            is_full: whether one of its results waits for room.
        """
        if self.is_given_up:
            state = "gone"
        elif self.request is None:
            state = "failed" if self.failure else "waiting" if self.last else "starting"
        elif works:
            state = "working"
        else:
            state = "waiting" if is_full or self.owed or self.last else "starting"
        until = now if state == "working" else self.newest
        seconds = 0.0 if self.began is None or until is None else until - self.began
        counters = {"units": self.units, "items": self.items, "failed": self.failed, "bytes": self.bytes}
        message = "" if self.failure is None else self.failure.message
        return WorkerStatus(self.index, state, node, seconds=seconds, message=message, **counters)
