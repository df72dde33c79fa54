"""One run of a script with its defaults, for the metrics that it leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trialplane.spec.program import MetricSource, Program
from trialplane.wire import env
from trialplane.worker.metrics import reader

LONGEST = 60.0  # seconds
_GRACE = 3.0  # seconds for a script to end after SIGTERM
_FILES = ("stdout", "tensorboard", "wandb")
# Metrics that are found in any spelling, as a job's own are: `Val loss 2.1`.
_NAMES = tuple(
    f"{part}{metric}"
    for part in ("", "train_", "val_", "valid_", "eval_", "test_")
    for metric in ("loss", "accuracy", "acc", "f1")
)
_TAIL = 4096  # bytes of output in which the cause of an end is looked for


@dataclasses.dataclass(frozen=True)
class Smoke:
    """What a run has left.

    Attributes:
        metrics: place in which metrics were found, as in job.yaml → the last value of each; places without any are left out.
        seconds: how long it took, or was let run.
        failure: the last line of what it printed, where it failed; "" where it succeeded or was ended.
        ended: whether it came to its end by itself.
    """

    metrics: Mapping[str, Mapping[str, float]]
    seconds: float
    failure: str
    ended: bool


def run(script: str, arguments: Sequence[str], folder: Path, scratch: Path) -> Smoke:
    """Runs a script to its end, or for `LONGEST` seconds.

    Args:
        script: below `folder`.
        arguments: of it.
        folder: in which it runs, and may write.
        scratch: another folder, for its output.
    """
    log, database = scratch / "output.log", scratch / "mlflow.db"
    own = {"WANDB_MODE": "offline", env.MLFLOW_TRACKING_URI: f"sqlite:///{database}"}
    programs = {source: Program(metrics=(MetricSource(source),), names=_NAMES) for source in _FILES}
    readers = {source: reader.Reader(program, log, folder, time.time()) for source, program in programs.items()}
    began = time.monotonic()
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-u", script, *arguments],
            cwd=folder,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = child.wait(LONGEST)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
    seconds = time.monotonic() - began
    for one in readers.values():
        one.read(time.monotonic(), ended=True)
    found = {source: dict(one.finite) for source, one in readers.items() if one.finite}
    if logged := _logged(database):
        found["mlflow"] = logged
    with log.open("rb") as output:
        output.seek(max(0, log.stat().st_size - _TAIL))
        said = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    failure = (said[-1] if said else f"exit code {code}, and no output") if code else ""
    return Smoke(found, seconds, failure, code is not None)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a script, if it still runs, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _logged(database: Path) -> dict[str, float]:
    """The newest metrics in a database of MLflow's."""
    if not database.is_file():
        return {}
    with contextlib.closing(sqlite3.connect(database)) as connection:
        try:
            return {name: float(value) for name, value in connection.execute("SELECT key, value FROM latest_metrics")}
        except sqlite3.Error:  # MLflow was imported, and has logged nothing
            return {}
