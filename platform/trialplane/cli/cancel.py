"""`platform cancel`: a run ends, and what it has is kept."""

from __future__ import annotations

import click

from trialplane.cli import names, output, progress
from trialplane.client.places import Place


@click.command("cancel")
@names.run_argument
@names.place_options()
@click.option("--now", is_flag=True, help="Kill the controller and its trials instead of letting it end in order.")
def command(run: str | None, place: Place, now: bool) -> None:
    """Cancel RUN, or the newest run; trials that have ended are kept.

    `platform resume` goes on with it all the same; submitting it again under its name does not.
    """
    handle = names.find_run(run, place)
    status = handle.cancel(now=now)
    output.note(f"{handle.name} {status.state}: {progress.stand(status)}")
