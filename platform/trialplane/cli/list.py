"""`platform list`: all runs, the newest first."""

from __future__ import annotations

from concurrent import futures

import click

from trialplane.cli import names, output, training
from trialplane.client.places import Place
from trialplane.client.run import RunHandle
from trialplane.wire import records
from trialplane.wire.records import RunStatus

_AT_ONCE = 8


@click.command("list")
@names.place_options()
@click.option("--limit", type=click.IntRange(1), help="Show so many only.")
@output.option("table", "json", "yaml")
def command(place: Place, limit: int | None, kind: str) -> None:
    """Show all runs of a place, the newest first."""
    from trialplane.client import sdk  # needs pydantic, which `--help` should not wait for

    target = place.target()
    handles = sdk.Platform(target).list()[:limit]
    if not handles and kind == "table":
        output.note(sdk.nothing_yet(target))
        return
    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:  # on a cluster each is a few requests
        statuses = list(pool.map(RunHandle.status, handles)) if target.remote else [one.status() for one in handles]
    output.emit(kind, [records.to_dict(status) for status in statuses], lambda: _table(statuses))


def _table(statuses: list[RunStatus]) -> str:
    header = ("run", "job", "state", "ended", "failed", "best", "submitted")
    lines = [
        (
            status.run,
            status.job,
            status.state.value,
            training.ended(status) if status.is_training else f"{status.ended_trials}/{status.trials}",
            status.failed,
            None if status.is_collection or status.best is None or not status.best.values else status.best.values[0],
            output.moment(status.created),
        )
        for status in statuses
    ]
    return output.as_table(header, lines)
