"""A run as an Optuna study, or in MLflow: what the ledger has of it is sent to a process that has Optuna, or MLflow.

The process receives the order, the attempts and the reports on its standard input, one JSON document per line. What it has
written into a file is read back for a notebook, the one place of the laptop's packages that imports Optuna.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trialplane import errors
from trialplane.errors import InputError, TargetError
from trialplane.ledger import attempts
from trialplane.ledger.attempts import Order, Range
from trialplane.policies import protobuf
from trialplane.wire import env, records
from trialplane.wire.exports import Copy, End
from trialplane.wire.exports import Order as ExportOrder
from trialplane.wire.ledger import StoredAttempt
from trialplane.wire.paths import RunPaths

if TYPE_CHECKING:
    import optuna

    from trialplane.client.target import Target
    from trialplane.job.kinds import Job

MLFLOW = "mlflow:"  # in front of the URI of an MLflow
# Without `-P` a file of the working directory could shadow a library.
COMMAND = (sys.executable, "-P", "-m", "trialplane.controller.export")


def order(run: str, job: Job, **where: Any) -> str:
    """The process's first line.

    Args:
        run: name of the run.
        job: its job.
        **where: `url` or `listener`, see `Order`.
    """
    order = Order(
        run,
        tuple(objective.direction for objective in job.objectives),
        tuple(objective.metric for objective in job.objectives),
        {"job": job.name, "kind": job.kind, "spec": job.model_dump_json()},
        ranges={name: Range(*parameter.ends, parameter.log) for name, parameter in job.search.normal_parameters.items()},
        **where,
    )
    return f"{records.to_json(order)}\n"


class Position(NamedTuple):
    """Up to where a run was read: the order of its last end, and the mark of its last report."""

    end: int = 0
    mark: int = 0


def changes(target: Target, run: str, job: Job, after: Position) -> tuple[str, Position]:
    """The attempts that run, and ends and reports since a position, as a line, and the position to continue from."""
    new_attempts, alive = target.attempts(run, after.end)
    metric = job.watched_metric
    curves = target.curves(run, after.mark) if metric else []  # later: an attempt that ended has all of its reports
    reports = [[report.number, report.step, report.metrics[metric]] for report in curves if metric in report.metrics]
    line = json.dumps({"attempts": records.to_dict(new_attempts), "alive": alive, "reports": records.to_dict(reports)})
    mark = curves[-1].mark if curves else after.mark
    return f"{line}\n", Position(attempts.newest_place(new_attempts, after.end), mark)


def check(*libraries: str, extra: str = "local") -> None:
    """Raise InputError if libraries are not installed; `extra` is the extra of trialplane that brings them."""
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} cannot be found; pip install 'trialplane[{extra}]'")


def environ() -> dict[str, str]:
    """The process's environment."""
    return protobuf.controller_env(os.environ)


def write(target: Target, run: str, url: str) -> None:
    """Write a run as a study into the database of `url`, or bring an MLflow at `mlflow:URI` up to date with it.

    Raises:
        InputError: the study exists already, the URL is not usable, or Optuna or MLflow is not installed.
        TargetError: the database, or MLflow, cannot be written.
    """
    if url.startswith(MLFLOW):
        to_mlflow(target, run, url.removeprefix(MLFLOW))
        return
    check("optuna", "sqlalchemy")
    _check_folder(url)
    job = target.job(run)
    line, _ = changes(target, run, job, Position())
    done = subprocess.run(
        COMMAND,
        input=order(run, job, url=url) + line,
        env=environ(),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    message = done.stderr.strip()
    if done.returncode == errors.EXIT_BAD_INPUT:
        raise InputError(message)
    if done.returncode == errors.EXIT_PLATFORM:
        raise TargetError(message)
    if done.returncode:
        last = message.splitlines()[-1:] or [f"its process ended with exit code {done.returncode}"]
        raise TargetError(f"{run} was not exported: {last[0]}")


def to_mlflow(target: Target, run: str, uri: str, report: str = "") -> None:
    """Export the records of a run to an MLflow: those of the ledger, and no files but the page of the run.

    Args:
        target: that has the run.
        run: its name.
        uri: tracking URI of the MLflow.
        report: the page; "" for none.

    Raises:
        InputError: the URI is not usable, or MLflow is not installed.
        TargetError: MLflow cannot be written.
    """
    check("mlflow", "sqlalchemy")
    scheme = urllib.parse.urlsplit(uri).scheme
    if scheme in ("", "file"):
        raise InputError(
            f"{uri or MLFLOW} is not the URI of a database or a server: MLflow would keep twice what is exported twice. "
            "For a file it is mlflow:sqlite:///mlflow.db"
        )
    _check_folder(uri)
    attempts_, is_alive = target.attempts(run, 0)
    reports = target.curves(run)  # later: an attempt that ended has all of its reports
    observed = target.observe(run)
    end = None
    if observed is not None and not is_alive:
        status = observed.status
        end = End(status.state, status.reason, status.ended or status.updated)
    stored = tuple(StoredAttempt(attempt.request, attempt.outcome, attempt.place, "{}") for attempt in attempts_)
    order_ = ExportOrder(copy=Copy(stored, tuple(reports)), end=end)
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        files = RunPaths.of(Path(scratch), run)
        files.root.mkdir(parents=True)
        files.job.write_text(target.job(run).model_dump_json(), encoding="utf-8")
        files.submission.write_text(json.dumps(dict(target.submission(run))), encoding="utf-8")
        if report:
            files.report.write_text(report, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-P", "-m", "trialplane.exporter", str(files.root)],
            input=f"{records.to_json(order_)}\n",
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", env.MLFLOW_TRACKING_URI: uri},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"its process ended with exit code {done.returncode}"]
        raise TargetError(f"{run} was not exported: {last[0]}")


def _check_folder(url: str) -> None:
    """Raise InputError if SQLite would have to make a file in a folder that is not there."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme.partition("+")[0] != "sqlite" or parts.path.startswith("/file:"):  # the last is a URI of SQLite's own
        return
    folder = Path(parts.path[1:]).parent
    with contextlib.suppress(PermissionError):  # which the database reports
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} for {Path(parts.path).name}; make it, or export elsewhere")


def read(target: Target, run: str) -> optuna.Study:
    """A run as a study in memory, as it is at this moment.

    Raises:
        InputError: Optuna is not installed.
    """
    check("optuna", "sqlalchemy", extra="notebook")
    import optuna  # a second, and laptops that only submit have none

    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        url = f"sqlite:///{Path(scratch, 'study.db')}"
        write(target, run, url)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            stored = optuna.storages.RDBStorage(url)
            try:
                loaded = optuna.load_study(study_name=run, storage=stored)
                study = optuna.create_study(study_name=run, directions=loaded.directions)
                study.set_metric_names(loaded.metric_names or [])
                for name, value in loaded.user_attrs.items():
                    study.set_user_attr(name, value)
                study.add_trials(loaded.get_trials(deepcopy=False))
            finally:
                stored.engine.dispose()
    return study
