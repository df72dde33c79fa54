"""Comparison of runs, or of trials: settings that differ, values, time to a value, and which differences may be noise.

Runs whose jobs differ only in their seed are repetitions, and form a group. The spread within a group shows the effect of
chance. Two groups are compared by Welch's interval of the difference of their means, for which the variances need not be
equal.
"""

from __future__ import annotations

import bisect
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
from trialplane.pages.content import RunRecord
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
_MAX_POINTS = 500  # limit of the points of a curve
_MAX_PAIRS = 200  # limit of the groups that are compared with the best one
_NAMING_SETTINGS = 4  # limit of the settings in the name of a group
_LABELS = ("name", "description")  # fields of a job that do not affect its results


def check_objectives(run_records: Sequence[RunRecord]) -> None:
    """Check that runs have the same objectives.

    Raises:
        InputError: Two runs have different objectives.
    """
    first = run_records[0]
    for other in run_records[1:]:
        if _objectives_text(first.job) != _objectives_text(other.job):
            raise InputError(
                f"{first.status.run} and {other.status.run} have different objectives: {_objectives_text(first.job)}, and "
                f"{_objectives_text(other.job)}; their values cannot be compared. Nothing was written"
            )


def run_comparison(run_records: Sequence[RunRecord], goal: float | None = None) -> dict[str, Any]:
    """Return the comparison of runs as plain values, for the page and for `--output json`.

    Args:
        run_records: Records of runs with the same objectives. The first objective is compared.
        goal: Value to reach. Default: the best value of the worst run, which all runs reach.

    Raises:
        InputError: Two runs have different objectives.
    """
    check_objectives(run_records)
    objective = run_records[0].job.objectives[0]
    curves = [_best_curve(record) for record in run_records]
    bests = [points[-1]["value"] if points else None for points in curves]
    if goal is None:
        goal = _worst([value for value in bests if value is not None], objective)
    settings = [_settings(record) for record in run_records]
    names, differing = _setting_names(settings)
    keys = [record.job.model_dump_json(exclude={*_LABELS, "seed"}) for record in run_records]
    runs = [record.status.run for record in run_records]
    differing_fields = [name for name in differing if not name.startswith("best.")]  # without results
    groups = _groups(keys, runs, settings, bests, differing_fields, objective)
    return {
        "of": "runs",
        "fields": ["run", "state", "ended", "trials", "best", "trial", "seconds", "reached", "steps"],
        "objective": objective.model_dump(),
        "goal": goal,
        "runs": [
            _run_row(record, points, goal, setting)
            for record, points, setting in zip(run_records, curves, settings, strict=True)
        ],
        "differing": differing,
        "same": [name for name in names if name not in differing],
        "curves": [{"name": run, "points": _thin(points)} for run, points in zip(runs, curves, strict=True)],
        "groups": _without_values(groups),
        "pairs": list(_pairs(groups)),
        "method": METHOD,
    }


def trial_comparison(trials: Sequence[tuple[RunRecord, int]], goal: float | None = None) -> dict[str, Any]:
    """Return the comparison of trials as plain values, for the page and for `--output json`.

    Args:
        trials: For each trial, the record of its run and its number. All runs have the same objectives. The first objective
            is compared.
        goal: Value to reach. Default: the best value of the worst trial, which all trials reach.

    Raises:
        InputError: Two runs have different objectives, or a run has no such trial.
    """
    check_objectives([record for record, _ in trials])
    objective = trials[0][0].job.objectives[0]
    lineages = [_find_trial(record, trial) for record, trial in trials]
    curves = [_objective_curve(record, trial) for (record, _), trial in zip(trials, lineages, strict=True)]
    values = [_finite_value(record, trial.row) for (record, _), trial in zip(trials, lineages, strict=True)]
    if goal is None:
        goal = _worst(_best_values(values, curves, objective), objective)
    settings = [{name: _setting_text(value) for name, value in _flatten("", dict(trial.row.params))} for trial in lineages]
    names, differing = _setting_names(settings)
    titles = [f"{record.status.run}:{trial}" for record, trial in trials]
    groups = _groups([json.dumps(setting) for setting in settings], titles, settings, values, differing, objective)
    for group in groups:
        if len(group["members"]) == 1:  # the title of the trial is shorter than its parameters
            group["name"] = group["members"][0]
    return {
        "of": "trials",
        "fields": ["trial", "state", "attempts", "value", "step", "seconds", "reached", "steps", "message"],
        "objective": objective.model_dump(),
        "goal": goal,
        "trials": [
            {
                "trial": title,
                "state": trial.row.state.value,
                "attempts": trial.row.attempt,
                "value": value,
                "step": points[-1]["steps"] if points else None,
                "seconds": trial.row.seconds,
                **_first_reach(points, value, trial.row.seconds, goal, objective),
                "message": trial.row.message,
                "params": setting,
            }
            for title, trial, value, points, setting in zip(titles, lineages, values, curves, settings, strict=True)
        ],
        "differing": differing,
        "same": [name for name in names if name not in differing],
        "curves": [{"name": title, "points": _thin(points)} for title, points in zip(titles, curves, strict=True)],
        "groups": _without_values(groups),
        "pairs": list(_pairs(groups)),
        "method": METHOD_OF_TRIALS,
    }


