"""Export of a run as an Optuna study or to an MLflow, by a process of its own that imports Optuna or MLflow.

The process receives an order (which run to export, and to where), the attempts and the reports on its standard input, one
JSON document per line. For a notebook, `read_study` loads the exported study from a file; only this function imports Optuna
here.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trialplane import errors
from trialplane.errors import InputError, TargetError
from trialplane.ledger import attempts
from trialplane.ledger.attempts import Range, StudyOrder
from trialplane.policies import protobuf
from trialplane.wire import env, records
from trialplane.wire.exports import Copy, End, Order, Registration
from trialplane.wire.ledger import StoredAttempt
from trialplane.wire.paths import RunPaths

if TYPE_CHECKING:
    import optuna

    from trialplane.client.target import Target
    from trialplane.job.kinds import Job

# Variables of credentials that MLflow's client prefers to a token.
_OTHER_CREDENTIALS = (
    "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4"
)  # fmt: skip
MLFLOW = "mlflow:"  # prefix of the tracking URI of an MLflow
# Without `-P` a file of the working directory could shadow a library.
COMMAND = (sys.executable, "-P", "-m", "trialplane.controller.export")


def study_order_line(run: str, job: Job, **destination: Any) -> str:
    """Return the first line for the process: the order to make an Optuna study of a run.

    Args:
        run: Name of the run.
        job: Job of the run.
        **destination: `url` or `listener`, as in `StudyOrder`.
    """
    order = StudyOrder(
        run,
        directions=tuple(objective.direction for objective in job.objectives),
        metrics=tuple(objective.metric for objective in job.objectives),
        attributes={"job": job.name, "kind": job.kind, "spec": job.model_dump_json()},
        # Optuna has no normal distribution, so such parameters become uniform ones over these ranges.
        ranges={name: Range(*parameter.ends, parameter.log) for name, parameter in job.search.normal_parameters.items()},
        **destination,
    )
    return f"{records.to_json(order)}\n"


class Position(NamedTuple):
    """Position up to which a run was read.

    Attributes:
        end: Position of the last attempt that ended.
        mark: Mark of the last report.
    """

    end: int = 0
    mark: int = 0


def changes_line(target: Target, run: str, job: Job, after: Position) -> tuple[str, Position]:
    """Return a line with the records of a run since a position, and the new position.

    The records are the running attempts, and the attempts that ended and the reports that arrived since the position. Of a
    report there is the metric that the pruner watches, as Optuna keeps one value for each step.
    """
    new_attempts, is_active = target.attempts(run, after.end)
    metric = job.watched_metric
    rows = target.curves(run, after.mark) if metric else []  # read last, so that an ended attempt has all of its reports
    reports = [[row.number, row.step, row.metrics[metric]] for row in rows if metric in row.metrics]
    line = json.dumps({"attempts": records.to_dict(new_attempts), "alive": is_active, "reports": records.to_dict(reports)})
    mark = rows[-1].mark if rows else after.mark
    return f"{line}\n", Position(attempts.newest_end_number(new_attempts, after.end), mark)


def check_installed(*libraries: str, extra: str = "local") -> None:
    """Check that libraries are installed.

    Args:
        *libraries: Names of top-level modules.
        extra: Extra of trialplane that installs them.

    Raises:
        InputError: A library is not installed.
    """
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} cannot be found; pip install 'trialplane[{extra}]'")


def export(target: Target, run: str, url: str) -> None:
    """Write a run as a study into a database, or bring an MLflow up to date with it.

    Args:
        target: Target of the run.
        run: Name of the run.
        url: SQLAlchemy URL of the database, or `mlflow:` and the tracking URI of the MLflow.

    Raises:
        InputError: The study exists already, the URL is not usable, or Optuna or MLflow is not installed.
        TargetError: The database or MLflow cannot be written.
    """
    if url.startswith(MLFLOW):
        export_to_mlflow(target, run, url.removeprefix(MLFLOW))
        return
    check_installed("optuna", "sqlalchemy")
    _check_sqlite_folder(url)
    job = target.job(run)
    line, _ = changes_line(target, run, job, Position())
    process = _run(COMMAND, study_order_line(run, job, url=url) + line, protobuf.controller_env(os.environ))
    if process.returncode == errors.EXIT_BAD_INPUT:
        raise InputError(process.stderr.strip())
    if process.returncode == errors.EXIT_PLATFORM:
        raise TargetError(process.stderr.strip())
    if process.returncode:
        raise TargetError(f"{run} was not exported: {_last_line(process)}")


def export_to_mlflow(target: Target, run: str, uri: str, report: str = "") -> None:
    """Export a run's records in the ledger to an MLflow. No files of the run are exported except its page.

    Args:
        target: Target of the run.
        run: Name of the run.
        uri: Tracking URI of the MLflow.
        report: HTML of the run's page; "" for no page.

    Raises:
        InputError: The URI is not usable, or MLflow is not installed.
        TargetError: MLflow cannot be written.
    """
    check_installed("mlflow", "sqlalchemy")
    scheme = urllib.parse.urlsplit(uri).scheme
    if scheme in ("", "file"):
        raise InputError(
            f"{uri or MLFLOW} is not the URI of a database or a server, and MLflow would store a second copy at each export "
            "there. For a file, write mlflow:sqlite:///mlflow.db"
        )
    _check_sqlite_folder(uri)
    order = _mlflow_order(target, run)
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        files = RunPaths.of(Path(scratch), run)
        files.root.mkdir(parents=True)
        files.job.write_text(target.job(run).model_dump_json(), encoding="utf-8")
        files.submission.write_text(json.dumps(dict(target.submission(run))), encoding="utf-8")
        if report:
            files.report.write_text(report, encoding="utf-8")
        process = _run(
            (sys.executable, "-P", "-m", "trialplane.exporter", str(files.root)),
            f"{records.to_json(order)}\n",
            {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", env.MLFLOW_TRACKING_URI: uri},
        )
    if process.returncode:
        raise TargetError(f"{run} was not exported: {_last_line(process)}")


def _mlflow_order(target: Target, run: str) -> Order:
    """Return the order to export a run to an MLflow, with all of its records."""
    ledger_attempts, is_alive = target.attempts(run, after=0)
    reports = target.curves(run)  # read last, so that an ended attempt has all of its reports
    observed = target.observe(run)
    end = None  # of an active run
    if observed is not None and not is_alive:
        status = observed.status
        end = End(status.state, status.reason, time=status.ended or status.updated)
    stored_attempts = tuple(
        StoredAttempt(attempt.request, attempt.outcome, attempt.end_number, optuna="{}")  # MLflow gets only results
        for attempt in ledger_attempts
    )
    return Order(copy=Copy(stored_attempts, tuple(reports)), end=end)


def _run(command: Sequence[str], stdin_text: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit code and its output."""
    return subprocess.run(
        command, input=stdin_text, env=environ, capture_output=True, encoding="utf-8", errors="replace", check=False
    )


