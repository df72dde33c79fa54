"""Folder of a local run: created atomically, compared with a new submission, updated by `resume`.

The errors of a damaged folder affect no other run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trialplane import errors
from trialplane.client import process
from trialplane.errors import InputError, RunDamaged, RunExists, RunNotFound
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.plan import changes
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan
from trialplane.wire import env, paths, records
from trialplane.wire.paths import RunPaths


def create(run: RunPaths, plan: Plan) -> None:
    """Create the folder of a run. It appears with all of its files or not at all.

    Raises:
        RunExists: Another submission took the name in the meantime.
        InputError: The disk is full or cannot be written.
    """
    with explain_write_errors(run.root.parent):
        paths.make_home(run.home)
        run.root.parent.mkdir(exist_ok=True)
        scratch = RunPaths(Path(tempfile.mkdtemp(prefix=f".{plan.run}-", dir=run.root.parent)))
        try:
            now = time.time()
            packing.unpack(plan.pack.data, scratch.code)
            scratch.job.write_text(plan.job.model_dump_json(), encoding="utf-8")
            scratch.submission.write_text(json.dumps(plan.submission(now)), encoding="utf-8")
            scratch.status.write_text(records.to_json(planning.pending_status(plan.run, plan.job, now)), encoding="utf-8")
            scratch.root.chmod(0o755)
            scratch.root.rename(run.root)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise RunExists(f"the run {plan.run} was submitted a moment ago; `platform status {plan.run}`") from error
            raise
        finally:
            shutil.rmtree(scratch.root, ignore_errors=True)


def discard(run: RunPaths) -> None:
    """Remove an inactive run, damaged or not.

    Raises:
        InputError: The folder cannot be removed, or not completely.
    """
    with explain_write_errors(run.root.parent, "nothing was deleted"):
        trash = Path(tempfile.mkdtemp(prefix=f".{run.root.name}-", dir=run.root.parent))
        try:
            run.root.rename(trash / "old")  # atomically, so that no half-deleted run is ever visible
        except OSError:
            trash.rmdir()
            raise
    shutil.rmtree(trash, ignore_errors=True)
    if trash.exists():  # the job has made folders inaccessible
        for parent, names, _ in os.walk(trash):
            for name in names:
                allow_access(Path(parent) / name)
        shutil.rmtree(trash, ignore_errors=True)
    if trash.exists():
        raise InputError(f"{run.root.name} is deleted, but not all of its files can be removed: see {trash}")


def allow_access(folder: Path) -> None:
    """Let this user read and write a folder. Do nothing if it is another user's."""
    if not folder.is_symlink():
        with contextlib.suppress(OSError):  # a later failure reports it
            folder.chmod(folder.stat().st_mode | stat.S_IRWXU)


def is_run(root: Path) -> bool:
    """Return whether a path in the folder of runs is a run, damaged or not. A file is not a run.

    Raises:
        OSError: The folder of runs cannot be read.
    """
    try:
        return not stat.S_ISREG(root.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def damage_error(run: RunPaths, file: Path, problem: Exception | str, advice: str = "") -> RunDamaged | RunNotFound:
    """Return the error for a run with an unreadable file: RunNotFound if the run was deleted in the meantime.

    Args:
        run: Paths of the run.
        file: Unreadable file.
        problem: Error, or text that follows the file's name.
        advice: Alternative to deleting the run, as a sentence.
    """
    name = run.root.name
    if not os.path.lexists(run.root):
        return RunNotFound(f"the run {name!r} no longer exists; it was deleted a moment ago")
    if isinstance(problem, PermissionError) and not os.access(run.root, os.R_OK | os.X_OK):
        file, advice = run.root, f"`chmod u+rwx {run.root}` restores access, if it is yours."
    remedies = f"{advice} `platform delete {name}` deletes it".strip()
    return RunDamaged(
        f"the run {name} is damaged: {file} {_problem_text(problem)}. {remedies}; its remaining files are in {run.root}"
    )


def _problem_text(problem: Exception | str) -> str:
    """Return a problem as text that follows the file's name."""
    if isinstance(problem, str):
        return problem
    if isinstance(problem, FileNotFoundError):
        return "is missing"
    if isinstance(problem, OSError):
        return f"cannot be read ({problem.strerror})"
    if isinstance(problem, ValidationError):
        first = problem.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return f"is not of this version ({field}: {first['msg']})" if field else f"holds no valid job ({first['msg']})"
    return f"is not valid ({errors.first_line(problem)})"


def load_job(run: RunPaths) -> Job:
    """Return the job of a run.

    Raises:
        RunDamaged: The file is missing, damaged or of another version.
    """
    try:
        return kinds.read(run.job.read_bytes())
    except (OSError, ValidationError) as error:
        raise damage_error(run, run.job, error) from error


def pack_code(run: RunPaths) -> Pack:
    """Return the code of a run, whose folder has the packages of its job, without links to data.

    Raises:
        RunDamaged: The file of the job is damaged.
        InputError: The folder of the code is damaged.
    """
    return packing.pack(run.code, ignored=packing.ignored_lines(load_job(run).links))


def load_submission(run: RunPaths) -> Mapping[str, Any]:
    """Return the facts of a run's submission, which include `submitted` and `code_hash`.

    Raises:
        RunDamaged: The file is missing or damaged.
    """
    try:
        facts: dict[str, Any] = json.loads(run.submission.read_bytes())
        if not (math.isfinite(facts["submitted"]) and isinstance(facts["code_hash"], str)):
            raise ValueError("it has no time or no code")
    except (OSError, ValueError) as error:
        raise damage_error(run, run.submission, error) from error
    except (KeyError, TypeError) as error:
        raise damage_error(run, run.submission, f"is not valid ({type(error).__name__}: {error})") from error
    return facts


def differences(run: RunPaths, plan: Plan) -> list[str]:
    """Return the differences between a new submission and the run with its name."""
    try:
        code = {name: (run.code / name).read_bytes() for name in pack_code(run).files}
    except (OSError, InputError) as error:
        raise damage_error(run, run.code, f"cannot be read: {errors.first_line(error)}") from error
    return changes.differences(load_job(run), load_submission(run), code, plan)


def replace_job(run: RunPaths, job: Job) -> None:
    """Write the changed job of a run that is not active."""
    with explain_write_errors(run.root):
        process.replace(run.job, job.model_dump_json())


@contextlib.contextmanager
def explain_read_errors(home: Path) -> Iterator[None]:
    """Map errors about a home that this user may not read.

    Raises:
        InputError: The home may not be read.
    """
    try:
        yield
    except PermissionError as error:
        raise InputError(
            f"you may not read {error.filename or home}; set {env.HOME} to a folder of your own, or ask for access"
        ) from error


@contextlib.contextmanager
def explain_write_errors(folder: Path, consequence: str = "nothing was started") -> Iterator[None]:
    """Map errors of writing to a folder.

    Args:
        folder: Folder to write to.
        consequence: What did not happen, for the message.

    Raises:
        InputError: The folder cannot be written, or the disk is full.
    """
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise InputError(f"{folder} cannot be written: {reason}; {consequence}") from error
