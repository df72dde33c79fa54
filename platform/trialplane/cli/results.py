"""`platform results`: the trials of a run, the best first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from trialplane.cli import kinds, names, output
from trialplane.client.target import Place
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
    presenter = kinds.of(job)
    found = (handle.attempts() if all_attempts else presenter.ordered(handle.rows()))[:limit]
    if not found and kind == "table":
        output.note(f"{handle.name} has started no {presenter.noun} yet; `platform status {handle.name}`")
        return
    if kind == "csv":
        click.echo(output.as_csv(*_full(found)))
        return
    output.emit(kind, [records.to_dict(row) for row in found], lambda: output.as_table(*presenter.results(job, found)))


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
