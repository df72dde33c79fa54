"""What a worker sees: `play(ctx)` gets a `Worker`, makes a result of each unit and gives it away.

    def play(ctx):
        for unit in ctx.units():
            ctx.give(unit, {"states": states, "moves": moves}, items=len(moves))

`Desk` is the process's side of that: which units it has, and which results are still to be fetched. Imports nothing heavy.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from trialplane import errors
from trialplane.training import process
from trialplane.wire import messages
from trialplane.wire.units import AT_ONCE, Offer, Unit
from trialplane.worker import context
from trialplane.worker.collect import exchange, segments
from trialplane.worker.collect.line import Line

TELL_INTERVAL = 5.0  # seconds between lines in the log that say how much was given
# What a worker asks for before it needs it, for asking takes some milliseconds: so many seconds of work, by the slowest of
# its last units, and so many units at most. It has them to itself, so the last one of an iteration may work alone so long.
AHEAD_SECONDS = 0.25
AHEAD_UNITS = 16
PACED_BY = 8  # last units


class Work(Protocol):
    """Where units come from and results go."""

    def take(self, count: int, wait: bool) -> tuple[Unit, ...]:
        """Units to do, `count` at most."""

    def give(self, unit: Unit, value: Any, items: int) -> None:
        """Passes the result of a unit on."""


@dataclasses.dataclass(frozen=True)
class Worker(context.Context):
    """One worker in one iteration, as the job's `play(ctx)` sees it. For one thread.

    Attributes:
        weights: what the learner returned as its weights an iteration before: the tree, its arrays read-only and shared by
            all workers of this node. None before there are any.
        iteration: from 0; the same as `trial`.
        worker: number of this worker, from 0.
    """

    weights: Any = dataclasses.field(default=None, repr=False)
    iteration: int = 0
    worker: int = 0
    _work: Work | None = dataclasses.field(default=None, repr=False)

    def units(self) -> Iterator[Unit]:
        """The units to do, one after the other, until the iteration has enough.

        The random generators of Python, numpy and torch are seeded with each unit's own seed, so the same unit gives the
        same result wherever it is done.
        """
        while taken := self.take():
            process.seed_everything(taken[0].seed)
            yield taken[0]

    def take(self, count: int = 1, *, wait: bool = True) -> tuple[Unit, ...]:
        """Units to do at the same time, for who computes in batches. Use each unit's own `seed` for what is random in it.

        Args:
            count: how many at most.
            wait: whether to wait until there is one. Then none means that the iteration has enough; without waiting it means
                that none is there yet, and those that were asked for are had by a later call.
        """
        if count < 1:
            raise ValueError(f"ctx.take(count={count}): count is at least 1")
        assert self._work is not None
        return self._work.take(count, wait)

    def give(self, unit: Unit, value: Any, *, items: int = 1) -> None:
        """Passes the result of a unit on; waits while others before it have not been fetched.

        Args:
            unit: one that this worker has taken and not given yet.
            value: a tree of dicts, lists and dataclasses with numpy arrays, torch tensors and plain values.
            items: how much there is in it, in what the job counts: positions, samples.

        Raises:
            TransportError: something in the value may not cross a process boundary; names its path.
            ValueError: the unit is none of this worker's.
        """
        if type(items) is not int or items < 0:
            raise ValueError(f"ctx.give(items={items!r}): items is a whole number, 0 or more")
        assert self._work is not None
        self._work.give(unit, value, items)


class Desk:
    """The units that a worker's process has, and its results on their way.

    Args:
        line: to the slot.
        folder: where results lie until they are fetched.
        spare: a folder on a disk, for those that have no room there.
    """

    def __init__(self, line: Line, folder: Path, spare: Path) -> None:
        self._line = line
        self._segments = segments.Writer(folder, spare)
        self._ready: collections.deque[Unit] = collections.deque()
        self._taken: dict[int, tuple[float, int]] = {}  # unit that the job has → since when, of how many at a time
        self._pace: collections.deque[float] = collections.deque(maxlen=PACED_BY)  # seconds for a unit
        self._offered: dict[int, tuple[str, int]] = {}  # unit → file, bytes
        self._ahead = 0  # units to ask for before the job does
        self._owed = 0  # units asked for that have not come
        self._last = False  # no more will come
        self._given = self._items = self._told = 0
        self._tell_at = 0.0

    def take(self, count: int, wait: bool) -> tuple[Unit, ...]:
        """Units to do, `count` at most."""
        self._listen(wait=False)
        count = min(count, AT_ONCE)
        # What is there is given at once: with less ahead than a batch, batches would become smaller.
        ahead = max(self._ahead, count) if self._ahead else 0
        lack = count + ahead - len(self._ready) - self._owed
        if lack > 0 and not self._last:
            self._line.send(messages.UnitsWanted(lack))
            self._owed += lack
        while wait and not self._ready and not self._last:
            self._listen(wait=True)
        taken = tuple(self._ready.popleft() for _ in range(min(count, len(self._ready))))
        if taken:
            self._line.send(messages.UnitsBegun(tuple(unit.number for unit in taken)))
            now = time.monotonic()
            together = len(self._taken) + len(taken)
            self._taken.update({unit.number: (now, together) for unit in taken})
        return taken

    def give(self, unit: Unit, value: Any, items: int) -> None:
        """Offers the result of a unit; waits first while as much is on offer as may be."""
        if unit.number not in self._taken:
            raise ValueError(f"ctx.give: this worker does not have unit {unit.number}, or has given it already")
        self._listen(wait=False)
        while exchange.is_full(self._offered):
            self._listen(wait=True)
        try:
            file, size = self._segments.write(value)
        except errors.TransportError as error:
            raise errors.TransportError(f"unit {unit.number}: {error}") from error
        since, together = self._taken.pop(unit.number)
        seconds = time.monotonic() - since
        self._pace.append(seconds / together)
        # Some steps from one to many: a single quick unit says little about the next.
        self._ahead = min(AHEAD_UNITS, 2 * self._ahead + 1, int(AHEAD_SECONDS / max(*self._pace, 1e-6)))
        self._offered[unit.number] = file, size
        self._line.send(messages.ResultOffered(Offer(unit.number, size, items, seconds), file))
        self._given += 1
        self._items += items
        if time.monotonic() >= self._tell_at:
            self._tell()

    def drain(self) -> None:
        """The job's function has returned: waits until all results have been fetched."""
        with contextlib.suppress(OSError):  # its slot is gone, and what has failed before is to be told
            self._line.send(messages.JobReturned())
        while self._offered:
            self._listen(wait=True)
        if self._told < self._given:
            self._tell()

    def _tell(self) -> None:
        """Says in the log how much was given, so that a worker which prints nothing itself is no mystery."""
        self._told, self._tell_at = self._given, time.monotonic() + TELL_INTERVAL
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced its streams
            print(f"gave {errors.counted(self._given, 'unit')}, {errors.counted(self._items, 'item')}", flush=True)  # noqa: T201

    def check_given(self) -> None:
        """Raises what says that the job has kept units to itself."""
        if self._taken:
            kept = ", ".join(str(number) for number in sorted(self._taken)[:5])
            raise context.Invalid(
                f"play(ctx) returned and has not given {errors.counted(len(self._taken), 'unit')} that it had taken "
                f"({kept}); each unit needs its ctx.give(unit, …)"
            )

    def _listen(self, *, wait: bool) -> None:
        """Hears what the slot has to say; with `wait` one thing at least."""
        while (message := self._line.receive(wait=wait)) is not None:
            wait = False
            if isinstance(message, messages.HandUnits):
                self._ready.extend(message.units)
                self._last = self._last or message.last
                self._owed = 0 if self._last else max(0, self._owed - len(message.units))
            elif isinstance(message, messages.ReleaseResults):
                for unit in message.units:
                    self._segments.release(self._offered.pop(unit)[0])
