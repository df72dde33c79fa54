"""The files that a study's `keep.files` names, sent to the MLflow runs of its best trials.

A controller requests this from a slot at the end of a run, as a slot can read the checkpoint location. MLflow is imported in
a process of its own, `python -m trialplane.worker.kept LOCATION`, which reads a message, answers with one, and is killed at
its timeout. It takes the same way as the logs of trials, with the same limits on names and sizes. A file that MLflow has
with the same size is not sent again, so a message may arrive twice.
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
from trialplane.training import mlflow_runs, process
from trialplane.wire import env, escapes, messages, paths, records
from trialplane.worker import trial

FOLDER = "kept_files"  # among a run's artifacts
_NICENESS = 10
_CLIENT = {  # MLflow's client tries for minutes otherwise; the controller tries again
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",  # seconds, of one file, which the server has stored before it answers
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_LATER = (401, 403, 407, 408, 429)  # a token or a limit: another request may pass
MOST_FILES = 1000  # of one trial
_UNSENDABLE = re.compile(r"#|%[0-9A-Fa-f]{2}")  # MLflow's client joins names into URLs as they are
_SHOWN = 3  # files in a message


def send(config: records.SlotConfig, message: messages.SendFiles) -> messages.FilesSent:
    """Send a trial's files, within the time that the message has."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "trialplane.worker.kept", trial.checkpoints(config, config.run, message.trial)],
            input=messages.encode(message),
            capture_output=True,
            env={**os.environ, **config.env, **_CLIENT},
            timeout=message.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return messages.FilesSent(f"they were not sent within {message.seconds:.0f} s", again=True)
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return messages.FilesSent(f"the process that sends them ended with {done.returncode}: {text:.200}", again=True)
    return messages.decode(done.stdout, messages.FILES_SENT)


def main() -> None:
    """Read the message, send the files, and write the answer."""
    answers = os.dup(1)
    os.dup2(2, 1)  # MLflow may print
    process.end_with_parent()
    os.nice(_NICENESS)
    message = messages.decode(sys.stdin.buffer.read(), messages.SEND_FILES)
    try:
        answer = _sent(message.number, f"{sys.argv[1]}/files")
    except Exception as error:  # noqa: BLE001  the border: whatever MLflow, or an object store, raises
        answer = messages.FilesSent(_reason(error), again=True)
    os.write(answers, messages.encode(answer))


def _sent(number: int, location: str) -> messages.FilesSent:
    """Find the run of a trial, and send its files."""
    import mlflow  # seconds, and only this process needs it

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(os.environ[env.MLFLOW_EXPERIMENT_NAME])
    tags = mlflow_runs.tags_of(os.environ, number)
    run = mlflow_runs.find(client, experiment.experiment_id, tags) if experiment else ""
    if not run:
        return messages.FilesSent("MLflow does not have the trial's run yet", again=True)
    return upload(client, run, location, by_http=mlflow.get_tracking_uri().startswith(("http://", "https://")))


def upload(client: Any, run: str, location: str, *, by_http: bool) -> messages.FilesSent:
    """Send the files below a folder or URL that MLflow lacks; one that fails holds up no other.

    Raises:
        Exception: MLflow, or the object store, is away.
    """
    stored = dict(_listed(client, run, FOLDER))
    files = _files(location)
    unsent: dict[str, str] = {}
    again = False
    for name, size in files[:MOST_FILES]:
        if stored.get(f"{FOLDER}/{name}") == size:
            continue
        if by_http and _UNSENDABLE.search(name):
            unsent[name] = "MLflow would store it under another name: rename it, without # and % before two hex digits"
            continue
        try:
            with _local(location, name) as file:
                client.log_artifact(run, str(file), posixpath.join(FOLDER, posixpath.dirname(name)).rstrip("/"))
        except Exception as error:
            if _is_away(error):
                raise
            again = again or not _is_refusal(error)
            unsent[name] = _reason(error)
    shown = [f"{name} ({reason})" for name, reason in list(unsent.items())[:_SHOWN]]
    if more := len(unsent) - len(shown):
        shown[-1] += f" and {more} more"
    if len(files) > MOST_FILES:
        shown.append(f"of {len(files)} files {MOST_FILES} are sent")
    return messages.FilesSent(escapes.visible("; ".join(shown)), again)


def _listed(client: Any, run: str, folder: str) -> Iterator[tuple[str, int]]:
    for entry in client.list_artifacts(run, folder):
        if entry.is_dir:
            yield from _listed(client, run, entry.path)
        else:
            yield entry.path, entry.file_size


def _files(location: str) -> list[tuple[str, int]]:
    """The files below a folder or URL, by their paths there, with their sizes in bytes; no links, which lead elsewhere."""
    folder = paths.local_folder(location)
    if folder is not None:
        if folder.is_symlink():
            return []
        root_folder = folder.resolve()
        regular_files = [file for file in root_folder.rglob("*") if file.is_file() and file.resolve() == file]
        return sorted((file.relative_to(root_folder).as_posix(), file.stat().st_size) for file in regular_files)
    import fsspec  # only who reads from a URL needs it

    files, root = fsspec.url_to_fs(location)
    try:
        entries: Mapping[str, Any] = files.find(root, detail=True)
    except FileNotFoundError:
        return []
    return sorted((name.removeprefix(root).lstrip("/"), int(entry["size"])) for name, entry in entries.items())


@contextlib.contextmanager
def _local(location: str, name: str) -> Iterator[Path]:
    """One of these files on this machine's disk."""
    folder = paths.local_folder(location)
    if folder is not None:
        yield folder / name
        return
    import fsspec  # as in `_files`

    files, root = fsspec.url_to_fs(location)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, posixpath.basename(name))
        files.get_file(f"{root}/{name}", str(copy))
        yield copy


def _is_away(error: BaseException | None) -> bool:
    """Whether nothing answers, so that the next file would fare no better; MLflow's own error has that as its context."""
    import requests  # MLflow has imported it

    while error is not None:
        if isinstance(error, requests.ConnectionError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_refusal(error: Exception) -> bool:
    """Whether MLflow, its artifact store or the gateway refuses for good."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 0) or getattr(error, "get_http_status_code", int)()
    return 400 <= status < 500 and status not in _LATER


def _reason(error: Exception) -> str:
    return escapes.without_passwords(errors.first_line(error))[:300]


if __name__ == "__main__":
    main()
