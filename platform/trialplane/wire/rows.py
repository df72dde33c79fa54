"""Rows of trials from the attempts in a ledger, and their order from best to worst.

Pure functions, shared by the controller's ledger and the laptop's reader so that both return the same rows.

A trial that is paused and promoted later has an attempt for each segment of its training. Attempts that continue one
another are a series.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import json
import math
import operator
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trialplane.errors import shortened
from trialplane.wire import states
from trialplane.wire.records import ReportRow, Segment, TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, TrialState

if TYPE_CHECKING:  # only a type here: this module must not import pydantic
    from trialplane.job.kinds import Job

_MAX_FIELD = 10_000  # limit of the characters in a field of a row, for the status of a run


def row(job: Job, request: TrialRequest, params: Mapping[str, Any], outcome: TrialOutcome | None) -> TrialRow:
    """Return the row of an attempt with these sampled parameters. Without an outcome, the attempt is running."""
    segment = request.segment or Segment()  # without pauses at rungs, the whole training is one segment
    request_fields: dict[str, Any] = {
        "trial": request.trial,
        "attempt": request.attempt,
        "number": request.number,
        "params": params,
        "requested": request.begun or None,  # 0 is an unknown time
        "series": segment.series,
        "done": segment.done,
        "parent": None if segment.parent is None else segment.parent.number,
        "restart": segment.restart,
    }
    if outcome is None:
        return TrialRow(**request_fields, state=TrialState.RUNNING, started=request_fields["requested"], slot=request.slot)
    state = displayed_state(outcome)
    metrics = outcome.metrics
    is_complete = state is TrialState.COMPLETE
    constraints = job.search.constraints if is_complete else ()  # only a complete trial must have these metrics
    return TrialRow(
        **request_fields,
        state=state,
        values=tuple(metrics[objective.metric] for objective in job.objectives) if is_complete else (),
        metrics=metrics,
        returned=outcome.returned,
        failure=outcome.failure,
        message=outcome.message,
        feasible=all(constraint.excess(metrics[constraint.metric]) <= 0 for constraint in constraints),
        seconds=outcome.seconds,
        started=outcome.started or None,
        ended=outcome.ended or None,
        node=outcome.node,
        slot=outcome.slot,
        log=outcome.log,
        best_steps=outcome.best_steps,
        step=outcome.step,
        workers=outcome.workers,
        saved=outcome.saved,
    )


def shorten(row: TrialRow) -> TrialRow:
    """Return a row with long fields shortened. It is for the status of a run, which is written often."""
    return dataclasses.replace(
        row,
        params=_limit_items(row.params),
        metrics=_limit_items(row.metrics),
        returned=_limit_items(row.returned),
        message=shortened(row.message, longest=_MAX_FIELD),
        best_steps=_limit_items(row.best_steps),
    )


def _limit_items(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first items of a mapping, as many as fit into `_MAX_FIELD` characters of JSON."""
    first_items: dict[str, Any] = {}
    characters_left = _MAX_FIELD
    for name, value in values.items():
        characters_left -= len(json.dumps([name, value], default=str))
        if characters_left < 0:
            break
        first_items[name] = value
    return first_items


def is_out_of_memory(outcome: TrialOutcome) -> bool:
    """Return whether an attempt has ended out of memory: of the GPU, or killed as by its limit of memory or the kernel.

    An attempt that will be retried does not count, as other processes may have used the memory.
    """
    was_killed = outcome.failure is FailureClass.CRASHED and outcome.exit_code == -signal.SIGKILL
    return not outcome.retried and (was_killed or outcome.failure is FailureClass.OOM)


def displayed_state(outcome: TrialOutcome) -> TrialState:
    """Return the state to display for an ended attempt.

    If the trial is retried, this is LOST. If the attempt was stopped with its run, which only the user can continue, this is
    FAILED for a run that had failed, and otherwise PAUSED.
    """
    if not outcome.retried:
        return outcome.state
    if outcome.failure is not FailureClass.STOPPED:
        return TrialState.LOST
    return TrialState.FAILED if outcome.message == states.RUN_FAILED else TrialState.PAUSED


