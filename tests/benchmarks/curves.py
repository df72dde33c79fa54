"""How many steps do rules of early stopping take to find what random search finds? On learning curves, in virtual time.

    python -m tests.benchmarks.curves FOLDER [--seeds 30] [--slots 1 8 32] [--tasks NAME …] [--rules NAME …] [--results FILE]

FOLDER holds `taskset.npz`: per task an array of losses, (configurations, points), of which point 0 is before training, and
one NAME_hp of the configurations. It may hold `clip.csv`, the file `vlm/data.csv` of scan-bench. Two planted tasks are
always measured, and reported apart.

Each seed shuffles the configurations, and rules without a sampler see them in this order. Random search trains the first 256
to the end. The target is the best final loss among them; what counts is the number of steps, over all slots, until a trial
reports it. The rules are the libraries' own classes: our promotion and ledger, Optuna's pruners and TPE, Ray Tune's
schedulers and BOHB. A slot reports a step at a time, and all slots are equally quick.

A rule with a sampler gets the nearest configuration that it has not had. For it the target need not be among the first 256.
So compare it with promotion in another order.

With --results, each search is one line of FILE. Searches that it has are not repeated, so a measurement can be continued,
and rules whose libraries exclude each other can be measured one after the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import json
import logging
import math
import statistics
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tests.benchmarks import curve_rules, curve_tasks
from tests.benchmarks.curve_rules import BEST, DEFAULT, OURS, RANDOM, RESTARTED, Rule, Setting
from tests.benchmarks.curve_tasks import Task

_MOST = 4  # times the steps of random search, after which a rule has not arrived
# Peer → how many times our steps it should take at least, with 1, 8 and 32 slots; 0 where there is no goal.
GOALS: Mapping[str, tuple[float, float, float]] = {
    "Optuna TPE, Hyperband": (2.0, 2.0, 1.4),
    "Ray Tune ASHA": (1.4, 1.4, 1.2),
    "Ray Tune HyperBand": (1.4, 1.4, 1.2),
    "Ray Tune BOHB": (1.4, 1.4, 1.2),
    "Optuna TPE, successive halving, 3": (1.3, 1.0, 1.0),
    "one step of all, the best 3 in full": (1.3, 0.0, 0.0),
    RESTARTED: (1.25, 1.25, 0.0),
}
_GOAL_SLOTS = (1, 8, 32)


@dataclasses.dataclass(frozen=True)
class Search:
    """What is measured once: a rule on a task, against the best of so many random trials."""

    rule: str
    task: str
    seed: int
    slots: int
    trials: int


class Rows:
    """The configurations of trials: the ones with their numbers, or the nearest that no trial has had."""

    def __init__(self, task: Task) -> None:
        self._points, self._rows = task.points, dict[int, int]()
        self._is_free = np.ones(len(task.points), dtype=bool)

    def row(self, trial: int, point: Sequence[float] | None) -> int:
        """Return the row of a trial."""
        if trial not in self._rows:
            if point is None:
                self._rows[trial] = trial
            else:
                distances = ((self._points - np.asarray(point)) ** 2).sum(axis=1)
                self._rows[trial] = int(np.where(self._is_free, distances, math.inf).argmin())
            self._is_free[self._rows[trial]] = False
        return self._rows[trial]


def steps_to_target(rule: Rule, setting: Setting, slots: int) -> float:
    """Return the steps, over all slots, until a trial reports the target; infinite if a rule does not arrive."""
    losses, rows = setting.task.losses, Rows(setting.task)
    queue: list[tuple[int, int, int, int, int]] = []  # time, serial, trial, step, until
    serial, used, now, free = 0, 0, 0, slots
    while used < _MOST * setting.trials * setting.task.steps:
        while free and (work := rule.take()) is not None:
            rows.row(work.trial, work.point)
            heapq.heappush(queue, (now + 1, serial, work.trial, work.done + 1, work.until))
            serial, free = serial + 1, free - 1
        if not queue:
            return math.inf
        now, _, trial, step, until = heapq.heappop(queue)
        used += 1
        loss = float(losses[rows.row(trial, None), step])
        if loss <= setting.target:
            return used
        if rule.goes_on(trial, step, loss) and step < until:
            heapq.heappush(queue, (now + 1, serial, trial, step + 1, until))
            serial += 1
        else:
            rule.end(trial, step, loss)
            free += 1
    return math.inf


def measure(search: Search, task: Task) -> float:
    """Return the steps of one search."""
    shuffled = task.shuffled(search.seed)
    setting = Setting(shuffled, float(shuffled.losses[: search.trials, -1].min()), search.trials, search.seed)
    rule = curve_rules.RULES[search.rule](setting)
    try:
        return steps_to_target(rule, setting, search.slots)
    finally:
        rule.close()


def _ratios(steps: Mapping[Search, float], rule: str, base: str, tasks: Collection[str], slots: int) -> list[float]:
    """Return how many times the steps of `base` a rule takes, one ratio per task and seed that both have."""
    ratios = []
    for search, taken in steps.items():
        other = steps.get(dataclasses.replace(search, rule=base))
        if search.rule == rule and search.task in tasks and search.slots == slots and other is not None:
            ratios.append(1.0 if taken == other else taken / other)  # if neither arrives, neither is better
    return ratios


def _verdict(rule: str, ratios: Sequence[float], slots: int) -> str:
    """Return the goal of a peer with this number of slots, and whether the median ratio meets it; "" without a goal."""
    goal = dict(zip(_GOAL_SLOTS, GOALS.get(rule, (0, 0, 0)), strict=True)).get(slots)
    if not goal or not ratios:
        return ""
    return f"{goal} {'met' if statistics.median(ratios) >= goal else 'missed'}"


def _table(steps: Mapping[Search, float], tasks: Sequence[Task], slots: int) -> Iterator[str]:
    """Yield the lines of the table of one number of slots."""
    real = [task.name for task in tasks if not task.is_planted]
    rules = [rule for rule in curve_rules.RULES if any(search.rule == rule for search in steps)]
    columns = ("÷ ours", "÷ default", "÷ best", "over random", "quartiles", "lost", "searches", "goal")
    yield f"{f'{slots} slots':36}" + "".join(f"{column:>13}" for column in columns)
    for rule in rules:
        speedups = [1 / ratio if ratio else math.inf for ratio in _ratios(steps, rule, RANDOM, real, slots)]
        if speedups:
            low, high = np.quantile(speedups, (0.25, 0.75), method="nearest")
            ratios = {base: _ratios(steps, rule, base, real, slots) for base in (OURS, DEFAULT, BEST)}
            peer_ratios = ratios[OURS if rule == RESTARTED else DEFAULT]  # restarts have the same configurations as ours
            cells = (
                *(f"{statistics.median(values):.2f}" if values else "" for values in ratios.values()),
                f"{statistics.median(speedups):.2f}",
                f"{low:.2f}-{high:.2f}",
                str(speedups.count(0)),
                str(len(speedups)),
                _verdict(rule, peer_ratios, slots),
            )
            yield f"{rule:36}" + "".join(f"{cell:>13}" for cell in cells)
    yield f"{'Over random, by task':36}" + "".join(f"{f'[{number}]':>9}" for number, _ in enumerate(tasks))
    for rule in rules:
        by_task = [_ratios(steps, rule, RANDOM, [task.name], slots) for task in tasks]
        yield f"{rule:36}" + "".join(f"{1 / statistics.median(ratios):9.2f}" if ratios else f"{'':9}" for ratios in by_task)
    by_task = {task.name: _ratios(steps, DEFAULT, RANDOM, [task.name], slots) for task in tasks}
    behind = [name for name, ratios in by_task.items() if ratios and statistics.median(ratios) > 1]
    if any(by_task.values()):
        yield f"Tasks on which the default is behind random: {', '.join(behind) or 'none'}"


def _read(file: Path) -> dict[Search, float]:
    """Return the steps of the searches in a file."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {Search(*fields): taken for *fields, taken in lines}


