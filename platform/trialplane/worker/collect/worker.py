"""The worker's interface: `play(ctx)` receives a `Worker`, computes a result for each unit and gives it.

    def play(ctx):
        for unit in ctx.units():
            ctx.give(unit, {"states": states, "moves": moves}, items=len(moves))

A unit is a piece of work, such as a game. The learner gets the results of all units of an iteration, and returns the weights
for the next iteration. `WorkerUnits` holds units and results in the worker's process. Imports nothing heavy.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trialplane import errors
from trialplane.training import process
from trialplane.wire import messages
from trialplane.wire.units import MAX_UNITS, Offer, Unit
from trialplane.worker import context
from trialplane.worker.collect import exchange, segments
from trialplane.worker.collect.line import Line

LOG_INTERVAL = 5.0  # seconds between log lines about the units given
# A worker requests units ahead, because a request takes some milliseconds. No other worker gets these units, so at the end
# of an iteration the others may wait until they are done. Two limits keep that time short.
AHEAD_SECONDS = 0.25  # work to request ahead, estimated by the slowest of the last units
AHEAD_UNITS = 16  # units to request ahead, however quick they are
PACE_WINDOW = 8  # number of last units by which the time of a unit is estimated


class Work(Protocol):
    """A source of units and sink of results."""

    def take(self, count: int, wait: bool) -> tuple[Unit, ...]:
        """Return units to do, `count` at most."""

    def give(self, unit: Unit, value: Any, items: int) -> None:
        """Pass on the result of a unit."""


@dataclasses.dataclass(frozen=True)
class Worker(context.Context):
    """One worker in one iteration, passed to the job's `play(ctx)`. For one thread.

    Attributes:
        weights: Weights that the learner returned in the iteration before: a tree, its arrays read-only and shared by
            all workers of this node. None before there are any.
        iteration: Number of the iteration, from 0; the same as `trial`.
        worker: Number of this worker, from 0.
    """

    weights: Any = dataclasses.field(default=None, repr=False)
    iteration: int = 0
    worker: int = 0
    _work: Work | None = dataclasses.field(default=None, repr=False)

    def units(self) -> Iterator[Unit]:
        """Yield the units to do, one after the other, until the iteration is complete.

        The random generators of Python, numpy and torch are seeded with each unit's own seed, so the same unit gives the
        same result wherever it is done.
        """
        while taken := self.take():
            process.seed_everything(taken[0].seed)
            yield taken[0]

    def take(self, count: int = 1, *, wait: bool = True) -> tuple[Unit, ...]:
        """Return units to do at the same time, for batched computation. Use each unit's own `seed` for its random numbers.

        Args:
            count: Largest number of units.
            wait: Whether to wait until there is a unit. Then `()` means that the iteration is complete. Without waiting it
                means that none has arrived yet, and a later call returns the requested units.

        Raises:
            ValueError: `count` is less than 1.
        """
        if count < 1:
            raise ValueError(f"ctx.take(count={count}): count is at least 1")
        assert self._work is not None
        return self._work.take(count, wait)

    def give(self, unit: Unit, value: Any, *, items: int = 1) -> None:
        """Pass on the result of a unit; wait while too many earlier results have not been fetched.

        Args:
            unit: Unit that this worker has taken and not given yet.
            value: Tree of dicts, lists and dataclasses with numpy arrays, torch tensors and plain values.
            items: Number of items in the result, in the job's own measure: positions, samples.

        Raises:
            TransportError: The value contains something that cannot be sent to another process. The message has its path.
            ValueError: The worker does not have the unit, or `items` is not a whole number from 0.
        """
        if type(items) is not int or items < 0:
            raise ValueError(f"ctx.give(items={items!r}): items is a whole number, 0 or more")
        assert self._work is not None
        self._work.give(unit, value, items)


class _TakenUnit(NamedTuple):
    """A unit that the job has taken.

    Attributes:
        taken_at: Time, by the monotonic clock.
        held_count: Number of units that the job had then, which share the worker's time.
    """

    taken_at: float
    held_count: int


class WorkerUnits:
    """The units of a worker's process, and its results until they are fetched.

    Args:
        line: Channel to the slot.
        folder: Folder in memory, for results until they are fetched.
        spare: Folder on disk, for results that do not fit in `folder`.
    """

    def __init__(self, line: Line, folder: Path, spare: Path) -> None:
        self._line = line
        self._segments = segments.Writer(folder, spare)
        self._ready: collections.deque[Unit] = collections.deque()
        self._taken: dict[int, _TakenUnit] = {}  # by unit: those that the job has taken and not given
        self._pace: collections.deque[float] = collections.deque(maxlen=PACE_WINDOW)  # seconds for each of the last units
        self._offered: dict[int, exchange.OfferedResult] = {}  # by unit
        self._ahead_count = 0  # units to request before the job takes them
        self._owed_count = 0  # units requested and not received
        self._is_last = False  # whether the iteration has no more units
        self._given_count = self._item_count = self._logged_count = 0
        self._log_at = 0.0

    def take(self, count: int, wait: bool) -> tuple[Unit, ...]:
        """Return units to do, `count` at most, and request more ahead.

        Without `wait`, `()` means that no unit has arrived yet; otherwise that the iteration is complete.
        """
        self._receive(wait=False)
        count = min(count, MAX_UNITS)
        self._request_missing(count)
        while wait and not self._ready and not self._is_last:
            self._receive(wait=True)
        taken = tuple(self._ready.popleft() for _ in range(min(count, len(self._ready))))
        if taken:
            self._line.send(messages.UnitsBegun(tuple(unit.number for unit in taken)))
            now = time.monotonic()
            held_count = len(self._taken) + len(taken)  # they share the worker's time, see `give`
            self._taken.update({unit.number: _TakenUnit(now, held_count) for unit in taken})
        return taken

    def _request_missing(self, count: int) -> None:
        """Request the units that are missing for a batch of `count`, and for the next batches ahead."""
        # Requesting ahead means a whole batch at least. With fewer units the next batch would be incomplete.
        ahead_count = max(self._ahead_count, count) if self._ahead_count else 0
        missing_count = count + ahead_count - len(self._ready) - self._owed_count
        if missing_count > 0 and not self._is_last:
            self._line.send(messages.UnitsWanted(missing_count))
            self._owed_count += missing_count

    def give(self, unit: Unit, value: Any, items: int) -> None:
        """Offer the result of a unit. If too many results are on offer, first wait until some of them are fetched.

        The time that the unit took also decides how many units are requested ahead.

        Raises:
            TransportError: The value cannot be sent, or there is no room.
            ValueError: The worker does not have the unit.
        """
        if unit.number not in self._taken:
            raise ValueError(f"ctx.give: this worker does not have unit {unit.number}, or has given it already")
        self._receive(wait=False)
        while exchange.is_full(self._offered):
            self._receive(wait=True)
        try:
            file, size = self._segments.write(value)
        except errors.TransportError as error:
            raise errors.TransportError(f"unit {unit.number}: {error}") from error
        taken_unit = self._taken.pop(unit.number)
        seconds = time.monotonic() - taken_unit.taken_at
        self._pace.append(seconds / taken_unit.held_count)
        # The number at most doubles, because a unit after a quick one may take long.
        slowest_seconds = max(*self._pace, 1e-6)
        self._ahead_count = min(AHEAD_UNITS, 2 * self._ahead_count + 1, int(AHEAD_SECONDS / slowest_seconds))
        self._offered[unit.number] = exchange.OfferedResult(file, size)
        self._line.send(messages.ResultOffered(Offer(unit.number, size, items, seconds), file))
        self._given_count += 1
        self._item_count += items
        if time.monotonic() >= self._log_at:
            self._log_given()

    def drain(self) -> None:
        """Wait, after the job's function has returned, until all results have been fetched."""
        with contextlib.suppress(OSError):  # the slot is gone; an earlier failure takes precedence
            self._line.send(messages.JobReturned())
        while self._offered:
            self._receive(wait=True)
        if self._logged_count < self._given_count:
            self._log_given()

    def _log_given(self) -> None:
        """Log the number of given units, so that a job that prints nothing has a log of its progress."""
        self._logged_count, self._log_at = self._given_count, time.monotonic() + LOG_INTERVAL
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced its streams
            units, items = errors.counted(self._given_count, "unit"), errors.counted(self._item_count, "item")
            print(f"gave {units}, {items}", flush=True)  # noqa: T201

    def check_complete(self) -> None:
        """Check that the job has given the results of all units that it has taken.

        Raises:
            Invalid: Some results are missing.
        """
        if self._taken:
            numbers = ", ".join(str(number) for number in sorted(self._taken)[:5])
            raise context.Invalid(
                f"play(ctx) returned without giving {errors.counted(len(self._taken), 'unit')} that it had taken "
                f"({numbers}); call ctx.give(unit, …) for each unit"
            )

    def _receive(self, *, wait: bool) -> None:
        """Handle the messages that the slot has sent; with `wait`, wait until there is at least one."""
        while (message := self._line.receive(wait=wait)) is not None:
            wait = False
            if isinstance(message, messages.HandUnits):
                self._ready.extend(message.units)
                self._is_last = self._is_last or message.last
                self._owed_count = 0 if self._is_last else max(0, self._owed_count - len(message.units))
            elif isinstance(message, messages.ReleaseResults):
                for unit in message.units:
                    self._segments.release(self._offered.pop(unit).file)
