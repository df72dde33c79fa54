"""The interface of the loop and the workloads to whatever runs attempts: a pool of slots, and its events.

Pools are `SlotPool` (Ray actors) and `GangPool` (several slots of another pool as one).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from trialplane.wire import messages
from trialplane.wire.messages import FromSlot, Suggest, TrialEnded
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass

T_co = TypeVar("T_co", covariant=True)


@dataclasses.dataclass(frozen=True)
class SlotReady:
    """A slot's template is warm.

    `unclean` lists why its trials are spawned, not forked; `node` is its host or pod, `address` a host:port of it for the
    rendezvous of ranks on several nodes.
    """

    slot: int
    seconds: float
    unclean: tuple[str, ...]
    node: str
    address: str = ""


@dataclasses.dataclass(frozen=True)
class SlotTrial:
    """Messages of the process in a slot; TrialEnded is the last one.

    `arrays` holds the packed arrays of its result, `store` its own packed MLflow store; `slot_lost` means that the slot is
    lost, and is being replaced unless the pool has become smaller.
    """

    slot: int
    request: TrialRequest
    messages: tuple[FromSlot, ...] = ()
    arrays: Any = None
    store: Any = None
    slot_lost: bool = False

    @property
    def ended(self) -> TrialEnded | None:
        """Its end, if it has ended."""
        last_message = self.messages[-1] if self.messages else None
        return last_message if isinstance(last_message, TrialEnded) else None

    @property
    def outcome(self) -> TrialOutcome | None:
        """Its outcome, if it has ended."""
        return None if self.ended is None else self.ended.outcome

    @property
    def reports(self) -> tuple[TrialReport, ...]:
        """Its reports."""
        return tuple(message for message in self.messages if isinstance(message, TrialReport))

    def with_first(self, reports: int) -> SlotTrial:
        """The event with so many of its reports, the first ones."""
        other_messages = (message for message in self.messages if not isinstance(message, TrialReport))
        return dataclasses.replace(self, messages=(*self.reports[:reports], *other_messages))

    @property
    def wanted(self) -> Suggest | None:
        """The parameter that the trial waits for, if it does."""
        return next((message for message in self.messages if isinstance(message, Suggest)), None)


SlotEvent = SlotReady | SlotTrial


class SlotCall(Protocol[T_co]):
    """A call to a slot beside its trial, under way; a `concurrent.futures.Future` is one."""

    def done(self) -> bool:
        """Whether it is answered: then `result` waits no more."""

    def result(self) -> T_co:
        """Wait for the answer and return it.

        Raises:
            SlotError: the slot was lost.
            Exception: the call's own error.
        """


class Pool(Protocol):
    """Slots in which attempts run, one at a time in each. They have numbers, and are replaced when they die."""

    @property
    def size(self) -> int:
        """The number of slots, including those still starting and without those being removed."""

    @property
    def slots(self) -> frozenset[int]:
        """All slots, including those that start or are being removed, without those that were given up."""

    @property
    def idle(self) -> list[int]:
        """The slots in which an attempt can start."""

    @property
    def ready(self) -> int:
        """The number of warm templates."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""

    @property
    def trouble(self) -> str:
        """Which slot does not start, and why, or whose process does not exit; "" when all is well."""

    def resize(self, size: int) -> None:
        """Grow or shrink to `size` slots. One in which an attempt runs is removed when that has ended."""

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start an attempt in an idle slot."""

    def answer(self, slot: int, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> None:
        """Answer the event of a slot whose attempt has not ended; until then it sends no other."""

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Kill the attempt in a slot; its outcome comes as an event."""

    def stop(self, slot: int, message: str) -> None:
        """Let the attempt in a slot save itself and end, within `SlotConfig.grace`; its outcome comes as an event."""

    def running(self) -> dict[int, TrialRequest]:
        """Slot → the attempt in it."""

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """The slots' next events, waiting at most `timeout` seconds for the first.

        Raises:
            EntrypointError: the job's code does not import, and never has in this run.
            SlotError: slots fail to start repeatedly, and too few are left.
        """

    def remove(self, trials: tuple[int, ...]) -> SlotCall[None] | None:
        """Remove all checkpoints of these trials, in a slot; None when no slot is ready."""

    def send_files(self, message: messages.SendFiles) -> SlotCall[messages.FilesSent] | None:
        """Send files to MLflow, from a slot; None when no slot is ready."""

    def close(self) -> None:
        """End all slots."""
