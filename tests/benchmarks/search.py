"""Does the bounded history cost search quality? Best values of our ledger's TPE and of Optuna's, on two functions.

The ledger shows its sampler a thousand trials at most (`controller/history.py`), so a difference can only show after a
thousand. Takes long; measured only by `--only search`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.rows import Row
from tests.benchmarks.workplace import Workplace

SEEDS = (0, 1, 2)


def measure(place: Workplace) -> Iterator[Row]:
    """Best value after so many trials, one sample per seed; smaller is better, 0 the best there is."""
    trials = place.size(2000, 60)
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
