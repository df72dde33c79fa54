"""A comparison of runs: settings that differ, best values, time to a value, and which differences may be noise.

Runs whose jobs differ in their seed alone are repetitions. Their spread is what chance does, so only groups of repetitions
can be told apart: by Welch's interval of the difference of two means, which needs no equal variances.
"""

from __future__ import annotations

import collections
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trialplane.errors import InputError
from trialplane.job.kinds import Job
from trialplane.pages.content import Recorded
from trialplane.wire import records, rows
from trialplane.wire.states import TrialState

METHOD = (
    "Runs that differ in their seed alone are repetitions, and form a group. Each group is compared with the best one that "
    "has repetitions, by Welch's interval of the difference of their mean best values; the intervals hold at 95 % together "
    "(Bonferroni). A group of one run has no spread, so nothing can be said about its difference."
)
_CONFIDENCE = 0.95
_MOST_POINTS = 500  # of a curve of a run
_MOST_PAIRS = 200
_UNNAMED = ("name", "description")  # fields that change nothing


def check(compared: Sequence[Recorded]) -> None:
    """Refuse runs with different objectives.

    Raises:
        InputError: two runs have different ones.
    """
    first = compared[0]
    for other in compared[1:]:
        if _goals(first.job) != _goals(other.job):
            raise InputError(
                f"{first.status.run} and {other.status.run} have different objectives: {_goals(first.job)}, and "
                f"{_goals(other.job)}; their values cannot be compared. Nothing was written"
            )


