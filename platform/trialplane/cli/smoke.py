"""One run of a script with its defaults, to find its metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trialplane.cli import bounded
from trialplane.importing import guess
from trialplane.job import settings
from trialplane.job.program import MetricSource, Program
from trialplane.wire import env
from trialplane.worker.metrics import elsewhere, reader

LONGEST = 60.0  # seconds
_STDOUT = MetricSource("stdout")
_SEARCHED = 1 << 20  # characters at the end of the output in which names of metrics are looked for


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


def run(command: Sequence[str], name: str, folder: Path, scratch: Path, unnamed: str) -> Smoke:
    """Run a script to its end, or for `LONGEST` seconds.

    Args:
        command: program and arguments.
        name: of the script, for the file that keeps its output.
        unnamed: name of the metric if all that it prints is a number in its last line.
        folder: in which it runs, and may write.
        scratch: another folder, for its output.
    """
    log, printed, database = scratch / "output.log", scratch / "printed.log", scratch / "mlflow.db"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])  # as for a trial
    variables = {
        "PATH": path,
        "WANDB_MODE": "offline",
        "PYTHONUNBUFFERED": "1",
        env.MLFLOW_TRACKING_URI: f"sqlite:///{database}",
    }
    before = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in folder.rglob("*") if file.is_file()}
    ended = bounded.run(command, folder, variables, log, LONGEST)
    printed.unlink(missing_ok=True)
    names = tuple(guess.candidates(log.read_text(encoding="utf-8", errors="replace")[-_SEARCHED:]))
    output = reader.Reader(Program(metrics=(_STDOUT,), names=names), printed, folder, time.time())
    os.link(log, printed)  # a reader begins where a file ends
    output.read(time.monotonic(), ended=True)
    pairs = {_spelling(name) for name in output.finite if name not in names}
    values = {name: value for name, value in output.finite.items() if name not in names or _spelling(name) not in pairs}
    metrics_by_source: dict[MetricSource, Mapping[str, float]] = {_STDOUT: values} if values else {}
    last_line = next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")
    if not values and (number := re.fullmatch(rf"\s*({settings.NUMBER})\s*", last_line)):
        pattern = rf"^\s*(?P<{unnamed}>{settings.NUMBER})\s*$"
        metrics_by_source[MetricSource("stdout", (pattern,))] = {unnamed: float(number[1])}
    if logged := _logged(database):
        metrics_by_source[MetricSource("mlflow")] = logged

    def is_new(file: Path) -> bool:
        return file.is_file() and before.get(file) != (file.stat().st_mtime_ns, file.stat().st_size)

    for _, source, in_file in elsewhere.metric_files(folder, names, is_new, lambda _: b""):
        finite = {name: value for name, value in in_file.items() if math.isfinite(value)}
        if source is not None and finite:
            metrics_by_source[source] = {**metrics_by_source.get(source, {}), **finite}
    failure = "; ".join(filter(None, (ended.cause, ended.keep(name)))) if ended.code else ""
    return Smoke(metrics_by_source, ended.seconds, failure, ended.code is not None)


def _spelling(name: str) -> str:
    return re.sub(r"\W", "_", name).lower()


def _logged(database: Path) -> dict[str, float]:
    """Return the newest metrics in a database of MLflow."""
    if not database.is_file():
        return {}
    with contextlib.closing(sqlite3.connect(database)) as connection:
        try:
            return {name: float(value) for name, value in connection.execute("SELECT key, value FROM latest_metrics")}
        except sqlite3.Error:  # MLflow was imported, and has logged nothing
            return {}
