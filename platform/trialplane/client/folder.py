"""The folder of a local run: made whole or not at all, compared with a new submission, kept when `resume` changed it."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from trialplane.client import changes, process
from trialplane.errors import InputError, RunExists, TargetError
from trialplane.plan import pack as packing
from trialplane.plan.plan import Plan
from trialplane.spec.job import Job
from trialplane.wire import env, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState


def create(run: RunPaths, plan: Plan) -> None:
    """Makes the folder of a run; it appears with everything in it or not at all.

    Raises:
        RunExists: another submission took the name in the meantime.
        InputError: the disk is full or cannot be written; nothing is left of the try.
    """
    with _written(run.root.parent):
        run.root.parent.mkdir(parents=True, exist_ok=True)
        scratch = RunPaths(Path(tempfile.mkdtemp(prefix=f".{plan.run}-", dir=run.root.parent)))
        try:
            now = time.time()
            packing.unpack(plan.pack.data, scratch.code)
            scratch.job.write_text(plan.job.model_dump_json(), encoding="utf-8")
            scratch.submission.write_text(json.dumps(plan.submission(now)), encoding="utf-8")
            scratch.status.write_text(records.to_json(pending(plan.run, plan.job, now)), encoding="utf-8")
            scratch.root.chmod(0o755)
            scratch.root.rename(run.root)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise RunExists(f"the run {plan.run} was submitted a moment ago; `platform status {plan.run}`") from error
            raise
        finally:
            shutil.rmtree(scratch.root, ignore_errors=True)


def discard(run: RunPaths) -> None:
    """Takes away a run on which nobody works."""
    with _written(run.root.parent):
        away = Path(tempfile.mkdtemp(prefix=f".{run.root.name}-", dir=run.root.parent))
        run.root.rename(away / "old")  # at once, so that no half-deleted run is ever seen
    shutil.rmtree(away, ignore_errors=True)


def pending(run: str, job: Job, created: float) -> RunStatus:
    """The status of a run whose controller has yet to speak."""
    return RunStatus(
        run=run,
        job=job.name,
        state=RunState.PENDING,
        trials=job.trials,
        parallel=job.width,
        kind=job.kind,
        slots_per_trial=job.nodes,
        reason="the controller is starting",
        objectives=tuple(objective.metric for objective in job.objectives),
        created=created,
        updated=time.time(),
    )


def load_job(run: RunPaths) -> Job:
    """The job of a run.

    Raises:
        TargetError: the file is gone or damaged, or of another version.
    """
    try:
        return Job.model_validate_json(run.job.read_bytes())
    except (OSError, ValidationError) as error:
        raise TargetError(f"{run.job} cannot be read: {error}") from error


def differences(run: RunPaths, plan: Plan) -> list[str]:
    """What a new submission has otherwise than the run of its name."""
    code = {name: (run.code / name).read_bytes() for name in packing.pack(run.code).files}
    return changes.differences(load_job(run), json.loads(run.submission.read_bytes())["code_hash"], code, plan)


def keep(run: RunPaths, job: Job) -> None:
    """Writes the changed job of a run that is not active."""
    with _written(run.root):
        process.replace(run.job, job.model_dump_json())


@contextlib.contextmanager
def seen(home: Path) -> Iterator[None]:
    """A home that this user may not look into, in words."""
    try:
        yield
    except PermissionError as error:
        raise InputError(
            f"{error.filename or home} is closed to you; set {env.HOME} to a folder of your own, or have it opened"
        ) from error


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[None]:
    """What the disk refuses, in words."""
    try:
        yield
    except OSError as error:
        what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise InputError(f"{folder} cannot be written: {what}; nothing was started") from error
