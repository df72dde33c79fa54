"""The state of each worker of a collection in one iteration, and its status for users. Pure.

A worker is one process after another in the same slot. They produce the results of units, the pieces of the iteration's
work. A worker whose processes fail again and again before they get a unit is given up for the iteration.
"""

from __future__ import annotations

import dataclasses

from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass
from trialplane.wire.units import WorkerStatus

MAX_EMPTY = 3  # consecutive processes that fail without any unit, after which a worker is given up for the iteration
MAX_LOST = 10  # the same for processes that are lost, for example with a pod, which is not the worker's fault


@dataclasses.dataclass
class WorkerSlot:
    """One worker of an iteration, which runs one process after another in its slot.

    Attributes:
        index: Number of the worker, which is that of its slot.
        request: Request of the process in the slot; None while none runs.
        requested: Number of units that the process has requested and not received.
        is_at_end: Whether the process was told that no more units follow.
        start_time: Time when the worker got its first unit, by the monotonic clock; None before that.
        received: Number of units that the process has received.
        empty_ends: Number of consecutive processes that failed before they received a unit.
        lost_ends: The same for processes that were lost.
        failed_outcome: Outcome of the last process if it failed; otherwise None.
        last_arrival: Time when the newest of its results arrived, by the monotonic clock; None before that.
        units: Number of its results that have arrived.
        items: Number of items in them.
        failed: Number of units that failed for good at this worker.
        bytes: Size of the results that have arrived.
    """

    index: int
    request: TrialRequest | None = None
    requested: int = 0
    is_at_end: bool = False
    start_time: float | None = None
    received: int = 0
    empty_ends: int = 0
    lost_ends: int = 0
    failed_outcome: TrialOutcome | None = None
    last_arrival: float | None = None
    units: int = 0
    items: int = 0
    failed: int = 0
    bytes: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether the worker is not started again in this iteration."""
        return self.empty_ends >= MAX_EMPTY or self.lost_ends >= MAX_LOST

    def record_start(self, request: TrialRequest) -> None:
        """Record that a process starts."""
        self.request = request
        self.requested = self.received = 0
        self.is_at_end = False

    def end(self, failed_outcome: TrialOutcome | None) -> None:
        """Record that the process has ended; count it if it failed before it received a unit.

        Args:
            failed_outcome: Outcome of the process if it failed; otherwise None.
        """
        self.failed_outcome = failed_outcome
        if self.received or failed_outcome is None:
            self.empty_ends = self.lost_ends = 0
        elif failed_outcome.failure is FailureClass.LOST:
            self.lost_ends += 1
        else:
            self.empty_ends += 1
        self.request, self.requested = None, 0

    def close(self) -> None:
        """Record the end of the iteration, which ends the process without a failure."""
        self.is_at_end = True
        if self.request is not None:
            self.end(None)

    def record_arrival(self, items: int, size: int, now: float) -> None:
        """Record that one of its results reached the learner.

        Args:
            items: Number of items in the result.
            size: Size of the packed result in bytes.
            now: Current time by the monotonic clock.
        """
        self.last_arrival = now
        self.units += 1
        self.items += items
        self.bytes += size

    def status(self, now: float, node: str, has_units: bool, has_unfetched: bool) -> WorkerStatus:
        """Return the worker's status for users.

        Args:
            now: Current time by the monotonic clock.
            node: Host or pod of its slot; "" while the slot is not ready.
            has_units: Whether units are assigned to it whose results it has not offered.
            has_unfetched: Whether one of its results waits in its memory until the object store has room.
        """
        runs = self.request is not None
        waits_for_platform = has_unfetched or self.requested > 0  # for room for a result, or for units
        if self.is_given_up:
            state = "gone"
        elif runs and has_units:
            state = "working"
        elif not runs and self.failed_outcome is not None:
            state = "failed"
        elif self.is_at_end or (runs and waits_for_platform):
            state = "waiting"
        else:
            state = "starting"
        end_time = now if state == "working" else self.last_arrival
        seconds = 0.0 if self.start_time is None or end_time is None else end_time - self.start_time
        counters = {"units": self.units, "items": self.items, "failed": self.failed, "bytes": self.bytes}
        message = "" if self.failed_outcome is None else self.failed_outcome.message
        return WorkerStatus(self.index, state=state, node=node, seconds=seconds, message=message, **counters)
