"""`platform cancel`: a run ends for good."""

from __future__ import annotations

import click

from trialplane.cli import names, output


@click.command("cancel")
@names.run_argument
@click.option("--now", is_flag=True, help="Kill the controller and its trials instead of letting it end in order.")
def command(run: str | None, now: bool) -> None:
    """Cancel RUN, or the newest run; trials that have ended are kept.

    To go on later, stop it with Ctrl-C instead. `platform resume` goes on with a cancelled run as well.
    """
    handle = names.find_run(run)
    status = handle.cancel(now=now)
    output.note(f"{handle.name} {status.state}: {status.ended_trials} of {status.trials} trials had ended")
