"""Results on their way from producers to the consumer of one iteration, and how many bytes that may be. Pure.

A result is on offer in its producer's memory, then it is granted and moves into the object store, lies there, is fed to the
consumer, and is over when the consumer has taken it. From grant to end it counts as in flight; nothing is granted that would
make that more than the limit, so a producer waits, and no object store has to spill.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

AHEAD = 2  # results that the consumer has and has not taken, so that it need not wait for the next


@dataclasses.dataclass
class Parcel:
    """One result on its way. `reference` stands for it while it lies in the object store."""

    unit: int
    worker: int
    bytes: int
    items: int
    reference: Any = None


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
        self._stored: collections.deque[Parcel] = collections.deque()
        self._fed: dict[int, Parcel] = {}

    def offer(self, parcel: Parcel) -> None:
        """A producer has a result."""
        self._offered.append(parcel)

    def grants(self) -> list[Parcel]:
        """The offers that there is room for, in the order they came: they are to be fetched now."""
        granted = []
        while self._offered and self.in_flight + self._offered[0].bytes <= self.limit:
            parcel = self._offered.popleft()
            self.in_flight += parcel.bytes
            self._moving[parcel.unit] = parcel
            granted.append(parcel)
        return granted

    def withdraw(self, worker: int) -> list[int]:
        """A producer has ended: the units of its offers that nobody fetches, which are gone with it."""
        gone = [parcel.unit for parcel in self._offered if parcel.worker == worker]
        self._offered = collections.deque(parcel for parcel in self._offered if parcel.worker != worker)
        return gone

    def waits(self, worker: int) -> bool:
        """Whether a result of that producer still lies in its memory, because there is no room yet."""
        return any(parcel.worker == worker for parcel in (*self._offered, *self._moving.values()))

    def store(self, unit: int, reference: Any) -> None:
        """A result lies in the object store."""
        parcel = self._moving.pop(unit)
        parcel.reference = reference
        self._stored.append(parcel)

    def feeds(self) -> list[Parcel]:
        """The results that the consumer is to get now."""
        fed = []
        while self._stored and len(self._fed) < AHEAD:
            parcel = self._stored.popleft()
            self._fed[parcel.unit] = parcel
            fed.append(parcel)
        return fed

    def feed(self, unit: int) -> Parcel | None:
        """The consumer has a copy of a result: the store needs it no more. None when it has taken it already."""
        parcel = self._fed.get(unit)
        if parcel is not None:
            parcel.reference = None
        return parcel

    def take(self, unit: int) -> Parcel | None:
        """The consumer has read a result; None when it never got it."""
        parcel = self._fed.pop(unit, None)
        if parcel is not None:
            self.in_flight -= parcel.bytes
        return parcel

    def lose(self, unit: int) -> Parcel | None:
        """A result was lost between its producer and the consumer; None when it was not on that way."""
        parcel = self._moving.pop(unit, None) or self._fed.pop(unit, None)
        if parcel is not None:
            self.in_flight -= parcel.bytes
        return parcel
