"""Run a collection in one process, without the platform: the worker does all units of an iteration, then the learner runs.

Results are packed and unpacked as between processes, so values that cannot be sent are detected here too. The weights and
state of an iteration are not saved. All results of an iteration are in memory at once, so use it for few units.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trialplane.job.kinds.collection import Collect
from trialplane.policies import transport
from trialplane.wire import units
from trialplane.wire.units import Unit
from trialplane.worker import context
from trialplane.worker.collect import serving, shards, states
from trialplane.worker.collect.learner import Learner, Result, Results
from trialplane.worker.collect.worker import Worker


def run(
    collect: Collect,
    play: Callable[[Worker], object],
    learn: Callable[[Learner, Results], Any] | None,
    fields: Mapping[str, Any],
    learner_fields: Mapping[str, Any],
) -> Iterator[Mapping[str, Any]]:
    """Run the iterations; yield the learner's result in each, with counts and rates, but without weights and state.

    Args:
        collect: Numbers of units and iterations, and the files to write.
        play: Function of the worker.
        learn: Function of the learner. None writes files according to `collect.write`.
        fields: Fields of the context.
        learner_fields: Fields of the learner's context that differ.
    """
    start = states.Start()
    for iteration in range(collect.iterations):
        began = time.monotonic()
        iteration_fields = {**fields, "trial": iteration}
        numbers = range(iteration * collect.units, (iteration + 1) * collect.units)
        work = _LocalWork(Unit(number, units.unit_seed(fields["seed"], number)) for number in numbers)
        weights = start.tree(states.WEIGHTS)
        worker = Worker(**iteration_fields, weights=weights, iteration=iteration, _work=work)
        with context.activate(worker):
            play(worker)
        seconds = time.monotonic() - began
        counts = {"units": len(work.results), "items": sum(result.items for result in work.results)}
        learning_fields = {**iteration_fields, **learner_fields, "weights": weights, "state": start.tree(states.STATE)}
        result = _learn(collect, learn, learning_fields, work)
        start = serving.next_start(start, result)
        shown = {name: value for name, value in result.items() if name not in serving.STATE_FILES}
        rates = {f"{name}_per_second": count / seconds for name, count in counts.items()}
        yield {**shown, **counts, **rates}


def _learn(
    collect: Collect,
    learn: Callable[[Learner, Results], Any] | None,
    fields: Mapping[str, Any],
    work: _LocalWork,
) -> Mapping[str, Any]:
    """Call the learner's function, or without one write files, with the results of one iteration; return its result.

    In `fields`, the fields of the learner's context, `trial` is the number of the iteration.
    """
    iteration_shards = None
    if learn is None:
        assert collect.write is not None  # the job has a learner otherwise
        iteration_shards = shards.Shards(
            collect.write, checkpoints=fields["checkpoints"], run=fields["run"], iteration=fields["trial"]
        )
    learner = Learner(**fields, iteration=fields["trial"], shards=iteration_shards)
    with context.activate(learner):
        return serving.result_dict((learn or shards.write)(learner, Results(collect.units, work)))


class _LocalWork:
    """A source of units and a store of results in memory, in place of the slots of worker and learner."""

    def __init__(self, units_to_do: Iterator[Unit]) -> None:
        self.failed = 0
        self.results: collections.deque[Result] = collections.deque()  # with packed values
        self._waiting = collections.deque(units_to_do)
        self._taken: set[int] = set()  # units that were taken and not given

    def take(self, count: int, wait: bool) -> tuple[Unit, ...]:
        """Return units to do, at most `count`; `()` if all were taken."""
        taken = tuple(self._waiting.popleft() for _ in range(min(count, len(self._waiting))))
        self._taken.update(unit.number for unit in taken)
        return taken

    def give(self, unit: Unit, value: Any, items: int) -> None:
        """Keep a result for the learner."""
        if unit.number not in self._taken:
            raise context.Invalid(f"ctx.give: unit {unit.number} was not taken, or has been given already")
        self._taken.remove(unit.number)
        self.results.append(Result(unit.number, worker=0, items=items, value=transport.pack(value)))

    def next(self) -> Result | None:
        """Return the next result; None if there are no more."""
        if not self.results:
            return None
        result = self.results.popleft()
        return dataclasses.replace(result, value=transport.unpack(result.value))