def _append(file: Path, search: Search, taken: float) -> None:
    """Append a search and its steps to a file."""
    with file.open("a") as opened:
        opened.write(json.dumps([*dataclasses.astuple(search), taken]) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.curves", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="the folder with taskset.npz")
    parser.add_argument("--trials", type=int, default=256, help="trials of random search")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--slots", type=int, nargs="+", default=list(_GOAL_SLOTS))
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--rules", nargs="+", choices=curve_rules.RULES, default=list(curve_rules.RULES), metavar="NAME")
    parser.add_argument("--results", type=Path, help="file of the searches' steps; those that it has are not repeated")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of Optuna, on experimental pruners
    logging.getLogger("ray.tune").setLevel(logging.WARNING)
    tasks = [task for task in curve_tasks.read(options.folder) if task.name in (options.tasks or (task.name,))]
    if missing := set(options.tasks or ()) - {task.name for task in tasks}:
        parser.error(
            f"no task {', '.join(sorted(missing))}; there are "
            f"{', '.join(task.name for task in curve_tasks.read(options.folder))}"
        )
    file = options.results
    steps = _read(file) if file is not None and file.exists() else {}
    for rule in options.rules:
        began = time.monotonic()
        names = itertools.product(range(options.seeds), options.slots, tasks)
        searches = {Search(rule, task.name, seed, slots, options.trials): task for seed, slots, task in names}
        try:
            for search, task in searches.items():
                if search not in steps:
                    steps[search] = measure(search, task)
                    if file is not None:
                        _append(file, search, steps[search])
        except ImportError as error:
            print(f"left out: {rule}, which needs {error.name}", file=sys.stderr)  # noqa: T201
        print(f"{rule}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)  # noqa: T201
    steps = {search: taken for search, taken in steps.items() if search.trials == options.trials}
    print("""
÷ ours, ÷ default, ÷ best: how many times the steps of promotion over the same configurations in order, of promotion with
TPE, and of a rule that knows the best trial. All are medians over tasks and seeds that both have, without planted tasks.
""")  # noqa: T201
    print("\n".join(f"[{number}] {task.name}" for number, task in enumerate(tasks)), end="\n\n")  # noqa: T201
    for slots in options.slots:
        print("\n".join(_table(steps, tasks, slots)), end="\n\n", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
