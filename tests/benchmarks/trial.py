"""Wall time of one isolated trial that imports torch and transformers, two at a time, with the ledger on disk.

Ours is counted from the first slot's readiness to the last outcome told (and, in a second row, to the last line in
MLflow), over all trials. The peers are counted in their steady state: from the end of their first two trials, which carry
the start of everything, to the end of the last, over the trials in between. What they need before that is in rows of its
own: the time from nothing to the end of the first trial.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.benchmarks import runs
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace

PARALLEL = 2
# What it is called in the table, and how many times faster ours shall be at least.
PEERS: dict[str, tuple[str, float | None]] = {
    "fresh": ("Ray Tune + OptunaSearch, fresh actors", None),
    "reused": ("Ray Tune + OptunaSearch, reuse_actors (not isolated)", 1.0),
    "subprocess": ("Optuna n_jobs=2, a subprocess each, SQLite", None),
}


def measure(place: Workplace) -> Iterator[Row]:
    """Ours and the three peers, one after the other, round by round."""
    trials = place.size(200, 12)
    told: list[float] = []
    recorded: list[float] = []
    first: list[float] = []
    peers: dict[str, list[float]] = {name: [] for name in PEERS}
    firsts: dict[str, list[float]] = {name: [] for name in PEERS}
    failures: dict[str, str] = {}
    warm_up(place)
    for number in range(place.repeats(3)):
        place.say(f"trial: round {number + 1}, ours")
        for samples, sample in zip((told, recorded, first), _ours(place, f"trial-{number}", trials), strict=True):
            samples.append(sample)
        for name, samples in peers.items():
            if name in failures:
                continue
            place.say(f"trial: round {number + 1}, {name}")
            try:
                each, until_first = _peer(place, name, number)
            except MeasurementFailed as error:
                place.say(str(error))
                failures[name] = str(error).splitlines()[-1]
            else:
                samples.append(each)
                firsts[name].append(until_first)
    what = f"one of {trials} isolated trials"
    yield Row("trial", f"{what}, until told", "ms", tuple(told), goal=Goal(value=20))
    yield Row("trial", f"{what}, until in MLflow too", "ms", tuple(recorded), goal=Goal(value=30))
    for name, (peer, times) in PEERS.items():
        goal = None if times is None else Goal(times=times)
        yield Row("trial", what, "ms", tuple(told), peer, tuple(peers[name]), goal, note=failures.get(name, ""))
    for name, (peer, _) in PEERS.items():
        yield Row("trial", "from nothing to the first trial's end", "s", tuple(first), peer, tuple(firsts[name]))


def warm_up(place: Workplace) -> None:
    """One short run, so that MLflow's tables and compiled modules are there."""
    if not place.home.exists():
        place.say("warm-up: one short run of the controller")
        _ours(place, "warm-up", 4)


def _ours(place: Workplace, name: str, trials: int) -> tuple[float, float, float]:
    """Milliseconds per trial until the last was told, and until it was recorded; seconds until the first was told."""
    began = time.perf_counter()  # one clock for all processes
    run = runs.heavy(place.home, name, trials)
    answer = place.call("controller", {"folder": str(run.root)}, timeout=120 + 1.0 * trials)
    if answer["complete"] != trials:
        raise MeasurementFailed(f"{answer['complete']} of {trials} trials completed; see {run.controller_log}")
    start = answer["ready"][0]
    return (
        1000 * (answer["told"][-1] - start) / trials,
        1000 * (answer["recorded"][0] - start) / trials,
        answer["told"][0] - began,
    )


def _peer(place: Workplace, name: str, number: int) -> tuple[float, float]:
    """Milliseconds per trial of one peer in its steady state, and seconds until its first trial ended."""
    began = time.perf_counter()
    storage = place.scratch / f"{name}-{number}"
    if name == "subprocess":
        trials = place.size(8, 4)
        answer = place.call("subprocesses", {"trials": trials, "storage": f"sqlite:///{storage}.db"}, timeout=600)
    else:
        trials = place.size(8, 4) if name == "fresh" else place.size(100, 10)
        arguments = {"trials": trials, "storage": str(storage), "reuse": name == "reused"}
        answer = place.call("tune", arguments, timeout=900)
    if answer["complete"] != trials or len(answer["ends"]) != trials:
        raise MeasurementFailed(f"{name}: {answer['complete']} of {trials} trials completed")
    ends = answer["ends"]
    return 1000 * (ends[-1] - ends[PARALLEL - 1]) / (trials - PARALLEL), ends[0] - began
