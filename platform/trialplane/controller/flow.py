"""Flow control of the results on their way from workers to the learner of one iteration. Pure.

In an iteration, workers produce a result for each unit of work, and a learner reads the results. A result passes these
stages:

1. Its worker offers it, and has it in its memory.
2. A fetch of it is granted, which moves it into the object store.
3. It is fed to the learner's slot.
4. The learner takes it.

It is in flight from the grant until the learner takes it. The bytes in flight are limited, so that no object store spills to
disk. Above the limit workers wait.

A call costs as much as moving some megabytes. So results that a worker offers while its earlier ones are being fetched are
later fetched and fed together, as one object. The faster a worker is, the more of its results share a call.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

from trialplane.wire.units import BATCH_BYTES, BATCH_RESULTS, Transfer

AHEAD = 2  # results that are fed before the learner takes them, whatever their size, so that it need not wait
SHARE = 4  # one call moves at most 1 / SHARE of the limit, so that others move at the same time


@dataclasses.dataclass(frozen=True)
class Load:
    """Results that are one object in the object store, and the reference to it: a list of them, in the same order."""

    transfers: tuple[Transfer, ...]
    reference: Any


class Flow:
    """The results in flight.

    Args:
        limit: Largest number of bytes in flight.

    Attributes:
        limit: Largest number of bytes in flight; may be changed.
        in_flight: Number of bytes in flight.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self._offered: collections.deque[Transfer] = collections.deque()
        self._moving: dict[int, Transfer] = {}  # unit → its result, whose fetch was granted and has not ended
        self._stored: collections.deque[Load] = collections.deque()
        self._fed: dict[int, Transfer] = {}  # unit → its result, which the learner has not taken

    def add_offer(self, transfer: Transfer) -> None:
        """Add a result that a worker offers."""
        self._offered.append(transfer)

    def grant_fetches(self) -> dict[int, tuple[int, ...]]:
        """Grant the fetch of as many offers as there is room for, in their order.

        A worker gets no further grant until its earlier results have been fetched.

        Returns:
            Units whose fetch is granted, by worker.
        """
        blocked_workers = {transfer.worker for transfer in self._moving.values()}  # they get no further grant now
        granted: dict[int, list[Transfer]] = {}  # by worker
        deferred: collections.deque[Transfer] = collections.deque()  # offers that wait, although later ones may be granted
        while self._offered:
            transfer = self._offered[0]
            worker = transfer.worker
            if worker in blocked_workers or not self._may_join(granted.get(worker, []), transfer):
                blocked_workers.add(worker)  # a later offer of this worker must not overtake this one
                deferred.append(self._offered.popleft())
            elif self.in_flight + transfer.bytes > self.limit:
                break  # smaller offers after it must wait too, or this one might wait forever
            else:
                self.in_flight += transfer.bytes
                self._moving[transfer.unit] = transfer
                granted.setdefault(worker, []).append(self._offered.popleft())
        self._offered.extendleft(reversed(deferred))  # puts them back to the front, in their order
        return {worker: tuple(transfer.unit for transfer in transfers) for worker, transfers in granted.items()}

    def withdraw(self, worker: int) -> list[int]:
        """Remove the offers of a worker that has ended, unless their fetch is granted; return their units."""
        withdrawn = [transfer.unit for transfer in self._offered if transfer.worker == worker]
        self._offered = collections.deque(transfer for transfer in self._offered if transfer.worker != worker)
        return withdrawn

    def has_unfetched(self, worker: int) -> bool:
        """Return whether a result is still in the memory of its worker."""
        return any(transfer.worker == worker for transfer in (*self._offered, *self._moving.values()))

    def record_stored(self, units: Iterable[int], reference: Any) -> None:
        """Record that the results of these units were fetched into the object store, as one object."""
        self._stored.append(Load(tuple(self._moving.pop(unit) for unit in units), reference))

    def take_loads(self) -> list[Load]:
        """Remove and return the stored loads that the learner gets now, and record them as fed."""
        loads: list[Load] = []
        while self._stored and (len(self._fed) < AHEAD or self._has_room_ahead(self._stored[0])):
            load = self._stored.popleft()
            self._fed |= {transfer.unit: transfer for transfer in load.transfers}
            loads.append(load)
        return loads

    def fed_transfer(self, unit: int) -> Transfer | None:
        """Return the result of a unit that was fed and that the learner has not taken; otherwise None."""
        return self._fed.get(unit)

    def record_taken(self, unit: int) -> Transfer | None:
        """Record that the learner has taken a result, and return it; return None if it was never fed."""
        transfer = self._fed.pop(unit, None)
        if transfer is not None:
            self.in_flight -= transfer.bytes
        return transfer

    def record_lost(self, unit: int) -> Transfer | None:
        """Record that a result was lost, and return it; return None if it was not on its way: being fetched, or fed."""
        transfer = self._moving.pop(unit, None) or self._fed.pop(unit, None)
        if transfer is not None:
            self.in_flight -= transfer.bytes
        return transfer

    @property
    def _call_bytes(self) -> int:
        """The largest number of bytes that one call moves, unless a single result is larger."""
        return min(BATCH_BYTES, self.limit // SHARE)

    def _may_join(self, transfers: list[Transfer], candidate: Transfer) -> bool:
        """Return whether a result may be fetched in the same call as these. A single result always may."""
        size = sum(transfer.bytes for transfer in transfers) + candidate.bytes
        return not transfers or (len(transfers) < BATCH_RESULTS and size <= self._call_bytes)

    def _has_room_ahead(self, load: Load) -> bool:
        """Return whether a load may be fed although the learner has not taken `AHEAD` earlier results.

        It may if all these results together are no more than two calls can move.
        """
        transfers = (*self._fed.values(), *load.transfers)
        return len(transfers) <= 2 * BATCH_RESULTS and sum(transfer.bytes for transfer in transfers) <= 2 * self._call_bytes
