"""`platform logs`: the log of the controller or of a trial, or the events of a run, with the users who changed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trialplane.cli import kinds, names, output
from trialplane.client.target import TargetName
from trialplane.wire import escapes

if TYPE_CHECKING:  # imports pydantic, which would delay `--help`
    from trialplane.client.run import RunHandle

_MAX_DIGITS = 9  # of a trial's number


@click.command("logs")
@names.run_argument
@names.target_options()
@click.argument("trial", type=click.IntRange(0), required=False)
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the run or the trial ends.")
@click.option("--controller", is_flag=True, help="Show the controller's log. This is the default for a study without TRIAL.")
@click.option("--worker", type=click.IntRange(0), help="Worker of a collection whose log to show, in iteration TRIAL.")
@click.option("--attempt", type=click.IntRange(1), help="Attempt of the trial. Default: the newest.")
@click.option("--events", is_flag=True, help="Show events: starts and ends of trials, and who changed the run.")
def logs_command(
    run: str | None,
    target_name: TargetName,
    trial: int | None,
    follow: bool,
    controller: bool,
    worker: int | None,
    attempt: int | None,
    events: bool,
) -> None:
    """Show the log of RUN (default: the newest run), or of its TRIAL.

    Without TRIAL, this is the controller's log; for a training, it is the log of the training. All ranks of a trial write to
    the same log. For a collection, TRIAL is an iteration: the log is that of the learner or, with --worker, of a worker.

    \b
    platform logs 7               trial 7 of the newest run
    platform logs demo-1 7 -f     trial 7 of demo-1, until it ends; demo-1:7 is the same
    platform logs demo-1 --events
    """  # noqa: D301  \b is click's mark
    if events and (trial is not None or attempt is not None or controller or follow):
        options = "TRIAL, --attempt, --controller or --follow"
        raise click.UsageError(f"--events is about a whole run up to now: it takes no {options}")
    if trial is None and run is not None:
        run_name, _, number = run.rpartition(":")
        if number.isdecimal() and len(number) <= _MAX_DIGITS:  # `platform logs 7` or `platform logs demo-1:7`
            trial, run = int(number), run_name or None
    if controller and trial is not None:
        raise click.UsageError("--controller takes no TRIAL")
    if controller and attempt is not None:
        raise click.UsageError("--controller takes no --attempt")
    if worker is not None and trial is None:
        raise click.UsageError("--worker needs a TRIAL, which is the iteration: platform logs RUN 3 --worker 2")
    if worker is not None and attempt is not None:
        raise click.UsageError("--worker takes no --attempt: all of its processes in an iteration write to one log")
    handle = names.find_run(run, target_name)
    if events:
        _print_history(handle)
        return
    if worker is not None and trial is not None:
        lines = kinds.of(handle.job).worker_logs(handle, trial, worker, follow=follow)
    elif controller or trial == 0:  # all kinds have these logs, so that the status, which may be damaged, is not needed
        lines = handle.logs(trial, attempt, follow=follow)
    else:
        lines = kinds.of(handle.status()).logs(handle, trial, attempt, follow=follow)
    for line in lines:
        click.echo(escapes.escape_controls(line, colors=True), nl=False)


def _print_history(handle: RunHandle) -> None:
    """Print a line for each event, in order: time, user, text."""
    events = handle.history()
    user_width = max((len(event.by) for event in events), default=0)  # 0 if no event names a user
    for event in events:
        time = output.moment(event.at) or "now"
        user = f"  {event.by:<{user_width}}" if user_width else ""
        click.echo(escapes.escape_controls(f"{time:<19}{user}  {event.text}\n"), nl=False)
