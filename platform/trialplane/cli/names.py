"""Arguments that name runs and jobs, with shell completion from the folders, nothing imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trialplane.wire import paths

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of runs on this machine, the newest first."""
    folder = paths.runs(paths.home())
    try:
        found = [path for path in folder.glob("[!.]*") if path.name.startswith(incomplete)] if folder.is_dir() else []
        return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]
    except OSError:  # the verb itself says what is wrong with home
        return []


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of jobs in the nearest `jobs/` folder."""
    here = Path.cwd()
    folder = next((above / "jobs" for above in (here, *here.parents) if (above / "jobs").is_dir()), None)
    names = [] if folder is None else sorted(path.parent.name for path in folder.glob("*/job.yaml"))
    return [name for name in names if name.startswith(incomplete)]


run_argument = click.argument("run", required=False, shell_complete=complete_run)
job_argument = click.argument("job", metavar="NAME", shell_complete=complete_job)


def find_run(run: str | None) -> RunHandle:
    """The run of that name, or the newest.

    Raises:
        RunNotFound: there is none.
    """
    from trialplane.client.sdk import Platform  # needs pydantic, which completion should not wait for

    return Platform().get(run)
