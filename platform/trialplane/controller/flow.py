"""Results on their way from workers to the learner of one iteration, and how many bytes that may be. Pure.

A result is on offer in its worker's memory, then it is granted and moves into the object store, lies there, is fed to the
learner, and is over when the learner has taken it. From grant to end it counts as in flight; nothing is granted that would
make that more than the limit, so a worker waits, and no object store has to spill.

A call costs as much as moving some megabytes. So what a worker offers while its last offers are being fetched is fetched
together, as one object, and fed so: the faster results come, the more of them share a call.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

from trialplane.wire.units import TOGETHER, TOGETHER_BYTES, Parcel

AHEAD = 2  # results that the learner has and has not taken, however large they are, so that it need not wait for the next
SHARE = 4  # of the limit: one call moves no more of it, so that all that is in flight does not stand still for one call


@dataclasses.dataclass(frozen=True)
class Load:
    """Results that lie in the object store as one object, which `reference` stands for: a list, in this order."""

    parcels: tuple[Parcel, ...]
    reference: Any


class Flow:
    """What is on its way.

    Args:
        limit: bytes in flight at most; may be changed.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self._offered: collections.deque[Parcel] = collections.deque()
        self._moving: dict[int, Parcel] = {}
        self._stored: collections.deque[Load] = collections.deque()
        self._fed: dict[int, Parcel] = {}

    def offer(self, parcel: Parcel) -> None:
        """A worker has a result."""
        self._offered.append(parcel)

    def grants(self) -> dict[int, tuple[int, ...]]:
        """Worker → units of its offers that there is room for, in the order they came: they are to be fetched now.

        A worker of whose results some are being fetched gets no more until those are there.
        """
        busy = {parcel.worker for parcel in self._moving.values()}
        granted: dict[int, list[Parcel]] = collections.defaultdict(list)
        left: collections.deque[Parcel] = collections.deque()
        while self._offered:
            parcel = self._offered[0]
            if parcel.worker in busy or not self._may_join(granted[parcel.worker], parcel):
                busy.add(parcel.worker)  # its later ones stay behind this one
                left.append(self._offered.popleft())
            elif self.in_flight + parcel.bytes > self.limit:
                break  # later ones that are smaller do not go before it, or it might wait for ever
            else:
                self.in_flight += parcel.bytes
                self._moving[parcel.unit] = parcel
                granted[parcel.worker].append(self._offered.popleft())
        self._offered.extendleft(reversed(left))
        return {worker: tuple(parcel.unit for parcel in parcels) for worker, parcels in granted.items() if parcels}

    def withdraw(self, worker: int) -> list[int]:
        """A worker has ended: the units of its offers that nobody fetches, which are gone with it."""
        gone = [parcel.unit for parcel in self._offered if parcel.worker == worker]
        self._offered = collections.deque(parcel for parcel in self._offered if parcel.worker != worker)
        return gone

    def waits(self, worker: int) -> bool:
        """Whether a result of that worker still lies in its memory, because there is no room yet."""
        return any(parcel.worker == worker for parcel in (*self._offered, *self._moving.values()))

    def store(self, units: Iterable[int], reference: Any) -> None:
        """Results that were granted lie in the object store."""
        self._stored.append(Load(tuple(self._moving.pop(unit) for unit in units), reference))

    def feeds(self) -> list[Load]:
        """What the learner is to get now."""
        loads = []
        while self._stored and (len(self._fed) < AHEAD or self._has_room_ahead(self._stored[0])):
            load = self._stored.popleft()
            self._fed |= {parcel.unit: parcel for parcel in load.parcels}
            loads.append(load)
        return loads

    def fed(self, unit: int) -> Parcel | None:
        """The learner has a copy of a result; None when it has taken it already."""
        return self._fed.get(unit)

    def take(self, unit: int) -> Parcel | None:
        """The learner has read a result; None when it never got it."""
        parcel = self._fed.pop(unit, None)
        if parcel is not None:
            self.in_flight -= parcel.bytes
        return parcel

    def lose(self, unit: int) -> Parcel | None:
        """A result was lost between its worker and the learner; None when it was not on that way."""
        parcel = self._moving.pop(unit, None) or self._fed.pop(unit, None)
        if parcel is not None:
            self.in_flight -= parcel.bytes
        return parcel

    @property
    def _together(self) -> int:
        """Bytes that one call moves at most, where one result is not more."""
        return min(TOGETHER_BYTES, self.limit // SHARE)

    def _may_join(self, parcels: list[Parcel], other: Parcel) -> bool:
        """Whether a result is fetched with these."""
        size = sum(parcel.bytes for parcel in parcels) + other.bytes
        return not parcels or (len(parcels) < TOGETHER and size <= self._together)

    def _has_room_ahead(self, load: Load) -> bool:
        """Whether the learner may have these results beside those that it has not taken: twice what one call moves."""
        parcels = (*self._fed.values(), *load.parcels)
        return len(parcels) <= 2 * TOGETHER and sum(parcel.bytes for parcel in parcels) <= 2 * self._together
