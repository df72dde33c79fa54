"""`platform pause`: a run stops, so that `platform resume` goes on."""

from __future__ import annotations

import click

from trialplane.cli import kinds, names, output
from trialplane.client.target import Place


@click.command("pause")
@names.run_argument
@names.place_options()
@click.option("--now", is_flag=True, help="Kill the controller and its trials instead of letting it end in order.")
def command(run: str | None, place: Place, now: bool) -> None:
    """Stop RUN, or the newest run; `platform resume` goes on with it.

    Trials that have ended are kept, those that run are run again. On a cluster it gives back all of its pods.
    """
    handle = names.find_run(run, place)
    status = handle.pause(now=now)
    output.note(f"{handle.name} {status.state}: {kinds.of(status).stand(status)}")
    output.note(f"`platform resume {handle.name}` goes on with it")
