"""Arguments and options that name places, runs and jobs; completion reads files of this machine and imports nothing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trialplane.client import places
from trialplane.client.target import HERE, TargetName
from trialplane.wire import paths

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.wire.records import RunStatus


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of runs on this machine, the newest first, and of those submitted from here; contacts no cluster."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, RuntimeError):  # the verb itself reports what is wrong with home
        for path in paths.runs(paths.home()).glob("[!.]*"):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                found[path.name] = path.lstat().st_mtime
    here = sorted(found, key=lambda name: found[name], reverse=True)
    return [name for name in dict.fromkeys([*here, *places.recall().runs]) if name.startswith(incomplete)]


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of jobs in the nearest `jobs/` folder."""
    return [name for name in jobs() if name.startswith(incomplete)]


def jobs() -> list[str]:
    """Names of the jobs in the nearest `jobs/` folder, which a submission finds by them."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # the verb itself reports what is wrong with the working directory
        here = Path.cwd()
        folder = next((above / "jobs" for above in (here, *here.parents) if (above / "jobs").is_dir()), None)
        names = [] if folder is None else sorted(path.parent.name for path in folder.glob("*/job.yaml"))
    return names


run_argument = click.argument("run", required=False, shell_complete=complete_run)
job_argument = click.argument("job", metavar="NAME", shell_complete=complete_job)


def place_options(
    *, submits: bool = False, otherwise: TargetName = HERE
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options `--local`, `--context` and `--namespace`, as one argument `place` of the verb.

    Args:
        submits: whether the verb creates a run; see `places`.
        otherwise: where it looks when nothing was submitted from here.
    """
    place = "Cluster, as a context of the kubeconfig."
    if not submits:
        last = "this machine" if otherwise.local else "the kubeconfig's current context"
        place += f" Default: the target of the last `submit` from here, else {last}."

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--namespace", "-n", metavar="NAME", help="Namespace of the cluster. Default: the context's.")
        @click.option("--context", metavar="NAME", help=place)
        @click.option("--local", is_flag=True, help="Use this machine instead of a cluster.")
        @functools.wraps(verb)
        def with_place(*args: Any, local: bool, context: str | None, namespace: str | None, **given: Any) -> Any:
            chosen = places.chosen(local, context, namespace, submits=submits, otherwise=otherwise)
            return verb(*args, place=chosen, **given)

        return with_place

    return decorate


def find_run(run: str | None, place: TargetName) -> RunHandle:
    """The run of that name, or the newest, in a place.

    Raises:
        RunNotFound: there is none; names another place that has it.
    """
    from trialplane.client.sdk import Platform  # needs pydantic, which completion should not wait for

    with _elsewhere(run, place):
        return Platform(places.target_of(place)).get(run)


def find_status(run: str | None, place: TargetName) -> tuple[RunHandle, RunStatus]:
    """As `find_run`, with the run's status, in one request where finding it first would take a second one.

    Raises:
        RunNotFound: as `find_run`.
    """
    if run is None:
        handle = find_run(run, place)
        return handle, handle.status()
    from trialplane.client.run import RunHandle

    with _elsewhere(run, place):
        handle = RunHandle(run, places.target_of(place))
        return handle, handle.status()


@contextlib.contextmanager
def _elsewhere(run: str | None, place: TargetName) -> Iterator[None]:
    """Add the other place that has the run to the error for an unknown one."""
    from trialplane.errors import RunNotFound

    try:
        yield
    except RunNotFound as error:
        flags = "" if run is None else places.elsewhere(run, place)
        if not flags:
            raise
        raise RunNotFound(f"{error}\nThere is a run {run} in another place: add {flags}") from error