def comparison(compared: Sequence[Recorded], goal: float | None = None) -> dict[str, Any]:
    """Return the comparison of runs as plain values.

    Args:
        compared: runs with the same objectives; the first objective is compared.
        goal: value to reach. Default: the best value of the worst run, which all runs reach.

    Raises:
        InputError: two runs have different objectives.
    """
    check(compared)
    objective = compared[0].job.objectives[0]
    curves = [_progress(recorded) for recorded in compared]
    bests = [points[-1]["value"] if points else None for points in curves]
    results = [value for value in bests if value is not None]
    if goal is None and results:
        goal = max(results) if objective.direction == "minimize" else min(results)
    settings = [_settings(recorded) for recorded in compared]
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    differing = [name for name in names if len({setting.get(name) for setting in settings}) > 1]
    groups = _groups(compared, settings, bests, differing)
    return {
        "objective": objective.model_dump(),
        "goal": goal,
        "runs": [
            _run(recorded, points, goal, setting)
            for recorded, points, setting in zip(compared, curves, settings, strict=True)
        ],
        "differing": differing,
        "same": [name for name in names if name not in differing],
        "curves": [
            {"run": recorded.status.run, "points": points[:: -(-len(points) // _MOST_POINTS)] if points else []}
            for recorded, points in zip(compared, curves, strict=True)
        ],
        "groups": [{name: value for name, value in group.items() if name != "values"} for group in groups],
        "pairs": list(_pairs(groups)),
        "method": METHOD,
    }


def interval(a: Sequence[float], b: Sequence[float], confidence: float = _CONFIDENCE) -> tuple[float, float] | None:
    """Return Welch's interval of the mean of `b` minus that of `a`; None if one of them has fewer than two values."""
    if len(a) < 2 or len(b) < 2:
        return None
    difference = statistics.fmean(b) - statistics.fmean(a)
    spreads = [statistics.variance(values) / len(values) for values in (a, b)]
    if not sum(spreads):
        return difference, difference
    freedom = sum(spreads) ** 2 / sum(spread**2 / (len(values) - 1) for spread, values in zip(spreads, (a, b), strict=True))
    half = _quantile(1 - (1 - confidence) / 2, freedom) * math.sqrt(sum(spreads))
    return difference - half, difference + half


def _quantile(probability: float, freedom: float) -> float:
    """Return the quantile, above the median, of Student's t distribution: its density, integrated and inverted.

    With t = √freedom · tan θ the density is a power of cos θ, so the integral is over a finite range.
    """
    power = freedom - 1
    steps = 2000
    width = math.pi / 2 / steps
    middles = [math.cos((index + 0.5) * width) ** power for index in range(steps)]
    rest = (2 * probability - 1) * sum(middles)
    for index, middle in enumerate(middles):
        if rest <= middle:
            return math.sqrt(freedom) * math.tan((index + rest / middle) * width)
        rest -= middle
    return math.inf


def _goals(job: Job) -> str:
    return ", ".join(f"{objective.direction} {objective.metric}" for objective in job.objectives)


def _settings(recorded: Recorded) -> dict[str, str]:
    """Return the fields of a job, and the parameters of its best trial, as dotted names and texts."""
    fields = dict(_flat("", recorded.job.model_dump(mode="json", exclude=set(_UNNAMED))))
    best = rows.best(recorded.job, rows.newest(recorded.attempts)) if recorded.job.kind == "hpo" else None
    return {**fields, **({} if best is None else dict(_flat("best", dict(best.params))))}


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), inner)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for index, item in enumerate(value):
            yield from _flat(f"{path}.{index}", item)
    elif value is not None and value not in ({}, [], ""):
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _progress(recorded: Recorded) -> list[dict[str, float]]:
    """Return the improvements of the best value: seconds since the start, results and reports by then, and the value.

    The results of a study are those of its trials; those of a training are its reports.
    """
    job = recorded.job
    objective = job.objectives[0]
    times = sorted(report.time for report in recorded.reports)
    if job.kind == "hpo":
        results = [
            (row.ended, row.values[0])
            for row in rows.newest(recorded.attempts)
            if row.state is TrialState.COMPLETE and row.feasible and row.ended
        ]
    else:
        metric = objective.metric
        results = [(report.time, report.metrics[metric]) for report in recorded.reports if metric in report.metrics]
        results += [(row.ended, row.values[0]) for row in recorded.attempts if row.values and row.ended]
    results = sorted((time, value) for time, value in results if math.isfinite(value))
    begun = min([*times[:1], *(row.started for row in recorded.attempts if row.started)], default=0.0)
    points: list[dict[str, float]] = []
    reported = 0
    for count, (time, value) in enumerate(results, start=1):
        while reported < len(times) and times[reported] <= time:
            reported += 1
        if not points or objective.is_better(value, points[-1]["value"]):
            points.append({"time": time - begun, "count": count, "steps": reported, "value": value})
    if points:  # as far as the run went
        points.append(
            {"time": results[-1][0] - begun, "count": len(results), "steps": len(times), "value": points[-1]["value"]}
        )
    return points


def _run(
    recorded: Recorded, points: Sequence[Mapping[str, float]], goal: float | None, setting: Mapping[str, str]
) -> dict[str, Any]:
    status, objective = recorded.status, recorded.job.objectives[0]
    reached = next((point for point in points if goal is not None and not objective.is_better(goal, point["value"])), None)
    best = rows.best(recorded.job, rows.newest(recorded.attempts))
    return {
        "run": status.run,
        "state": status.state.value,
        "ended": status.ended_trials,
        "trials": status.trials,
        "best": points[-1]["value"] if points else None,
        "trial": None if best is None else best.trial,
        "seconds": points[-1]["time"] if points else None,
        "reached": None if reached is None else reached["time"],
        "steps": None if reached is None or not recorded.reports else reached["steps"],
        "params": dict(setting),
    }


def _groups(
    compared: Sequence[Recorded],
    settings: Sequence[Mapping[str, str]],
    bests: Sequence[float | None],
    differing: Sequence[str],
) -> list[dict[str, Any]]:
    """Return groups of repetitions, best first."""
    members: dict[str, list[int]] = collections.defaultdict(list)
    for index, recorded in enumerate(compared):
        members[recorded.job.model_dump_json(exclude={*_UNNAMED, "seed"})].append(index)
    named = [name for name in differing if name != "seed" and not name.startswith("best.")]
    groups = []
    for indices in members.values():
        values = [value for index in indices if (value := bests[index]) is not None]
        text = ", ".join(f"{name}={settings[indices[0]].get(name, 'none')}" for name in named[:4])
        groups.append(
            {
                "name": text or compared[indices[0]].job.name,
                "runs": [compared[index].status.run for index in indices],
                "values": values,
                "mean": statistics.fmean(values) if values else None,
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
            }
        )
    sign = 1 if compared[0].job.objectives[0].direction == "minimize" else -1
    return sorted(groups, key=lambda group: math.inf if group["mean"] is None else sign * group["mean"])


def _pairs(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each group with the best one that has repetitions."""
    ranked = [group for group in groups if group["mean"] is not None]
    if not ranked:
        return
    best = next((group for group in ranked if group["deviation"] is not None), ranked[0])
    others = [group for group in ranked if group is not best][:_MOST_PAIRS]
    for other in others:
        found = interval(best["values"], other["values"], 1 - (1 - _CONFIDENCE) / len(others))
        if found is None:
            verdict = "cannot be told: repeat each with other seeds"
        elif found[0] <= 0 <= found[1]:
            verdict = "may be noise"
        else:
            verdict = "differs"
        yield {
            "a": other["name"],
            "b": best["name"],
            "difference": other["mean"] - best["mean"],
            "low": None if found is None else found[0],
            "high": None if found is None else found[1],
            "verdict": verdict,
        }


def plain(compared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison as JSON values, for `--output json`, without its curves."""
    return {name: records.to_dict(value) for name, value in compared.items() if name != "curves"}
