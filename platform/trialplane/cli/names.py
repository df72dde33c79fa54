"""Arguments and options that name targets, runs and jobs; completion reads files of this machine and imports nothing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
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
    """Return names of runs on this machine, newest first, and of those submitted from here; contact no cluster."""
    modified: dict[str, float] = {}
    with contextlib.suppress(OSError, RuntimeError):  # the verb itself reports what is wrong with home
        for path in paths.runs(paths.home()).glob("[!.]*"):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                modified[path.name] = path.lstat().st_mtime
    here = sorted(modified, key=lambda name: modified[name], reverse=True)
    return [name for name in dict.fromkeys([*here, *target_choice.recall().runs]) if name.startswith(incomplete)]


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names of jobs in the nearest `jobs/` folder."""
    return [name for name in jobs() if name.startswith(incomplete)]


def jobs() -> list[str]:
    """Return the names of the jobs in the nearest `jobs/` folder, as a submission accepts them."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # the verb itself reports what is wrong with the working directory
        here = Path.cwd()
        folder = next((above / "jobs" for above in (here, *here.parents) if (above / "jobs").is_dir()), None)
        names = [] if folder is None else sorted(path.parent.name for path in folder.glob("*/job.yaml"))
    return names


run_argument = click.argument("run", required=False, shell_complete=complete_run)
job_argument = click.argument("job", metavar="NAME", shell_complete=complete_job)


def target_options(
    *, submits: bool = False, otherwise: TargetName = HERE
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--local`, `--context` and `--namespace` as the argument `target_name`.

    Args:
        submits: whether the verb creates a run; see `places`.
        otherwise: the target if nothing was submitted from here.
    """
    context_help = "Cluster, as a context of the kubeconfig."
    if not submits:
        last = "this machine" if otherwise.local else "the kubeconfig's current context"
        context_help += f" Default: the target of the last `submit` from here, else {last}."

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--namespace", "-n", metavar="NAME", help="Namespace of the cluster. Default: the context's.")
        @click.option("--context", metavar="NAME", help=context_help)
        @click.option("--local", is_flag=True, help="Use this machine instead of a cluster.")
        @functools.wraps(verb)
        def with_target(*args: Any, local: bool, context: str | None, namespace: str | None, **options: Any) -> Any:
            chosen = target_choice.choose(local, context, namespace, submits=submits, otherwise=otherwise)
            return verb(*args, target_name=chosen, **options)

        return with_target

    return decorate


def find_run(run: str | None, target_name: TargetName) -> RunHandle:
    """Return the run of that name, or the newest, of a target.

    Raises:
        RunNotFound: there is none; names another target that has it.
    """
    from trialplane.client.sdk import Platform  # needs pydantic, which completion should not wait for

    with _elsewhere(run, target_name):
        return Platform(target_choice.target_of(target_name)).get(run)


def find_status(run: str | None, target_name: TargetName) -> tuple[RunHandle, RunStatus]:
    """As `find_run`, with the run's status, in one request instead of two.

    Raises:
        RunNotFound: as `find_run`.
    """
    if run is None:
        handle = find_run(run, target_name)
        return handle, handle.status()
    from trialplane.client.run import RunHandle

    with _elsewhere(run, target_name):
        handle = RunHandle(run, target_choice.target_of(target_name))
        return handle, handle.status()


@contextlib.contextmanager
def _elsewhere(run: str | None, target_name: TargetName) -> Iterator[None]:
    """Add the target that has the run to the error for an unknown run."""
    from trialplane.errors import RunNotFound

    try:
        yield
    except RunNotFound as error:
        flags = "" if run is None else target_choice.flags_of_other_target(run, target_name)
        if not flags:
            raise
        raise RunNotFound(f"{error}\nAnother target has a run {run}: add {flags}") from error
