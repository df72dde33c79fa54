"""Flow control of the results on their way from workers to the learner of one iteration. Pure.

A result is offered in its worker's memory, granted, moved into the object store, fed to the learner, and done when the
learner has taken it. From grant to end it is in flight. Nothing is granted beyond the limit, so workers wait and no object
store has to spill.

A call costs as much as moving some megabytes. So results that a worker offers while its previous ones are being fetched are
fetched and fed together, as one object: the faster results come, the more of them share a call.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

from trialplane.wire.units import BATCH_BYTES, BATCH_RESULTS, Transfer

AHEAD = 2  # results fed and not yet taken, whatever their size, so that the learner need not wait for the next
SHARE = 4  # one call moves at most this fraction (1 / SHARE) of the limit, so that it does not stall the whole flow


@dataclasses.dataclass(frozen=True)
class Load:
    """Results that are one object in the object store: `reference` refers to a list in the order of `transfers`."""

    transfers: tuple[Transfer, ...]
    reference: Any


class Flow:
    """The results in flight.

    Args:
        limit: the most bytes in flight; may be changed.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self._offered: collections.deque[Transfer] = collections.deque()
        self._moving: dict[int, Transfer] = {}
        self._stored: collections.deque[Load] = collections.deque()
        self._fed: dict[int, Transfer] = {}

    def offer(self, transfer: Transfer) -> None:
        """Record a result that a worker offers."""
        self._offered.append(transfer)

    def grants(self) -> dict[int, tuple[int, ...]]:
        """Worker → units of its offers to be fetched now, as many as there is room for, in the order of the offers.

        A worker gets no further grant until its previous results have been fetched.
        """
        busy = {transfer.worker for transfer in self._moving.values()}
        granted: dict[int, list[Transfer]] = collections.defaultdict(list)
        deferred: collections.deque[Transfer] = collections.deque()
        while self._offered:
            transfer = self._offered[0]
            if transfer.worker in busy or not self._may_join(granted[transfer.worker], transfer):
                busy.add(transfer.worker)  # its later ones keep their order
                deferred.append(self._offered.popleft())
            elif self.in_flight + transfer.bytes > self.limit:
                break  # smaller later ones do not overtake it, or it might wait forever
            else:
                self.in_flight += transfer.bytes
                self._moving[transfer.unit] = transfer
                granted[transfer.worker].append(self._offered.popleft())
        self._offered.extendleft(reversed(deferred))
        return {worker: tuple(transfer.unit for transfer in transfers) for worker, transfers in granted.items() if transfers}

    def withdraw(self, worker: int) -> list[int]:
        """Remove and return the units of a worker's offers that are not being fetched, as the worker has ended."""
        withdrawn = [transfer.unit for transfer in self._offered if transfer.worker == worker]
        self._offered = collections.deque(transfer for transfer in self._offered if transfer.worker != worker)
        return withdrawn

    def waits(self, worker: int) -> bool:
        """Whether a result of that worker is still in its memory."""
        return any(transfer.worker == worker for transfer in (*self._offered, *self._moving.values()))

    def store(self, units: Iterable[int], reference: Any) -> None:
        """Record that granted results are in the object store."""
        self._stored.append(Load(tuple(self._moving.pop(unit) for unit in units), reference))

    def feeds(self) -> list[Load]:
        """The loads to be fed to the learner now."""
        loads = []
        while self._stored and (len(self._fed) < AHEAD or self._has_room_ahead(self._stored[0])):
            load = self._stored.popleft()
            self._fed |= {transfer.unit: transfer for transfer in load.transfers}
            loads.append(load)
        return loads

    def fed(self, unit: int) -> Transfer | None:
        """The result of a unit that was fed; None when the learner has already taken it."""
        return self._fed.get(unit)

    def take(self, unit: int) -> Transfer | None:
        """Record that the learner has read a result; None when it was never fed."""
        transfer = self._fed.pop(unit, None)
        if transfer is not None:
            self.in_flight -= transfer.bytes
        return transfer

    def lose(self, unit: int) -> Transfer | None:
        """Record that a result was lost between worker and learner; None when it was not in flight."""
        transfer = self._moving.pop(unit, None) or self._fed.pop(unit, None)
        if transfer is not None:
            self.in_flight -= transfer.bytes
        return transfer

    @property
    def _together(self) -> int:
        """The most bytes that one call moves, unless a single result is larger."""
        return min(BATCH_BYTES, self.limit // SHARE)

    def _may_join(self, transfers: list[Transfer], candidate: Transfer) -> bool:
        """Whether a result may be fetched together with these."""
        size = sum(transfer.bytes for transfer in transfers) + candidate.bytes
        return not transfers or (len(transfers) < BATCH_RESULTS and size <= self._together)

    def _has_room_ahead(self, load: Load) -> bool:
        """Whether a load fits beside the results not yet taken: together at most twice what one call moves."""
        transfers = (*self._fed.values(), *load.transfers)
        return len(transfers) <= 2 * BATCH_RESULTS and sum(transfer.bytes for transfer in transfers) <= 2 * self._together
