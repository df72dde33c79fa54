"""How long the command line takes: whole processes, beside a bare interpreter that does nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import histories
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace


def measure(place: Workplace) -> Iterator[Row]:
    """The light verbs, then the ones that read a run of many trials; each round runs all of them in turn."""
    platform = Path(sys.executable).with_name("platform")
    if not platform.exists():
        raise MeasurementFailed(f"there is no {platform}; install the package: pip install -e .")
    bare = [sys.executable, "-c", "pass"]
    light = {"--help": 100.0, "validate criteria": 300.0}
    taken = _rounds(place, [bare, *([str(platform), *verb.split()] for verb in light)], place.repeats(20))
    for (verb, goal), samples in zip(light.items(), taken[1:], strict=True):
        yield Row("cli", f"platform {verb}", "ms", samples, "python -c pass", taken[0], Goal(value=goal))

    count = place.size(10_000, 20)
    run = histories.of(place, count).name
    long = [f"status {run}", f"results {run}", f"results {run} --output json --limit 1"]
    taken = _rounds(place, [bare, *([str(platform), *verb.split()] for verb in long)], place.repeats(10))
    for verb, samples in zip(long, taken[1:], strict=True):
        what = f"platform {verb.replace(run, 'RUN')}, {count:,} trials"
        yield Row("cli", what, "ms", samples, "python -c pass", taken[0], Goal(value=1000))

    count = place.size(100_000, 40)
    run = histories.of(place, count).name
    bare_samples, samples = _rounds(place, [bare, [str(platform), "results", run]], place.repeats(3))
    yield Row(
        "cli", f"platform results RUN, {count:,} trials", "ms", samples, "python -c pass", bare_samples, Goal(value=5000)
    )


def _rounds(place: Workplace, commands: list[list[str]], rounds: int) -> list[tuple[float, ...]]:
    """Milliseconds of each command, round by round; the first round warms the page cache and is not counted."""
    taken: list[list[float]] = [[] for _ in commands]
    for number in range(rounds + 1):
        if number % 5 == 0:
            place.say(f"cli: round {number} of {rounds}")
        for command, samples in zip(commands, taken, strict=True):
            seconds = place.time_command(command)
            if number:
                samples.append(1000 * seconds)
    return [tuple(samples) for samples in taken]
