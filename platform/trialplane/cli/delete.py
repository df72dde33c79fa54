"""`platform delete`: a run is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trialplane import errors
from trialplane.cli import asking, kinds, names, output
from trialplane.client.target import Place
from trialplane.errors import RunDamaged

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle


@click.command("delete")
@click.argument("run", shell_complete=names.complete_run)
@names.place_options()
@asking.yes_option
def command(run: str, place: Place, yes: bool) -> None:
    """Forget RUN: its ledger, its logs, its code, and its checkpoints with what a collection wrote beside them.

    What MLflow recorded of it stays there, and so does what lies in an object store or in a folder that the job names.

    A run that goes on is cancelled first.
    """
    handle = names.find_run(run, place)
    if not yes:
        asking.confirm(_question(handle), f"delete {run}")
    handle.delete()
    output.note(f"{run} is forgotten")


def _question(handle: RunHandle) -> str:
    run = handle.name
    active = ", which goes on," if handle.is_active() else ""
    try:
        status = handle.status()
    except RunDamaged as error:
        return f"{error}\nForget {run}{active} with all that is in {handle.log_place()}?"
    ended = errors.counted(status.ended_trials, f"ended {kinds.of(status).noun}")
    return f"Forget {run}{active} with {ended}, in {handle.log_place()}?"
