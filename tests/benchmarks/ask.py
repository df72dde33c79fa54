"""A long history of 10,000 trials, of the study or of an earlier one: the next parameters, memory, opening the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.benchmarks import histories
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import Workplace


def measure(place: Workplace) -> Iterator[Row]:
    """Asks of ours and Optuna's in turn; then memory and opening, each in a process of its own."""
    many, few = place.size(10_000, 60), place.size(1_000, 20)
    place.say(f"ask: {many:,} trials")
    arguments = {
        "source": str(histories.of(place, many)),
        "exported": str(histories.exported(place, many)),
        "scratch": str(place.scratch / "asking"),
        "asks": place.size(50, 2),
        "few": place.size(5, 1),
    }
    asked = {name: tuple(taken) for name, taken in place.call("asking", arguments, timeout=900).items()}
    what = f"ask at {many:,} trials, TPE, 10 parameters"
    yield Row("ask", f"{what}, median", "ms", asked["ours"], "Optuna TPE in memory", asked["memory"])
    yield Row("ask", f"{what}, p95", "ms", asked["ours"], "Optuna TPE in memory", asked["memory"], Goal(value=100), "p95")
    yield Row("ask", f"{what}, median", "ms", asked["ours"], "Optuna TPE on its RDB storage", asked["rdb"])

    place.say(f"ask: {many:,} entries of history")
    asks = {"tpe": place.size(50, 2), "cmaes": place.size(50, 2), "nsgaii": place.size(50, 2), "gp": place.size(3, 2)}
    arguments = {"entries": many, "asks": asks, "scratch": str(place.scratch / "asking_with_history")}
    for sampler, taken_times in place.call("asking_with_history", arguments, timeout=900).items():
        what = f"ask with {many:,} entries of history, {sampler}, p95"
        yield Row("ask", what, "ms", tuple(taken_times), goal=Goal(value=100), statistic="p95")

    opened: dict[str, list[dict[str, Any]]] = {"few": [], "many": [], "plain": []}
    for number in range(place.repeats(3)):
        for name, taken in opened.items():
            place.say(f"ask: opening, round {number + 1}, {name}")
            source = histories.of(place, few if name == "few" else many)
            folder = place.scratch / f"opening-{name}-{number}"
            exported = str(histories.exported(place, many)) if name == "plain" else ""
            arguments = {"source": str(source), "scratch": str(folder), "exported": exported}
            taken.append(place.call("opening", arguments, timeout=600))
    less = ("less", "more")
    for key, word, goal in (("rss", "resident", Goal(value=150)), ("peak", "at its peak", None)):
        growth = tuple(b[key] - a[key] for a, b in zip(opened["few"], opened["many"], strict=True))
        what = f"controller's memory {word}, growth from {few:,} to {many:,} trials"
        yield Row("ask", what, "MiB", growth, goal=goal)
    yield Row(
        "ask",
        f"controller's memory with {many:,} trials",
        "MiB",
        tuple(taken["rss"] for taken in opened["many"]),
        "Optuna's RDB storage",
        tuple(taken["rss"] for taken in opened["plain"]),
        words=less,
    )
    yield Row(
        "ask",
        f"opening a ledger of {many:,} trials",
        "s",
        tuple(taken["seconds"] for taken in opened["many"]),
        "Optuna reads its RDB storage",
        tuple(taken["seconds"] for taken in opened["plain"]),
    )
