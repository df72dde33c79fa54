"""`platform cancel`: a run ends, and what it has is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trialplane import errors
from trialplane.cli import asking, kinds, names, output
from trialplane.client.target import Place

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle


@click.command("cancel")
@names.run_argument
@names.place_options()
@click.option("--now", is_flag=True, help="Kill the controller and its trials instead of letting it end in order.")
@asking.yes_option
def command(run: str | None, place: Place, now: bool, yes: bool) -> None:
    """Cancel RUN, or the newest run; trials that have ended are kept.

    `platform resume` goes on with it all the same; submitting it again under its name does not.
    """
    handle = names.find_run(run, place)
    if not yes:
        _ask(handle)
    status = handle.cancel(now=now)
    output.note(f"{handle.name} {status.state}: {kinds.of(status).stand(status)}")


def _ask(handle: RunHandle) -> None:
    before = handle.status()
    if before.state.is_ended:  # there is nothing to cancel, which is said without a question
        return
    ended = errors.counted(before.ended_trials, f"ended {kinds.of(before).noun}")
    question = f"Cancel {handle.name} in {handle.log_place()}? What it has is kept, with {ended}"
    asking.confirm(question, f"cancel {handle.name}")
