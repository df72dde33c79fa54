"""Batches of entries for one MLflow run, in the form that MLflow accepts, and their sender.

MLflow refuses a whole call because of one invalid value. The sender then finds this value, leaves it out, and logs that.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import requests
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trialplane import errors
from trialplane.job import mlflow_names
from trialplane.wire import escapes, labels

# Entries per call. MLflow accepts 1000 in all, with at most 100 parameters and 100 tags.
MAX_METRICS = 800
MAX_PARAMS = 90
MAX_TAGS = 90
MAX_KEY = 250  # characters of a name
MAX_VALUE = 6000  # characters of a parameter
MAX_TAG = 5000  # characters of a tag
MAX_STEP = 2**63 - 1
# Statuses from 400 to 499 after which a request is repeated. After 401 and 407 it fails until the login is corrected.
_RETRIED_STATUSES = (401, 407, 408, 429, 499)
# MLflow's codes after which a request is repeated. They concern all requests: a missing permission, or a proxy without
# MLflow.
_RETRIED_CODES = ("PERMISSION_DENIED", "ENDPOINT_NOT_FOUND")
# Text of the error if a request is larger than a proxy allows. MLflow has no code for these statuses, only INTERNAL_ERROR.
_TOO_LARGE = re.compile(r"failed with error code (?:413|414|431) != ")
ENDED = ("FINISHED", "FAILED", "KILLED")  # statuses of a run that has ended


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A file that is uploaded into a run.

    Attributes:
        folder: Folder in the run; "" for its root.
        file: Local path.
        kind: "log" for a log, whose end alone is uploaded if it is long; "arrays" for packed arrays, which are
            converted; "" for any other file.
    """

    folder: str
    file: str
    kind: str = ""


@dataclasses.dataclass
class Batch:
    """Entries for one MLflow run, with names and texts that MLflow accepts.

    Attributes:
        metrics: Metrics.
        params: Parameters by name.
        tags: Tags by name.
        status: Status that the run gets; "" to leave it unchanged.
        end: End of the run in milliseconds since the epoch; None for none.
        artifacts: Files.
    """

    metrics: list[Metric] = dataclasses.field(default_factory=list)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    status: str = ""
    end: int | None = None
    artifacts: list[Artifact] = dataclasses.field(default_factory=list)

    def add_metrics(self, values: Mapping[str, float], moment: float, step: int) -> None:
        """Add the values of a step, at a time in seconds since the epoch. Of names with equal keys, the last one counts."""
        by_key = {key_of(name): float(value) for name, value in sorted(values.items())}
        step = max(-MAX_STEP, min(step, MAX_STEP))
        timestamp = milliseconds(moment)
        self.metrics += [Metric(key, value, timestamp=timestamp, step=step) for key, value in by_key.items()]

    def add_params(self, values: Mapping[str, Any]) -> None:
        """Add parameters; if two names have the same key, the last one counts."""
        self.params |= {key_of(name): _text(value, MAX_VALUE) for name, value in values.items()}

    def add_tags(self, values: Mapping[str, Any]) -> None:
        """Add tags."""
        self.tags |= {key_of(name): _text(value, MAX_TAG) for name, value in values.items()}

    def add(self, other: Batch) -> None:
        """Add the metrics, parameters, tags and artifacts of another batch. Its values replace those with the same name."""
        self.metrics += other.metrics
        self.params |= other.params
        self.tags |= other.tags
        self.artifacts += other.artifacts


def key_of(name: str) -> str:
    """Return a name as MLflow accepts it for a metric, a parameter or a tag.

    MLflow accepts names of at most 250 letters, digits and `_ - . : / space`, which must be normalized relative paths. Each
    other character becomes `_`: `recall@5` becomes `recall_5`. A + in front is left out, as in `+trainer.lr`.
    """
    key = re.sub(r"[^/\w.\- :]", "_", mlflow_names.parameter(name))[:MAX_KEY]
    if posixpath.normpath(key) != key or key.startswith("/"):
        key = key.replace("/", "_")
    if key in ("", ".") or key.startswith(".."):
        key = f"_{key}"[:MAX_KEY]
    return key


def milliseconds(moment: float) -> int:
    """Return a time in seconds since the epoch as milliseconds, which MLflow uses."""
    return int(moment * 1000)


