"""Changes of existing runs: `platform pause`, `resume`, `scale`, `cancel` and `delete`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from trialplane import errors
from trialplane.cli import foreground, kinds, names, output, progress
from trialplane.client.target import TargetName
from trialplane.errors import InputError, RunDamaged

if TYPE_CHECKING:  # imports pydantic, which would delay `--help`
    from trialplane.client.run import RunHandle

_now_option = click.option("--now", is_flag=True, help="Kill the controller and its trials instead of ending them cleanly.")
_yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


@click.command("pause")
@names.run_argument
@names.target_options()
@_now_option
def pause_command(run: str | None, target_name: TargetName, now: bool) -> None:
    """Stop RUN (default: the newest run), for `platform resume` to continue it later.

    Ended trials are kept. Running trials are repeated later, or continue from their checkpoints. On a cluster, all pods of
    the run are removed.
    """
    handle = names.find_run(run, target_name)
    status = handle.pause(now=now)
    output.note(f"{handle.name} {status.state}: {kinds.of(status).progress_when_stopped(status)}")
    output.note(f"`platform resume {handle.name}` continues it")


@click.command("resume")
@names.run_argument
@names.target_options()
@click.option("--trials", type=int, help="Total number of trials, including earlier ones.")
@click.option("--parallel", type=int, help="Number of trials that run at the same time.")
@click.option("--iterations", type=int, metavar="N", help="Total number of iterations, including earlier ones.")
@click.option("--workers", type=int, metavar="N", help="Number of workers of a collection.")
@click.option("--max-failed", type=int, metavar="N", help="Stop if more than this many trials, or units, fail.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Field to set: trials, parallel, space.…, sampler, pruner, budget.…, retries.… or collect.…. Repeatable.",
)
@click.option("--detach", is_flag=True, help="Return at once. The run continues in the background.")
@output.option("table", "json", "yaml")
def resume_command(
    run: str | None,
    target_name: TargetName,
    trials: int | None,
    parallel: int | None,
    iterations: int | None,
    workers: int | None,
    max_failed: int | None,
    sets: tuple[str, ...],
    detach: bool,
    output_format: str,
) -> int:
    """Continue RUN (default: the newest run), with the code and the job.yaml it was submitted with.

    The options change the number of trials, iterations and workers, the budget and the retries, and --set also the space,
    the sampler and the pruner of a study. Its trials keep their parameters and results. The sampler learns from those that
    are in the new space. To change the code or the objectives, submit a new run.

    A failed training continues from its newest checkpoint, and a failed iteration of a collection starts again from the
    weights of the previous one. Both get all of their retries again.
    """
    handle = names.find_run(run, target_name)
    with foreground.signals() as stop_signals:
        changes = {"trials": trials, "parallel": parallel, kinds.of(handle.job).max_failed_field: max_failed}
        collection_changes = {"collect.iterations": iterations, "collect.workers": workers}
        handle.resume(changes={**changes, **collection_changes}, sets=sets)
        output.note(f"{handle.name} continues")
        return foreground.detach(handle, output_format) if detach else foreground.attend(handle, output_format, stop_signals)


@click.command("scale")
@names.run_argument
@names.target_options()
@click.option(
    "--parallel",
    "--workers",
    "parallel",
    type=click.IntRange(1),
    required=True,
    help="New number of parallel trials, or of workers of a collection.",
)
@click.option("--now", is_flag=True, help="With a lower number: remove pods at once. The work in them is repeated.")
def scale_command(run: str | None, target_name: TargetName, parallel: int, now: bool) -> None:
    """Change the number of parallel trials, or of workers of a collection, of RUN (default: the newest run).

    No running trial is lost. A local run cannot be scaled while it is active: pause it, and resume it with --parallel or
    --workers. To change the number of iterations, use `platform resume --iterations`.

    With a lower number, the command waits until trials end, and then removes their pods. After Ctrl-C, the new number still
    applies. Repeat the command to remove the remaining pods.
    """
    handle = names.find_run(run, target_name)
    with progress.view(sys.stderr) as view:
        for status in handle.scale(parallel, now=now):
            view.update(status)
    count_text = errors.counted(parallel, kinds.of(handle.job).scaled_noun)
    output.note(f"{handle.name} runs up to {count_text} at the same time from now on")


@click.command("cancel")
@names.run_argument
@names.target_options()
@_now_option
@_yes_option
def cancel_command(run: str | None, target_name: TargetName, now: bool, yes: bool) -> None:
    """End RUN (default: the newest run), and keep the results of ended trials.

    `platform resume` can still continue it. A new submission with the same name cannot.
    """
    handle = names.find_run(run, target_name)
    if not yes:
        _ask_to_cancel(handle)
    status = handle.cancel(now=now)
    output.note(f"{handle.name} {status.state}: {kinds.of(status).progress_when_stopped(status)}")


def _ask_to_cancel(handle: RunHandle) -> None:
    """Ask for confirmation before a run is cancelled, unless it has ended already; see `_confirm`."""
    status = handle.status()
    if status.state.is_ended:  # `cancel` changes nothing, so no confirmation is needed
        return
    trials = errors.counted(status.ended_trials, f"ended {kinds.of(status).noun}")
    question = f"Cancel {handle.name} in {handle.log_location()}? Its results are kept, with {trials}"
    _confirm(question, f"cancel {handle.name}")


@click.command("delete")
@click.argument("run", shell_complete=names.complete_run)
@names.target_options()
@_yes_option
def delete_command(run: str, target_name: TargetName, yes: bool) -> None:
    """Delete RUN, with its ledger, logs, code and checkpoints, and the files that a collection wrote beside them.

    Records in MLflow are kept, and so are files in an object store or a folder that the job names. An active run is
    cancelled first.
    """
    handle = names.find_run(run, target_name)
    if not yes:
        _ask_to_delete(handle)
    handle.delete()
    output.note(f"{run} is deleted")


def _ask_to_delete(handle: RunHandle) -> None:
    """Ask for confirmation before a run is deleted; see `_confirm`."""
    run = handle.name
    active = ", which is active," if handle.is_active() else ""
    try:
        status = handle.status()
    except RunDamaged as error:
        question = f"{error}\nDelete {run}{active} with everything in {handle.log_location()}?"
    else:
        trials = errors.counted(status.ended_trials, f"ended {kinds.of(status).noun}")
        question = f"Delete {run}{active} with {trials}, in {handle.log_location()}?"
    _confirm(question, f"delete {run}")


def _confirm(question: str, action: str) -> None:
    """Ask the user for confirmation on the terminal.

    Args:
        question: Question about the action, with the run and its location.
        action: Action in short, for the error without a terminal, such as "delete demo-1".

    Raises:
        InputError: There is no terminal.
        click.Abort: The answer is no.
    """
    if sys.stdin is None or not sys.stdin.isatty():  # stdin is None if it was closed before the start
        raise InputError(f"there is no terminal to ask on; pass --yes to {action}")
    click.confirm(question, abort=True, err=True)
