"""A comparison of runs, or of trials: settings that differ, values, time to a value, and which differences may be noise.

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
from trialplane.job.search import Objective
from trialplane.pages import lineage
from trialplane.pages.content import Recorded
from trialplane.pages.lineage import Lineage
from trialplane.wire import records, rows, student
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

METHOD = (
    "Runs that differ in their seed alone are repetitions, and form a group. Each group is compared with the best one that "
    "has repetitions, by Welch's interval of the difference of their mean best values; the intervals hold at 95 % together "
    "(Bonferroni). A group of one run has no spread, so nothing can be said about its difference."
)
METHOD_OF_TRIALS = (
    "Trials with the same parameters are repetitions, and form a group. Each group is compared with the best one that has "
    "repetitions, by Welch's interval of the difference of their mean values; the intervals hold at 95 % together "
    "(Bonferroni). A group of one trial has no spread, so nothing can be said about its difference."
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
    names, differing = _names(settings)
    keys = [recorded.job.model_dump_json(exclude={*_UNNAMED, "seed"}) for recorded in compared]
    runs = [recorded.status.run for recorded in compared]
    groups = _groups(keys, runs, settings, bests, [name for name in differing if not name.startswith("best.")], objective)
    return {
        "of": "runs",
        "fields": ["run", "state", "ended", "trials", "best", "trial", "seconds", "reached", "steps"],
        "objective": objective.model_dump(),
        "goal": goal,
        "runs": [
            _run(recorded, points, goal, setting)
            for recorded, points, setting in zip(compared, curves, settings, strict=True)
        ],
        "differing": differing,
        "same": [name for name in names if name not in differing],
        "curves": [{"name": run, "points": _thinned(points)} for run, points in zip(runs, curves, strict=True)],
        "groups": _shown(groups),
        "pairs": list(_pairs(groups)),
        "method": METHOD,
    }


def of_trials(compared: Sequence[tuple[Recorded, int]], goal: float | None = None) -> dict[str, Any]:
    """Return the comparison of trials as plain values.

    Args:
        compared: runs with the same objectives, and the number of a trial of each; the first objective is compared.
        goal: value to reach. Default: the best value of the worst trial, which all trials reach.

    Raises:
        InputError: two runs have different objectives, or a run has no such trial.
    """
    check([recorded for recorded, _ in compared])
    objective = compared[0][0].job.objectives[0]
    chosen = [_trial(recorded, trial) for recorded, trial in compared]
    curves = [_curve(recorded, each) for (recorded, _), each in zip(compared, chosen, strict=True)]
    best = min if objective.direction == "minimize" else max
    values = [_value(recorded, each.row) for (recorded, _), each in zip(compared, chosen, strict=True)]
    all_values = [
        [point["value"] for point in points] + ([] if value is None else [value])
        for value, points in zip(values, curves, strict=True)
    ]
    bests = [best(had) for had in all_values if had]
    if goal is None and bests:
        goal = max(bests) if objective.direction == "minimize" else min(bests)
    settings = [{name: _setting(value) for name, value in _flat("", dict(each.row.params))} for each in chosen]
    names, differing = _names(settings)
    titles = [f"{recorded.status.run}:{trial}" for recorded, trial in compared]
    groups = _groups([json.dumps(setting) for setting in settings], titles, settings, values, differing, objective)
    groups = [{**group, "name": group["members"][0]} if len(group["members"]) == 1 else group for group in groups]
    return {
        "of": "trials",
        "fields": ["trial", "state", "attempts", "value", "step", "seconds", "reached", "steps", "message"],
        "objective": objective.model_dump(),
        "goal": goal,
        "trials": [
            {
                "trial": title,
                "state": each.row.state.value,
                "attempts": each.row.attempt,
                "value": value,
                "step": points[-1]["steps"] if points else None,
                "seconds": each.row.seconds,
                **_first_reach(points, value, each.row.seconds, goal, objective),
                "message": each.row.message,
                "params": setting,
            }
            for title, each, value, points, setting in zip(titles, chosen, values, curves, settings, strict=True)
        ],
        "differing": differing,
        "same": [name for name in names if name not in differing],
        "curves": [{"name": title, "points": _thinned(points)} for title, points in zip(titles, curves, strict=True)],
        "groups": _shown(groups),
        "pairs": list(_pairs(groups)),
        "method": METHOD_OF_TRIALS,
    }


def _trial(recorded: Recorded, trial: int) -> Lineage:
    """Return a trial of a run.

    Raises:
        InputError: there is none of that number.
    """
    lineages = lineage.lineages(recorded.job, [row for row in recorded.attempts if row.trial == trial])
    if not lineages:
        run, last = recorded.status.run, max((row.trial for row in recorded.attempts), default=-1)
        numbers = f"its trials are 0 to {last}" if last >= 0 else "it has no trial yet"
        raise InputError(f"{run} has no trial {trial}; {numbers}. `platform results {run}` lists them. Nothing was written")
    return lineages[0]


def _value(recorded: Recorded, row: TrialRow) -> float | None:
    """Return the result of a trial, or its last report; None if it has neither that is finite."""
    value = row.values[0] if row.values else row.metrics.get(recorded.job.objectives[0].metric)
    return value if value is not None and math.isfinite(value) else None


def _curve(recorded: Recorded, trial: Lineage) -> list[dict[str, float]]:
    """Return the reports of the objective by a trial: seconds since its start, reports and steps by then, and the value."""
    reports = lineage.joined(recorded.job, [trial], [each for each in recorded.reports if each.trial == trial.row.trial])
    metric = recorded.job.objectives[0].metric
    by_step = {each.step: each for each in reports if each.number == trial.row.number and metric in each.metrics}
    ordered = [by_step[step] for step in sorted(by_step) if math.isfinite(by_step[step].metrics[metric])]
    attempts = [each for each in recorded.attempts if each.trial == trial.row.trial and each.started]
    begun = min([each.started or 0.0 for each in attempts] + [each.time for each in ordered[:1]], default=0.0)
    return [
        {"time": each.time - begun, "count": count, "steps": each.step, "value": each.metrics[metric]}
        for count, each in enumerate(ordered, start=1)
    ]


def _first_reach(
    points: Sequence[Mapping[str, float]],
    value: float | None,
    seconds: float | None,
    goal: float | None,
    objective: Objective,
) -> dict[str, float | None]:
    """Return the time and the step at which a trial had a value: that of a report, or that of its end."""
    if goal is None:
        return {"reached": None, "steps": None}
    for point in points:
        if not objective.is_better(goal, point["value"]):
            return {"reached": point["time"], "steps": point["steps"]}
    ends_there = value is not None and not objective.is_better(goal, value)
    return {"reached": seconds if ends_there else None, "steps": None}


def _names(settings: Sequence[Mapping[str, str]]) -> tuple[list[str], list[str]]:
    """Return the names of all settings, and of those that differ."""
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    return names, [name for name in names if len({setting.get(name) for setting in settings}) > 1]


def _thinned(points: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
    return points[:: -(-len(points) // _MOST_POINTS)] if points else []


def _shown(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "values"} for group in groups]


def _goals(job: Job) -> str:
    return ", ".join(f"{objective.direction} {objective.metric}" for objective in job.objectives)


def _settings(recorded: Recorded) -> dict[str, str]:
    """Return the fields of a job, and the parameters of its best trial, as dotted names and texts."""
    fields = dict(_flat("", recorded.job.model_dump(mode="json", exclude=set(_UNNAMED))))
    best = rows.best_trial(recorded.job, rows.newest_attempts(recorded.attempts)) if recorded.job.kind == "hpo" else None
    return {**fields, **({} if best is None else dict(_flat("best", dict(best.params))))}


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), inner)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for index, item in enumerate(value):
            yield from _flat(f"{path}.{index}", item)
    elif value is not None and value not in ({}, [], ""):
        yield path, _setting(value)


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
            for row in rows.newest_attempts(recorded.attempts)
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
    best = rows.best_trial(recorded.job, rows.newest_attempts(recorded.attempts))
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
    keys: Sequence[str],
    titles: Sequence[str],
    settings: Sequence[Mapping[str, str]],
    bests: Sequence[float | None],
    differing: Sequence[str],
    objective: Objective,
) -> list[dict[str, Any]]:
    """Return groups of repetitions, which have the same key, best first."""
    members: dict[str, list[int]] = collections.defaultdict(list)
    for index, key in enumerate(keys):
        members[key].append(index)
    named = [name for name in differing if name != "seed"]
    groups = []
    for indices in members.values():
        values = [value for index in indices if (value := bests[index]) is not None]
        text = ", ".join(f"{name}={settings[indices[0]].get(name, 'none')}" for name in named[:4])
        groups.append(
            {
                "name": text or titles[indices[0]],
                "members": [titles[index] for index in indices],
                "values": values,
                "mean": statistics.fmean(values) if values else None,
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
            }
        )
    sign = 1 if objective.direction == "minimize" else -1
    return sorted(groups, key=lambda group: math.inf if group["mean"] is None else sign * group["mean"])


def _pairs(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each group with the best one that has repetitions."""
    ranked = [group for group in groups if group["mean"] is not None]
    if not ranked:
        return
    best = next((group for group in ranked if group["deviation"] is not None), ranked[0])
    others = [group for group in ranked if group is not best][:_MOST_PAIRS]
    for other in others:
        pair = {"a": other["name"], "b": best["name"], "difference": other["mean"] - best["mean"]}
        difference = student.difference(best["values"], other["values"])
        if difference is None:
            yield {**pair, "low": None, "high": None, "verdict": "cannot be told: repeat each with other seeds"}
            continue
        margin = difference.margin((1 - _CONFIDENCE) / len(others) / 2)  # Bonferroni: all intervals hold together
        low, high = difference.value - margin, difference.value + margin
        yield {**pair, "low": low, "high": high, "verdict": "may be noise" if low <= 0 <= high else "differs"}


def plain(compared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison as JSON values, for `--output json`, without its curves."""
    return {name: records.to_dict(value) for name, value in compared.items() if name not in ("curves", "fields", "of")}
