"""Pass units, results and weights of a collection between a slot's process and the controller.

A worker's process requests units (pieces of work, such as games) and offers results in files, which the controller fetches
from here. A learner's process gets these results from here, and reports those that it has taken. The slot's thread handles
the process's messages (`receive`, `news`); other methods are called from other threads. This module depends neither on Ray
nor on the contents of results.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trialplane import errors
from trialplane.wire import messages, records, units
from trialplane.worker.collect import memory, segments

if TYPE_CHECKING:
    from trialplane.worker.collect.segments import Bytes

AHEAD = 2  # results that a worker may offer at once, whatever their size
# Seconds between two reports to the controller about a worker that has enough units, so that one report has several offers.
# Messages of a worker that may be waiting are reported at once.
GATHER = 0.1
_ROOM = 64 << 20  # bytes that must be free in memory; otherwise results are passed in files on disk


class OfferedResult(NamedTuple):
    """A result that a worker offers until the controller has fetched it.

    Attributes:
        file: Path of its file.
        size: Size of the packed result in bytes.
    """

    file: str
    size: int


def is_full(offered: Mapping[int, OfferedResult]) -> bool:
    """Return whether a worker that offers these results, by unit, has to wait until some of them are fetched."""
    total_size = sum(result.size for result in offered.values())
    return len(offered) >= units.BATCH_RESULTS or (len(offered) >= AHEAD and total_size >= units.BATCH_BYTES)


class Exchange:
    """The units, results and weights that are on their way between one trial's process and the controller.

    Args:
        request: Request of the trial; its `worker` is None for the learner.
        send: Sends a message to the process; may be called from any thread.
        weights: Packed weights, for a worker; None for a learner, or if there are none.
        workdir: Scratch folder of the trial on disk, for results that do not fit in memory; removed by the slot.
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
        disk_folder = workdir.parent / "memory"
        self._folder = memory.create_folder(f"{request.run}-{request.number}", _ROOM, disk_folder)
        self._weights = None if weights is None else _share_weights(request, weights, disk_folder)
        self._folders = (self._folder.path, workdir)  # folders in which the process may offer files
        self._segments = segments.Writer(self._folder.path, workdir)
        self._lock = threading.Lock()
        self._last_message_at = time.monotonic()  # the worker's time limit begins with each message
        self._has_returned = False  # whether the worker's function has returned; its results may not be fetched yet
        self._queued_units: set[int] = set()  # units that the process has received and its job has not taken
        self._begun_units: set[int] = set()  # units that the job has taken and not given
        self._owed_units = 0  # units that were requested and have not arrived
        self._offered_results: dict[int, OfferedResult] = {}  # by unit
        self._weights_file: str | None = None  # the weights that the learner offers
        self._fed_files: dict[int, str] = {}  # unit → file of a result that the learner has
        self._is_closed = False
        self._reported_at = -GATHER  # when the controller last received messages, by the monotonic clock
        # Messages since the last report to the controller.
        self._new_requests = 0
        self._new_offers: list[units.Offer] = []
        self._new_taken: list[int] = []
        self._new_weights: messages.WeightsOffered | None = None

    @property
    def shared_files(self) -> messages.SharedFiles:
        """The files passed to the process at its start."""
        return messages.SharedFiles(str(self._folder.path), None if self._weights is None else str(self._weights.path))

    @property
    def deadline(self) -> float | None:
        """Time by which a worker must send its next message, by the monotonic clock; None if it has no limit now.

        It has no limit while it waits for units or for its results to be fetched, and if the job sets none. So a worker must
        request its first unit, give each result, and end after the last one within the limit.
        """
        with self._lock:
            waits_for_units = self._owed_units and not self._queued_units and not self._begun_units
            waits_for_room = is_full(self._offered_results) or (self._has_returned and self._offered_results)
            if self._timeout is None or waits_for_units or waits_for_room:
                return None
            return self._last_message_at + self._timeout

    @property
    def begun_units(self) -> tuple[int, ...]:
        """The units that a worker's job has taken and not given."""
        return tuple(sorted(self._begun_units))

    @property
    def report_at(self) -> float | None:
        """Time at which new messages of the process are due at the controller, by the monotonic clock; None without any.

        They are due `GATHER` seconds after the last report. They are due at once, by a time in the past, if they are a
        learner's, or if the process may be waiting for units or for its results to be fetched.
        """
        if not (self._new_requests or self._new_offers or self._new_taken or self._new_weights):
            return None
        with self._lock:
            may_wait_for_units = self._owed_units and not self._queued_units
            is_of_learner = self._new_taken or self._new_weights
            is_urgent = may_wait_for_units or is_full(self._offered_results) or is_of_learner
            return self._reported_at if is_urgent else self._reported_at + GATHER

    def news(self) -> tuple[messages.FromExchange, ...]:
        """Return the messages for the controller since the last call, one for each kind at most."""
        self._reported_at = time.monotonic()
        news: list[messages.FromExchange] = []
        if self._new_requests:
            news.append(messages.UnitsWanted(self._new_requests))
        if self._new_offers:
            news.append(messages.ResultsOffered(tuple(self._new_offers)))
        if self._new_taken:
            news.append(messages.ResultsTaken(tuple(self._new_taken)))
        if self._new_weights is not None:
            news.append(self._new_weights)
        self._new_requests, self._new_offers, self._new_taken, self._new_weights = 0, [], [], None
        return tuple(news)

    def receive(self, message: messages.WorkerMessage | messages.LearnerMessage) -> None:
        """Record a message of the process, with its news for the controller.

        Raises:
            MessageError: It is about units or files that the process does not have.
        """
        with self._lock:
            self._last_message_at = time.monotonic()
            match message:
                case messages.UnitsWanted(count):
                    if count < 1:
                        raise errors.MessageError(f"a worker requested {count} units")
                    self._new_requests += count  # news for the controller
                    self._owed_units += count  # until the worker has them
                case messages.UnitsBegun(begun):
                    self._begun_units.update(begun)
                    self._queued_units.difference_update(begun)
                case messages.ResultOffered(offer, file):
                    self._add_result(offer, file)
                case messages.WeightsOffered(size, file):
                    self._set_weights(size, file)
                case messages.JobReturned():
                    self._has_returned = True
                case messages.ResultsTaken(taken):
                    self._new_taken += taken
                case messages.FilesFree(free):
                    if len(set(free)) < len(free) or not self._fed_files.keys() >= set(free):
                        raise errors.MessageError("a learner freed files of results that it does not have")
                    for unit in free:
                        self._segments.release(self._fed_files.pop(unit))

    def _add_result(self, offer: units.Offer, file: str) -> None:
        """Record a result that a worker offers in a file.

        Raises:
            MessageError: A number of the offer is impossible, or the file is elsewhere.
        """
        if offer.unit < 0 or offer.bytes <= 0 or offer.items < 0:
            raise errors.MessageError(f"a worker offered {offer.bytes} bytes and {offer.items} items of unit {offer.unit}")
        self._check_folder(file)
        self._begun_units.discard(offer.unit)
        self._offered_results[offer.unit] = OfferedResult(file, offer.bytes)
        self._new_offers.append(offer)

    def _set_weights(self, size: int, file: str) -> None:
        """Record the weights that a learner offers in a file; a size of 0 says that there are none.

        Raises:
            MessageError: The size is negative, or the file is elsewhere.
        """
        if size < 0:
            raise errors.MessageError(f"a learner offered weights of {size} bytes")
        if size:
            self._check_folder(file)
            self._weights_file = file
        self._new_weights = messages.WeightsOffered(size)

    def _check_folder(self, file: str) -> None:
        """Check that a file is in one of this process's folders.

        Raises:
            MessageError: The file is elsewhere.
        """
        if Path(file).parent not in self._folders:
            raise errors.MessageError(f"a file was offered in {file!r:.200}, where this process has no folder")

    def pass_on(self, message: messages.ToExchange) -> None:
        """Forward a message of the controller to the process: units, released results, or the end of the results."""
        with self._lock:
            self._last_message_at = time.monotonic()
            match message:
                case messages.HandUnits(units_handed, last):
                    self._queued_units.update(unit.number for unit in units_handed)
                    self._owed_units = 0 if last else max(0, self._owed_units - len(units_handed))
                case messages.ReleaseResults(fetched):
                    still_offered = tuple(unit for unit in fetched if self._offered_results.pop(unit, None) is not None)
                    if not still_offered:  # the process has ended, or another one runs
                        return
                    message = messages.ReleaseResults(still_offered)
                case messages.ReleaseWeights():
                    self._weights_file = None
        self._send(message)

    def fetch(self, requested: Sequence[int]) -> dict[int, Bytes]:
        """Return the packed results of units as mapped files; results that have gone with their process are left out.

        Raises:
            TransportError: A file is missing, or does not hold a result.
        """
        with self._lock:
            offered = [] if self._is_closed else [unit for unit in requested if unit in self._offered_results]
            return {unit: segments.read(self._offered_results[unit].file) for unit in offered}

    def fetch_weights(self) -> Bytes | None:
        """Return the packed weights that the learner offers, as a mapped file; None if it has ended.

        Raises:
            TransportError: As in `fetch`.
        """
        with self._lock:
            file = None if self._is_closed else self._weights_file
            return None if file is None else segments.read(file)

    def feed(self, transfers: Sequence[units.Transfer], packed: Sequence[Bytes]) -> None:
        """Pass results to a learner, or none of them if there is no room for all. Do nothing if the learner has ended.

        Args:
            transfers: Unit, worker and items of each result.
            packed: The packed results, in the same order.

        Raises:
            TransportError: There is no room.
        """
        files: dict[int, str] = {}
        with self._lock:
            if self._is_closed:
                return
            try:
                for transfer, array in zip(transfers, packed, strict=True):
                    files[transfer.unit], _ = self._segments.copy(array)
            except errors.TransportError:
                for file in files.values():
                    self._segments.release(file)
                raise
            self._fed_files |= files
        fed = (messages.FedResult(result.unit, result.worker, result.items, files[result.unit]) for result in transfers)
        self._send(messages.FeedResults(tuple(fed)))  # without the lock, as it may wait for the process

    def close(self) -> None:
        """Remove the files after the end of the process."""
        with self._lock:
            self._is_closed = True
            self._folder.release()
            self._segments.close()  # at once, as a reference cycle may keep this object until the collector runs
            if self._weights is not None:
                self._weights.release()


def _share_weights(request: records.TrialRequest, weights: Bytes, disk_folder: Path) -> memory.HeldPath:
    """Share the packed weights in one file for all workers of this node with the same iteration and attempt."""
    # The folder is in the run's home folder, and so tells runs of the same name in different home folders apart.
    home_hash = zlib.crc32(str(disk_folder).encode())
    name = f"{request.run}-{home_hash:08x}-{request.trial}-{request.attempt}.weights"
    return memory.share_file(name, weights, disk_folder)
