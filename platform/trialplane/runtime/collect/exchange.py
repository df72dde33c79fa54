"""The slot's end of a collection: work for the process in it, and results that lie in files between the two.

A producer's process asks for units and offers results, which are fetched from here; a consumer's process is fed results and
says which it has taken. The slot's thread hears what the process says; everything else is called from other threads. Knows
neither Ray nor what is in a result.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane.runtime.collect import memory, segments
from trialplane.wire import records, units

if TYPE_CHECKING:
    from trialplane.runtime.collect.segments import Bytes

AHEAD = 2  # results that a producer may have on offer: beyond that it waits
_ROOM = 64 << 20  # bytes of memory that there must be for results to be passed on there


class Exchange:
    """What one trial's process and the slot have between them.

    Args:
        request: the trial's; its `worker` says that it is a producer.
        send: writes a message to the process; may be called from any thread.
        weights: packed, for a producer; or None.
        workdir: the trial's scratch folder, on a disk, for what memory has no room for; removed by the slot.
    """

    def __init__(
        self, request: records.TrialRequest, send: Callable[[Mapping[str, Any]], None], weights: Bytes | None, workdir: Path
    ) -> None:
        self._timeout = request.timeout if request.worker is not None else None
        self._send = send
        spare = workdir.parent / "memory"
        self._folder = memory.folder(f"{request.run}-{request.number}", _ROOM, spare)
        self._weights = None
        if weights is not None:
            # Of the same attempt at the same iteration, so all producers of this node hold the same file.
            home = zlib.crc32(str(spare).encode())  # two places may each have a run of this name
            name = f"{request.run}-{home:08x}-{request.trial}-{request.attempt}.weights"
            self._weights = memory.shared(name, weights, spare)
        self._segments = segments.Writer(self._folder.path, workdir)
        self._lock = threading.Lock()
        self._since = time.monotonic()  # of the last thing that gave a producer something to do
        self._has_asked = False  # for a unit
        self._open: set[int] = set()
        self._offered: dict[int, str] = {}
        self._fed: dict[int, str] = {}
        self._closed = False
        self._wants = 0
        self._offers: list[units.Offer] = []
        self._took: list[int] = []

    @property
    def lent(self) -> dict[str, str | None]:
        """What the process is told at its start: its folder, and the file with the weights."""
        return {
            "folder": str(self._folder.path),
            "weights": None if self._weights is None else str(self._weights.path),
        }

    @property
    def deadline(self) -> float | None:
        """When a producer must have given its next result, by the monotonic clock; None while it waits for others.

        It has until then to ask for its first unit, too. One that has given all it had owes nothing, also while it waits for
        a slow consumer before it ends.
        """
        with self._lock:
            waits = (self._has_asked and not self._open) or len(self._offered) >= AHEAD
            return None if self._timeout is None or waits else self._since + self._timeout

    @property
    def has_news(self) -> bool:
        """Whether the process has said something that the controller is to hear."""
        return bool(self._wants or self._offers or self._took)

    def news(self) -> dict[str, Any]:
        """What it has said since the last call, as fields of an event."""
        said = {"wants": self._wants, "offers": tuple(self._offers), "took": tuple(self._took)}
        self._wants, self._offers, self._took = 0, [], []
        return said

    def hear(self, message: Mapping[str, Any]) -> None:
        """Takes a message of the process."""
        with self._lock:
            self._since = time.monotonic()
            if "wants" in message:
                self._wants += message["wants"]
                self._has_asked = True
            elif "offer" in message:
                offer = records.from_dict(units.Offer, message["offer"])
                self._open.discard(offer.unit)
                if offer.bytes:
                    self._offered[offer.unit] = message["file"]
                self._offers.append(offer)
            elif "took" in message:
                self._took += message["took"]
            else:
                for unit in message["free"]:
                    self._segments.release(self._fed.pop(unit))

    def hand(self, work: Sequence[units.Unit], last: bool) -> None:
        """Gives a producer units; with `last` it gets no more in this iteration."""
        with self._lock:
            self._since = time.monotonic()
            self._open.update(unit.number for unit in work)
        self._send({"units": [[unit.number, unit.seed] for unit in work], "last": last})

    def fetch(self, unit: int) -> Bytes:
        """A packed result that is on offer, mapped.

        Raises:
            KeyError: it is gone with its process.
        """
        with self._lock:
            if self._closed:
                raise KeyError(unit)
            return segments.read(self._offered[unit])

    def release(self, unit: int) -> None:
        """The result has been fetched, or nobody wants it: its process may use the file again."""
        with self._lock:
            self._since = time.monotonic()
            if self._offered.pop(unit, None) is None:
                return
        self._send({"fetched": unit})

    def feed(self, unit: int, worker: int, items: int, packed: Bytes) -> None:
        """Gives a consumer a result."""
        with self._lock:
            if self._closed:
                return
            file, _ = self._segments.copy(packed)
            self._fed[unit] = file
        self._send({"result": {"unit": unit, "worker": worker, "items": items, "file": file}})

    def end_feed(self, failed: int) -> None:
        """Tells a consumer that all results have come, but for so many units that failed."""
        self._send({"end": {"failed": failed}})

    def close(self) -> None:
        """Removes the files; the process is gone."""
        with self._lock:
            self._closed = True
            self._folder.release()
            if self._weights is not None:
                self._weights.release()
