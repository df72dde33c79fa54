"""One run of a script with its defaults, to find its metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trialplane.cli import bounded
from trialplane.job.program import MetricSource, Program
from trialplane.wire import env
from trialplane.worker.metrics import elsewhere, reader

LONGEST = 60.0  # seconds
_STDOUT = MetricSource("stdout")
# Metrics that are found in any spelling, as those that a job names: `Val loss 2.1`.
_NAMES = tuple(
    f"{part}{metric}"
    for part in ("", "train_", "val_", "valid_", "validation_", "eval_", "test_")
    for metric in ("loss", "accuracy", "acc", "f1")
)


@dataclasses.dataclass(frozen=True)
class Smoke:
    """The result of a run.

    Attributes:
        metrics: source in which metrics were found → the last value of each, without sources that have none.
        seconds: its duration, up to the limit.
        failure: the cause of a failure, and the file with the whole output; "" if it succeeded or was stopped.
        ended: whether it ended by itself.
    """

    metrics: Mapping[MetricSource, Mapping[str, float]]
    seconds: float
    failure: str
    ended: bool


def run(program: Sequence[str], arguments: Sequence[str], folder: Path, scratch: Path) -> Smoke:
    """Run a script to its end, or for `LONGEST` seconds.

    Args:
        program: path of the script below `folder`, or -m and a module.
        arguments: of it.
        folder: in which it runs, and may write.
        scratch: another folder, for its output.
    """
    log, database = scratch / "output.log", scratch / "mlflow.db"
    variables = {"WANDB_MODE": "offline", env.MLFLOW_TRACKING_URI: f"sqlite:///{database}"}
    output = reader.Reader(Program(metrics=(_STDOUT,), names=_NAMES), log, folder, time.time())
    before = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in folder.rglob("*") if file.is_file()}
    command = [sys.executable, "-u", *program, *arguments]
    ended = bounded.run(command, folder, variables, log, LONGEST)
    output.read(time.monotonic(), ended=True)
    metrics_by_source: dict[MetricSource, Mapping[str, float]] = {_STDOUT: dict(output.finite)} if output.finite else {}
    if logged := _logged(database):
        metrics_by_source[MetricSource("mlflow")] = logged

    def is_new(file: Path) -> bool:
        return file.is_file() and before.get(file) != (file.stat().st_mtime_ns, file.stat().st_size)

    for _, source, values in elsewhere.written(folder, _NAMES, is_new, lambda _: b""):
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if source is not None and finite:
            metrics_by_source[source] = {**metrics_by_source.get(source, {}), **finite}
    failure = "; ".join(filter(None, (ended.cause, ended.keep(Path(program[-1]).stem)))) if ended.code else ""
    return Smoke(metrics_by_source, ended.seconds, failure, ended.code is not None)


def _logged(database: Path) -> dict[str, float]:
    """Return the newest metrics in a database of MLflow."""
    if not database.is_file():
        return {}
    with contextlib.closing(sqlite3.connect(database)) as connection:
        try:
            return {name: float(value) for name, value in connection.execute("SELECT key, value FROM latest_metrics")}
        except sqlite3.Error:  # MLflow was imported, and has logged nothing
            return {}
