"""`platform logs`: what the controller or a trial said."""

from __future__ import annotations

import click

from trialplane.cli import kinds, names
from trialplane.client.target import Place
from trialplane.wire import escapes

_MOST_DIGITS = 9  # of a trial's number; Python reads none of more than 4,300


@click.command("logs")
@names.run_argument
@names.place_options()
@click.argument("trial", type=click.IntRange(0), required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run, or the trial, has ended.")
@click.option("--controller", is_flag=True, help="What the controller said; without a TRIAL a study shows that anyhow.")
@click.option("--submitter", is_flag=True, help="On a cluster: what the pod said that starts the controller.")
@click.option("--worker", type=click.IntRange(0), help="Of a collection: this producer in iteration TRIAL.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt of the trial; the newest when left out.")
def logs_command(
    run: str | None,
    place: Place,
    trial: int | None,
    follow: bool,
    controller: bool,
    submitter: bool,
    worker: int | None,
    attempt: int | None,
) -> None:
    """Show the controller's log of RUN (the newest when left out), or the log of its TRIAL; of a training, its own log.

    `platform logs 7` is trial 7 of the newest run, as no run's name is a number. All ranks of a trial write into its log.
    Of a collection it is the consumer of iteration 7, and with --worker 2 that producer.
    """
    if trial is None and run is not None and run.isdecimal() and len(run) <= _MOST_DIGITS:
        trial, run = int(run), None
    for flag, given in (("--submitter", submitter), ("--controller", controller)):
        if given and trial is not None:
            raise click.UsageError(f"{flag} has no TRIAL")
        if given and attempt is not None:
            raise click.UsageError(f"{flag} has no --attempt")
    if submitter and controller:
        raise click.UsageError("--submitter and --controller are two logs; choose one")
    if worker is not None and trial is None:
        raise click.UsageError("--worker needs a TRIAL, which is the iteration: platform logs RUN 3 --worker 2")
    if worker is not None and attempt is not None:
        raise click.UsageError("--worker has no --attempt: all of its processes in an iteration write into one log")
    handle = names.find_run(run, place)
    if submitter:
        lines = handle.submitter_log(follow=follow)
    elif worker is not None and trial is not None:
        lines = kinds.of(handle.job).worker_logs(handle, trial, worker, follow=follow)
    elif controller or trial == 0:  # which every run has, so that a damaged status is no hindrance
        lines = handle.logs(trial, attempt, follow=follow)
    else:
        lines = kinds.of(handle.status()).logs(handle, trial, attempt, follow=follow)
    for line in lines:
        # A progress bar goes back to the line's beginning; here each of its states is a line.
        plain = line.replace("\r\n", "\n").replace("\r", "\n")
        click.echo(escapes.visible(plain, colours=True), nl=False)
