"""Writes data that arrives at the controller into the run's folder.

In a cluster the submission comes from the files that are mounted into the pod. Logs, MLflow stores and arrays of trials come
from slots.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import sqlite3
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.plan import pack
from trialplane.wire import cluster
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialRequest

log = logging.getLogger(__name__)


def copy_submission(submitted: Path, run: RunPaths) -> None:
    """Copy the submission into the run's folder, replacing the copy of an earlier start.

    Args:
        submitted: Folder with `run/job.json`, `run/submission.json` and `code/code.tar.gz`.
        run: Paths of the run, whose other files stay.

    Raises:
        InputError: A file is missing or damaged, or cannot be written.
    """
    submitted_run = submitted / Path(cluster.SPEC_MOUNT).name
    try:
        run.root.mkdir(parents=True, exist_ok=True)
        archive = pack.read(code_archive(submitted))
        submission = json.loads((submitted_run / run.submission.name).read_text(encoding="utf-8"))
        # The code is unpacked beside its folder and then renamed, so that a crash never leaves a half-written folder.
        with tempfile.TemporaryDirectory(prefix=".code-", dir=run.root) as scratch:
            new_code, old_code = Path(scratch) / "new", Path(scratch) / "old"
            pack.unpack(archive, new_code, sha256=str(submission.get("code_hash", "")))
            with contextlib.suppress(FileNotFoundError):
                run.code.rename(old_code)
            new_code.rename(run.code)
        for file in (run.job, run.submission):
            partial = file.with_suffix(".partial")
            shutil.copyfile(submitted_run / file.name, partial)
            partial.replace(file)
    except OSError as error:
        raise errors.InputError(
            f"the submission cannot be copied into {run.root}: {error}; is {submitted} mounted, and has the disk room?"
        ) from error


def code_archive(submitted: Path) -> Path:
    """Return the path of a submission's packed code. Large code has more parts, which `pack.read` finds beside it."""
    return submitted / Path(cluster.CODE_MOUNT).name / cluster.CODE_KEY


def add_to_log(run: RunPaths, request: TrialRequest, lines: bytes) -> None:
    """Append lines to the log of an attempt. If that fails, they are lost, and the run continues."""
    file = run.trial_log(request.trial, request.attempt, request.worker)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            stream.write(lines)
    except OSError as error:
        log.warning("the log of trial %d cannot be written to %s: %s", request.trial, file, error.strerror)


def unpack_store(run: RunPaths, number: int, packed: Any) -> None:
    """Unpack the MLflow store of an attempt, with its artifacts, into the folder in which the exporter expects it.

    A store that cannot be unpacked is lost: a warning is logged, and the run continues.

    Args:
        run: Paths of the run.
        number: Number of the attempt in the ledger.
        packed: Bytes of a tar file, as a numpy array.
    """
    store = run.trial_store(number)
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed.tobytes())) as files:
            has_artifacts = any(name.startswith(f"{store.stem}.artifacts") for name in files.getnames())
            for member in files:
                if not member.isdir():
                    pack.extract(files, member, store.parent)
        _relocate_artifacts(store)
    except (OSError, tarfile.TarError, sqlite3.Error) as error:
        log.warning("what attempt %d logged to MLflow by itself is lost: %s", number, error)
        store.unlink(missing_ok=True)
        return
    if not has_artifacts:
        log.info("attempt %d logged to MLflow by itself, without artifacts or with ones too large to send", number)


def write_arrays(packed: Any, file: Path) -> None:
    """Write the packed arrays of a result, the bytes of a file as one numpy array, to a file: completely or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(packed.data)  # not numpy's own `tofile`, which does not report a full disk
    partial.replace(file)


def _relocate_artifacts(store: Path) -> None:
    """Let a store refer to the artifacts in the folder beside it, instead of the folder that they had in the slot.

    For example, `file:///SLOT/attempt-5.artifacts/1/ab` becomes `file:///RUN/attempt-5.artifacts/1/ab`.
    """
    folder = store.with_suffix(".artifacts")
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:  # the second one commits the changes
        for table, key, column in (
            ("experiments", "experiment_id", "artifact_location"),
            ("runs", "run_uuid", "artifact_uri"),
        ):
            for row_id, old_uri in connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall():
                _, found_name, path_in_folder = str(old_uri).rpartition(folder.name)
                if found_name:  # otherwise the URI names another location, such as a server
                    new_uri = folder.as_uri() + path_in_folder
                    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (new_uri, row_id))
