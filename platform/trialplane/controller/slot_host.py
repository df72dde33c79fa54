"""The interface of the pool to whatever starts slots: Ray (`ray_slots`), or processes of one machine (`slot_processes`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trialplane.wire.records import SlotConfig


class Actor(Protocol):
    """A slot that was started: a `worker.slot_actor.SlotActor` somewhere."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Send a call, and return a reference to its answer."""

    def kill(self) -> None:
        """End the slot, its template and what runs in it, at once."""


class SlotHost(Protocol):
    """Starts slots, and receives their answers."""

    def open(self, config: SlotConfig, name: str) -> Actor:
        """Start a slot, without waiting for it. In a cluster it may wait for its pod without a limit."""

    def wait(self, answers: Sequence[Any], timeout: float) -> list[Any]:
        """Wait at most `timeout` seconds for the first of these answers; with 0 return all that have arrived."""

    def result(self, answer: Any) -> Any:
        """Return an answer that has arrived.

        Raises:
            SlotError: the slot was lost.
            Exception: the call's own error.
        """

    def read(self, reference: Any) -> Any:
        """Return the bytes of a file to which an answer refers, as a uint8 array, and remove the file.

        Raises:
            SlotError: it was lost with the slot's node.
        """
