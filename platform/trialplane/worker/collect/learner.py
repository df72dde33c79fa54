"""The learner's interface: `learn(ctx, results)` receives a `Learner` and the `Results` of one iteration as they arrive.

    def learn(ctx, results):
        for result in results:
            buffer.add(result.value["states"], result.value["moves"])
        return {"loss": loss, "weights": model.state_dict(), "state": optimizer.state_dict()}

A result is what a worker has computed for a unit, a piece of work such as a game. `ResultFeed` receives the results in the
learner's process. Imports nothing heavy.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from trialplane.policies import transport
from trialplane.wire import messages
from trialplane.wire.units import MAX_UNITS
from trialplane.worker import context
from trialplane.worker.collect import segments
from trialplane.worker.collect.line import Line


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one unit.

    Attributes:
        unit: Number of the unit.
        worker: Number of the worker.
        items: Number of items in the result, as given by the worker.
        value: Tree of the result. Its arrays are read-only views of shared memory, which stays valid as long as one of them
            is referenced.
    """

    unit: int
    worker: int
    items: int
    value: Any


class Feed(Protocol):
    """A source of results."""

    failed: int

    def next(self) -> Result | None:
        """Return the next result; None when there are no more."""


class Results:
    """The results of one iteration, each once, in the order in which they arrive.

    Attributes:
        expected: Number of units of the iteration.
    """

    def __init__(self, expected: int, feed: Feed) -> None:
        self.expected = expected
        self._feed = feed

    @property
    def failed(self) -> int:
        """Number of units that failed; complete when all results have been read."""
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
    """The learner in one iteration, passed to the job's `learn(ctx, results)`.

    `learn` returns a dict, or None. Its `weights` go to the workers of the next iteration, its `state` to the next `learn`.
    If one is omitted, the previous one is used again. Numbers are metrics of the iteration, other values are kept with its
    result.

    Attributes:
        weights: Tree that the last iteration returned as its weights, its arrays read-only. None before the first.
        state: The same for its state.
        iteration: Number of the iteration, from 0; the same as `trial`.
        shards: Files to be written, for a job with `collect.write`.
    """

    weights: Any = dataclasses.field(default=None, repr=False)
    state: Any = dataclasses.field(default=None, repr=False)
    iteration: int = 0
    shards: Any = dataclasses.field(default=None, repr=False)


class ResultFeed:
    """A source of the results that the slot passes to the learner's process.

    Results arrive in groups. When the job requests a result after the last of a group, the group is reported as taken, and
    the controller may send more. The file of a result can be reused when the job no longer refers to its value.

    Attributes:
        failed: Number of units that failed; complete when all results have arrived.
        weights: File of the weights offered to the workers; removed when they have been fetched. None without weights.
    """

    def __init__(self, line: Line) -> None:
        self.failed = 0
        self.weights: Path | None = None
        self._line = line
        self._waiting: collections.deque[messages.FedResult] = collections.deque()
        self._unreported: list[int] = []  # units of results that the job has, not reported as taken yet
        self._unused: collections.deque[int] = collections.deque()  # units whose values the job no longer refers to
        self._ended = False

    def report_existing(self, units: Collection[int]) -> None:
        """Report units that need not be done, because an earlier attempt has written their results."""
        numbers = sorted(units)
        for first in range(0, len(numbers), MAX_UNITS):
            self._line.send(messages.ResultsTaken(tuple(numbers[first : first + MAX_UNITS])))

    def next(self) -> Result | None:
        """Return the next result; None when there are no more.

        Before that, report a group as taken if the previous call returned its last result, and report as free the files of
        values to which the job no longer refers. Meanwhile, remove the file of weights when all workers have fetched it.
        """
        if not self._waiting and self._unreported:
            self._line.send(messages.ResultsTaken(tuple(self._unreported)))
            self._unreported = []
        # Other threads may append to `_unused` meanwhile, so it is emptied item by item.
        unused = [self._unused.popleft() for _ in range(len(self._unused))]
        if unused:
            self._line.send(messages.FilesFree(tuple(unused)))
        while not self._waiting and not self._ended:
            match self._line.receive(wait=True):
                case messages.EndFeed(failed):
                    self.failed, self._ended = failed, True
                case messages.FeedResults(results):
                    self._waiting.extend(results)
                case messages.ReleaseWeights() if self.weights is not None:  # which were offered with this iteration
                    self.weights.unlink(missing_ok=True)
        return self._result(self._waiting.popleft()) if self._waiting else None

    def _result(self, fed: messages.FedResult) -> Result:
        """Return a result with its value read from its file, and record that the job has it."""
        self._unreported.append(fed.unit)
        packed = segments.read(fed.file, on_release=lambda: self._unused.append(fed.unit))
        return Result(fed.unit, fed.worker, fed.items, value=transport.unpack(packed))