class Sender:
    """Sends batches. Entries that MLflow refuses for good are left out, because they would block all later ones.

    Args:
        client: Client of the MLflow that gets the batches.
    """

    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def send(self, run_id: str, batch: Batch) -> bool:
        """Write the metrics, parameters, tags and status of one batch. Its artifacts are uploaded by `files`.

        Returns:
            False if MLflow accepts nothing for this run, for example because it was deleted.

        Raises:
            MlflowException: The write failed and may succeed later.
        """
        try:
            if not self._write_in_one_call(run_id, batch):
                run = self.client.get_run(run_id)
                if run.info.lifecycle_stage == "deleted":
                    write_log(f"MLflow's run {run_id} was deleted, so what belongs to it is left out")
                    return False
                _turn_clashes_into_tags(batch, run.data.params)
                self._write_in_pieces(run_id, batch)
            if batch.status in ENDED:
                self.client.set_terminated(run_id, batch.status, end_time=batch.end)
            elif batch.status:
                self.client.update_run(run_id, status=batch.status)
        except MlflowException as error:
            if not is_refusal(error):
                raise
            write_log(f"MLflow refuses what belongs to its run {run_id}, so it is left out: {error}")
            return False
        return True

    def _write_in_one_call(self, run_id: str, batch: Batch) -> bool:
        """Write metrics, parameters and tags in one call, which is fastest.

        Returns:
            False if nothing was written, because there are too many entries or MLflow refuses one of them.
        """
        if len(batch.metrics) > MAX_METRICS or len(batch.params) > MAX_PARAMS or len(batch.tags) > MAX_TAGS:
            return False
        params = [Param(key, value) for key, value in batch.params.items()]
        tags = [RunTag(key, value) for key, value in batch.tags.items()]
        try:
            self.client.log_batch(run_id, metrics=batch.metrics, params=params, tags=tags)
        except MlflowException as error:
            if not is_refusal(error):
                raise
            return False
        return True

    def _write_in_pieces(self, run_id: str, batch: Batch) -> None:
        """Write a batch in several calls. Tags come first, because they tell which attempt the run belongs to."""
        log = self.client.log_batch
        tags = [RunTag(key, value) for key, value in batch.tags.items()]
        params = [Param(key, value) for key, value in batch.params.items()]
        self._write_items(run_id, tags, size=MAX_TAGS, write=lambda piece: log(run_id, tags=piece))
        self._write_items(run_id, params, size=MAX_PARAMS, write=lambda piece: log(run_id, params=piece))
        self._write_items(run_id, batch.metrics, size=MAX_METRICS, write=lambda piece: log(run_id, metrics=piece))

    def _write_items(self, run_id: str, items: Sequence[Any], size: int, write: Callable[[Sequence[Any]], None]) -> None:
        """Write at most `size` items per call. If MLflow refuses a call, halve it until the faulty items are found.

        Args:
            run_id: Id of the run, for the log.
            items: Metrics, parameters or tags.
            size: Largest number of items per call. MLflow has its own limit for each kind of item.
            write: Function that writes items in one call.
        """
        for begin in range(0, len(items), size):
            piece = items[begin : begin + size]
            try:
                write(piece)
            except MlflowException as error:
                if not is_refusal(error):
                    raise
                if len(piece) > 1:
                    self._write_items(run_id, piece, size=(len(piece) + 1) // 2, write=write)
                else:
                    write_log(f"MLflow refuses {piece[0].key!r} in its run {run_id}, so it is left out: {error}")


def _turn_clashes_into_tags(batch: Batch, run_params: Mapping[str, str]) -> None:
    """Turn parameters that a batch's run has with other values into tags, because MLflow never changes a parameter."""
    clashes = [key for key, value in batch.params.items() if run_params.get(key, value) != value]
    batch.add_tags({labels.PARAM + key: batch.params.pop(key) for key in clashes})


def is_refusal(error: BaseException) -> bool:
    """Return whether MLflow or its artifact store refuses a request for good, so that a retry would not help."""
    if isinstance(error, MlflowException):
        if error.error_code in _RETRIED_CODES:
            return False
        status = 413 if _TOO_LARGE.search(error.message) else error.get_http_status_code()
    elif isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
    else:
        return False
    return 400 <= status < 500 and status not in _RETRIED_STATUSES


def describe(error: BaseException) -> str:
    """Return an unexpected error as one line: its type and its text, in which passwords in URIs are masked."""
    return escapes.mask_passwords(f"{type(error).__name__}: {errors.first_line(error)}")


def write_log(message: str) -> None:
    """Write a line to the controller's log, to which the exporter's stderr is redirected."""
    sys.stderr.write(escapes.mask_passwords(message) + "\n")
    sys.stderr.flush()


def _text(value: Any, length: int) -> str:
    """Return a value as text of at most `length` characters that every database accepts.

    File names and messages may contain bytes that are no UTF-8, or NUL.
    """
    return str(value).encode(errors="replace").decode().replace("\0", "")[:length]
