"""The slot's side of a collection: units for the process in it, and results in files between the two.

A worker's process requests units and offers results, which are fetched from here; a learner's process is fed results and
reports which it has taken. The slot's thread receives the process's messages; everything else is called from other threads.
Independent of Ray and of the contents of results.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trialplane import errors
from trialplane.wire import messages, records, units
from trialplane.worker.collect import memory, segments

if TYPE_CHECKING:
    from trialplane.worker.collect.segments import Bytes

AHEAD = 2  # results that a worker may have on offer, whatever their size
# Seconds between two reports to the controller about a worker that has enough units: its offers in between move with one
# call. Those of a slower worker are reported at once.
GATHER = 0.1
_ROOM = 64 << 20  # bytes that must be free in memory for results to be passed there


def is_full(offered: Mapping[int, tuple[str, int]]) -> bool:
    """Whether a worker with these results on offer (unit → file, bytes) has to wait until some are fetched."""
    size = sum(size for _, size in offered.values())
    return len(offered) >= units.TOGETHER or (len(offered) >= AHEAD and size >= units.TOGETHER_BYTES)


class Exchange:
    """The state shared between one trial's process and the slot.

    Args:
        request: the trial's; its `worker` is None for the learner.
        send: writes a message to the process; may be called from any thread.
        weights: packed, for a worker; or None.
        workdir: the trial's scratch folder on disk, for results that do not fit in memory; removed by the slot.
    """

    def __init__(
        self,
        request: records.TrialRequest,
        send: Callable[[messages.ToTrial], None],
        weights: Bytes | None,
        workdir: Path,
    ) -> None:
        self._timeout = request.timeout if request.worker is not None else None
        self._send = send
        spare = workdir.parent / "memory"
        self._folder = memory.folder(f"{request.run}-{request.number}", _ROOM, spare)
        self._weights = None
        if weights is not None:
            # Of the same attempt at the same iteration, so all workers of this node hold the same file.
            home = zlib.crc32(str(spare).encode())  # two homes may each have a run of this name
            name = f"{request.run}-{home:08x}-{request.trial}-{request.attempt}.weights"
            self._weights = memory.shared(name, weights, spare)
        self._folders = (self._folder.path, workdir)  # the folders in which files of the process may lie
        self._segments = segments.Writer(self._folder.path, workdir)
        self._lock = threading.Lock()
        self._since = time.monotonic()  # of the last message that gave a worker something to do
        self._has_returned = False  # the worker's function; its results may still have to be fetched
        self._ahead: set[int] = set()  # units handed to the process that its job has not taken
        self._begun: set[int] = set()  # units that its job has taken and not given
        self._owed = 0  # units requested and not received
        self._offered: dict[int, tuple[str, int]] = {}  # unit → file, bytes
        self._offered_weights: str | None = None  # their file
        self._fed: dict[int, str] = {}
        self._closed = False
        self._reported = -GATHER  # when the controller last received messages, by the monotonic clock
        self._requested = 0
        self._offers: list[units.Offer] = []
        self._took: list[int] = []
        self._published: messages.WeightsOffered | None = None

    @property
    def shared_files(self) -> messages.SharedFiles:
        """The files passed to the process at its start."""
        return messages.SharedFiles(str(self._folder.path), None if self._weights is None else str(self._weights.path))

    @property
    def deadline(self) -> float | None:
        """When a worker must have given its next result, by the monotonic clock; None while it waits for others.

        The same limit applies until it requests its first unit, and until it ends after its last one.
        """
        with self._lock:
            for_units = self._owed and not self._ahead and not self._begun
            for_room = is_full(self._offered) or (self._has_returned and self._offered)
            return None if self._timeout is None or for_units or for_room else self._since + self._timeout

    @property
    def begun(self) -> tuple[int, ...]:
        """The units that a worker's job has taken and not given."""
        return tuple(sorted(self._begun))

    @property
    def report_at(self) -> float | None:
        """When the process's messages are to be reported to the controller, by the monotonic clock; None without any.

        That is at once if the process may be waiting for units, or for its results to be fetched.
        """
        if not (self._requested or self._offers or self._took or self._published):
            return None
        with self._lock:
            is_idle = self._owed and not self._ahead
            at_once = is_idle or self._took or self._published or is_full(self._offered)
            return self._reported if at_once else self._reported + GATHER

    def news(self) -> tuple[messages.FromExchange, ...]:
        """The messages for the controller since the last call."""
        self._reported = time.monotonic()
        requested, offers, taken, weights = self._requested, tuple(self._offers), tuple(self._took), self._published
        self._requested, self._offers, self._took, self._published = 0, [], [], None
        return (
            *([messages.UnitsWanted(requested)] if requested else ()),
            *([messages.ResultsOffered(offers)] if offers else ()),
            *([messages.ResultsTaken(taken)] if taken else ()),
            *([] if weights is None else [weights]),
        )

    def receive(self, message: messages.OfWorker | messages.OfLearner) -> None:
        """Receive a message of the process.

        Raises:
            MessageError: it is about units or files that the process does not have.
        """
        with self._lock:
            self._since = time.monotonic()
            match message:
                case messages.UnitsWanted(count):
                    if count < 1:
                        raise errors.MessageError(f"a worker requested {count} units")
                    self._requested += count
                    self._owed += count
                case messages.UnitsBegun(begun):
                    self._begun.update(begun)
                    self._ahead.difference_update(begun)
                case messages.ResultOffered(offer, file):
                    if offer.unit < 0 or offer.bytes <= 0 or offer.items < 0:
                        raise errors.MessageError(
                            f"a worker offered {offer.bytes} bytes and {offer.items} items of unit {offer.unit}"
                        )
                    self._check(file)
                    self._begun.discard(offer.unit)
                    self._offered[offer.unit] = file, offer.bytes
                    self._offers.append(offer)
                case messages.WeightsOffered(size, file):
                    if size < 0:
                        raise errors.MessageError(f"a learner offered weights of {size} bytes")
                    if size:
                        self._check(file)
                        self._offered_weights = file
                    self._published = messages.WeightsOffered(size)
                case messages.JobReturned():
                    self._has_returned = True
                case messages.ResultsTaken(taken):
                    self._took += taken
                case messages.FilesFree(free):
                    if not self._fed.keys() >= set(free):
                        raise errors.MessageError("a learner freed files of results that it does not have")
                    for unit in free:
                        self._segments.release(self._fed.pop(unit))

    def _check(self, file: str) -> None:
        """Raise MessageError for a file outside of this process's folders."""
        if Path(file).parent not in self._folders:
            raise errors.MessageError(f"a file was offered in {file!r:.200}, where this process has no folder")

    def pass_on(self, message: messages.ToExchange) -> None:
        """Forward a message of the controller to the process: units, released results, or the end of the results."""
        with self._lock:
            self._since = time.monotonic()
            match message:
                case messages.HandUnits(units_handed, last):
                    self._ahead.update(unit.number for unit in units_handed)
                    self._owed = 0 if last else max(0, self._owed - len(units_handed))
                case messages.ReleaseResults(fetched):
                    still_offered = tuple(unit for unit in fetched if self._offered.pop(unit, None) is not None)
                    if not still_offered:  # the process has ended or was replaced
                        return
                    message = messages.ReleaseResults(still_offered)
                case messages.ReleaseWeights():
                    self._offered_weights = None
        self._send(message)

    def fetch(self, requested: Sequence[int]) -> dict[int, Bytes]:
        """The packed results of these units, mapped; without those that are gone with their process.

        Raises:
            TransportError: a file is missing, or does not hold a result.
        """
        with self._lock:
            offered = [] if self._closed else [unit for unit in requested if unit in self._offered]
            return {unit: segments.read(self._offered[unit][0]) for unit in offered}

    def fetch_weights(self) -> Bytes | None:
        """The packed weights that the learner offers, mapped; None if it has ended. Raises as `fetch`."""
        with self._lock:
            file = None if self._closed else self._offered_weights
            return None if file is None else segments.read(file)

    def feed(self, transfers: Sequence[units.Transfer], packed: Sequence[Bytes]) -> None:
        """Pass results to a learner: all of them or, if one does not fit, none.

        Raises:
            TransportError: there is no room.
        """
        files: dict[int, str] = {}
        with self._lock:
            if self._closed:
                return
            try:
                for fed_result, array in zip(transfers, packed, strict=True):
                    files[fed_result.unit], _ = self._segments.copy(array)
            except errors.TransportError:
                for file in files.values():
                    self._segments.release(file)
                raise
            self._fed |= files
        fed = (messages.FedResult(each.unit, each.worker, each.items, files[each.unit]) for each in transfers)
        self._send(messages.FeedResults(tuple(fed)))

    def close(self) -> None:
        """Remove the files after the end of the process."""
        with self._lock:
            self._closed = True
            self._folder.release()
            self._segments.close()  # now, as this trial may be part of a reference cycle that lasts until the collector runs
            if self._weights is not None:
                self._weights.release()