def newest_attempts(rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return the newest attempt of each trial, ordered by trial.

    If a trial was promoted, the attempt is the last of a series of segments. Its start and duration are then those of the
    whole series.
    """
    newest: dict[int, TrialRow] = {}
    for attempt in sorted(rows, key=operator.attrgetter("number")):  # a newer one replaces an older one
        newest[attempt.trial] = _with_series_time(attempt, newest.get(attempt.trial))
    return [newest[trial] for trial in sorted(newest)]


def _with_series_time(row: TrialRow, previous: TrialRow | None) -> TrialRow:
    """Return an attempt with the start of its series, and the duration of the series up to the attempt's end.

    Args:
        row: Attempt. Its duration is None while it runs, and then stays None.
        previous: Previous attempt of the trial, with the start and the duration of its series. None for the first attempt.
    """
    if previous is None or previous.first != row.first or previous.seconds is None:  # None: its duration is unknown
        return row
    seconds = None if row.seconds is None else previous.seconds + row.seconds
    return dataclasses.replace(row, started=previous.started, seconds=seconds)


def ranked(job: Job, rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return rows from best to worst: feasible results, infeasible results, then the other states as in `_ORDER`.

    Results with several objectives are ordered by their front (non-dominated sorting), then by the values. Of pruned trials,
    and of paused ones, those that went further are better, then those whose last reports are.
    """
    all_rows = list(rows)
    fronts_by_trial = _fronts_by_trial(job, _feasible_results(all_rows)) if len(job.objectives) > 1 else {}

    def sort_key(row: TrialRow) -> tuple[Any, ...]:
        """Return a key that is smaller for a better row."""
        row_losses: list[float] = []
        if row.state is TrialState.COMPLETE:
            row_losses = losses(job, row)
        elif row.state in (TrialState.PRUNED, TrialState.PAUSED):
            row_losses = [-(row.step or 0), *_last_losses(job, row)]  # the steps are negated: more of them are better
        front_number = fronts_by_trial.get(row.trial, 0)  # only feasible results have fronts
        return (_ORDER.index(row.state), not row.feasible, front_number, row_losses, row.trial)

    return sorted(all_rows, key=sort_key)


def best_trial(job: Job, rows: Iterable[TrialRow]) -> TrialRow | None:
    """Return the best feasible result. None if there is none. With several objectives, it is one of the first front."""
    ranked_rows = ranked(job, _feasible_results(rows))
    return ranked_rows[0] if ranked_rows else None


def pareto_front(job: Job, rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return the feasible results that no other result dominates. With one objective, these are the best ones."""
    results = _feasible_results(rows)
    fronts_by_trial = _fronts_by_trial(job, results)
    return [row for row in results if fronts_by_trial[row.trial] == 0]


def best_results(job: Job, rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return the best trial in a list, or with several objectives the Pareto-optimal trials, by rank.

    Empty without a feasible result.
    """
    if len(job.objectives) > 1:
        return ranked(job, pareto_front(job, rows))
    best = best_trial(job, rows)
    return [] if best is None else [best]


def _feasible_results(rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return the rows of complete trials that meet all constraints."""
    return [row for row in rows if row.state is TrialState.COMPLETE and row.feasible]


def _fronts_by_trial(job: Job, results: Iterable[TrialRow]) -> dict[int, int]:
    """Return the number of each result's front, by trial; see `front_numbers`."""
    return front_numbers({row.trial: tuple(losses(job, row)) for row in results})


class Table(NamedTuple):
    """A table: the names of its columns, and lines with a cell for each column. None is an empty cell."""

    header: list[str]
    lines: list[list[Any]]


def table(rows: Sequence[TrialRow]) -> Table:
    """Return a table with a line for each row. It has a column for each field, parameter, metric and returned value."""
    field_names = (
        *("trial", "attempt", "number", "state", "feasible", "failure", "message"),
        *("seconds", "started", "ended", "node", "slot", "log"),
    )
    item_columns: list[tuple[str, str]] = []  # name of a mapping, and name of an item in it, such as ("params", "lr")
    for mapping_name in ("metrics", "best_steps", "params", "returned"):
        item_names = dict.fromkeys(name for row in rows for name in getattr(row, mapping_name))
        item_columns += [(mapping_name, item_name) for item_name in item_names]
    lines = []
    for row in rows:
        fields = [getattr(row, name) for name in field_names]
        items = [table_cell(getattr(row, mapping_name).get(item_name)) for mapping_name, item_name in item_columns]
        lines.append([*fields, *items])
    return Table([*field_names, *map(".".join, item_columns)], lines)


def curve_table(reports: Iterable[ReportRow]) -> Table:
    """Return a table with a line for each metric of each report, in the order of the reports."""
    header = ["trial", "attempt", "step", "metric", "value", "time"]
    lines = [
        [report.trial, report.attempt, report.step, name, value, report.time]
        for report in reports
        for name, value in report.metrics.items()
    ]
    return Table(header, lines)


def table_cell(value: Any) -> Any:
    """Return a value for the cell of a table: a string or a number unchanged, a list or a mapping as JSON."""
    return json.dumps(value) if isinstance(value, (list, tuple, Mapping)) else value


def losses(job: Job, row: TrialRow) -> list[float]:
    """Return the values of a result's objectives, negated if larger is better, so that smaller is always better."""
    return [
        -value if objective.direction == "maximize" else value
        for objective, value in zip(job.objectives, row.values, strict=True)
    ]


def _last_losses(job: Job, row: TrialRow) -> list[float]:
    """Return the last reported values of the objectives as `losses` does. One that is missing or NaN is the worst."""
    last_losses = []
    for objective in job.objectives:
        value = row.metrics.get(objective.metric, math.nan)
        loss = -value if objective.direction == "maximize" else value
        last_losses.append(math.inf if math.isnan(loss) else loss)
    return last_losses


# From best to worst.
_ORDER = list(map(TrialState, ("COMPLETE", "PRUNED", "FAILED", "PAUSED", "LOST", "RUNNING")))


def front_numbers(losses_by_trial: Mapping[int, tuple[float, ...]]) -> dict[int, int]:
    """Return the number of each trial's front in a non-dominated sort. 0 is the best front.

    Efficient non-dominated sort with binary search (Zhang, Tian, Cheng, Jin 2015). Results are added in the order of their
    losses, so that a later result never dominates an earlier one. Each is added to the first front in which no member
    dominates it. A binary search finds this front: if no member of a front dominates a result, no member of a later front
    does.

    Args:
        losses_by_trial: Values of the objectives, by trial. Smaller is better.
    """
    fronts_members: list[list[tuple[float, ...]]] = []  # losses of the members of each front
    front_numbers: dict[int, int] = {}
    for trial_losses, trial in sorted((trial_losses, trial) for trial, trial_losses in losses_by_trial.items()):
        # The number of the first front for which `_is_undominated` is True, or of a new front after the last one.
        number = bisect.bisect_left(fronts_members, True, key=functools.partial(_is_undominated, trial_losses))
        if number == len(fronts_members):
            fronts_members.append([])
        fronts_members[number].append(trial_losses)
        front_numbers[trial] = number
    return front_numbers


def _is_undominated(trial_losses: tuple[float, ...], front: list[tuple[float, ...]]) -> bool:
    """Whether no member of a front dominates a result: none is as good in all objectives, and better in one.

    `front` has the losses of its members in ascending order, as tuples, and `front_numbers` adds the result after them.
    """
    # With up to two objectives, it is enough to check the newest member, which has the smallest second loss.
    members = front[-1:] if len(trial_losses) <= 2 else reversed(front)
    return not any(member != trial_losses and all(map(operator.le, member, trial_losses)) for member in members)
