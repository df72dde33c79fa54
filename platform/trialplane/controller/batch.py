"""What one MLflow run gets in one go, in the form MLflow takes, and how it is sent.

MLflow refuses a whole call because of one value in it. Here only that value is left out, with a line in the log.
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
from trialplane.wire import escapes, labels

MAX_METRICS = 800  # per call; MLflow takes 1000 entities in all, and 100 parameters and 100 tags among them
MAX_PARAMS = 90
MAX_TAGS = 90
MAX_KEY = 250  # characters of a name
MAX_VALUE = 6000  # characters of a parameter
MAX_TAG = 5000  # characters of a tag
MAX_STEP = 2**63 - 1
# Statuses below 500 that ask for another try; a login that is missing or has changed waits until somebody mends that.
_LATER = (401, 407, 408, 429, 499)
# What is sent is not at fault either when nobody may write, or when a proxy knows no MLflow.
_LOCKED_OUT = ("PERMISSION_DENIED", "ENDPOINT_NOT_FOUND")
# What a proxy finds too large: MLflow has no code for these statuses, so they are in the text of its INTERNAL_ERROR alone.
_TOO_LARGE = re.compile(r"failed with error code (?:413|414|431) != ")
ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A file that goes into a run.

    Attributes:
        folder: where it is put there, or "".
        file: where it lies.
        kind: "log" is cut when it is long, "arrays" are converted, "" goes as it is.
    """

    folder: str
    file: str
    kind: str = ""


@dataclasses.dataclass
class Batch:
    """What one MLflow run gets in one go; names and texts as MLflow takes them."""

    metrics: list[Metric] = dataclasses.field(default_factory=list)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    status: str = ""
    end: int | None = None
    artifacts: list[Artifact] = dataclasses.field(default_factory=list)
    is_last: bool = False  # whether the run has everything then

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

    def add(self, other: Batch) -> None:
        """Adds metrics, parameters, tags and artifacts of another; its values count where both have one."""
        self.metrics += other.metrics
        self.params |= other.params
        self.tags |= other.tags
        self.artifacts += other.artifacts


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


class Sender:
    """Sends batches; what MLflow will never take is left out, or the rest would wait for it for ever.

    Args:
        client: of the MLflow that gets them.
    """

    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    def send(self, run_id: str, batch: Batch) -> bool:
        """Writes one batch but its files; raises what may be better the next time (MLflow is away).

        Returns:
            Whether MLflow takes anything into this run.
        """
        try:
            if not self._at_once(run_id, batch):
                if not self._give_way(run_id, batch):
                    say(f"somebody deleted MLflow's run {run_id}, so what belongs into it is left out")
                    return False
                self._piecewise(run_id, batch)
            if batch.status in ENDED:
                self._client.set_terminated(run_id, batch.status, end_time=batch.end)
            elif batch.status:
                self._client.update_run(run_id, status=batch.status)
        except MlflowException as error:
            if not is_refusal(error):
                raise
            say(f"MLflow does not take what belongs into its run {run_id}, so it is left out: {error}")
            return False
        return True

    def _at_once(self, run_id: str, batch: Batch) -> bool:
        """Writes metrics, parameters and tags in one call, which is the fastest; False when MLflow does not take them."""
        if len(batch.metrics) > MAX_METRICS or len(batch.params) > MAX_PARAMS or len(batch.tags) > MAX_TAGS:
            return False
        params = [Param(key, value) for key, value in batch.params.items()]
        tags = [RunTag(key, value) for key, value in batch.tags.items()]
        try:
            self._client.log_batch(run_id, metrics=batch.metrics, params=params, tags=tags)
        except MlflowException as error:
            if not is_refusal(error):
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
                if not is_refusal(error):
                    raise
                if len(piece) > 1:
                    self._pieces(run_id, piece, (len(piece) + 1) // 2, write)
                else:
                    say(f"MLflow does not take {piece[0].key!r} into its run {run_id}, so it is left out: {error}")


def is_refusal(error: BaseException) -> bool:
    """Whether MLflow or its store of artifacts refuses what it was sent, and would again; else it is away, or too busy."""
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
    """An unexpected error in one line, with its kind; it may show the tracking URI, and that a password."""
    return escapes.without_passwords(f"{type(error).__name__}: {errors.first_line(error)}")


def say(message: str) -> None:
    """A line in the controller's log, which the writer's standard error is."""
    sys.stderr.write(escapes.without_passwords(message) + "\n")
    sys.stderr.flush()


def _text(value: Any, length: int) -> str:
    """A value as text that every database takes: a file name or a message may hold bytes that are no characters."""
    return str(value).encode(errors="replace").decode().replace("\0", "")[:length]
