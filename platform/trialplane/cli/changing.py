"""Changes of a run's job: `platform edit`, `retry` and `diff`."""

from __future__ import annotations

import dataclasses

import click

from trialplane import errors
from trialplane.cli import foreground, names, output
from trialplane.client import target_choice
from trialplane.client.sdk import Platform
from trialplane.client.target import TargetName
from trialplane.errors import InputError
from trialplane.plan import changes

_sets_option = click.option(
    "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Field to set, as for `platform resume`. Repeatable."
)
_detach_option = click.option("--detach", is_flag=True, help="Return at once. The run continues in the background.")


@click.command("edit")
@names.run_argument
@names.target_options()
@_sets_option
@_detach_option
@output.option("table", "json", "yaml")
def edit_command(run: str | None, target_name: TargetName, sets: tuple[str, ...], detach: bool, output_format: str) -> int:
    """Change fields of RUN (default: the newest run), and continue it.

    A running run is paused for it: running trials are repeated, or continue from their checkpoints. If a field cannot
    change, nothing happens. `platform diff` shows what a job would change.
    """
    if not sets:
        raise click.UsageError("say what to change: --set trials=40")
    handle = names.find_run(run, target_name)
    with foreground.signals() as stop_signals:
        handle.edit(sets)
        output.note(f"{handle.name} continues")
        return foreground.detach(handle, output_format) if detach else foreground.attend(handle, output_format, stop_signals)


@click.command("retry")
@names.run_argument
@names.target_options()
@click.option("--failed", is_flag=True, help="Try all failed trials again.")
@_sets_option
@_detach_option
@output.option("table", "json", "yaml")
def retry_command(
    run: str | None, target_name: TargetName, failed: bool, sets: tuple[str, ...], detach: bool, output_format: str
) -> int:
    """Try the failed trials of the study RUN (default: the newest run) again, with the same parameters and code.

    They keep their numbers, and get all of their retries again. Their former attempts stay in
    `platform results --all-attempts`. Trials that have not started yet start as well.
    """
    if not failed:
        raise click.UsageError("say what to try again: --failed")
    handle = names.find_run(run, target_name)
    with foreground.signals() as stop_signals:
        count = handle.retry_failed(sets)
        output.note(f"{handle.name} continues with {errors.counted(count, 'failed trial')}")
        return foreground.detach(handle, output_format) if detach else foreground.attend(handle, output_format, stop_signals)


@click.command("diff")
@names.job_argument
@click.argument("run", required=False, shell_complete=names.complete_run)
@names.target_options()
@click.option("--profile", metavar="NAME", help="Profile in job.yaml to use.")
@_sets_option
@output.option("table", "json", "yaml")
def diff_command(
    job: str, run: str | None, target_name: TargetName, profile: str | None, sets: tuple[str, ...], output_format: str
) -> None:
    """Compare NAME, a job in jobs/NAME or a job's folder, with RUN (default: its newest run).

    Each difference is listed below the time at which it can take effect: while the run is active, when it is resumed, or
    only in a new run.
    """
    platform = Platform(target_choice.target_of(target_name))
    plan = platform.prepare(job, profile=profile, sets=sets).plan
    target = platform.target
    run = run or next((name for name in target.runs() if target.job(name).name == plan.job.name), None)
    if run is None:
        raise InputError(f"no run of {plan.job.name} in {target.location()}; name one: platform diff {job} RUN")
    handle = platform.get(run)
    old_job = handle.job
    if old_job.kind != plan.job.kind:
        raise InputError(f"{run} is a {old_job.title}, and {job} is a {plan.job.title}, which always needs a new run")
    groups = changes.changes_by_time(old_job, plan.job, started=len({row.trial for row in handle.attempts()}))
    differences = target.differences(dataclasses.replace(plan, run=run)) or []
    # The other differences are fields of the job, which `groups` has already. Other code always needs a new run.
    groups["in a new run"] += [difference for difference in differences if difference.startswith("code: ")]

    def text() -> str:
        """Return each group that is not empty as a heading with indented lines."""
        parts = [f"{moment}:\n" + "\n".join(f"  {line}" for line in lines) for moment, lines in groups.items() if lines]
        return "\n".join(parts) or f"{job} and {run} are the same"

    output.emit(output_format, {"run": run, **{moment.replace(" ", "_"): lines for moment, lines in groups.items()}}, text)
