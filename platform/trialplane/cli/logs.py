"""`platform logs`: the log of the controller or of a trial, or what happened in a run and who changed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trialplane.cli import kinds, names, output
from trialplane.client.target import Place
from trialplane.wire import escapes

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle

_MOST_DIGITS = 9  # of a trial's number; Python parses at most 4,300


@click.command("logs")
@names.run_argument
@names.place_options()
@click.argument("trial", type=click.IntRange(0), required=False)
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the run, or the trial, has ended.")
@click.option("--controller", is_flag=True, help="The controller's log; for a study the default without a TRIAL.")
@click.option("--worker", type=click.IntRange(0), help="Of a collection: the log of this worker in iteration TRIAL.")
@click.option("--attempt", type=click.IntRange(1), help="Attempt of the trial; default: the newest.")
@click.option("--events", is_flag=True, help="In place of a log: what happened in the run, when, and who changed it.")
def logs_command(
    run: str | None,
    place: Place,
    trial: int | None,
    follow: bool,
    controller: bool,
    worker: int | None,
    attempt: int | None,
    events: bool,
) -> None:
    """Show the controller's log of RUN (default: the newest run), or the log of its TRIAL; of a training, its own log.

    `platform logs 7` is trial 7 of the newest run, as no run's name is a number. All ranks of a trial write to its log.
    Of a collection it is the learner in iteration 7, and with --worker 2 that worker. With --events it is one line for each
    start and end of a trial and, on a cluster, for each change of what the run is to be, with who made it.
    """
    if events and (trial is not None or controller or follow):
        raise click.UsageError("--events is about a whole run, so far: it takes no TRIAL, --controller or --follow")
    if trial is None and run is not None and run.isdecimal() and len(run) <= _MOST_DIGITS:
        trial, run = int(run), None
    if controller and trial is not None:
        raise click.UsageError("--controller takes no TRIAL")
    if controller and attempt is not None:
        raise click.UsageError("--controller takes no --attempt")
    if worker is not None and trial is None:
        raise click.UsageError("--worker needs a TRIAL, which is the iteration: platform logs RUN 3 --worker 2")
    if worker is not None and attempt is not None:
        raise click.UsageError("--worker takes no --attempt: all of its processes in an iteration write to one log")
    handle = names.find_run(run, place)
    if events:
        _print_history(handle)
        return
    if worker is not None and trial is not None:
        lines = kinds.of(handle.job).worker_logs(handle, trial, worker, follow=follow)
    elif controller or trial == 0:  # which every run has, even one whose status is damaged
        lines = handle.logs(trial, attempt, follow=follow)
    else:
        lines = kinds.of(handle.status()).logs(handle, trial, attempt, follow=follow)
    for line in lines:
        # A progress bar returns to the start of the line; here each of its states is a line.
        plain = line.replace("\r\n", "\n").replace("\r", "\n")
        click.echo(escapes.visible(plain, colours=True), nl=False)


def _print_history(handle: RunHandle) -> None:
    """A line for each thing that happened, in the order of time: when, who, what."""
    found = handle.history()
    width = max((len(one.by) for one in found), default=0)
    for one in found:
        when = output.moment(one.at) or "now"
        click.echo(
            escapes.visible(f"{when:<19}  {one.by:<{width}}  {one.what}\n" if width else f"{when:<19}  {one.what}\n"),
            nl=False,
        )