def _worst(values: Sequence[float], objective: Objective) -> float | None:
    """Return the worst of several values of an objective. None if there are no values."""
    if not values:
        return None
    return max(values) if objective.direction == "minimize" else min(values)


def _best_values(
    results: Sequence[float | None], curves: Sequence[Sequence[Mapping[str, float]]], objective: Objective
) -> list[float]:
    """Return the best value of each trial, among its reports and its result. Trials without a value are left out.

    Args:
        results: Result of each trial. None if it has none.
        curves: Points of each trial's objective; see `_objective_curve`.
        objective: Objective of the values.
    """
    best = min if objective.direction == "minimize" else max
    values_by_trial = [
        [point["value"] for point in points] + ([] if result is None else [result])
        for result, points in zip(results, curves, strict=True)
    ]
    return [best(values) for values in values_by_trial if values]


def _find_trial(record: RunRecord, trial: int) -> Lineage:
    """Return the lineage of a trial of a run.

    Raises:
        InputError: The run has no trial of that number.
    """
    lineages = lineage.lineages(record.job, [row for row in record.attempts if row.trial == trial])
    if not lineages:
        run, last = record.status.run, max((row.trial for row in record.attempts), default=-1)
        numbers = f"its trials are 0 to {last}" if last >= 0 else "it has no trial yet"
        raise InputError(f"{run} has no trial {trial}; {numbers}. `platform results {run}` lists them. Nothing was written")
    return lineages[0]


def _finite_value(record: RunRecord, row: TrialRow) -> float | None:
    """Return the result of a trial, or else the value of its last report. None if it has neither, or it is not finite."""
    value = row.values[0] if row.values else row.metrics.get(record.job.objectives[0].metric)
    return value if value is not None and math.isfinite(value) else None


def _objective_curve(record: RunRecord, trial: Lineage) -> list[dict[str, float]]:
    """Return the points of a trial's objective, ordered by step. If a step has several reports, the last one counts.

    A point has the `time` of its report in seconds since the start of the trial, the `count` of points up to it, the step
    (`steps`), and the `value`. Values that are not finite are left out.
    """
    own_reports = [report for report in record.reports if report.trial == trial.row.trial]
    reports = lineage.join_segments(record.job, [trial], own_reports)
    metric = record.job.objectives[0].metric
    by_step = {report.step: report for report in reports if report.number == trial.row.number and metric in report.metrics}
    ordered = [by_step[step] for step in sorted(by_step) if math.isfinite(by_step[step].metrics[metric])]
    start_times = [attempt.started for attempt in record.attempts if attempt.trial == trial.row.trial and attempt.started]
    start_times += [report.time for report in ordered[:1]]  # which may precede it, as each node has its clock
    start_time = min(start_times, default=0.0)
    return [
        {"time": report.time - start_time, "count": count, "steps": report.step, "value": report.metrics[metric]}
        for count, report in enumerate(ordered, start=1)
    ]


