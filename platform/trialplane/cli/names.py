"""Arguments and options that name targets, runs and jobs.

Completion only reads files of this machine, and imports nothing that is slow.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trialplane.client import target_choice
from trialplane.client.target import HERE, TargetName
from trialplane.wire import paths

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.wire.records import RunStatus


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names of local runs, newest first, and of runs that this machine submitted. No cluster is contacted."""
    change_times: dict[str, float] = {}
    with contextlib.suppress(OSError, RuntimeError):  # the verb reports the problem of the home folder
        for path in paths.runs(paths.home()).glob("[!.]*"):  # hidden folders are no runs
            with contextlib.suppress(FileNotFoundError):  # the run was deleted in the meantime
                change_times[path.name] = path.lstat().st_mtime
    local_runs = sorted(change_times, key=lambda name: change_times[name], reverse=True)
    return [name for name in dict.fromkeys([*local_runs, *target_choice.recall().runs]) if name.startswith(incomplete)]


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names of jobs in the nearest `jobs/` folder."""
    return [name for name in jobs() if name.startswith(incomplete)]


def jobs() -> list[str]:
    """Return the names of the jobs in the nearest `jobs/` folder, as a submission accepts them."""
    job_names: list[str] = []
    with contextlib.suppress(OSError):  # the verb reports the problem of the working directory
        current = Path.cwd()
        folder = next((parent / "jobs" for parent in (current, *current.parents) if (parent / "jobs").is_dir()), None)
        job_names = [] if folder is None else sorted(path.parent.name for path in folder.glob("*/job.yaml"))
    return job_names


run_argument = click.argument("run", required=False, shell_complete=complete_run)
job_argument = click.argument("job", metavar="NAME", shell_complete=complete_job)


def target_options(
    *, submits: bool = False, default_target: TargetName = HERE
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--local`, `--context` and `--namespace` as the argument `target_name`.

    Args:
        submits: Whether the verb creates a run; see `target_choice`.
        default_target: Target if nothing was submitted from this machine. Unused with `submits`.
    """
    context_help = "Cluster, as a context of the kubeconfig."
    if not submits:
        fallback = "this machine" if default_target.local else "the kubeconfig's current context"
        context_help += f" Default: the target of the last `submit` from here, else {fallback}."

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        """Return the verb with the options, whose values become its argument `target_name`."""

        @click.option("--namespace", "-n", metavar="NAME", help="Namespace of the cluster. Default: the context's.")
        @click.option("--context", metavar="NAME", help=context_help)
        @click.option("--local", is_flag=True, help="Use this machine instead of a cluster.")
        @functools.wraps(verb)
        def with_target(*args: Any, local: bool, context: str | None, namespace: str | None, **options: Any) -> Any:
            target_name = target_choice.choose(local, context, namespace, submits=submits, default_target=default_target)
            return verb(*args, target_name=target_name, **options)

        return with_target

    return decorate


def find_run(run: str | None, target_name: TargetName) -> RunHandle:
    """Return a run of a target; None selects the newest.

    Raises:
        RunNotFound: There is no such run. The message names another target that has it.
    """
    from trialplane.client.sdk import Platform  # imports pydantic, which would delay completion

    with _name_other_target(run, target_name):
        return Platform(target_choice.target_of(target_name)).get(run)


def find_runs(runs: Sequence[str], target_name: TargetName) -> list[RunHandle]:
    """Return runs of a target, each once; none selects the newest. For the errors, see `find_run`."""
    if not runs:
        return [find_run(None, target_name)]
    return [find_run(run, target_name) for run in dict.fromkeys(runs)]


def find_status(run: str | None, target_name: TargetName) -> tuple[RunHandle, RunStatus]:
    """Return a run of a target and its status, in one request instead of two; None selects the newest.

    Raises:
        RunNotFound: There is no such run. The message names another target that has it.
    """
    if run is None:
        handle = find_run(run, target_name)
        return handle, handle.status()
    from trialplane.client.run import RunHandle

    with _name_other_target(run, target_name):
        handle = RunHandle(run, target_choice.target_of(target_name))
        return handle, handle.status()


@contextlib.contextmanager
def _name_other_target(run: str | None, target_name: TargetName) -> Iterator[None]:
    """Extend the error for an unknown run by the flags of another target that has the run."""
    from trialplane.errors import RunNotFound

    try:
        yield
    except RunNotFound as error:
        flags = "" if run is None else target_choice.flags_of_other_target(run, target_name)
        if not flags:
            raise
        raise RunNotFound(f"{error}\nAnother target has a run {run}: add {flags}") from error