def _last_line(process: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a failed process's error output, or its exit code if it has written none."""
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"its process ended with exit code {process.returncode}"


def register(registration: Registration, uri: str, token: str = "") -> str:
    """Add a version to the model registry of an MLflow, and return its number.

    Args:
        registration: Version to add.
        uri: Tracking URI of the MLflow.
        token: Bearer token of its requests; "" for none.

    Raises:
        InputError: MLflow is not installed, or has no model of the trial.
        TargetError: MLflow cannot be written.
    """
    check_installed("mlflow", "sqlalchemy")
    environ = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", env.MLFLOW_TRACKING_URI: uri}
    if token:  # MLflow is reached through a port of this machine (`client.pages`), which accepts no other credentials
        environ |= {env.MLFLOW_TOKEN: token, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        for name in _OTHER_CREDENTIALS:
            environ.pop(name, None)
    command = (sys.executable, "-P", "-m", "trialplane.exporter.registration")
    process = _run(command, records.to_json(registration), environ)
    if process.returncode == errors.EXIT_BAD_INPUT:
        raise InputError(f"nothing was registered: {_last_line(process)}")
    if process.returncode:
        raise TargetError(f"nothing was registered: {_last_line(process)}")
    return process.stdout


def _check_sqlite_folder(url: str) -> None:
    """Check that the folder of the database exists if a URL is that of a SQLite file, such as sqlite:///out/study.db.

    Raises:
        InputError: The folder does not exist.
    """
    parts = urllib.parse.urlsplit(url)
    is_sqlite = parts.scheme.partition("+")[0] == "sqlite"  # also with a driver: sqlite+pysqlite
    if not is_sqlite or parts.path.startswith("/file:"):  # a URI of SQLite itself: sqlite:///file:study.db?mode=rw
        return
    file = Path(parts.path.removeprefix("/"))  # this slash ends the empty host of the URL
    with contextlib.suppress(PermissionError):  # the database reports it
        if not file.parent.is_dir():
            raise InputError(f"there is no folder {file.parent} for {file.name}; create it, or export elsewhere")


def read_study(target: Target, run: str) -> optuna.Study:
    """Return the current state of a run as a study in memory.

    Raises:
        InputError: Optuna is not installed.
    """
    check_installed("optuna", "sqlalchemy", extra="notebook")
    import optuna  # takes a second, and is missing on laptops that only submit

    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        url = f"sqlite:///{Path(scratch, 'study.db')}"
        export(target, run, url)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            stored = optuna.storages.RDBStorage(url)
            try:
                return _copy_to_memory(optuna.load_study(study_name=run, storage=stored))
            finally:
                stored.engine.dispose()


def _copy_to_memory(loaded: optuna.Study) -> optuna.Study:
    """Return a copy in memory of a loaded study, whose file is removed."""
    import optuna  # as in `read_study`

    study = optuna.create_study(study_name=loaded.study_name, directions=loaded.directions)
    study.set_metric_names(loaded.metric_names or [])
    for name, value in loaded.user_attrs.items():
        study.set_user_attr(name, value)
    study.add_trials(loaded.get_trials(deepcopy=False))
    return study