def _first_reach(
    points: Sequence[Mapping[str, float]],
    value: float | None,
    seconds: float | None,
    goal: float | None,
    objective: Objective,
) -> dict[str, float | None]:
    """Return the time (`reached`) and the step (`steps`) at which a trial reached the goal.

    They are those of its first report that is as good as the goal. If only its result is, the time is that of its end, and
    the step is None. Both are None if it did not reach the goal.

    Args:
        points: Curve of the trial.
        value: Result of the trial. None if it has none.
        seconds: Duration of the trial. None if unknown.
        goal: Value to reach. None if there is none.
        objective: Objective whose values these are.
    """
    if (point := _first_at(points, goal, objective)) is not None:
        return {"reached": point["time"], "steps": point["steps"]}
    reached_at_end = goal is not None and value is not None and not objective.is_better(goal, value)
    return {"reached": seconds if reached_at_end else None, "steps": None}


def _first_at(points: Sequence[Mapping[str, float]], goal: float | None, objective: Objective) -> Mapping[str, float] | None:
    """Return the first point of a curve that is at least as good as the goal. None without a goal or such a point."""
    if goal is None:
        return None
    return next((point for point in points if not objective.is_better(goal, point["value"])), None)


def _setting_names(settings: Sequence[Mapping[str, str]]) -> tuple[list[str], list[str]]:
    """Return the names of all settings, and the names of the settings whose values differ between runs or trials.

    Args:
        settings: Settings of each run or trial: text by name.
    """
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    return names, [name for name in names if len({setting.get(name) for setting in settings}) > 1]


