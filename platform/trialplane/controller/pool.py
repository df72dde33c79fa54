"""The interface of the loop and the workloads to the slots in which attempts run: a pool, and its events.

A slot has a template, a process that imports the job's modules once. When it has, the slot is ready: its template is warm,
and the processes of attempts are forked from it.

Pools are `SlotPool` (one actor per slot) and `GangPool` (several slots of another pool as one).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from trialplane.wire import messages
from trialplane.wire.messages import Confirm, FromSlot, Suggest, TrialEnded
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass

T_co = TypeVar("T_co", covariant=True)


@dataclasses.dataclass(frozen=True)
class SlotReady:
    """The event that a slot's template is warm.

    Attributes:
        slot: Number of the slot.
        seconds: Time that the template took to start.
        unclean: Reasons why the slot's trials are spawned and not forked; empty if they are forked.
        node: Host or pod of the slot.
        address: `HOST:PORT` on that node for the rendezvous of ranks on several nodes.
    """

    slot: int
    seconds: float
    unclean: tuple[str, ...]
    node: str
    address: str = ""


@dataclasses.dataclass(frozen=True)
class SlotTrial:
    """The event that the process in a slot has sent messages.

    Attributes:
        slot: Number of the slot.
        request: Request of the attempt that runs in the slot.
        messages: Messages of the process; TrialEnded is the last one of an attempt.
        arrays: Packed arrays of the attempt's result; None without arrays.
        store: Packed MLflow store that the attempt wrote while MLflow was away; None without one.
        slot_lost: Whether the slot is lost. It is replaced unless the pool has become smaller.
    """

    slot: int
    request: TrialRequest
    messages: tuple[FromSlot, ...] = ()
    arrays: Any = None
    store: Any = None
    slot_lost: bool = False

    @property
    def outcome(self) -> TrialOutcome | None:
        """The attempt's outcome, which its last message has; None while it runs."""
        last_message = self.messages[-1] if self.messages else None
        return last_message.outcome if isinstance(last_message, TrialEnded) else None

    @property
    def reports(self) -> tuple[TrialReport, ...]:
        """The reports among the messages."""
        return tuple(message for message in self.messages if isinstance(message, TrialReport))

    def with_first_reports(self, count: int) -> SlotTrial:
        """Return the event with only its first `count` reports."""
        other_messages = (message for message in self.messages if not isinstance(message, TrialReport))
        return dataclasses.replace(self, messages=(*self.reports[:count], *other_messages))

    @property
    def awaits_record(self) -> bool:
        """Whether the trial waits until its reports are in the ledger."""
        return any(isinstance(message, Confirm) for message in self.messages)

    @property
    def requested_parameter(self) -> Suggest | None:
        """The parameter whose value the trial has requested and waits for; None if it does not wait."""
        return next((message for message in self.messages if isinstance(message, Suggest)), None)


SlotEvent = SlotReady | SlotTrial


class SlotCall(Protocol[T_co]):
    """A pending call to a slot that does not concern its trial; a `concurrent.futures.Future` is one."""

    def done(self) -> bool:
        """Return whether the answer has arrived, so that `result` does not wait."""

    def result(self) -> T_co:
        """Wait for the answer and return it.

        Raises:
            SlotError: The slot was lost.
            Exception: The call itself failed.
        """


class Pool(Protocol):
    """Slots in which attempts run, one at a time in each. Slots have numbers, and are replaced when they die."""

    @property
    def size(self) -> int:
        """The number of slots, including those that are starting, but not those that are being removed."""

    @property
    def slots(self) -> frozenset[int]:
        """All slots, including those that are starting or are being removed, but not those that were given up."""

    @property
    def idle(self) -> list[int]:
        """The slots in which an attempt can start."""

    @property
    def ready(self) -> int:
        """The number of slots with a warm template."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""

    @property
    def trouble(self) -> str:
        """A message on a slot that does not start, or whose process does not exit; "" if there is none."""

    def resize(self, size: int) -> None:
        """Grow or shrink to `size` slots. A slot in which an attempt runs is removed after the attempt has ended."""

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start an attempt in an idle slot."""

    def answer(self, slot: int, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> None:
        """Answer the event of a slot whose attempt has not ended. Until then the slot sends no further event.

        Args:
            slot: Number of the slot.
            prune_at: Step at which the attempt is pruned; None if it continues.
            suggested: Answer to its request for a parameter; None if it has requested none.
        """

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Kill the attempt in a slot; its outcome comes as an event.

        Args:
            slot: Number of the slot.
            failure: Class of the failure in the outcome.
            message: Message in the outcome.
        """

    def stop(self, slot: int, message: str) -> None:
        """Let the attempt in a slot save itself and end, within `SlotConfig.grace`; its outcome has the message."""

    def running(self) -> dict[int, TrialRequest]:
        """Return the attempt in each slot that has one, by slot."""

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """Yield the slots' next events, waiting at most `timeout` seconds for the first.

        Raises:
            EntrypointError: The job's code cannot be imported, and no attempt of this run has started.
            SlotError: Slots repeatedly failed to start, and too few are left.
        """

    def remove_checkpoints(self, folders: tuple[TrialFolder, ...]) -> SlotCall[None] | None:
        """Let a slot remove these folders of checkpoints, and return the call; return None if no slot is ready."""

    def send_files(self, message: messages.SendFiles) -> SlotCall[messages.FilesSent] | None:
        """Let a slot send files to MLflow, and return the call; return None if no slot is ready."""

    def close(self) -> None:
        """End all slots."""
