"""Positions per second of the job `selfplay` by 2 workers of the platform, beside one process that plays alone, times 2.

The platform's are those that it says itself of an iteration. All play games of the same length with the first weights. Two
processes that know nothing of each other are in a row of their own: on a machine whose cores share caches, memory or a
hyperthread they are less than two times one, and no platform is more.

And whether it learns: Elo of a network that three iterations have trained against the one that they began with.
"""

from __future__ import annotations

import concurrent.futures
import json
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import ROOT, MeasurementFailed, Workplace

WORKERS = 2
SHAPE = {"channels": 16, "blocks": 2, "temperature_moves": 10, "epochs": 4, "train_batch": 64}  # of what learns


def measure(place: Workplace) -> Iterator[Row]:
    """Alone, two alone, and the platform in turn, round by round."""
    games = place.size(32, 2)  # of one process
    params = {"simulations": place.size(24, 4), "max_half_moves": place.size(40, 6)}
    quiet = {"match_games": 2, "epochs": 1, "pictures": 0}
    ours: list[float] = []
    alone: list[float] = []
    two: list[float] = []
    for number in range(place.repeats(3)):
        place.say(f"selfplay: round {number + 1}, one process")
        alone.append(_bare(place, 1, games, params) / WORKERS)
        place.say(f"selfplay: round {number + 1}, {WORKERS} processes")
        two.append(_bare(place, WORKERS, games, params))
        place.say(f"selfplay: round {number + 1}, the platform")
        ours.append(_platform(place, WORKERS * games, params | quiet))
    what = f"self-play by {WORKERS} workers, seconds for 1,000 positions"
    yield Row("selfplay", what, "s", tuple(ours), f"one process, over {WORKERS}", tuple(alone), Goal(times=0.95))
    yield Row("selfplay", what, "s", tuple(ours), f"{WORKERS} processes side by side", tuple(two))
    yield _strength(place)


def _strength(place: Workplace) -> Row:
    """What some iterations have taught it; once, for the same seeds give the same games."""
    iterations, games = place.size(3, 1), place.size(60, 2)
    place.say(f"selfplay: {iterations} × {games} games to learn from, in one process, and a match")
    params = {"simulations": place.size(24, 4), "max_half_moves": place.size(40, 6), "games_at_once": 16, "batch": 16}
    order = {
        "iterations": iterations,
        "games": games,
        "params": {**SHAPE, **params},
        "match": {"match_games": place.size(40, 2), "simulations": place.size(32, 4)},
        "seed": 99,
        "folder": str(place.scratch),
    }
    found = place.call("learning", order, timeout=1800)
    what = f"Elo of a network after {iterations} × {games} games over an untrained one; more is better"
    between = f"95 % from {found['low']:+.0f} to {found['high']:+.0f}: {found['points']:g} of {found['games']} points"
    return Row("selfplay", what, "Elo", (found["elo"],), note=between)


def _bare(place: Workplace, processes: int, games: int, params: dict[str, Any]) -> float:
    """Seconds for 1,000 positions of so many processes together."""
    # So that two begin together, they have time for their imports.
    begin = time.time() + (place.size(30, 5) if processes > 1 else 0)
    orders = [
        {"first": number * games, "games": games, "params": params, "folder": str(place.scratch), "begin": begin}
        for number in range(processes)
    ]
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        answers = list(pool.map(lambda order: place.call("playing", order, timeout=1800), orders))
    seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
    return 1000 * seconds / sum(answer["positions"] for answer in answers)


def _platform(place: Workplace, games: int, params: dict[str, Any]) -> float:
    """The same of an iteration of the platform."""
    platform, run = str(Path(sys.executable).with_name("platform")), f"selfplay-{secrets.token_hex(4)}"
    options = [f"--set=params.{name}={value}" for name, value in params.items()]
    if place.quick:  # games need no more, and each slot imports it
        options.append("--set=preload=[torch]")
    counts = ["--workers", str(WORKERS), "--games", str(games), "--iterations", "1"]
    job = str(ROOT / "jobs" / "selfplay")
    place.output([platform, "submit", "collect", job, "--local", "--name", run, *counts, *options], timeout=1800)
    results = json.loads(place.output([platform, "results", run, "--output", "json"]))
    metrics = results[0]["metrics"]
    if metrics["units"] != games:
        raise MeasurementFailed(f"{run} has {metrics['units']:g} of {games} games")
    return 1000 / float(metrics["items_per_second"])
