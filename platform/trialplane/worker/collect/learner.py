"""What a learner sees: `learn(ctx, results)` gets a `Learner` and the `Results` of one iteration, as they arrive.

    def learn(ctx, results):
        for result in results:
            buffer.add(result.value["states"], result.value["moves"])
        return {"loss": loss, "weights": model.state_dict(), "state": optimizer.state_dict()}

`Fed` is the process's side of that: what its slot feeds it. Imports nothing heavy.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from trialplane.policies import transport
from trialplane.wire import messages
from trialplane.wire.units import AT_ONCE
from trialplane.worker import context
from trialplane.worker.collect import segments
from trialplane.worker.collect.line import Line


@dataclasses.dataclass(frozen=True)
class Result:
    """What a worker gave for one unit.

    Attributes:
        unit: its number.
        worker: number of the worker.
        items: how much there is in it, as the worker said.
        value: the tree; its arrays are read-only views of shared memory, which stays for as long as one of them is
            referenced.
    """

    unit: int
    worker: int
    items: int
    value: Any


class Feed(Protocol):
    """Where results come from."""

    failed: int

    def next(self) -> Result | None:
        """The next result; None when there are no more."""


class Results:
    """The results of one iteration, each once, in the order in which they arrive.

    Attributes:
        expected: units that the iteration asked for.
    """

    def __init__(self, expected: int, feed: Feed) -> None:
        self.expected = expected
        self._feed = feed

    @property
    def failed(self) -> int:
        """Units that could not be done; known when all results have been read."""
        return self._feed.failed

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        result = self._feed.next()
        if result is None:
            raise StopIteration
        return result


@dataclasses.dataclass(frozen=True)
class Learner(context.Context):
    """The learner in one iteration, as the job's `learn(ctx, results)` sees it.

    What it returns is a dict, or None. Its `weights` go to the workers of the next iteration, its `state` to the next
    `learn`; what is left out stays as it was. Numbers are the iteration's metrics, anything else is kept with its result.

    Attributes:
        weights: the tree that the last iteration returned as its weights, its arrays read-only. None before the first.
        state: the same of its state.
        iteration: from 0; the same as `trial`.
        shards: what is to be written, of a job that says `collect.write`.
    """

    weights: Any = dataclasses.field(default=None, repr=False)
    state: Any = dataclasses.field(default=None, repr=False)
    iteration: int = 0
    shards: Any = dataclasses.field(default=None, repr=False)


class Fed:
    """The results that the slot feeds this process.

    Results that came together count as taken when the one after the last of them is asked for, which is what lets more come.
    The file of one is used again when nothing refers to it any more.

    Args:
        line: to the slot.

    Attributes:
        failed: units that could not be done, when all results have come.
        weights: the file of what is on offer to the workers; goes when they have it.
    """

    def __init__(self, line: Line) -> None:
        self.failed = 0
        self.weights: Path | None = None
        self._line = line
        self._waiting: collections.deque[messages.FedResult] = collections.deque()
        self._reading: list[int] = []
        self._unused: collections.deque[int] = collections.deque()
        self._ended = False

    def has(self, units: Collection[int]) -> None:
        """Says that these units need not be done: what came of them in a former attempt is kept."""
        kept = sorted(units)
        for first in range(0, len(kept), AT_ONCE):
            self._line.send(messages.ResultsTaken(tuple(kept[first : first + AT_ONCE])))

    def next(self) -> Result | None:
        """The next result; None when there are no more."""
        if not self._waiting and self._reading:
            self._line.send(messages.ResultsTaken(tuple(self._reading)))
            self._reading = []
        if unused := [self._unused.popleft() for _ in range(len(self._unused))]:
            self._line.send(messages.FilesFree(tuple(unused)))
        while not self._waiting and not self._ended:
            match self._line.receive(wait=True):
                case messages.EndFeed(failed):
                    self.failed, self._ended = failed, True
                case messages.FeedResults(results):
                    self._waiting.extend(results)
                case messages.ReleaseWeights() if self.weights is not None:
                    self.weights.unlink(missing_ok=True)
        return self._result(self._waiting.popleft()) if self._waiting else None

    def _result(self, fed: messages.FedResult) -> Result:
        self._reading.append(fed.unit)
        packed = segments.read(fed.file, lambda: self._unused.append(fed.unit))
        return Result(fed.unit, fed.worker, fed.items, transport.unpack(packed))
