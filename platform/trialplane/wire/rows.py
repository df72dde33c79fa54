"""Logical trials from the attempts in a ledger, ordered from best to worst.

Pure functions that the controller's ledger and the laptop's reader share, so that both return the same rows.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialplane.errors import shortened
from trialplane.wire.records import ReportRow, TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, TrialState

if TYPE_CHECKING:  # only a type here: this module must not import pydantic
    from trialplane.job.kinds import Job

_LONGEST = 10_000  # characters of a field of a row in a status


def row(job: Job, request: TrialRequest, params: Mapping[str, Any], outcome: TrialOutcome | None) -> TrialRow:
    """Return an attempt as a row.

    Args:
        job: defines objectives and constraints.
        request: of the attempt.
        params: the sampled parameters.
        outcome: None while it runs.
    """
    series = None if request.segment is None else request.segment.series
    if outcome is None:
        return TrialRow(request.trial, TrialState.RUNNING, request.attempt, request.number, params=params, series=series)
    state = state_of(outcome)
    metrics = outcome.metrics
    complete = state is TrialState.COMPLETE
    return TrialRow(
        trial=request.trial,
        state=state,
        attempt=request.attempt,
        number=request.number,
        values=tuple(metrics[objective.metric] for objective in job.objectives) if complete else (),
        params=params,
        metrics=metrics,
        returned=outcome.returned,
        failure=outcome.failure,
        message=outcome.message,
        feasible=all(constraint.excess(metrics[constraint.metric]) <= 0 for constraint in job.search.constraints)
        if complete
        else True,
        seconds=outcome.ended - outcome.started if outcome.ended and outcome.started else None,
        started=outcome.started or None,
        ended=outcome.ended or None,
        node=outcome.node,
        slot=outcome.slot,
        log=outcome.log,
        best_steps=outcome.best_steps,
        step=outcome.step,
        series=series,
    )


def brief(row: TrialRow) -> TrialRow:
    """Return a row with large fields shortened, for the status of a run, which is written often."""
    return dataclasses.replace(
        row,
        params=_first(row.params),
        metrics=_first(row.metrics),
        returned=_first(row.returned),
        message=shortened(row.message, _LONGEST),
        best_steps=_first(row.best_steps),
    )


def _first(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first values that fit into `_LONGEST` characters of JSON."""
    fitting, room = {}, _LONGEST
    for name, value in values.items():
        room -= len(json.dumps([name, value], default=str))
        if room < 0:
            break
        fitting[name] = value
    return fitting


def state_of(outcome: TrialOutcome) -> TrialState:
    """Return the state to show for an ended attempt. A retried one is LOST, or PAUSED if it was stopped with its run."""
    if not outcome.retried:
        return outcome.state
    return TrialState.PAUSED if outcome.failure is FailureClass.STOPPED else TrialState.LOST


