"""`platform logs`: what the controller or a trial said."""

from __future__ import annotations

import click

from trialplane.cli import names
from trialplane.client.places import Place


@click.command("logs")
@names.run_argument
@names.place_options()
@click.argument("trial", type=click.IntRange(0), required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run, or the trial, has ended.")
@click.option("--submitter", is_flag=True, help="On a cluster: what the pod said that starts the controller.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt of the trial; the newest when left out.")
def command(run: str | None, place: Place, trial: int | None, follow: bool, submitter: bool, attempt: int | None) -> None:
    """Show the controller's log of RUN (the newest when left out), or the log of its TRIAL.

    `platform logs 7` is trial 7 of the newest run, as no run's name is a number.
    """
    if trial is None and run is not None and run.isdecimal():
        trial, run = int(run), None
    if attempt is not None and trial is None:
        raise click.UsageError("--attempt needs a TRIAL")
    if submitter and trial is not None:
        raise click.UsageError("--submitter has no TRIAL")
    handle = names.find_run(run, place)
    lines = handle.submitter_log(follow=follow) if submitter else handle.logs(trial, attempt, follow=follow)
    for line in lines:
        click.echo(line, nl=False)
