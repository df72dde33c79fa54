"""`platform list`: all runs, the newest first."""

from __future__ import annotations

import click

from trialplane.cli import output
from trialplane.client.sdk import Platform
from trialplane.wire import records
from trialplane.wire.records import RunStatus


@click.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show so many only.")
@output.option("table", "json", "yaml")
def command(limit: int | None, kind: str) -> None:
    """Show all runs, the newest first."""
    show([handle.status() for handle in Platform().list()[:limit]], kind)


def show(statuses: list[RunStatus], kind: str) -> None:
    """Prints runs."""
    if not statuses and kind == "table":
        output.note("there are no runs yet; `platform submit hpo NAME --local` starts one")
        return
    output.emit(kind, [records.to_dict(status) for status in statuses], lambda: _table(statuses))


def _table(statuses: list[RunStatus]) -> str:
    header = ("run", "job", "state", "ended", "failed", "best", "submitted")
    lines = [
        (
            status.run,
            status.job,
            status.state.value,
            f"{status.ended_trials}/{status.trials}",
            status.failed,
            None if status.best is None or not status.best.values else status.best.values[0],
            output.moment(status.created),
        )
        for status in statuses
    ]
    return output.as_table(header, lines)