def newest(rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return the newest attempt of each logical trial, ordered by trial; with the times of its whole series."""
    latest: dict[int, TrialRow] = {}
    for attempt in sorted(rows, key=operator.attrgetter("number")):
        latest[attempt.trial] = _continued(latest.get(attempt.trial), attempt)
    return [latest[trial] for trial in sorted(latest)]


def _continued(before: TrialRow | None, row: TrialRow) -> TrialRow:
    """Return an attempt, with the start and the duration of the segments that it continues."""
    if before is None or before.first != row.first or before.seconds is None or row.seconds is None:
        return row
    return dataclasses.replace(row, started=before.started, seconds=before.seconds + row.seconds)


def ranked(job: Job, rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return rows from best to worst: feasible results, infeasible ones, pruned, failed, running.

    Results with several objectives are ordered by their front (non-dominated sorting), then by the first objective.
    """
    all_rows = list(rows)
    complete = [r for r in all_rows if r.state is TrialState.COMPLETE and r.feasible]
    order = fronts({r.trial: tuple(losses(job, r)) for r in complete}) if len(job.objectives) > 1 else {}

    def key(r: TrialRow) -> tuple[Any, ...]:
        kind = _ORDER.index(r.state)
        values = tuple(losses(job, r)) if r.state is TrialState.COMPLETE else (math.inf,)
        return (kind, not r.feasible, order.get(r.trial, 0), values, r.trial)

    return sorted(all_rows, key=key)


def best(job: Job, rows: Iterable[TrialRow]) -> TrialRow | None:
    """Return the best feasible result, or None. With several objectives, this is one of the first front."""
    order = ranked(job, (r for r in rows if r.state is TrialState.COMPLETE and r.feasible))
    return order[0] if order else None


def front(job: Job, rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return the feasible results that no other result dominates. With one objective, this is only the best."""
    complete = [r for r in rows if r.state is TrialState.COMPLETE and r.feasible]
    ranks = fronts({r.trial: tuple(losses(job, r)) for r in complete})
    return [r for r in complete if ranks[r.trial] == 0]


def flat(rows: Sequence[TrialRow]) -> tuple[list[str], list[list[Any]]]:
    """Return all fields of all rows as a table, with a column for each parameter, metric and other returned value.

    Returns:
        The header, and a line for each row; None where a row lacks a parameter, metric or value.
    """
    plain = (
        "trial",
        "attempt",
        "number",
        "state",
        "feasible",
        "failure",
        "message",
        "seconds",
        "started",
        "ended",
        "node",
        "slot",
        "log",
    )
    nested = [
        (kind, name)
        for kind in ("metrics", "best_steps", "params", "returned")
        for name in dict.fromkeys(name for row in rows for name in getattr(row, kind))
    ]
    lines = []
    for row in rows:
        nested_values = {
            "metrics": row.metrics,
            "best_steps": row.best_steps,
            "params": cells(row.params),
            "returned": cells(row.returned),
        }
        lines.append([*(getattr(row, name) for name in plain), *(nested_values[kind].get(name) for kind, name in nested)])
    return [*plain, *(f"{kind}.{name}" for kind, name in nested)], lines


def curves(reports: Iterable[ReportRow]) -> tuple[list[str], list[list[Any]]]:
    """Return reports as a table, with a line for each metric of each report.

    Returns:
        The header, and the lines in the order of the reports.
    """
    header = ["trial", "attempt", "step", "metric", "value", "time"]
    lines = [
        [report.trial, report.attempt, report.step, name, value, report.time]
        for report in reports
        for name, value in report.metrics.items()
    ]
    return header, lines


def cells(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that fit into one cell each: strings and numbers unchanged, lists and mappings as JSON."""
    nested = (list, tuple, Mapping)
    return {name: json.dumps(value) if isinstance(value, nested) else value for name, value in values.items()}


def losses(job: Job, r: TrialRow) -> list[float]:
    """Return the values of the objectives, negated where larger is better."""
    return [
        -value if objective.direction == "maximize" else value
        for objective, value in zip(job.objectives, r.values, strict=True)
    ]


_ORDER = [
    TrialState.COMPLETE,
    TrialState.PRUNED,
    TrialState.FAILED,
    TrialState.PAUSED,
    TrialState.LOST,
    TrialState.RUNNING,
    TrialState.WAITING,
]


def fronts(losses: Mapping[int, tuple[float, ...]]) -> dict[int, int]:
    """Return the number of the front of each trial; 0 is the best.

    Efficient non-dominated sort with binary search (Zhang, Tian, Cheng, Jin 2015): if no member of a front dominates a
    result, no member of a later front does.

    Args:
        losses: values by trial; smaller is better.
    """
    members: list[list[tuple[float, ...]]] = []
    ranks: dict[int, int] = {}
    for trial_losses, trial in sorted((values, trial) for trial, values in losses.items()):
        rank = bisect.bisect_left(members, True, key=functools.partial(_spares, trial_losses))
        if rank == len(members):
            members.append([])
        members[rank].append(trial_losses)
        ranks[trial] = rank
    return ranks


def _spares(loss: tuple[float, ...], front: list[tuple[float, ...]]) -> bool:
    """Whether no member of a front, whose first losses are not larger, dominates `loss`."""
    # With up to two objectives the newest member has the smallest second loss.
    members = front[-1:] if len(loss) <= 2 else reversed(front)
    return not any(member != loss and all(map(operator.le, member, loss)) for member in members)
