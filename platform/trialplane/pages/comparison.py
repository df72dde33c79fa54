"""Comparison of runs, or of trials: settings that differ, values, time to a value, and which differences may be noise.

Runs whose jobs differ only in their seed are repetitions, and form a group. The spread within a group shows the effect of
chance. Two groups are compared by Welch's interval of the difference of their means, for which the variances need not be
equal.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trialplane.errors import InputError
from trialplane.job.search import Objective
from trialplane.pages import curves, lineage
from trialplane.pages.content import RunRecord
from trialplane.pages.lineage import Lineage
from trialplane.wire import records, rows, student
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

_METHOD = (
    "{repetitions} are repetitions, and form a group. Each group is compared with the best one that has repetitions, by "
    "Welch's interval of the difference of their {means}; the intervals hold at 95 % together (Bonferroni). A group of one "
    "{noun} has no spread, so nothing can be said about its difference."
)
_CONFIDENCE = 0.95
_MAX_POINTS = 500  # limit of the points of a curve
_MAX_TOTAL_POINTS = 50_000  # limit of the points of all curves, as far as each has `_MIN_POINTS`
_MIN_POINTS = 50
_MAX_PAIRS = 200  # limit of the groups that are compared with the best one
_MAX_NAMING_SETTINGS = 4  # limit of the settings in the name of a group
_LABELS = ("name", "description")  # fields of a job that do not affect its results

Curve = Sequence[Mapping[str, float]]  # points, each with its `time`, `count`, `steps` and `value`


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A run or a trial that is compared.

    Attributes:
        title: Name of the run; of a trial, the name of its run and the trial's number.
        key: Key of its group: repetitions have the same key.
        settings: Text of each setting, by dotted name.
        points: Curve of the best value of a run, or of the reported values of a trial.
        value: Best value of a run, or value of a trial. None if it has none.
    """

    title: str
    key: str
    settings: Mapping[str, str]
    points: Curve
    value: float | None


