"""The calls of one slot: events of what runs in it, and its results as references.

Runs where the slot is, in a Ray actor or in a process of its own (`slot_process`). `run` and `answer` return the next event
of what runs in the slot. All other calls have threads of their own (`THREADS`), so that they need not wait for it.
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
from trialplane.worker import kept, trial
from trialplane.worker.slot import Slot

if TYPE_CHECKING:
    from trialplane.worker.ray_store import RayStore

# Method → the thread that answers it: of quick calls, of calls that copy results, and of files that are sent to MLflow.
THREADS = {"control": "control", "fetch": "data", "feed": "data", "remove": "data", "send_files": "files"}

# The answer of a call about a trial: messages as bytes, which the receiver checks, and files as references by name.
Answer = tuple[list[bytes], dict[str, Any]]


class SlotActor:
    """One slot. Calls about a process name its serial, as they may arrive when the next one already runs.

    Args:
        config: shared by all slots of the role.
        name: the slot's, for its log.
        store: holds large data on its way to the controller; None where both are on one machine and can exchange files.
    """

    def __init__(self, config: SlotConfig, name: str, store: RayStore | None = None) -> None:
        self._store = store
        self._slot = Slot(config, name)
        self._serial: int | None = None  # of the process that runs, or ran last
        self._turn = threading.Lock()  # no process begins during a call about the previous one

    def start(self) -> bytes:
        """Warm up the template; return SlotStarted."""
        return messages.encode(self._slot.start())

    def run(self, serial: int, data: bytes, weights: Sequence[Any] = ()) -> Answer:
        """Handle StartAttempt, with the packed weights referred to by `weights`; return the first answer."""
        request = messages.decode(data, messages.START).request
        with self._turn:
            self._serial = serial
        if not weights:
            return self._with_files(self._slot.run(request))
        assert self._store is not None, "a collection has a Ray"
        (packed,) = self._store.get(weights[0])
        return self._with_files(self._slot.run(request, packed))

    def answer(self, data: bytes) -> Answer:
        """Handle AnswerReport; return the next answer."""
        answer = messages.decode(data, messages.ANSWER)
        return self._with_files(self._slot.answer(answer.prune_at, answer.suggested))

    def control(self, serial: int, data: bytes) -> None:
        """Pass a control message to the process that runs."""
        message = messages.decode(data, messages.CONTROL)
        with self._about(serial) as runs:
            if not runs:
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
        """Handle FetchResults or FetchWeights; Ray copies what is returned out of the slot's memory.

        Returns:
            The units whose results were found, or whether the weights were; and the data.
        """
        message = messages.decode(data, messages.FETCH)
        with self._about(serial) as runs:
            exchange = self._slot.exchange if runs else None
            if isinstance(message, messages.FetchWeights):
                weights = None if exchange is None else exchange.fetch_weights()
                return weights is not None, [weights]
            results = {} if exchange is None else exchange.fetch(message.units)
            return tuple(results), list(results.values())

    def feed(self, serial: int, data: bytes, results: Sequence[Any]) -> bool:
        """Handle FeedTransfers, with the results referred to by `results`; False when they are lost."""
        transfers = messages.decode(data, messages.FEED).transfers
        assert self._store is not None, "a collection has a Ray"
        try:
            arrays = self._store.get(results[0])
        except errors.SlotError:
            return False
        with self._about(serial) as runs:
            exchange = self._slot.exchange if runs else None
        if exchange is not None:  # a large copy, outside of the lock; it does nothing when the process has ended
            exchange.feed(transfers, arrays)
        return True

    def remove(self, data: bytes) -> None:
        """Handle RemoveCheckpoints."""
        trials = messages.decode(data, messages.REMOVE).trials
        trial.remove_checkpoints(self._slot.config, trials)

    def send_files(self, data: bytes) -> bytes:
        """Handle SendFiles; return FilesSent."""
        message = messages.decode(data, messages.SEND_FILES)
        return messages.encode(kept.send(self._slot.config, message))

    def close(self) -> None:
        """End the slot."""
        self._slot.close()

    @contextlib.contextmanager
    def _about(self, serial: int) -> Iterator[bool]:
        """Whether `serial` is the newest process, which it remains until the caller is done."""
        with self._turn:
            yield serial == self._serial

    def _with_files(self, about: tuple[FromSlot, ...]) -> Answer:
        """Return the messages, and references to the files that the last one names: a host passes them on unresolved."""
        encoded = [messages.encode(message) for message in about]
        last = about[-1] if about else None
        if not isinstance(last, TrialEnded):
            return encoded, {}
        files = {name: Path(file) for name, file in (("arrays", last.arrays), ("store", last.store)) if file}
        return encoded, {name: self._store.put(file) if self._store else str(file) for name, file in files.items()}
