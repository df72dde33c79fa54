"""Send the files that a study's `keep.files` names to the MLflow runs of its best trials.

A controller requests this from a slot at the end of a run, because a slot can read the location of the checkpoints. MLflow
is imported in a process of its own, `python -m trialplane.worker.kept_files LOCATION`, which reads a message, answers with
one, and is killed at its timeout. A file that MLflow has with the same size is not sent again, so a request can be repeated.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.training import lean_imports, mlflow_runs, process
from trialplane.wire import env, escapes, messages, paths, records
from trialplane.worker import trial

FOLDER = "kept_files"  # among a run's artifacts
_NICENESS = 5  # lower priority than trials, but on a full machine still several percent of a core
_CLIENT_SETTINGS = {  # MLflow's client would retry for minutes; the controller retries instead
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",  # seconds for one file, as the server answers when the file is stored
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_RETRYABLE_STATUS = (401, 403, 407, 408, 429)  # an expired token or a rate limit: a later request may succeed
MAX_FILES = 1000  # files of one trial
_UNSENDABLE = re.compile(r"#|%[0-9A-Fa-f]{2}")  # MLflow's client joins names into URLs as they are
_MAX_SHOWN = 3  # files in a message


def send(config: records.SlotConfig, message: messages.SendFiles) -> messages.FilesSent:
    """Send a trial's files within the request's time limit; return the answer, with a message if files were not sent."""
    try:
        completed = subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "trialplane.worker.kept_files",
                trial.checkpoint_folder(config, config.run, message.trial),
            ],
            input=messages.encode(message),
            capture_output=True,
            env={**os.environ, **config.env, **_CLIENT_SETTINGS},
            timeout=message.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return messages.FilesSent(f"they were not sent within {message.seconds:.0f} s", again=True)
    if completed.returncode:
        last_line = completed.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        text = f"the process that sends them ended with {completed.returncode}: {last_line:.200}"
        return messages.FilesSent(text, again=True)
    return messages.decode(completed.stdout, messages.FILES_SENT)


def main() -> None:
    """Read a `SendFiles` from standard input, send the files, and write a `FilesSent` to standard output."""
    answers = os.dup(1)
    os.dup2(2, 1)  # MLflow may print to standard output
    process.end_with_parent()
    os.nice(_NICENESS)
    lean_imports.install()  # before MLflow is imported
    message = messages.decode(sys.stdin.buffer.read(), messages.SEND_FILES)
    try:
        answer = _send_to_run(message.number, f"{sys.argv[1]}/files")
    except Exception as error:  # noqa: BLE001  the border: whatever MLflow, or an object store, raises
        answer = messages.FilesSent(_reason(error), again=True)
    os.write(answers, messages.encode(answer))


def _send_to_run(number: int, location: str) -> messages.FilesSent:
    """Send the files at a location to the MLflow run of the attempt with this number; return the answer."""
    import mlflow  # takes seconds, and only this process needs it

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(os.environ[env.MLFLOW_EXPERIMENT_NAME])
    tags = mlflow_runs.identifying_tags(os.environ, number)
    run = mlflow_runs.find_run(client, experiment.experiment_id, tags) if experiment else ""
    if not run:
        return messages.FilesSent("MLflow does not have the trial's run yet", again=True)
    return upload(client, run, location, by_http=mlflow.get_tracking_uri().startswith(("http://", "https://")))


def upload(client: Any, run: str, location: str, *, by_http: bool) -> messages.FilesSent:
    """Send the files below a folder or URL, except those that MLflow has. If one fails, the others are sent all the same.

    Args:
        client: Client of MLflow.
        run: Id of the MLflow run.
        location: Folder or URL.
        by_http: Whether MLflow is reached by HTTP, where some names of files are changed.

    Returns:
        The answer, with a message about files that were not sent.

    Raises:
        Exception: MLflow or the object store cannot be reached, so no other file is tried.
    """
    stored_sizes = dict(_list_artifacts(client, run, FOLDER))
    files = _files(location)
    unsent: dict[str, str] = {}  # name of a file → reason
    may_retry = False
    for name, size in files[:MAX_FILES]:
        if stored_sizes.get(f"{FOLDER}/{name}") == size:
            continue
        if by_http and _UNSENDABLE.search(name):
            unsent[name] = "MLflow would store it under another name: rename it, without # and % before two hex digits"
            continue
        try:
            with _local_file(location, name) as file:
                client.log_artifact(run, str(file), posixpath.join(FOLDER, posixpath.dirname(name)).rstrip("/"))
        except Exception as error:
            if _is_unreachable(error):
                raise
            may_retry = may_retry or not _is_refusal(error)
            unsent[name] = _reason(error)
    return messages.FilesSent(_unsent_message(unsent, len(files)), may_retry)


def _unsent_message(unsent: Mapping[str, str], count: int) -> str:
    """Return a message about files that were not sent; "" if all were.

    Args:
        unsent: Name of a file that was tried → reason.
        count: Number of all files, of which at most `MAX_FILES` are tried.
    """
    shown = [f"{name} ({reason})" for name, reason in list(unsent.items())[:_MAX_SHOWN]]
    if more := len(unsent) - len(shown):
        shown[-1] += f" and {more} more"
    if count > MAX_FILES:
        shown.append(f"of {count} files {MAX_FILES} are sent")
    return escapes.escape_controls("; ".join(shown))


def _list_artifacts(client: Any, run: str, folder: str) -> Iterator[tuple[str, int]]:
    """Yield the paths and sizes of a run's artifacts below a folder."""
    for entry in client.list_artifacts(run, folder):
        if entry.is_dir:
            yield from _list_artifacts(client, run, entry.path)
        else:
            yield entry.path, entry.file_size


