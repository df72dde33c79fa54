"""A `Pool` whose slots get ready, report and end as a test wants it."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from tests.controller.conftest import outcome

from trialplane.controller.pool import SlotEvent, SlotReady, SlotTrial
from trialplane.wire import messages
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import Offer


class Slots:
    """The double. `started` (by slot), `starts`, `answered`, `killed` and `stopped` are what was asked of it."""

    pending = ()
    trouble = ""

    def __init__(self, size: int) -> None:
        self.size = size
        self.started: dict[int, TrialRequest] = {}
        self.starts: list[int] = []
        self.answered: list[tuple[int, int | None]] = []
        self.killed: list[tuple[int, FailureClass, str]] = []
        self.stopped: list[int] = []
        self.nodes: tuple[str, ...] = ()
        self.ready = 0
        self.leaving: frozenset[int] = frozenset()
        self.weights: dict[int, Any] = {}
        self._warm: set[int] = set()
        self._said: collections.deque[Any] = collections.deque()

    def start(self, slot: int, request: TrialRequest, weights: Any = None) -> None:
        assert slot not in self.started, "a slot runs one trial at a time"
        self.started[slot], self.weights[slot] = request, weights
        self.starts.append(slot)

    def answer(self, slot: int, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> None:
        assert slot in self.started, "there is nobody to answer"
        self.answered.append((slot, prune_at))

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        if slot in self.started:  # else its trial has just ended
            self.killed.append((slot, failure, message))

    def stop(self, slot: int, message: str) -> None:
        assert slot in self.started
        self.stopped.append(slot)

    def running(self) -> dict[int, TrialRequest]:
        return dict(self.started)

    @property
    def slots(self) -> frozenset[int]:
        return frozenset({*range(self.size), *self.started})

    @property
    def idle(self) -> list[int]:
        return [slot for slot in sorted(self._warm) if slot not in self.started and slot < self.size]

    def resize(self, size: int) -> None:
        """Only idle slots go, those with the highest numbers first."""
        self.size = size

    def remove_checkpoints(self, folders: tuple[TrialFolder, ...]) -> None:
        """No slot is ever ready for that."""

    def send_files(self, message: messages.SendFiles) -> None:
        """No slot is ever ready for that."""

    def close(self) -> None:
        """There is nothing to end."""

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        return self.take(())

    def take(self, answered: Iterable[object]) -> Iterator[SlotEvent]:
        while self._said:
            if isinstance(self._said[0], Exception):
                raise self._said.popleft()
            event = self._said.popleft()
            if isinstance(event, SlotReady):
                self._warm.add(event.slot)
            elif event.outcome is not None:
                del self.started[event.slot]
                if event.slot_lost:
                    self._warm.discard(event.slot)
            yield event

    def break_down(self, error: Exception) -> None:
        """The pool raises that after the events before it."""
        self._said.append(error)

    def warm(self, *slots: int, port: int = 1) -> None:
        self._said.extend(SlotReady(slot, 0.1, (), f"pod-{slot}", f"pod-{slot}:{port}") for slot in slots)

    def say(
        self,
        slot: int,
        *,
        reports: tuple[TrialReport, ...] = (),
        log: bytes = b"",
        wants: int = 0,
        offers: tuple[Offer, ...] = (),
        weights: int | None = None,
        took: tuple[int, ...] = (),
        confirm: bool = False,
    ) -> None:
        sent: tuple[tuple[Any, messages.FromSlot], ...] = (
            (log, messages.LogGrown(log)),
            (wants, messages.UnitsWanted(wants)),
            (offers, messages.ResultsOffered(offers)),
            (weights is not None, messages.WeightsOffered(weights or 0)),
            (took, messages.ResultsTaken(took)),
            (confirm, messages.Confirm()),
        )
        about = (*(message for is_included, message in sent if is_included), *reports)
        self._said.append(SlotTrial(slot, self.started[slot], about))

    def end(
        self,
        slot: int,
        *,
        slot_lost: bool = False,
        arrays: Any = None,
        store: Any = None,
        weights: int | None = None,
        begun: tuple[int, ...] | None = None,
        reports: tuple[TrialReport, ...] = (),
        **changes: Any,
    ) -> None:
        ended = outcome(self.started[slot].number, node=f"pod-{slot}", **changes)
        offered = () if weights is None else (messages.WeightsOffered(weights),)
        sent = (messages.LogGrown(b"the end"), *reports, *offered, messages.TrialEnded(ended, begun))
        self._said.append(SlotTrial(slot, self.started[slot], sent, arrays, store, slot_lost))

    def fail(self, slot: int, failure: FailureClass, message: str = "", *, slot_lost: bool = False, **changes: Any) -> None:
        self.end(slot, slot_lost=slot_lost, state=TrialState.FAILED, failure=failure, message=message, metrics={}, **changes)
