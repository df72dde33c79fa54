"""Batches of entries for one MLflow run, in the form MLflow accepts, and how they are sent.

MLflow refuses a whole call because of one invalid value. Here only that value is left out, with a line in the log.
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
from trialplane.job import values
from trialplane.wire import escapes, labels

MAX_METRICS = 800  # per call; MLflow takes 1000 entities in all, and 100 parameters and 100 tags among them
MAX_PARAMS = 90
MAX_TAGS = 90
MAX_KEY = 250  # characters of a name
MAX_VALUE = 6000  # characters of a parameter
MAX_TAG = 5000  # characters of a tag
MAX_STEP = 2**63 - 1
# Statuses below 500 that are retried; a missing or changed login is retried until it is corrected.
_LATER = (401, 407, 408, 429, 499)
# Nor is the request at fault when nothing may be written at all, or when a proxy has no MLflow behind it.
_LOCKED_OUT = ("PERMISSION_DENIED", "ENDPOINT_NOT_FOUND")
# A proxy's limit on sizes: MLflow has no code for these statuses, so they are only in the text of its INTERNAL_ERROR.
_TOO_LARGE = re.compile(r"failed with error code (?:413|414|431) != ")
ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A file that goes into a run.

    Attributes:
        folder: in the run, or "".
        file: its path here.
        kind: "log" is cut when it is long, "arrays" are converted, "" goes as it is.
    """

    folder: str
    file: str
    kind: str = ""


@dataclasses.dataclass
class Batch:
    """Entries for one MLflow run; names and texts as MLflow accepts them."""

    metrics: list[Metric] = dataclasses.field(default_factory=list)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    status: str = ""
    end: int | None = None
    artifacts: list[Artifact] = dataclasses.field(default_factory=list)

    def add_metrics(self, values: Mapping[str, float], moment: float, step: int) -> None:
        """Add the values of one step, in order of their names; if two names map to the same key, the later wins."""
        by_key = {key_of(name): float(value) for name, value in sorted(values.items())}
        step = max(-MAX_STEP, min(step, MAX_STEP))
        self.metrics += [Metric(name, value, milliseconds(moment), step) for name, value in by_key.items()]

    def add_params(self, values: Mapping[str, Any]) -> None:
        """Add parameters; if two names map to the same key, the later wins."""
        self.params |= {key_of(name): _text(value, MAX_VALUE) for name, value in values.items()}

    def add_tags(self, values: Mapping[str, Any]) -> None:
        """Add tags."""
        self.tags |= {key_of(name): _text(value, MAX_TAG) for name, value in values.items()}

    def add(self, other: Batch) -> None:
        """Add metrics, parameters, tags and artifacts of another; its values win where both have one."""
        self.metrics += other.metrics
        self.params |= other.params
        self.tags |= other.tags
        self.artifacts += other.artifacts


def key_of(name: str) -> str:
    """A name as MLflow accepts it for a metric, a parameter or a tag.

    MLflow accepts letters, digits and `_ - . : / space`, normalized relative paths, and 250 characters. Anything else
    becomes `_`: `recall@5` is `recall_5`; a + in front, as of `+trainer.lr`, is left out. The mapping is deterministic.
    """
    key = re.sub(r"[^/\w.\- :]", "_", values.key(name))[:MAX_KEY]
    if posixpath.normpath(key) != key or key.startswith("/"):
        key = key.replace("/", "_")
    if key in ("", ".") or key.startswith(".."):
        key = f"_{key}"[:MAX_KEY]
    return key


def milliseconds(moment: float) -> int:
    """A time in seconds as MLflow's milliseconds."""
    return int(moment * 1000)


class Sender:
    """Sends batches; what MLflow will never accept is left out, as it would block everything behind it.

    Args:
        client: of the MLflow that gets them.
    """

    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def send(self, run_id: str, batch: Batch) -> bool:
        """Write one batch without its files; raise errors that may be temporary (MLflow is away).

        Returns:
            Whether MLflow accepts entries for this run.
        """
        try:
            if not self._at_once(run_id, batch):
                if not self._give_way(run_id, batch):
                    write_log(f"MLflow's run {run_id} was deleted, so what belongs to it is left out")
                    return False
                self._piecewise(run_id, batch)
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

    def _at_once(self, run_id: str, batch: Batch) -> bool:
        """Write metrics, parameters and tags in one call, which is the fastest; False when MLflow refuses them."""
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

    def _give_way(self, run_id: str, batch: Batch) -> bool:
        """Turn parameters that MLflow has with other, immutable values into tags; False if the run was deleted."""
        run = self.client.get_run(run_id)
        clashes = [key for key, value in batch.params.items() if run.data.params.get(key, value) != value]
        batch.add_tags({labels.PARAM + key: batch.params.pop(key) for key in clashes})
        return bool(run.info.lifecycle_stage != "deleted")

    def _piecewise(self, run_id: str, batch: Batch) -> None:
        """Write in pieces, tags first: they identify the run's attempt and mark it as used."""
        log = self.client.log_batch
        tags = [RunTag(key, value) for key, value in batch.tags.items()]
        params = [Param(key, value) for key, value in batch.params.items()]
        self._pieces(run_id, tags, MAX_TAGS, lambda piece: log(run_id, tags=piece))
        self._pieces(run_id, params, MAX_PARAMS, lambda piece: log(run_id, params=piece))
        self._pieces(run_id, batch.metrics, MAX_METRICS, lambda piece: log(run_id, metrics=piece))

    def _pieces(self, run_id: str, items: Sequence[Any], size: int, write: Callable[[Sequence[Any]], None]) -> None:
        """Write at most `size` items per call; a refused piece is halved until the faulty item is found."""
        for begin in range(0, len(items), size):
            piece = items[begin : begin + size]
            try:
                write(piece)
            except MlflowException as error:
                if not is_refusal(error):
                    raise
                if len(piece) > 1:
                    self._pieces(run_id, piece, (len(piece) + 1) // 2, write)
                else:
                    write_log(f"MLflow refuses {piece[0].key!r} in its run {run_id}, so it is left out: {error}")


def is_refusal(error: BaseException) -> bool:
    """Whether MLflow or its artifact store refuses the request for good; otherwise it is away or too busy."""
    if isinstance(error, MlflowException):
        if error.error_code in _LOCKED_OUT:
            return False
        status = 413 if _TOO_LARGE.search(error.message) else error.get_http_status_code()
    elif isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
    else:
        return False
    return 400 <= status < 500 and status not in _LATER


def describe(error: BaseException) -> str:
    """An unexpected error in one line, with its type, and without the password that its tracking URI may have."""
    return escapes.mask_passwords(f"{type(error).__name__}: {errors.first_line(error)}")


def write_log(message: str) -> None:
    """Write a line to the controller's log, to which the exporter's stderr is redirected."""
    sys.stderr.write(escapes.mask_passwords(message) + "\n")
    sys.stderr.flush()


def _text(value: Any, length: int) -> str:
    """A value as text that every database accepts: a file name or a message may contain undecodable bytes."""
    return str(value).encode(errors="replace").decode().replace("\0", "")[:length]
