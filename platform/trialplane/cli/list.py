"""`platform list`: all runs, the newest first."""

from __future__ import annotations

import dataclasses
from concurrent import futures
from typing import TYPE_CHECKING, Any

import click

from trialplane.cli import kinds, names, output
from trialplane.client import places
from trialplane.client import target as targets
from trialplane.client.target import Place
from trialplane.errors import RunDamaged, RunNotFound
from trialplane.wire import records
from trialplane.wire.records import RunStatus

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle

_AT_ONCE = 8
_DAMAGED = "DAMAGED"


@click.command("list")
@names.place_options()
@click.option("--limit", type=click.IntRange(1), help="Show so many only.")
@output.option("table", "json", "yaml")
def command(place: Place, limit: int | None, kind: str) -> None:
    """Show all runs of a place, the newest first. One whose files are damaged is shown as DAMAGED."""
    from trialplane.client import sdk  # needs pydantic, which `--help` should not wait for

    target = places.target_of(place)
    handles = sdk.Platform(target).list()[:limit]
    if not handles and kind == "table":
        output.note(targets.nothing_yet(target))
        return
    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:  # on a cluster each is a few requests
        looked = list(pool.map(_look, handles)) if target.remote else [_look(handle) for handle in handles]
    found = [(handle.name, status) for handle, status in zip(handles, looked, strict=True) if status is not None]
    output.emit(kind, [_plain(name, status) for name, status in found], lambda: _table(found))
    for _, status in found:
        if isinstance(status, RunDamaged):
            output.note(str(status))


def _look(handle: RunHandle) -> RunStatus | RunDamaged | None:
    """How a run stands; None for one that was deleted since it was found."""
    try:
        return handle.status()
    except RunDamaged as error:
        return error
    except RunNotFound:
        return None


def _plain(name: str, status: RunStatus | RunDamaged) -> dict[str, Any]:
    """A run as plain values; of a damaged one all but the reason is unknown."""
    if isinstance(status, RunStatus):
        plain: dict[str, Any] = records.to_dict(status)
        return plain
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(RunStatus))
    return {**unknown, "run": name, "state": _DAMAGED, "reason": str(status)}


def _table(found: list[tuple[str, RunStatus | RunDamaged]]) -> str:
    header = ("run", "job", "state", "ended", "failed", "best", "submitted")
    lines = [
        (name, None, _DAMAGED, None, None, None, None)
        if isinstance(status, RunDamaged)
        else (
            name,
            status.job,
            status.state.value,
            kinds.of(status).ended(status),
            status.failed,
            kinds.of(status).best_value(status),
            output.moment(status.created),
        )
        for name, status in found
    ]
    return output.as_table(header, lines)
