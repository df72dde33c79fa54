"""The platform as a Python object: `Platform().submit("criteria", overrides={"trials": 24}).wait()`.

The command line is a thin layer over this.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trialplane
from trialplane.client import run as running
from trialplane.client import target as targets
from trialplane.client.local import LocalTarget
from trialplane.client.run import RunHandle, Submitted
from trialplane.client.target import Target
from trialplane.errors import InputError, Issue, RunNotFound, SpecError
from trialplane.plan import plan as planning
from trialplane.plan.plan import Plan, Provenance
from trialplane.spec import inputs, load
from trialplane.spec.jobs import Job
from trialplane.wire import cluster


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A plan without issues, with warnings for the user."""

    plan: Plan
    warnings: tuple[str, ...]


class Platform:
    """Submits runs to one target and finds them again.

    Args:
        target: where runs live; this machine when None.
    """

    def __init__(self, target: Target | None = None) -> None:
        self.target: Target = target or LocalTarget()

    def prepare(
        self,
        job: str | Path,
        *,
        name: str | None = None,
        profile: str | None = None,
        sets: Sequence[str] = (),
        overrides: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
        issues: Sequence[Issue] = (),
        kind: str | None = None,
    ) -> Prepared:
        """Checks everything that can be checked and packs the code; starts and writes nothing.

        Args:
            job: name of a job, or the path of its folder.
            name: of the run; made from the job and the time when None.
            profile: name of one of the job's profiles.
            sets: `field=value` each.
            overrides: dotted field → value, or → `load.Flag`; None stands for a flag that was not given.
            params: values to fix; such parameters are removed from the space.
            command: what the user typed, for the record.
            issues: those found by the caller, shown with the others.
            kind: that the job must have; any when None.

        Raises:
            JobNotFound: there is no such job.
            SpecError: all issues, of the job, its data, the run's name and the target.
            InputError: the code cannot be packed.
        """
        folder = load.find_job(str(job), Path.cwd())
        found, notes = list(issues), list[str]()
        resolved: Job | None = None
        try:
            resolved = load.load_job(
                folder,
                profile=profile,
                sets=sets,
                overrides=overrides,
                params=params,
                environ=os.environ,
                kind=kind,
                notes=notes,
            )
            away = self.target.remote
            found += inputs.check_inputs(resolved, folder, cluster.DATA if away else "", away=away)
        except SpecError as error:
            found += error.issues
        if name is not None:
            found += planning.check_name(name)
        try:
            obstacles, warnings = self.target.check(resolved)
            found += obstacles
            found += self._check_resumed(resolved, name)
        except InputError as error:  # about the place itself: no such context, or no kubeconfig
            found.append(Issue(("--context",), str(error)))
        if found or resolved is None:
            raise SpecError(found)
        name = name or planning.default_name(folder.absolute().name, self.target.runs(), time.localtime())
        made = planning.plan(resolved, folder, name, _provenance(folder, command))
        return Prepared(made, (*notes, *resolved.advice(), *warnings))

    def _check_resumed(self, job: Job | None, name: str | None) -> list[Issue]:
        """Issues of the run from whose checkpoint a training, or a collection, is to start."""
        if job is None or job.resume is None:
            return []
        if job.resume == name:
            return [Issue(("resume",), f"is this run itself; `platform resume {name}` continues it", "--resume")]
        try:
            why = self._unfit(self.target.job(job.resume), job, job.resume)
        except RunNotFound as error:
            why = str(error)
        return [Issue(("resume",), why, "--resume")] if why else []

    def _unfit(self, old: Job, new: Job, run: str) -> str:
        """Why a training or a collection cannot start from a run of the job `old`, or ""."""
        if old.title != new.title:
            hint = f"; `platform best {run}` has its parameters" if old.search.space else ""
            return f"{run} is a {old.title}, and a {new.title} starts from another {new.title}{hint}"
        if old.name != new.name:
            return f"{run} is a {new.title} of the job {old.name}, whose checkpoints {new.name} cannot read; `platform list`"
        return self.target.missing_checkpoint(run, new)

    def start(self, plan: Plan) -> tuple[RunHandle, Submitted]:
        """Starts a plan; returns the outcome.

        Raises:
            RunExists: the name is taken by a run with another spec.
        """
        became = running.submit(self.target, plan)
        return RunHandle(plan.run, self.target), became

    def submit(self, job: str | Path, **options: Any) -> RunHandle:
        """`prepare` and `start` in one; the options are those of `prepare`."""
        return self.start(self.prepare(job, **options).plan)[0]

    def list(self) -> list[RunHandle]:
        """All runs, the newest first."""
        return [RunHandle(name, self.target) for name in self.target.runs()]

    def get(self, run: str | None = None) -> RunHandle:
        """The run of that name, or the newest.

        Raises:
            RunNotFound: there is none.
        """
        if run is None:
            names = self.target.runs()
            if not names:
                raise RunNotFound(targets.nothing_yet(self.target))
            return RunHandle(names[0], self.target)
        self.target.is_active(run)  # raises for an unknown name
        return RunHandle(run, self.target)


def _provenance(folder: Path, command: Sequence[str]) -> Provenance:
    revision = _git(folder, "rev-parse", "HEAD")
    return Provenance(
        job_folder=str(folder.absolute()),
        user=_user(),
        version=trialplane.__version__,
        command=tuple(command or sys.argv),
        git_revision=revision,
        git_dirty=bool(revision and _git(folder, "status", "--porcelain", "--", ".")),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number without a name
        return str(os.getuid())


def _git(folder: Path, *arguments: str) -> str:
    """The output of git in a folder, or "" without git, a repository or a commit."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
