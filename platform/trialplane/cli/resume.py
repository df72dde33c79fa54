"""`platform resume`: a run that stopped goes on."""

from __future__ import annotations

import click

from trialplane.cli import foreground, kinds, names, output
from trialplane.client.target import Place


@click.command("resume")
@names.run_argument
@names.place_options()
@click.option("--trials", type=int, help="Trials that must end, those of before included.")
@click.option("--parallel", type=int, help="Trials at the same time.")
@click.option("--iterations", type=int, metavar="N", help="Iterations of a collection, those of before included.")
@click.option("--workers", type=int, metavar="N", help="Producers of a collection at the same time.")
@click.option("--max-failed", type=int, metavar="N", help="Stop when more trials, or units of an iteration, failed.")
@click.option("--set", "sets", multiple=True, metavar="FIELD=VALUE", help="trials, parallel, budget.…, retries.…, collect.…")
@click.option("--detach", is_flag=True, help="Return at once; the run goes on in the background.")
@output.option("table", "json", "yaml")
def command(
    run: str | None,
    place: Place,
    trials: int | None,
    parallel: int | None,
    iterations: int | None,
    workers: int | None,
    max_failed: int | None,
    sets: tuple[str, ...],
    detach: bool,
    kind: str,
) -> int:
    """Go on with RUN, or the newest run, with the code and the spec it was submitted with.

    How long and how wide it goes may change; another space, sampler or code is another study, under another name.

    A training that failed is tried again from its newest checkpoint, with all its retries, and so is an iteration of a
    collection, with the weights of the one before.
    """
    handle = names.find_run(run, place)
    with foreground.signals() as received:
        changes = {"trials": trials, "parallel": parallel, kinds.of(handle.job).max_failed: max_failed}
        of_collection = {"collect.iterations": iterations, "collect.workers": workers}
        handle.resume(changes={**changes, **of_collection}, sets=sets)
        output.note(f"{handle.name} goes on")
        return foreground.detached(handle, kind) if detach else foreground.attend(handle, kind, received)
