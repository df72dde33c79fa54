"""The methods of one slot that a controller calls from another process, with messages as bytes.

The slot is in a Ray actor, or in a process of its own (`slot_process`). `run` and `answer` wait for the next messages of the
trial in the slot, and return them. Most other methods have threads of their own (`THREADS`), so they need not wait for that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.wire import messages
from trialplane.wire.messages import FromSlot, TrialEnded
from trialplane.wire.records import SlotConfig
from trialplane.worker import kept_files, trial
from trialplane.worker.slot import Slot

if TYPE_CHECKING:
    from trialplane.worker.ray_store import RayStore

# Method → its thread: "control" for quick calls, "data" for calls that copy results, "files" for files that go to MLflow.
THREADS = {"control": "control", "fetch": "data", "feed": "data", "remove": "data", "send_files": "files"}

# The answer of a call about a trial: messages as bytes, which the receiver checks, and files as references by name.
Answer = tuple[list[bytes], dict[str, Any]]


class SlotActor:
    """One slot, for calls from another process.

    A call about a trial's process has the serial number of the process. It may arrive when the next process already runs,
    and has no effect then.

    Args:
        config: Configuration of all slots of the role.
        name: Name of the slot, for its log.
        store: Store for large data on its way to the controller; None where both are on one machine and exchange files.
    """

    def __init__(self, config: SlotConfig, name: str, store: RayStore | None = None) -> None:
        self._store = store
        self._slot = Slot(config, name)
        self._serial: int | None = None  # serial number of the process that runs, or ran last
        self._serial_lock = threading.Lock()  # no process begins during a call about the previous one

    def start(self) -> bytes:
        """Warm up the template; return SlotStarted."""
        return messages.encode(self._slot.start())

    def run(self, serial: int, data: bytes, weights: Sequence[Any] = ()) -> Answer:
        """Handle StartAttempt; return the first answer. A worker of a collection also gets a reference to packed weights."""
        request = messages.decode(data, messages.START).request
        with self._serial_lock:
            self._serial = serial
        if not weights:
            return self._encoded_answer(self._slot.run(request))
        assert self._store is not None, "a collection runs on Ray"
        (packed,) = self._store.get(weights[0])
        return self._encoded_answer(self._slot.run(request, packed))

    def answer(self, data: bytes) -> Answer:
        """Handle AnswerReport; return the next answer."""
        answer = messages.decode(data, messages.ANSWER)
        return self._encoded_answer(self._slot.answer(answer.prune_at, answer.suggested))

    def control(self, serial: int, data: bytes) -> None:
        """Pass a control message to the process with this serial number, if it still runs."""
        message = messages.decode(data, messages.CONTROL)
        with self._while_newest(serial) as is_newest:
            if not is_newest:
                return
            match message:
                case messages.KillTrial(failure, text):
                    self._slot.kill(failure, text)
                case messages.StopTrial(text):
                    self._slot.stop(text)
                case _:
                    if (exchange := self._slot.exchange) is not None:
                        exchange.pass_on(message)

    def fetch(self, serial: int, data: bytes) -> tuple[tuple[int, ...] | bool, list[Any]]:
        """Handle FetchResults or FetchWeights; Ray copies the returned data out of the slot's memory.

        Returns:
            The units whose results were found, or whether the weights were found; and the data.
        """
        message = messages.decode(data, messages.FETCH)
        with self._while_newest(serial) as is_newest:
            exchange = self._slot.exchange if is_newest else None
            if isinstance(message, messages.FetchWeights):
                weights = None if exchange is None else exchange.fetch_weights()
                return weights is not None, [weights]
            results = {} if exchange is None else exchange.fetch(message.units)
            return tuple(results), list(results.values())

    def feed(self, serial: int, data: bytes, results: Sequence[Any]) -> bool:
        """Handle FeedTransfers, with a reference to the packed results; return False if these are lost."""
        transfers = messages.decode(data, messages.FEED).transfers
        assert self._store is not None, "a collection runs on Ray"
        try:
            arrays = self._store.get(results[0])
        except errors.SlotError:
            return False
        with self._while_newest(serial) as is_newest:
            exchange = self._slot.exchange if is_newest else None
        if exchange is not None:  # outside of the lock, as the copy is large; without effect if the process has ended
            exchange.feed(transfers, arrays)
        return True

    def remove(self, data: bytes) -> None:
        """Handle RemoveCheckpoints."""
        trial.remove_checkpoints(self._slot.config, messages.decode(data, messages.REMOVE).folders)

    def send_files(self, data: bytes) -> bytes:
        """Handle SendFiles; return FilesSent."""
        message = messages.decode(data, messages.SEND_FILES)
        return messages.encode(kept_files.send(self._slot.config, message))

    def close(self) -> None:
        """End the slot."""
        self._slot.close()

    @contextlib.contextmanager
    def _while_newest(self, serial: int) -> Iterator[bool]:
        """Provide whether the newest process has this serial number. Within the block no other process starts."""
        with self._serial_lock:
            yield serial == self._serial

    def _encoded_answer(self, sent_messages: tuple[FromSlot, ...]) -> Answer:
        """Return the encoded messages, and a reference to each file that comes with a trial's end, by name.

        Without a store, the reference is the file's path.
        """
        encoded = [messages.encode(message) for message in sent_messages]
        last = sent_messages[-1] if sent_messages else None
        if not isinstance(last, TrialEnded):
            return encoded, {}
        references: dict[str, Any] = {}
        for name, file in (("arrays", last.arrays), ("store", last.store)):
            if file:
                references[name] = file if self._store is None else self._store.put(Path(file))
        return encoded, references
