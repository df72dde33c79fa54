"""The Ray actor around one slot: its answers, and results as references into the object store.

Runs where the slot is. Knows the worker by name only: the controller's room does not import it. The next event of what runs
in the slot is the answer to `run` and `answer`; everything else has threads of its own (`GROUPS`), so that it need not wait
for that.
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
    """One slot. Calls about what runs in it name its serial: they may come when it has ended, and the next one runs."""

    def __init__(self, config: SlotConfig, name: str) -> None:
        worker = importlib.import_module("trialplane.worker.slot")
        self._slot = worker.Slot(config, name)
        self._serial: int | None = None  # of what runs, or ran last
        self._turn = threading.Lock()  # nothing begins while a call is about what ran before

    def start(self) -> bytes:
        """Warms the template up; gives SlotStarted."""
        return messages.encode(self._slot.start())

    def run(self, serial: int, data: bytes, weights: Sequence[ray.ObjectRef[Any]] = ()) -> Answer:
        """StartAttempt, with the packed weights that the reference in `weights` stands for; the first answer about it."""
        request = messages.decode(data, messages.START).request
        with self._turn:
            self._serial = serial
        if not weights:
            return self._with_files(self._slot.run(request))
        (packed,) = ray.get(weights[0])
        return self._with_files(self._slot.run(request, packed))

    def answer(self, data: bytes) -> Answer:
        """AnswerReport; the next answer about what runs."""
        return self._with_files(self._slot.answer(messages.decode(data, messages.ANSWER).prune))

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def control(self, serial: int, data: bytes) -> None:
        """What the process that runs is to do, or gets."""
        message = messages.decode(data, messages.CONTROL)
        with self._about(serial) as runs:
            match message:
                case _ if not runs:
                    pass
                case messages.KillTrial(failure, text):
                    self._slot.kill(failure, text)
                case messages.StopTrial(text):
                    self._slot.stop(text)
                case _ if self._slot.exchange is not None:
                    self._slot.exchange.pass_on(message)

    @ray.method(concurrency_group="data", num_returns=2)  # type: ignore[untyped-decorator]
    def fetch(self, serial: int, data: bytes) -> tuple[tuple[int, ...] | bool, list[Any]]:
        """FetchResults or FetchWeights: what was still there, and that, which Ray copies out of the slot's memory.

        Of results their units; of weights whether they were there.
        """
        message = messages.decode(data, messages.FETCH)
        with self._about(serial) as runs:
            exchange = self._slot.exchange if runs else None
            if isinstance(message, messages.FetchWeights):
                weights = None if exchange is None else exchange.fetch_weights()
                return weights is not None, [weights]
            results = {} if exchange is None else exchange.fetch(message.units)
            return tuple(results), list(results.values())

    @ray.method(concurrency_group="data")  # type: ignore[untyped-decorator]
    def feed(self, serial: int, data: bytes, results: Sequence[ray.ObjectRef[Any]]) -> bool:
        """FeedParcels, with the results that the reference in `results` stands for; False when they are lost."""
        parcels = messages.decode(data, messages.FEED).parcels
        try:
            arrays = ray.get(results[0])
        except ray.exceptions.RayError:
            return False
        with self._about(serial) as runs:
            exchange = self._slot.exchange if runs else None
        if exchange is not None:  # a large copy, which nobody is to wait for; when its process has ended it does nothing
            exchange.feed(parcels, arrays)
        return True

    def close(self) -> None:
        """Ends the slot."""
        self._slot.close()

    @contextlib.contextmanager
    def _about(self, serial: int) -> Iterator[bool]:
        """Whether that is still the newest, which it stays until the caller is done."""
        with self._turn:
            yield serial == self._serial

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
