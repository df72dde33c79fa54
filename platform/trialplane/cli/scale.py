"""`platform scale`: a run on a cluster goes on with more or fewer trials, or workers of a collection, at the same time."""

from __future__ import annotations

import sys

import click

from trialplane import errors
from trialplane.cli import kinds, names, output, progress
from trialplane.client.target import Place


@click.command("scale")
@names.run_argument
@names.place_options()
@click.option(
    "--parallel",
    "--workers",
    "parallel",
    type=click.IntRange(1),
    required=True,
    help="Trials, or workers of a collection, at the same time from now on.",
)
@click.option("--now", is_flag=True, help="With fewer: take pods away at once; what was done in them is done again.")
def command(run: str | None, place: Place, parallel: int, now: bool) -> None:
    """Change how many trials of RUN, or of the newest run, go at the same time. No running trial is lost.

    Of a collection it is how many workers produce; how many iterations there are is `platform resume --iterations`.

    With fewer than before it waits until trials end, and then gives their pods back. After a Ctrl-C the run keeps to the
    new number all the same; the same command again gives back the pods that it then does not need.
    """
    handle = names.find_run(run, place)
    with progress.view(sys.stderr) as shown:
        for status in handle.scale(parallel, now=now):
            shown.update(status)
    scaled = errors.counted(parallel, kinds.of(handle.job).scaled)
    output.note(f"{handle.name} runs up to {scaled} at the same time from now on")
