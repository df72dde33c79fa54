"""What the platform adds to trials that last: 100 that sleep one second on two slots, recording included.

The ideal is the sleeping time over the number of slots, counted from the moment at which the slots were ready (the mean of
the two, since each works from its own readiness on).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tests.benchmarks import runs, trial
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace

SLOTS = 2


def measure(place: Workplace) -> Iterator[Row]:
    """Percent over the ideal: until the last trial was told, and until it was in MLflow."""
    trials, seconds = place.size(100, 10), 0.2 if place.quick else 1.0
    told: list[float] = []
    recorded: list[float] = []
    trial.warm_up(place)
    for number in range(place.repeats(3)):
        place.say(f"overhead: round {number + 1}")
        run = runs.sleeping(place.home, f"overhead-{number}", trials, seconds)
        answer = place.call("controller", {"folder": str(run.root)}, timeout=120 + 2 * trials * seconds)
        if answer["complete"] != trials:
            raise MeasurementFailed(f"{answer['complete']} of {trials} trials completed; see {run.controller_log}")
        start, ideal = statistics.mean(answer["ready"]), trials * seconds / SLOTS
        told.append(100 * ((answer["told"][-1] - start) / ideal - 1))
        recorded.append(100 * ((answer["recorded"][0] - start) / ideal - 1))
    what = f"{trials} trials of {seconds:g} s on {SLOTS} slots, over the ideal"
    yield Row("overhead", f"{what}, until told", "%", tuple(told), goal=Goal(value=3))
    yield Row("overhead", f"{what}, until in MLflow too", "%", tuple(recorded), goal=Goal(value=3))
