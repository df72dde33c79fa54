"""What one MLflow run gets in one go, in the form MLflow takes, and how it is sent.

MLflow refuses a whole call because of one value in it. Here only that value is left out, with a line in the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trialplane import errors
from trialplane.controller import npz
from trialplane.wire import labels

MAX_METRICS = 800  # per call; MLflow takes 1000 entities in all, and 100 parameters and 100 tags among them
MAX_PARAMS = 90
MAX_TAGS = 90
MAX_KEY = 250  # characters of a name
MAX_VALUE = 6000  # characters of a parameter
MAX_TAG = 5000  # characters of a tag
MAX_LOG = 1 << 20  # bytes of a log kept as an artifact; of a longer one the end
MAX_STEP = 2**63 - 1
_REFUSED = "INVALID_PARAMETER_VALUE"  # a name, a parameter with another value, a run that somebody deleted
_GONE = "RESOURCE_DOES_NOT_EXIST"
_ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclasses.dataclass
class Batch:
    """What one MLflow run gets in one go; names and texts as MLflow takes them."""

    metrics: list[Metric] = dataclasses.field(default_factory=list)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    status: str = ""
    end: int | None = None
    artifacts: list[tuple[str, Path]] = dataclasses.field(default_factory=list)

    def add_metrics(self, values: Mapping[str, float], moment: float, step: int) -> None:
        """Adds the values of one step, in order of their names; of two names that become the same the later wins."""
        taken = {key_of(name): float(value) for name, value in sorted(values.items())}
        step = max(-MAX_STEP, min(step, MAX_STEP))
        self.metrics += [Metric(name, value, milliseconds(moment), step) for name, value in taken.items()]

    def add_params(self, values: Mapping[str, Any]) -> None:
        """Adds parameters; of two names that become the same the later wins."""
        self.params |= {key_of(name): _text(value, MAX_VALUE) for name, value in values.items()}

    def add_tags(self, values: Mapping[str, Any]) -> None:
        """Adds tags."""
        self.tags |= {key_of(name): _text(value, MAX_TAG) for name, value in values.items()}


def key_of(name: str) -> str:
    """A name as MLflow takes it for a metric, a parameter or a tag.

    MLflow knows letters, digits and `_ - . : / space`, no path that leads out or round about, and 250 characters. What
    it does not know becomes `_`: `recall@5` is `recall_5`. The same name always becomes the same, in every call.
    """
    key = re.sub(r"[^/\w.\- :]", "_", name)[:MAX_KEY]
    if posixpath.normpath(key) != key or key.startswith("/"):
        key = key.replace("/", "_")
    if key in ("", ".") or key.startswith(".."):
        key = f"_{key}"[:MAX_KEY]
    return key


def milliseconds(moment: float) -> int:
    """A time in seconds as MLflow counts it."""
    return int(moment * 1000)


def adopt(store: Path, batch: Batch) -> None:
    """Takes over what a trial logged into a store of its own because MLflow was away when it started."""
    with contextlib.closing(sqlite3.connect(store)) as file:
        file.execute("PRAGMA schema_version")  # raises at once for a damaged file, which MLflow would try for a minute
    client = MlflowClient(f"sqlite:///{store}")
    own = Batch()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments):
        own.add_params(run.data.params)
        own.add_tags({key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")})
        for name in run.data.metrics:
            own.metrics += client.get_metric_history(run.info.run_id, name)
        for item in client.list_artifacts(run.info.run_id):
            folder = Path(client.download_artifacts(run.info.run_id, item.path))
            own.artifacts.append(("", folder))
    batch.metrics += own.metrics
    batch.params |= own.params
    batch.tags |= own.tags
    batch.artifacts += own.artifacts


class Sender:
    """Sends batches; what MLflow will never take is left out, or the rest would wait for it for ever.

    Args:
        client: of the MLflow that gets them.
    """

    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    def send(self, run_id: str, batch: Batch) -> None:
        """Writes one batch; raises what may be better the next time (MLflow is away)."""
        try:
            if not self._at_once(run_id, batch):
                if not self._give_way(run_id, batch):
                    say(f"somebody deleted MLflow's run {run_id}, so what belongs into it is left out")
                    return
                self._piecewise(run_id, batch)
            for folder, file in batch.artifacts:
                self._send_artifact(run_id, folder, file)
            if batch.status in _ENDED:  # last, so that a run that has ended is whole
                self._client.set_terminated(run_id, batch.status, end_time=batch.end)
            elif batch.status:
                self._client.update_run(run_id, status=batch.status)
        except MlflowException as error:
            if error.error_code not in (_REFUSED, _GONE):
                raise
            say(f"MLflow does not take what belongs into its run {run_id}, so it is left out: {error}")

    def _at_once(self, run_id: str, batch: Batch) -> bool:
        """Writes metrics, parameters and tags in one call, which is the fastest; False when MLflow does not take them."""
        if len(batch.metrics) > MAX_METRICS or len(batch.params) > MAX_PARAMS or len(batch.tags) > MAX_TAGS:
            return False
        params = [Param(key, value) for key, value in batch.params.items()]
        tags = [RunTag(key, value) for key, value in batch.tags.items()]
        try:
            self._client.log_batch(run_id, metrics=batch.metrics, params=params, tags=tags)
        except MlflowException as error:
            if error.error_code != _REFUSED:
                raise
            return False
        return True

    def _give_way(self, run_id: str, batch: Batch) -> bool:
        """Makes tags of parameters that MLflow has with other values, which it does not change; False without a run."""
        run = self._client.get_run(run_id)
        clashes = [key for key, value in batch.params.items() if run.data.params.get(key, value) != value]
        batch.add_tags({labels.PARAM + key: batch.params.pop(key) for key in clashes})
        return bool(run.info.lifecycle_stage != "deleted")

    def _piecewise(self, run_id: str, batch: Batch) -> None:
        """Tags first: they say whose run it is, and that it is no spare one."""
        log = self._client.log_batch
        tags = [RunTag(key, value) for key, value in batch.tags.items()]
        params = [Param(key, value) for key, value in batch.params.items()]
        self._pieces(run_id, tags, MAX_TAGS, lambda piece: log(run_id, tags=piece))
        self._pieces(run_id, params, MAX_PARAMS, lambda piece: log(run_id, params=piece))
        self._pieces(run_id, batch.metrics, MAX_METRICS, lambda piece: log(run_id, metrics=piece))

    def _pieces(self, run_id: str, items: Sequence[Any], size: int, write: Callable[[Sequence[Any]], None]) -> None:
        """Writes at most `size` items per call; a piece that is refused is halved until the one at fault is found."""
        for begin in range(0, len(items), size):
            piece = items[begin : begin + size]
            try:
                write(piece)
            except MlflowException as error:
                if error.error_code != _REFUSED:
                    raise
                if len(piece) > 1:
                    self._pieces(run_id, piece, (len(piece) + 1) // 2, write)
                else:
                    say(f"MLflow does not take {piece[0].key!r} into its run {run_id}, so it is left out: {error}")

    def _send_artifact(self, run_id: str, folder: str, file: Path) -> None:
        """Writes one file or folder; one that cannot be read or converted stays where it is."""
        try:
            if folder == "arrays":
                if file.exists():
                    archive = npz.convert(file)
                    self._client.log_artifact(run_id, str(archive), folder)
                    archive.unlink()
                    file.unlink()
            elif file.is_dir():
                self._client.log_artifacts(run_id, str(file), file.name)
            elif file.stat().st_size <= MAX_LOG:
                self._client.log_artifact(run_id, str(file), folder or None)
            else:
                self._send_end(run_id, folder, file)
        except Exception as error:
            away = isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, PermissionError))
            if away or (isinstance(error, MlflowException) and error.error_code != _REFUSED):
                raise
            say(f"{file} cannot be put into MLflow's run {run_id}, so it stays where it is: {describe(error)}")

    def _send_end(self, run_id: str, folder: str, file: Path) -> None:
        """Writes the end of a file that is too long."""
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            end = Path(scratch) / file.name
            with file.open("rb") as whole:
                whole.seek(-MAX_LOG, os.SEEK_END)
                end.write_bytes(b"[trialplane: the beginning of this log is left out]\n" + whole.read())
            self._client.log_artifact(run_id, str(end), folder or None)


def describe(error: BaseException) -> str:
    """An unexpected error in one line, with its kind."""
    return f"{type(error).__name__}: {errors.first_line(error)}"


def say(message: str) -> None:
    """A line in the controller's log, which the writer's standard error is."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def _text(value: Any, length: int) -> str:
    """A value as text that every database takes: a file name or a message may hold bytes that are no characters."""
    return str(value).encode(errors="replace").decode().replace("\0", "")[:length]