def _files(location: str) -> list[tuple[str, int]]:
    """Return the paths and sizes in bytes of the files below a folder or URL; without links, which may lead out of it."""
    folder = paths.local_folder(location)
    if folder is not None:
        if folder.is_symlink():
            return []
        root_folder = folder.resolve()
        regular_files = [file for file in root_folder.rglob("*") if file.is_file() and file.resolve() == file]
        return sorted((file.relative_to(root_folder).as_posix(), file.stat().st_size) for file in regular_files)
    import fsspec  # needed only for URLs

    file_system, root = fsspec.url_to_fs(location)
    try:
        entries: Mapping[str, Any] = file_system.find(root, detail=True)
    except FileNotFoundError:
        return []
    return sorted((name.removeprefix(root).lstrip("/"), int(entry["size"])) for name, entry in entries.items())


@contextlib.contextmanager
def _local_file(location: str, name: str) -> Iterator[Path]:
    """Provide a file of the location on this machine's disk; a copy if the location is a URL."""
    folder = paths.local_folder(location)
    if folder is not None:
        yield folder / name
        return
    import fsspec  # needed only for URLs

    file_system, root = fsspec.url_to_fs(location)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, posixpath.basename(name))
        file_system.get_file(f"{root}/{name}", str(copy))
        yield copy


def _is_unreachable(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is that the server cannot be reached. Other files would fail too."""
    import requests  # MLflow has imported it

    while error is not None:
        if isinstance(error, requests.ConnectionError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_refusal(error: Exception) -> bool:
    """Return whether a retry is useless, because MLflow, its artifact store or the gateway refuses the file."""
    status = getattr(getattr(error, "response", None), "status_code", 0)  # of an error of requests
    if not status and hasattr(error, "get_http_status_code"):  # an error of MLflow
        status = error.get_http_status_code()
    return 400 <= status < 500 and status not in _RETRYABLE_STATUS


def _reason(error: Exception) -> str:
    """Return the first line of an error for a message, without passwords."""
    return escapes.mask_passwords(errors.first_line(error))[:300]


if __name__ == "__main__":
    main()
