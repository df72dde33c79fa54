"""What checkpoints of 10 MB cost 16 trials at once: over the ideal, which is the time of their steps alone.

The sizes are those of Ray Tune's own benchmark of durable trials (10 MB every 10 s), at a third of its length.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks import runs, trial
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace

EVERY = 10  # steps between two checkpoints
CODE = f"""\
import time

import numpy as np


def run(ctx):
    weights = np.random.default_rng(0).random(10 * 2**20 // 8)  # 10 MiB
    for step in range(ctx.params["steps"]):
        time.sleep(ctx.params["seconds"])
        ctx.report(step, loss=ctx.params["x"])
        if (step + 1) % {EVERY} == 0:
            ctx.save(step, {{"weights": weights}}, every=0)
"""


def measure(place: Workplace) -> Iterator[Row]:
    """Percent over the ideal, ours from the slots' readiness and the peer's from its first step, to the last trial's end."""
    trials, steps, seconds = place.size(16, 2), place.size(30, 10), 0.1 if place.quick else 1.0
    ours: list[float] = []
    theirs: list[float] = []
    trial.warm_up(place)
    for number in range(place.repeats(3)):
        place.say(f"checkpoints: round {number + 1}, ours")
        name = f"checkpoints-{number}"
        params = {"steps": steps, "seconds": seconds}
        space = runs.unit_space(("x",))
        run = runs.make(place.home, name, CODE, trials=trials, parallel=trials, params=params, space=space)
        answer = place.call("controller", {"folder": str(run.root)}, timeout=300)
        if answer["complete"] != trials:
            raise MeasurementFailed(f"{answer['complete']} of {trials} trials completed; see {run.controller_log}")
        ours.append(100 * ((answer["told"][-1] - max(answer["ready"])) / (steps * seconds) - 1))
        place.say(f"checkpoints: round {number + 1}, Ray Tune")
        arguments = {"trials": trials, "every": EVERY, "storage": str(place.scratch / name), **params}
        peer = place.call("saving", arguments, timeout=600)
        if peer["complete"] != trials:
            raise MeasurementFailed(f"Ray Tune: {peer['complete']} of {trials} trials completed")
        theirs.append(100 * ((peer["end"] - peer["start"]) / (steps * seconds) - 1))
    what = f"{trials} trials of {steps * seconds:g} s at once, a checkpoint of 10 MiB every {EVERY} steps, over the ideal"
    yield Row("checkpoints", what, "%", tuple(ours), "Ray Tune", tuple(theirs), Goal(value=5))
