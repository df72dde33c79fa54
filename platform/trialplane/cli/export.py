"""`platform export`: a run as a study that Optuna opens."""

from __future__ import annotations

import click

from trialplane.cli import names, output
from trialplane.client.target import Place


@click.command("export")
@click.argument("run", shell_complete=names.complete_run)
@click.argument("url")
@names.place_options()
def command(run: str, url: str, place: Place) -> None:
    """Write RUN as an Optuna study into the database at URL, for example sqlite:///study.db.

    Each attempt is a trial, with its parameters, values, reports, constraints and times. A study of that name that is there
    already is left alone. `optuna.load_study(study_name=RUN, storage=URL)` opens it.
    """
    handle = names.find_run(run, place)
    handle.export(url)
    output.note(f"{handle.name} is a study of that name in the database; open it with optuna.load_study or optuna-dashboard")
