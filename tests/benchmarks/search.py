"""How well do samplers search, beside plain Optuna: each in several situations, and TPE in studies of many trials.

The ledger shows its sampler a thousand trials at most (`controller/history.py`), so a difference of the second kind can only
show after a thousand. Takes long; measured only by `--only search`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.benchmarks.rows import Row
from tests.benchmarks.workplace import Workplace

SEEDS = (0, 1, 2)
CASES = ("conditional", "parallel", "several objectives", "constraints", "out of memory", "resume")
SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": {},
    "cmaes": {"popsize": 6},
    "nsgaii": {"population_size": 10},
    "nsgaiii": {"population_size": 10},
    "qmc": {},
    "random": {},
    "gp": {},
}
_SLOW = {"gp": 3}  # how many times fewer trials


def measure(place: Workplace) -> Iterator[Row]:
    """The table of samplers and situations, then long studies."""
    yield from situations(place)
    yield from _long(place)


def situations(place: Workplace) -> Iterator[Row]:
    """How far the best found is from the best possible, one sample per seed.

    Of several objectives it is the share of the hypervolume that is missing. Grid and brute force try every point, so where
    they end is not a question; CMA-ES has one objective.
    """
    seeds = place.repeats(5)
    for name, of in SAMPLERS.items():
        trials = place.size(60, 12) // _SLOW.get(name, 1)
        cases = [case for case in CASES if name != "cmaes" or case != "several objectives"]
        place.say(f"search: {name} in {len(cases)} situations, {trials} trials, {seeds} seeds")
        arguments = {
            "scratch": str(place.scratch / f"sampling-{name}"),
            "sampler": {"name": name, **of},
            "cases": cases,
            "seeds": seeds,
            "trials": trials,
        }
        answer = place.call("sampling", arguments, timeout=120 + 2.0 * trials * seeds * len(cases))
        for case, found in answer.items():
            what = f"{case}, {name}: shortfall after {trials} trials"
            ours, plain = tuple(found["ours"]), tuple(found["plain"])
            yield Row("search", what, "", ours, "Optuna", plain, words=("better", "worse"))


def _long(place: Workplace) -> Iterator[Row]:
    """Best value after so many trials, one sample per seed; smaller is better, 0 the best there is."""
    trials = place.size(2000, 16)
    marks = [trials // 4, trials // 2, trials]
    for function in ("sphere", "rastrigin"):
        best: dict[str, list[list[float]]] = {"ours": [], "plain": []}
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        for seed in SEEDS[: place.size(len(SEEDS), 1)]:
            for name, found in best.items():
                place.say(f"search: {function}, seed {seed}, {name}")
                arguments = {
                    "scratch": str(place.scratch / f"searching-{function}-{seed}"),
                    "function": function,
                    "plain": name == "plain",
                    "seed": seed,
                    "marks": marks,
                }
                answer = place.call("searching", arguments, timeout=120 + 0.6 * trials)
                found.append(answer["best"])
                seconds[name].append(answer["seconds"])
        for index, mark in enumerate(marks):
            ours, plain = (tuple(one[index] for one in best[name]) for name in ("ours", "plain"))
            what = f"best {function} value after {mark} trials"
            yield Row("search", what, "", ours, "Optuna TPE, all trials", plain, words=("better", "worse"))
        what = f"time of {trials} trials of {function}"
        yield Row("search", what, "s", tuple(seconds["ours"]), "Optuna TPE in memory", tuple(seconds["plain"]))
