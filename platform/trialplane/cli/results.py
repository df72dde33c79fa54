"""`platform results`: the trials of a run, the best first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from trialplane.cli import names, output, progress, training
from trialplane.client.places import Place
from trialplane.spec.jobs import Job, collection
from trialplane.wire import records
from trialplane.wire.records import TrialRow


@click.command("results")
@names.run_argument
@names.place_options()
@click.option("--limit", type=click.IntRange(1), help="Show so many only.")
@click.option("--all-attempts", is_flag=True, help="Also attempts that were tried again, in the order they started.")
@output.option("table", "json", "yaml", "csv")
def command(run: str | None, place: Place, limit: int | None, all_attempts: bool, kind: str) -> None:
    """Show the trials of RUN, or of the newest run, the best first; of a training, its numbers.

    Of a collection they are its iterations, in their order, with what the platform counted and what the consumer returned.
    """
    handle = names.find_run(run, place)
    job = handle.job
    found = handle.attempts() if all_attempts else handle.rows()
    if job.kind == "collect" and not all_attempts:
        found = sorted(found, key=lambda row: row.trial)
    found = found[:limit]
    if not found and kind == "table":
        output.note(f"{handle.name} has started no {job.noun} yet; `platform status {handle.name}`")
        return
    if kind == "csv":
        click.echo(output.as_csv(*_full(found)))
        return
    table = _of_collection if job.kind == "collect" else _of_training if job.kind == "train" else _table
    output.emit(kind, [records.to_dict(row) for row in found], lambda: table(job, found))


def _table(job: Job, found: list[TrialRow]) -> str:
    objectives = [objective.metric for objective in job.objectives]
    params = list(dict.fromkeys(name for row in found for name in row.params))
    messages = [_message(row) for row in found]
    attempts = any(row.attempt > 1 for row in found)
    header = ["trial", *(["attempt"] if attempts else []), "state", *objectives, *params, "time"]
    lines: list[list[Any]] = []
    for row, message in zip(found, messages, strict=True):
        values = [row.metrics.get(name) for name in objectives]
        line: list[Any] = [row.trial, *([row.attempt] if attempts else []), row.state.value, *values]
        line += [row.params.get(name) for name in params]
        line.append(output.duration(row.seconds))
        lines.append([*line, message] if any(messages) else line)
    return output.as_table([*header, "message"] if any(messages) else header, lines)


def _of_training(job: Job, found: list[TrialRow]) -> str:
    """Attempts instead of trials, and every number instead of the objectives."""
    metrics = [*job.metrics, *(name for row in found for name in row.metrics if not training.is_passing(name))]
    shown = list(dict.fromkeys(metrics))
    messages = [_message(row) for row in found]
    header = ["attempt", "state", *shown, "time", *(["message"] if any(messages) else [])]
    lines: list[list[Any]] = []
    for row, message in zip(found, messages, strict=True):
        line = [row.attempt, row.state.value, *(row.metrics.get(name) for name in shown), output.duration(row.seconds)]
        lines.append([*line, message] if any(messages) else line)
    return output.as_table(header, lines)


def _of_collection(job: Job, found: list[TrialRow]) -> str:
    """Iterations instead of trials, with every number: the objective, what the platform counted, the consumer's others."""
    told = {name for row in found for name in row.metrics}
    added = [name for name in collection.ADDED if name in told]
    shown = list(dict.fromkeys([*job.metrics, *added, *(name for row in found for name in row.metrics)]))
    shown = [name for name in shown if not collection.OF_WORKER.match(name)]
    attempts = any(row.attempt > 1 for row in found)
    header = ["iteration", *(["attempt"] if attempts else []), "state", *shown, "time"]
    messages = [_message(row) for row in found]
    lines: list[list[Any]] = []
    for row, message in zip(found, messages, strict=True):
        line: list[Any] = [row.trial, *([row.attempt] if attempts else []), row.state.value]
        line += [int(value) if value is not None and value.is_integer() else value for value in map(row.metrics.get, shown)]
        line.append(output.duration(row.seconds))
        lines.append([*line, message] if any(messages) else line)
    return output.as_table([*header, "message"] if any(messages) else header, lines)


def _message(row: TrialRow) -> str:
    return ": ".join(part for part in (progress.reason(row), "" if row.feasible else "infeasible") if part)


def _as_text(value: Any) -> Any:
    """What a trial returned, in one cell: texts and numbers as they are, lists and the like as JSON."""
    return json.dumps(value) if isinstance(value, (list, tuple, Mapping)) else value


def _full(found: list[TrialRow]) -> tuple[list[str], list[list[Any]]]:
    """Every field of every row; parameters, metrics and what else was returned get columns of their own."""
    params = list(dict.fromkeys(name for row in found for name in row.params))
    metrics = list(dict.fromkeys(name for row in found for name in row.metrics))
    returned = list(dict.fromkeys(name for row in found for name in row.returned))
    plain = ("trial", "attempt", "number", "state", "feasible", "failure", "message", "seconds", "node", "log")
    lines = [
        [
            *(getattr(row, name) for name in plain),
            *(row.metrics.get(name) for name in metrics),
            *(row.params.get(name) for name in params),
            *(_as_text(row.returned.get(name)) for name in returned),
        ]
        for row in found
    ]
    names = [("metrics", metrics), ("params", params), ("returned", returned)]
    return [*plain, *(f"{kind}.{name}" for kind, every in names for name in every)], lines
