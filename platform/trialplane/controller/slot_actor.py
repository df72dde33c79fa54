"""The Ray actor around one slot: what it says and offers, as references into the object store.

Runs where the slot is. Knows the worker by name only: the controller's room does not import it. A trial's next event is the
answer to `run` and `go_on`; everything else has threads of its own (`GROUPS`), so that it need not wait for that.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from trialplane.wire import messages
from trialplane.wire.messages import FromSlot, TrialEnded
from trialplane.wire.records import SlotConfig

# Threads of the actor: for what takes no time, and for what copies a result.
GROUPS = {"control": 1, "data": 1}

# What a call about a trial gives: messages as bytes, so that their reader checks them, and files as references by name.
Answer = tuple[list[bytes], dict[str, Any]]


class SlotActor:
    """One slot. Calls about a trial name its number: they may come when it has ended, and the next one runs."""

    def __init__(self, config: SlotConfig, name: str) -> None:
        worker = importlib.import_module("trialplane.worker.slot")
        self._slot = worker.Slot(config, name)
        self._number: int | None = None  # of the newest attempt
        self._turn = threading.Lock()  # no attempt begins while a call is about the one before

    def start(self) -> bytes:
        """Warms the template up; gives SlotStarted."""
        return messages.encode(self._slot.start())

    def run(self, data: bytes, weights: Sequence[ray.ObjectRef[Any]] = ()) -> Answer:
        """StartAttempt, with the packed weights that the reference in `weights` stands for; the first answer about it."""
        request = messages.decode(data, messages.START).request
        with self._turn:
            self._number = request.number
        if not weights:
            return self._with_files(self._slot.run(request))
        (packed,) = ray.get(weights[0])
        return self._with_files(self._slot.run(request, packed))

    def go_on(self, data: bytes) -> Answer:
        """AnswerReport; the next answer about the trial."""
        return self._with_files(self._slot.go_on(messages.decode(data, messages.ANSWER).prune))

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def control(self, number: int, data: bytes) -> None:
        """What the running trial is to do, or gets."""
        message = messages.decode(data, messages.CONTROL)
        with self._about(number) as runs:
            if not runs:
                return
            match message:
                case messages.KillTrial(failure, text):
                    self._slot.kill(failure, text)
                case messages.StopTrial(text):
                    self._slot.stop(text)
                case messages.HandUnits(units, last):
                    self._slot.hand(units, last)
                case messages.ReleaseResults(units):
                    self._slot.release(units)
                case messages.EndFeed(failed):
                    self._slot.end_feed(failed)

    @ray.method(concurrency_group="data", num_returns=2)  # type: ignore[untyped-decorator]
    def fetch(self, number: int, data: bytes) -> tuple[tuple[int, ...], list[Any]]:
        """FetchResults: the units whose results were still there, and those, which Ray copies out of the slot's memory."""
        units = messages.decode(data, messages.FETCH).units
        with self._about(number) as runs:
            there = self._slot.fetch(units) if runs else {}
        return tuple(there), list(there.values())

    @ray.method(concurrency_group="data")  # type: ignore[untyped-decorator]
    def feed(self, number: int, data: bytes, results: Sequence[ray.ObjectRef[Any]]) -> bool:
        """FeedParcels, with the results that the reference in `results` stands for; False when they are lost."""
        parcels = messages.decode(data, messages.FEED).parcels
        try:
            arrays = ray.get(results[0])
        except ray.exceptions.RayError:
            return False
        with self._about(number) as runs:
            exchange = self._slot.exchange if runs else None
        if exchange is not None:  # a large copy, which nobody is to wait for; when its trial has ended it does nothing
            exchange.feed(parcels, arrays)
        return True

    def close(self) -> None:
        """Ends the slot."""
        self._slot.close()

    @contextlib.contextmanager
    def _about(self, number: int) -> Iterator[bool]:
        """Whether that trial is still the newest, which it stays until the caller is done."""
        with self._turn:
            yield number == self._number

    def _with_files(self, about: tuple[FromSlot, ...]) -> Answer:
        """The messages, and the files that the last one names as references, which Ray hands out as they are."""
        encoded = [messages.encode(message) for message in about]
        last = about[-1] if about else None
        if not isinstance(last, TrialEnded) or not (last.arrays or last.store):
            return encoded, {}
        import numpy as np

        files = {name: Path(file) for name, file in (("arrays", last.arrays), ("store", last.store)) if file is not None}
        references = {name: ray.put(np.fromfile(file, dtype=np.uint8)) for name, file in files.items()}
        for file in files.values():
            file.unlink()
        return encoded, references
