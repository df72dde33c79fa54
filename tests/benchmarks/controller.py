"""The controller itself, on slots that do no work: its processor time under many reports, trials per second, its memory.

Reports are counted where they arrive: a row of each in the ledger, and in MLflow a point of each of its metrics.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

from tests.benchmarks import runs
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace

from trialplane.ledger import results
from trialplane.ledger.attempts import NO_LIMIT
from trialplane.wire import paths
from trialplane.wire.paths import RunPaths

SLOTS = 50
RATE = 20.0  # reports per second of each slot
REPORTS = 200  # of each attempt
PARAMETERS = tuple(f"p{index}" for index in range(10))


def measure(place: Workplace) -> Iterator[Row]:
    """1,000 reports per second with MLflow on, then trials that end at once on 1,000 slots, without MLflow."""
    shares: list[float] = []
    lags: list[float] = []
    lost_reports: list[float] = []
    lost_points: list[float] = []
    seconds = place.size(50, 5)
    for number in range(place.repeats(3)):
        place.say(f"controller: round {number + 1}, reports")
        reports = min(REPORTS, int(seconds * RATE))
        trials = int(SLOTS * seconds * RATE / reports)
        name = f"reports-{number}"
        answer = _run(place, name, trials, SLOTS, reports=reports, rate=RATE, mlflow=True)
        told = answer["told"]
        cpu = answer["cpu"]
        shares.append(100 * (cpu[-1] - answer["begun"][1]) / (told[-1] - answer["begun"][0]))
        lags.append(answer["recorded"][0] - told[-1])
        lost_reports.append(trials * reports - _ledger_reports(place, name))
        lost_points.append(trials * reports * len(answer["metrics"]) - _mlflow_points(place, name, answer["metrics"]))
    what = f"{SLOTS * RATE:,.0f} reports/s of {SLOTS} slots"
    yield Row("controller", f"{what}, processor time", "% of a core", tuple(shares), goal=Goal(value=60))
    yield Row("controller", f"{what}, until MLflow has all", "s", tuple(lags), goal=Goal(value=5))

    yield Row("controller", f"{what}, lost on the way to the ledger", "reports", tuple(lost_reports), goal=Goal(value=0))
    yield Row("controller", f"{what}, lost on the way to MLflow", "points", tuple(lost_points), goal=Goal(value=0))

    trials = place.size(100_000, 500)
    each: list[float] = []
    growth: list[float] = []
    theirs: list[float] = []
    for number in range(place.repeats(1)):
        place.say(f"controller: round {number + 1}, trials")
        answer = _run(place, f"trials-{number}", trials, 1000, reports=1, rate=1000.0, mlflow=False)
        told = answer["told"]
        each.append(1000 * (told[-1] - told[0]) / (len(told) - 1))
        growth.append(_growth(answer["memory"]))
        peer = place.call("remembering", {"parameters": PARAMETERS, "trials": trials, "every": trials // 10}, timeout=1800)
        theirs.append(_growth(peer["memory"]))
    what = f"{trials:,} trials on 1,000 slots that answer at once"
    yield Row("controller", f"{what}, each", "ms", tuple(each), goal=Goal(value=10))
    peer = "Optuna in memory, which keeps nothing else"
    note = "Optuna's trial is part of ours"
    yield Row(
        "controller",
        f"{what}, memory",
        "KiB",
        tuple(growth),
        peer,
        tuple(theirs),
        Goal(value=2),
        words=("less", "more"),
        note=note,
    )


def _run(place: Workplace, name: str, trials: int, slots: int, **arguments: Any) -> dict[str, Any]:
    fields = {"trials": trials, "parallel": slots, "sampler": "random", "space": runs.unit_space(PARAMETERS)}
    run = runs.make(place.home, name, "def run(ctx):\n    pass\n", **fields)
    arguments = {"folder": str(run.root), "every": max(1, trials // 10), **arguments}
    answer = place.call("simulated", arguments, timeout=1800)
    if answer["code"] != 0 or len(answer["told"]) != trials:
        raise MeasurementFailed(f"{len(answer['told'])} of {trials} trials ended; see {run.controller_log}")
    return answer


def _ledger_reports(place: Workplace, name: str) -> int:
    """The number of reports in a run's ledger."""
    return len(results.reports(RunPaths.of(place.home, name).ledger, name, alive=False, after=0, limit=NO_LIMIT))


def _mlflow_points(place: Workplace, name: str, metrics: list[str]) -> int:
    """The number of different points that MLflow has of these metrics of a run; a value at its end is at the last step."""
    marks = ", ".join("?" for _ in metrics)
    query = f"""
        SELECT count(*) FROM (
            SELECT DISTINCT metrics.run_uuid, metrics.key, step FROM metrics
            JOIN tags ON tags.run_uuid = metrics.run_uuid AND tags.key = 'trialplane.run' AND tags.value = ?
            WHERE metrics.key IN ({marks})
        )
    """
    with contextlib.closing(sqlite3.connect(paths.mlflow_db(place.home))) as database:
        return int(database.execute(query, [name, *metrics]).fetchone()[0])


def _growth(memory: dict[str, int]) -> float:
    """KiB per trial, without the first half of the samples, in which caches fill."""
    counts = sorted(map(int, memory))
    first, last = counts[len(counts) // 2], counts[-1]
    return (memory[str(last)] - memory[str(first)]) / (last - first)
