"""The interface of the pool to a host that starts slots: Ray (`ray_slots`), or one machine (`slot_processes`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trialplane.wire.records import SlotConfig


class Actor(Protocol):
    """A slot that was started: a `worker.slot_actor.SlotActor` in another process."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the slot, and return a reference to its answer without waiting for it."""

    def kill(self) -> None:
        """End the slot, its template and what runs in it, at once."""


class SlotHost(Protocol):
    """A host that starts slots and receives their answers."""

    def open(self, config: SlotConfig, name: str) -> Actor:
        """Start a slot, without waiting for it. In a cluster it may wait for its pod without a limit."""

    def wait(self, answers: Sequence[Any], timeout: float) -> list[Any]:
        """Wait at most `timeout` seconds for the first of these answers. With 0, return all that have arrived."""

    def result(self, answer: Any) -> Any:
        """Return an answer that has arrived.

        Raises:
            SlotError: The slot was lost.
            Exception: The call itself failed.
        """

    def read(self, file: Any) -> Any:
        """Return the bytes of a file as a uint8 array, and remove the file.

        Args:
            file: Reference to the file, from the answer with the end of a trial (see `worker.slot_actor.Answer`).

        Raises:
            SlotError: The file was lost with the slot's node.
        """
