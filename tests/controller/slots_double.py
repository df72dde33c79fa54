"""A pool of slots that are ready, say and end as a test wants it; what the loop, gangs and crews see of `SlotPool`."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from tests.controller.conftest import outcome

from trialplane.controller.slot_events import SlotEvent, SlotFed, SlotFetched, SlotReady, SlotTrial
from trialplane.wire import messages
from trialplane.wire.records import TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import Offer, Parcel, Unit


class Slots:
    """The double. `started`, `answered`, `killed`, `stopped` and what a crew wants are what was asked of it."""

    pending = ()
    trouble = ""

    def __init__(self, size: int) -> None:
        self.size = size
        self.started: dict[int, TrialRequest] = {}
        self.answered: list[tuple[int, bool]] = []
        self.killed: list[tuple[int, FailureClass, str]] = []
        self.stopped: list[int] = []
        self.nodes: tuple[str, ...] = ()
        self.ready = 0
        self.leaving: frozenset[int] = frozenset()
        self.weights: dict[int, Any] = {}
        self.handed: list[tuple[int, list[int], bool]] = []
        self.fetching: list[tuple[int, tuple[int, ...]]] = []
        self.released: list[tuple[int, int]] = []
        self.feeding: list[tuple[tuple[int, ...], Any]] = []
        self.end_fed: list[int] = []
        self._said: collections.deque[SlotEvent] = collections.deque()

    def start(self, slot: int, asked: TrialRequest, weights: Any = None) -> None:
        assert slot not in self.started, "a slot runs one trial at a time"
        self.started[slot], self.weights[slot] = asked, weights

    def go_on(self, slot: int, prune: bool = False) -> None:
        assert slot in self.started, "there is nobody to answer"
        self.answered.append((slot, prune))

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        if slot in self.started:  # else its trial has just ended
            self.killed.append((slot, failure, message))

    def stop(self, slot: int, message: str) -> None:
        assert slot in self.started
        self.stopped.append(slot)

    def hand(self, slot: int, units: tuple[Unit, ...], last: bool) -> None:
        self.handed.append((slot, [unit.number for unit in units], last))

    def fetch(self, slot: int, units: tuple[int, ...]) -> None:
        assert slot in self.started
        assert slot not in dict(self.fetching), "what came meanwhile is fetched together"
        self.fetching.append((slot, units))

    def release(self, slot: int, unit: int) -> None:
        self.released.append((slot, unit))

    def feed(self, slot: int, parcels: tuple[Parcel, ...], reference: Any) -> None:
        assert slot in self.started
        assert reference is not None
        self.feeding.append((tuple(parcel.unit for parcel in parcels), reference))

    def end_feed(self, slot: int, failed: int) -> None:
        self.end_fed.append(failed)

    def running(self) -> dict[int, TrialRequest]:
        return dict(self.started)

    @property
    def slots(self) -> frozenset[int]:
        return frozenset({*range(self.size), *self.started})

    def resize(self, size: int) -> set[int]:
        """Only idle slots go, those with the highest numbers first."""
        gone = {slot for slot in range(size, self.size) if slot not in self.started}
        self.size = size
        return gone

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        return self.hear(())

    def hear(self, answered: Iterable[object]) -> Iterator[SlotEvent]:
        while self._said:
            said = self._said.popleft()
            if isinstance(said, SlotTrial) and said.outcome is not None:
                del self.started[said.slot]
            yield said

    def warm(self, *slots: int, port: int = 1) -> None:
        self._said.extend(SlotReady(slot, 0.1, (), False, f"pod-{slot}", f"pod-{slot}:{port}") for slot in slots)

    def say(
        self,
        slot: int,
        *,
        reports: tuple[TrialReport, ...] = (),
        log: bytes = b"",
        wants: int = 0,
        offers: tuple[Offer, ...] = (),
        took: tuple[int, ...] = (),
    ) -> None:
        sent: tuple[tuple[Any, messages.FromSlot], ...] = (
            (log, messages.LogGrown(log)),
            (wants, messages.UnitsWanted(wants)),
            (offers, messages.ResultsOffered(offers)),
            (took, messages.ResultsTaken(took)),
        )
        about = (*(message for what, message in sent if what), *reports)
        self._said.append(SlotTrial(slot, self.started[slot], about))

    def fetched(self, slot: int, *units: int, reference: Any = None, gone: tuple[int, ...] = (), why: str = "") -> None:
        """A fetch that was asked for is answered: these are in the store, and those are gone."""
        asked = dict(self.fetching)[slot]
        assert sorted((*units, *gone)) == sorted(asked)
        self.fetching.remove((slot, asked))
        self._said.append(SlotFetched(slot, self.started[slot], units, reference, gone, why))

    def fed(self, slot: int, lost: bool = False, why: str = "") -> tuple[int, ...]:
        """The first feed that was asked for is answered; gives its units."""
        units = self.feeding.pop(0)[0]
        self._said.append(SlotFed(slot, self.started[slot], units, lost, why))
        return units

    def end(
        self,
        slot: int,
        *,
        gone: bool = False,
        arrays: Any = None,
        store: Any = None,
        offers: tuple[Offer, ...] = (),
        begun: tuple[int, ...] | None = None,
        **changes: Any,
    ) -> None:
        ended = outcome(self.started[slot].number, node=f"pod-{slot}", **changes)
        offered = (messages.ResultsOffered(offers),) if offers else ()
        sent = (messages.LogGrown(b"the end"), *offered, messages.TrialEnded(ended, begun))
        self._said.append(SlotTrial(slot, self.started[slot], sent, arrays, store, gone))

    def fail(self, slot: int, failure: FailureClass, message: str = "", *, gone: bool = False, **changes: Any) -> None:
        self.end(slot, gone=gone, state=TrialState.FAILED, failure=failure, message=message, metrics={}, **changes)
