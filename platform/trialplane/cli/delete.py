"""`platform delete`: a run is forgotten."""

from __future__ import annotations

import sys

import click

from trialplane import errors
from trialplane.cli import names, output
from trialplane.client.places import Place
from trialplane.errors import InputError


@click.command("delete")
@click.argument("run", shell_complete=names.complete_run)
@names.place_options()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(run: str, place: Place, yes: bool) -> None:
    """Forget RUN: its ledger, its logs, its code, and its checkpoints with what a collection wrote beside them.

    What MLflow recorded of it stays there, and so does what lies in an object store or in a folder that the job names.

    A run that goes on is cancelled first.
    """
    handle = names.find_run(run, place)
    status = handle.status()
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"nobody is there to ask whether {run} may go; --yes says so")
        active = ", which goes on," if handle.is_active() else ""
        ended = errors.counted(status.ended_trials, f"ended {status.noun}")
        question = f"Forget {run}{active} with {ended}, in {handle.log_place()}?"
        click.confirm(question, abort=True, err=True)
    handle.delete()
    output.note(f"{run} is forgotten")