def check_objectives(run_records: Sequence[RunRecord]) -> None:
    """Check that runs have the same objectives.

    Raises:
        InputError: Two runs have different objectives.
    """
    first = run_records[0]
    for other in run_records[1:]:
        if first.job.objectives_text != other.job.objectives_text:
            raise InputError(
                f"{first.status.run} and {other.status.run} have different objectives: {first.job.objectives_text}, and "
                f"{other.job.objectives_text}; their values cannot be compared. Nothing was written"
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
    entries = [_run_entry(record) for record in run_records]
    if goal is None:
        goal = _default_goal(entries, objective)
    # The parameters of the best trial (`best.lr`) are a result, so they do not name a group.
    differing = _differing_settings(entries)
    naming_settings = [name for name in differing if name != "seed" and not name.startswith("best.")]
    groups = _groups(entries, naming_settings, objective)
    return {
        "of": "runs",
        "fields": ["run", "state", "ended", "trials", "best", "trial", "seconds", "reached", "steps"],
        "runs": [_run_row(record, entry, goal) for record, entry in zip(run_records, entries, strict=True)],
        **_shared_content(entries, groups, objective, goal),
        "method": _METHOD.format(repetitions="Runs that differ in their seed alone", means="mean best values", noun="run"),
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
    run_records = [record for record, _ in trials]
    check_objectives(run_records)
    objective = run_records[0].job.objectives[0]
    lineages = [_find_trial(record, number) for record, number in trials]
    entries = [_trial_entry(record, trial_lineage) for record, trial_lineage in zip(run_records, lineages, strict=True)]
    if goal is None:
        goal = _default_goal(entries, objective)
    groups = _groups(entries, _differing_settings(entries), objective)
    for group in groups:
        if len(group["members"]) == 1:  # the title of the trial is shorter than its parameters
            group["name"] = group["members"][0]
    return {
        "of": "trials",
        "fields": ["trial", "state", "attempts", "value", "step", "seconds", "reached", "steps", "message"],
        "trials": [
            _trial_row(trial_lineage.row, entry, goal, objective)
            for trial_lineage, entry in zip(lineages, entries, strict=True)
        ],
        **_shared_content(entries, groups, objective, goal),
        "method": _METHOD.format(repetitions="Trials with the same parameters", means="mean values", noun="trial"),
    }


def _shared_content(
    entries: Sequence[_Entry], groups: Sequence[Mapping[str, Any]], objective: Objective, goal: float | None
) -> dict[str, Any]:
    """Return the part of a comparison that runs and trials have in common. The groups are ordered as by `_groups`."""
    names = dict.fromkeys(name for entry in entries for name in entry.settings)
    differing = _differing_settings(entries)
    max_points = max(_MIN_POINTS, min(_MAX_POINTS, _MAX_TOTAL_POINTS // len(entries)))
    return {
        "objective": objective.model_dump(),
        "goal": goal,
        "differing": differing,
        "same": [name for name in names if name not in differing],
        "curves": [{"name": entry.title, "points": curves.thin(entry.points, max_points)} for entry in entries],
        # Only `_pairs` needs the single values.
        "groups": [{name: value for name, value in group.items() if name != "values"} for group in groups],
        "pairs": list(_pairs(groups)),
    }


def _default_goal(entries: Sequence[_Entry], objective: Objective) -> float | None:
    """Return the best value of the worst run or trial, which all of them reach. None if none has a value.

    The best value of a trial is among its reports and its result.
    """
    best, worst = (min, max) if objective.direction == "minimize" else (max, min)
    best_values = []
    for entry in entries:
        values = [point["value"] for point in entry.points]
        values += [] if entry.value is None else [entry.value]
        if values:
            best_values.append(best(values))
    return worst(best_values) if best_values else None


def _run_entry(record: RunRecord) -> _Entry:
    """Return a run as an entry of a comparison."""
    points = _best_curve(record)
    return _Entry(
        title=record.status.run,
        key=record.job.model_dump_json(exclude={*_LABELS, "seed"}),
        settings=_settings(record),
        points=points,
        value=points[-1]["value"] if points else None,
    )


def _trial_entry(record: RunRecord, trial_lineage: Lineage) -> _Entry:
    """Return a trial as an entry of a comparison."""
    row = trial_lineage.row
    settings = dict(_flatten(path="", value=dict(row.params)))
    # A trial that was pruned or still runs has no values, but may have reported the metric of the objective.
    value = row.values[0] if row.values else row.metrics.get(record.job.objectives[0].metric)
    return _Entry(
        title=f"{record.status.run}:{row.trial}",
        key=json.dumps(settings),
        settings=settings,
        points=_objective_curve(record, trial_lineage),
        value=value if value is not None and math.isfinite(value) else None,
    )


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


def _objective_curve(record: RunRecord, trial_lineage: Lineage) -> Curve:
    """Return the points of a trial's objective, ordered by step. If a step has several reports, the last one counts.

    A point has the `time` of its report in seconds since the start of the trial, the `count` of points up to it, the step
    (`steps`), and the `value`. Values that are not finite are left out.
    """
    newest, metric = trial_lineage.row, record.job.objectives[0].metric
    trial_reports = [report for report in record.trial_reports if report.trial == newest.trial]
    # If trials are paused, all reports get the number of the newest attempt. Else those of retried attempts do not count.
    reports = lineage.join_segments(record.job, [trial_lineage], trial_reports)
    by_step = {report.step: report for report in reports if report.number == newest.number and metric in report.metrics}
    ordered = [by_step[step] for step in sorted(by_step) if math.isfinite(by_step[step].metrics[metric])]
    times = [attempt.started for attempt in record.attempts if attempt.trial == newest.trial and attempt.started]
    times += [report.time for report in ordered[:1]]  # may precede the start, because each node has its own clock
    start_time = min(times, default=0.0)
    return [
        {"time": report.time - start_time, "count": count, "steps": report.step, "value": report.metrics[metric]}
        for count, report in enumerate(ordered, start=1)
    ]


def _goal_point(points: Curve, goal: float | None, objective: Objective) -> Mapping[str, float] | None:
    """Return the first point of a curve that is at least as good as the goal. None without a goal or such a point."""
    if goal is None:
        return None
    return next((point for point in points if not objective.is_better(goal, point["value"])), None)


def _differing_settings(entries: Sequence[_Entry]) -> list[str]:
    """Return the names of the settings whose values differ between runs or trials."""
    names = dict.fromkeys(name for entry in entries for name in entry.settings)
    return [name for name in names if len({entry.settings.get(name) for entry in entries}) > 1]


def _settings(record: RunRecord) -> dict[str, str]:
    """Return the settings of a run by dotted name: fields of its job, and parameters of its best trial (`best.lr`)."""
    job = record.job
    settings = dict(_flatten(path="", value=job.model_dump(mode="json", exclude=set(_LABELS))))
    best = rows.best_trial(job, rows.newest_attempts(record.attempts)) if job.kind == "hpo" else None
    if best is not None:
        settings.update(_flatten("best", dict(best.params)))
    return settings


def _flatten(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the text of a value, or of each value in a mapping or a list of mappings or lists.

    Empty values are left out. Of `{resources: {cpus: 2}, tags: [a]}`, these are (resources.cpus, 2) and (tags, ["a"]).

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
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _results(record: RunRecord) -> list[tuple[float, float]]:
    """Return the time and the value of each result of a run, ordered by time. Values that are not finite are left out.

    In a study, only feasible complete trials have results. In a training or a collection, each report is a result too.
    """
    if record.job.kind == "hpo":
        results = [
            (row.ended, row.values[0])
            for row in rows.newest_attempts(record.attempts)
            if row.state is TrialState.COMPLETE and row.feasible and row.ended
        ]
    else:
        metric = record.job.objectives[0].metric
        results = [(report.time, report.metrics[metric]) for report in record.trial_reports if metric in report.metrics]
        results += [(row.ended, row.values[0]) for row in record.attempts if row.values and row.ended]
    return sorted((time, value) for time, value in results if math.isfinite(value))


def _best_curve(record: RunRecord) -> Curve:
    """Return the curve of a run's best value: a point for each improvement, and one at the last result.

    A point has the `time` of a result in seconds since the start of the run, the `count` of results and the number of
    reports (`steps`) up to then, and the best `value`.
    """
    objective = record.job.objectives[0]
    results = _results(record)
    report_times = sorted(report.time for report in record.trial_reports)
    start_times = [*report_times[:1], *(row.started for row in record.attempts if row.started)]
    start_time = min(start_times, default=0.0)
    points: list[dict[str, float]] = []
    for count, (time, value) in enumerate(results, start=1):
        if not points or objective.is_better(value, points[-1]["value"]):
            steps = bisect.bisect_right(report_times, time)
            points.append({"time": time - start_time, "count": count, "steps": steps, "value": value})
    if points:  # so that the curve is drawn up to the last result, even if that is not an improvement
        end_time, _ = results[-1]
        end = {"time": end_time - start_time, "count": len(results), "steps": len(report_times)}
        points.append({**end, "value": points[-1]["value"]})
    return points


def _run_row(record: RunRecord, entry: _Entry, goal: float | None) -> dict[str, Any]:
    """Return the row of a run in the table of a comparison. Without a goal, or if it is not reached, `reached` is None."""
    status, objective = record.status, record.job.objectives[0]
    goal_point = _goal_point(entry.points, goal, objective)
    best = rows.best_trial(record.job, rows.newest_attempts(record.attempts))
    return {
        "run": status.run,
        "state": status.state.value,
        "ended": status.ended_trials,
        "trials": status.trials,
        "best": entry.value,
        "trial": None if best is None else best.trial,
        "seconds": entry.points[-1]["time"] if entry.points else None,
        "reached": None if goal_point is None else goal_point["time"],
        "steps": None if goal_point is None or not record.trial_reports else goal_point["steps"],
        "params": dict(entry.settings),
    }


def _trial_row(row: TrialRow, entry: _Entry, goal: float | None, objective: Objective) -> dict[str, Any]:
    """Return the row of a trial in the table of a comparison.

    A trial has `reached` the goal at the time and the step (`steps`) of its first report that is as good as the goal. If
    only its result is, the time is that of its end, and the step is None. Both are None if it did not reach the goal, or
    there is none. `row` is the trial's newest attempt, with the seconds of all segments.
    """
    goal_point = _goal_point(entry.points, goal, objective)
    result_is_good = goal is not None and entry.value is not None and not objective.is_better(goal, entry.value)
    time_of_result = row.seconds if result_is_good else None
    return {
        "trial": entry.title,
        "state": row.state.value,
        "attempts": row.attempt,
        "value": entry.value,
        "step": entry.points[-1]["steps"] if entry.points else None,
        "seconds": row.seconds,
        "reached": time_of_result if goal_point is None else goal_point["time"],
        "steps": None if goal_point is None else goal_point["steps"],
        "message": row.message,
        "params": dict(entry.settings),
    }


def _groups(entries: Sequence[_Entry], naming_settings: Sequence[str], objective: Objective) -> list[dict[str, Any]]:
    """Return the groups of repetitions, ordered by mean from the best. Groups without a value are last.

    A group has its `name`, the titles and the values of its `members`, and the `mean` and standard `deviation` of these.
    The name consists of the first settings in `naming_settings`, which differ between groups.
    """
    members_by_key: dict[str, list[_Entry]] = collections.defaultdict(list)
    for entry in entries:
        members_by_key[entry.key].append(entry)
    groups = []
    for members in members_by_key.values():
        first = members[0]  # repetitions have the same settings, except the seed
        values = [member.value for member in members if member.value is not None]
        names = naming_settings[:_MAX_NAMING_SETTINGS]
        text = ", ".join(f"{name}={first.settings.get(name, 'none')}" for name in names)
        groups.append(
            {
                "name": text or first.title,
                "members": [member.title for member in members],
                "values": values,
                "mean": statistics.fmean(values) if values else None,
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
            }
        )
    sign = 1 if objective.direction == "minimize" else -1
    return sorted(groups, key=lambda group: math.inf if group["mean"] is None else sign * group["mean"])


def _pairs(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each group with a mean (`a`), at most `_MAX_PAIRS`, with the best one (`b`).

    It has the difference of their means, the interval of this difference, and a verdict. The interval is None if a group has
    no repetitions.

    Args:
        groups: Groups, ordered by mean from the best. The deviation of one without repetitions is None.
    """
    measured = [group for group in groups if group["mean"] is not None]
    if not measured:
        return
    best = next((group for group in measured if group["deviation"] is not None), measured[0])  # with repetitions, if one has
    others = [group for group in measured if group is not best][:_MAX_PAIRS]
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
