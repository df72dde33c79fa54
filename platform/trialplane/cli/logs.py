"""`platform logs`: what the controller or a trial said."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from trialplane import errors
from trialplane.cli import names, output
from trialplane.client.places import Place
from trialplane.client.run import RunHandle
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
def command(
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
    if worker is not None:
        _check_worker(handle, worker)
        lines = handle.logs(trial, follow=follow, worker=worker)
    else:
        lines = _lines(handle, trial, attempt, follow, controller, submitter)
    for line in lines:
        # A progress bar goes back to the line's beginning; here each of its states is a line.
        plain = line.replace("\r\n", "\n").replace("\r", "\n")
        click.echo(escapes.visible(plain, colours=True), nl=False)


def _lines(
    handle: RunHandle, trial: int | None, attempt: int | None, follow: bool, controller: bool, submitter: bool
) -> Iterator[str]:
    if submitter:
        return handle.submitter_log(follow=follow)
    if trial and handle.status().is_training:
        name = handle.name
        raise errors.InputError(
            f"{name} is a training, and has no trial {trial}: `platform logs {name}` shows what all its ranks said, "
            f"`platform logs {name} --attempt {trial}` its attempt {trial}"
        )
    if trial is not None or controller:
        return handle.logs(trial, attempt, follow=follow)
    if not handle.status().is_training:
        if attempt is not None:
            raise click.UsageError("--attempt needs a TRIAL")
        return handle.logs(follow=follow)
    if attempt is not None:
        return handle.logs(0, attempt, follow=follow)
    return _of_training(handle, follow)


def _check_worker(handle: RunHandle, worker: int) -> None:
    job = handle.job
    if job.kind != "collect":
        raise click.UsageError(f"--worker is for collections, and {handle.name} is none")


def _of_training(handle: RunHandle, follow: bool) -> Iterator[str]:
    """The newest attempt's log; with `follow` also those of the attempts after it."""
    shown = 0
    told = False
    while True:
        active = handle.is_active()  # asked first, so that an attempt that has just begun is not missed
        newest = max((row.attempt for row in handle.attempts()), default=0)
        if newest > shown:
            shown = newest
            yield from handle.logs(0, newest, follow=follow)
        elif not (follow and active):
            break
        else:
            if not shown and not told:
                told = True
                output.note(f"{handle.name} has not started to train; `platform status {handle.name}` says why")
            time.sleep(handle.target.poll)
        if not follow:
            break
    if not shown:
        output.note(f"{handle.name} has not started to train; this is what its controller said")
        yield from handle.logs()