def _thin(points: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
    """Return at most `_MAX_POINTS` points of a curve: every n-th one, from the first."""
    step = math.ceil(len(points) / _MAX_POINTS)
    return points[::step] if points else []


def _without_values(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return groups without the single values, which only `_pairs` needs."""
    return [{name: value for name, value in group.items() if name != "values"} for group in groups]


def _objectives_text(job: Job) -> str:
    """Return the objectives of a job in words: "maximize accuracy, minimize loss"."""
    return ", ".join(f"{objective.direction} {objective.metric}" for objective in job.objectives)


def _settings(record: RunRecord) -> dict[str, str]:
    """Return the settings of a run by dotted name: fields of its job, and parameters of its best trial (`best.lr`)."""
    fields = dict(_flatten("", record.job.model_dump(mode="json", exclude=set(_LABELS))))
    best = rows.best_trial(record.job, rows.newest_attempts(record.attempts)) if record.job.kind == "hpo" else None
    return {**fields, **({} if best is None else dict(_flatten("best", dict(best.params))))}


def _flatten(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the text of a value, or of each value in a mapping or a list of lists and mappings.

    Empty values are left out.

    Args:
        path: Dotted name of the value. "" for the outermost mapping.
        value: The value.
    """
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from _flatten(f"{path}.{name}" if path else str(name), child)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for index, item in enumerate(value):
            yield from _flatten(f"{path}.{index}", item)
    elif value is not None and value not in ({}, [], ""):
        yield path, _setting_text(value)


def _setting_text(value: Any) -> str:
    """Return the value of a setting as text: a string unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _best_curve(record: RunRecord) -> list[dict[str, float]]:
    """Return the curve of a run's best value: a point for each improvement, and one at the last result.

    A point has the `time` of a result in seconds since the start of the run, the `count` of results and the number of
    reports (`steps`) up to then, and the best `value`. In a study, only complete trials have results. In a training or a
    collection, each report is a result too.
    """
    job = record.job
    objective = job.objectives[0]
    report_times = sorted(report.time for report in record.reports)
    if job.kind == "hpo":
        results = [
            (row.ended, row.values[0])
            for row in rows.newest_attempts(record.attempts)
            if row.state is TrialState.COMPLETE and row.feasible and row.ended
        ]
    else:
        metric = objective.metric
        results = [(report.time, report.metrics[metric]) for report in record.reports if metric in report.metrics]
        results += [(row.ended, row.values[0]) for row in record.attempts if row.values and row.ended]
    results = sorted((time, value) for time, value in results if math.isfinite(value))
    start_times = [*report_times[:1], *(row.started for row in record.attempts if row.started)]
    start_time = min(start_times, default=0.0)
    points: list[dict[str, float]] = []
    for count, (time, value) in enumerate(results, start=1):
        if not points or objective.is_better(value, points[-1]["value"]):
            steps = bisect.bisect_right(report_times, time)
            points.append({"time": time - start_time, "count": count, "steps": steps, "value": value})
    if points:  # so that the curve is drawn up to the last result, even if that is no improvement
        end_time, _ = results[-1]
        points.append(
            {
                "time": end_time - start_time,
                "count": len(results),
                "steps": len(report_times),
                "value": points[-1]["value"],
            }
        )
    return points


def _run_row(
    record: RunRecord, points: Sequence[Mapping[str, float]], goal: float | None, setting: Mapping[str, str]
) -> dict[str, Any]:
    """Return the row of a run in the table of a comparison.

    Args:
        record: Record of the run.
        points: Curve of its best value.
        goal: Value to reach. None if there is none.
        setting: Settings of the run.
    """
    status, objective = record.status, record.job.objectives[0]
    reached = _first_at(points, goal, objective)
    best = rows.best_trial(record.job, rows.newest_attempts(record.attempts))
    return {
        "run": status.run,
        "state": status.state.value,
        "ended": status.ended_trials,
        "trials": status.trials,
        "best": points[-1]["value"] if points else None,
        "trial": None if best is None else best.trial,
        "seconds": points[-1]["time"] if points else None,
        "reached": None if reached is None else reached["time"],
        "steps": None if reached is None or not record.reports else reached["steps"],
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
    """Return the groups of repetitions, ordered by mean from the best. Groups without a value are last.

    Args:
        keys: Key of each run or trial. Repetitions have the same key.
        titles: Title of each run or trial.
        settings: Settings of each run or trial, by name.
        bests: Best value of each run or trial. None if it has no value.
        differing: Names of settings that differ. The first ones, without the seed, are in the name of a group.
        objective: Objective of the values.
    """
    members: dict[str, list[int]] = collections.defaultdict(list)  # key → indices of the runs or trials
    for index, key in enumerate(keys):
        members[key].append(index)
    naming = [name for name in differing if name != "seed"][:_NAMING_SETTINGS]
    groups = []
    for indices in members.values():
        first = indices[0]  # repetitions have the same settings, except the seed
        values = [value for index in indices if (value := bests[index]) is not None]
        text = ", ".join(f"{name}={settings[first].get(name, 'none')}" for name in naming)
        groups.append(
            {
                "name": text or titles[first],
                "members": [titles[index] for index in indices],
                "values": values,
                "mean": statistics.fmean(values) if values else None,
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
            }
        )
    sign = 1 if objective.direction == "minimize" else -1
    return sorted(groups, key=lambda group: math.inf if group["mean"] is None else sign * group["mean"])


def _pairs(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each group (`a`) with the best group that has repetitions (`b`).

    It has the difference of their means, the interval of this difference, and a verdict. The interval is None if a group has
    no repetitions.

    Args:
        groups: Groups, ordered by mean from the best.
    """
    ranked = [group for group in groups if group["mean"] is not None]
    if not ranked:
        return
    best = next((group for group in ranked if group["deviation"] is not None), ranked[0])
    others = [group for group in ranked if group is not best][:_MAX_PAIRS]
    for other in others:
        pair = {"a": other["name"], "b": best["name"], "difference": other["mean"] - best["mean"]}
        difference = student.difference(best["values"], other["values"])
        if difference is None:
            yield {**pair, "low": None, "high": None, "verdict": "cannot be told: repeat each with other seeds"}
            continue
        margin = difference.margin((1 - _CONFIDENCE) / len(others) / 2)  # Bonferroni: all intervals hold together
        low, high = difference.value - margin, difference.value + margin
        yield {**pair, "low": low, "high": high, "verdict": "may be noise" if low <= 0 <= high else "differs"}


def as_json_values(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison as the JSON values of `--output json`: without its curves, and what only the page needs."""
    return {name: records.to_dict(value) for name, value in comparison.items() if name not in ("curves", "fields", "of")}
