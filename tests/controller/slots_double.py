"""A pool of slots that are ready, say and end as a test wants it; what the loop and the gangs see of `SlotPool`."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from tests.controller.conftest import outcome

from trialplane.controller.slots import SlotReady, SlotTrial
from trialplane.wire.records import TrialEvent, TrialRequest
from trialplane.wire.states import FailureClass, TrialState


class Slots:
    """The double. `started`, `answered`, `killed` and `stopped` are what was asked of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.started: dict[int, TrialRequest] = {}
        self.answered: list[tuple[int, bool]] = []
        self.killed: list[tuple[int, FailureClass, str]] = []
        self.stopped: list[int] = []
        self.nodes: tuple[str, ...] = ()
        self.ready = 0
        self._said: collections.deque[SlotReady | SlotTrial] = collections.deque()

    def start(self, slot: int, asked: TrialRequest) -> None:
        assert slot not in self.started, "a slot runs one trial at a time"
        self.started[slot] = asked

    def go_on(self, slot: int, prune: bool = False) -> None:
        assert slot in self.started, "there is nobody to answer"
        self.answered.append((slot, prune))

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        assert slot in self.started
        self.killed.append((slot, failure, message))

    def stop(self, slot: int, message: str) -> None:
        assert slot in self.started
        self.stopped.append(slot)

    def running(self) -> dict[int, TrialRequest]:
        return dict(self.started)

    def resize(self, size: int) -> set[int]:
        """Only idle slots go, those with the highest numbers first."""
        gone = {slot for slot in range(size, self.size) if slot not in self.started}
        self.size = size
        return gone

    def events(self, timeout: float) -> Iterator[SlotReady | SlotTrial]:
        while self._said:
            said = self._said.popleft()
            if isinstance(said, SlotTrial) and said.event.outcome is not None:
                del self.started[said.slot]
            yield said

    def warm(self, *slots: int, port: int = 1) -> None:
        self._said.extend(SlotReady(slot, 0.1, (), False, f"pod-{slot}", f"pod-{slot}:{port}") for slot in slots)

    def say(self, slot: int, **event: Any) -> None:
        self._said.append(SlotTrial(slot, self.started[slot], TrialEvent(**event)))

    def end(self, slot: int, *, gone: bool = False, arrays: Any = None, store: Any = None, **changes: Any) -> None:
        ended = outcome(self.started[slot].number, node=f"pod-{slot}", **changes)
        event = TrialEvent(outcome=ended, log=b"the end")
        self._said.append(SlotTrial(slot, self.started[slot], event, arrays, store, gone))

    def fail(self, slot: int, failure: FailureClass, message: str = "", *, gone: bool = False, **changes: Any) -> None:
        self.end(slot, gone=gone, state=TrialState.FAILED, failure=failure, message=message, metrics={}, **changes)
