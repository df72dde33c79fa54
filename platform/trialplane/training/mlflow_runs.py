"""Redirects MLflow's functions, so that everything a job logs is in its trial's MLflow run or in a child of that run.

A script that is written to run alone names a server and an experiment, and starts and ends runs. A trial already has all of
these. So a few of MLflow's functions are replaced in the modules that define them, when the job imports MLflow and before
other code can have references to them:

- `set_tracking_uri` and `set_experiment` are ignored, and a line in the log says so.
- The first `start_run`, and functions that log without a run, use the trial's run.
- Each further run becomes a child of it in the same experiment, even if `MlflowClient` creates it.

The trial's run is searched by its tags at the first call, and created if the exporter has not created it yet. If MLflow does
not answer, the trial uses a local store from then on, whose first run corresponds to the trial's. Programs that a trial
starts have the variable MLFLOW_RUN_CONTEXT, which lets the exporter make their runs children of the trial's run.

This module itself does not import MLflow.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import sqlite3
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trialplane import errors
from trialplane.training import imports
from trialplane.wire import env, labels

_SERVICE = "mlflow.tracking._tracking_service.utils"
_CLIENT = "mlflow.tracking.client"
_FLUENT = "mlflow.tracking.fluent"
_PATIENCE = 180.0  # seconds for the exporter to create MLflow's tables and the experiment; then a local store is used
_PAUSE = 0.1  # seconds between two checks for the experiment
# Variables during the search for the run, as MLflow by default retries for minutes.
_SEARCH_VARIABLES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


@dataclasses.dataclass
class _Trial:
    """The MLflow runs of this process's trial.

    Attributes:
        uri: URI of the tracking server, or of the local store.
        name: Name of the experiment.
        run: Id of the trial's run; "" until it is found or created.
        tags: Tags that identify the trial's run; empty in a local store.
        store: File for a local store; None outside of a slot.
        experiment: Id of the experiment; "" until it is needed.
        lock: Lock for the search and the creation of the run.
    """

    uri: str
    name: str
    run: str = ""
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    store: Path | None = None
    experiment: str = ""
    _was_searched: bool = False
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    def find_run_once(self) -> None:
        """Search for the trial's run and store its id, unless that was done before.

        If MLflow does not answer, use the local store from now on.
        """
        with self.lock:
            if self._was_searched or self.run or not self.tags:  # without tags, a run cannot be recognized
                return
            self._was_searched = True  # before the search, which creates a client, whose `__init__` calls this function
            old_variables = {name: os.environ[name] for name in _SEARCH_VARIABLES if name in os.environ}
            os.environ.update(_SEARCH_VARIABLES)
            try:
                self.experiment, client = self._wait_for_experiment()
                self.run = find_run(client, self.experiment, self.tags)
            except Exception as error:
                if self.store is None:
                    raise
                first_line = errors.shortened(errors.first_line(error), 200)
                self.use_local_store(self.store, f"{type(error).__name__}: {first_line}")
            finally:
                for name in _SEARCH_VARIABLES:
                    os.environ.pop(name, None)
                os.environ.update(old_variables)
            if self.run:
                os.environ[env.MLFLOW_RUN_ID] = self.run

    def _wait_for_experiment(self) -> tuple[str, Any]:
        """Wait until the exporter has created the experiment, and return its id and a client.

        A trial creates neither tables nor experiments, because two processes that do so at the same time damage the
        database.

        Raises:
            TimeoutError: There was no experiment within `_PATIENCE` seconds.
        """
        deadline = time.monotonic() + _PATIENCE
        file = _sqlite_file(self.uri)
        client: Any = None
        while time.monotonic() < deadline:
            # A client of a SQLite file creates its tables, so there is none before the exporter has created them.
            if client is None and (not file or _has_experiment(file, self.name)):
                client = sys.modules[_CLIENT].MlflowClient(self.uri)
            experiment = None if client is None else client.get_experiment_by_name(self.name)
            if experiment is not None:
                return experiment.experiment_id, client
            time.sleep(_PAUSE)
        raise TimeoutError(f"it had no experiment {self.name} within {_PATIENCE:.0f} s")

    def use_local_store(self, store: Path, reason: str) -> None:
        """Log to a local store from now on, and print the reason."""
        sys.stderr.write(f"trialplane: MLflow does not answer ({reason}): this trial logs to {store}\n")
        store.parent.mkdir(parents=True, exist_ok=True)
        os.environ.update(env.mlflow_store_variables(store))
        self.uri, self.tags, self.experiment = os.environ[env.MLFLOW_TRACKING_URI], {}, ""
        self.set_tracking_uri()

    def set_tracking_uri(self) -> None:
        """Set the URI in MLflow, if that is imported. It has precedence over the variable, which the job may set."""
        if _SERVICE in sys.modules:
            sys.modules[_SERVICE]._tracking_uri = self.uri  # type: ignore[attr-defined]

    def experiment_id(self, client: Any) -> str:
        """Return the id of the experiment, which is created if it does not exist in a local store."""
        if not self.experiment:
            if self.run:
                self.experiment = client.get_run(self.run).info.experiment_id
            else:
                experiment = client.get_experiment_by_name(self.name)
                self.experiment = experiment.experiment_id if experiment else client.create_experiment(self.name)
        return self.experiment

    def create_run(
        self, client: Any, create: Callable[[str, dict[str, Any]], Any], tags: dict[str, Any], run_name: str | None
    ) -> Any:
        """Create the trial's run; a child of it if the trial has one.

        Args:
            client: Client of MLflow.
            create: Function that creates a run in the experiment with an id, with tags.
            tags: Tags that the job gives the run.
            run_name: Name that the job gives the run.
        """
        # MLflow adds this tag from MLFLOW_RUN_CONTEXT to each run. It is only for runs of programs that the trial starts.
        tags.pop(labels.LOGGED_BY, None)
        with self.lock:
            experiment = self.experiment_id(client)
            if self.run:
                return create(experiment, {labels.PARENT: self.run, **tags})
            if run_name:
                tags[labels.RUN_NAME] = run_name
            if self.tags:
                tags |= {**self.tags, labels.OWN: labels.NEW}  # NEW: the exporter takes over the run and fills it
            return self._take_own_run(client, experiment, create(experiment, tags))

    def _take_own_run(self, client: Any, experiment: str, new_run: Any) -> Any:
        """Return the trial's run: `new_run`, or an older one that another rank or the exporter has created meanwhile.

        In the latter case, `new_run` is deleted.
        """
        oldest = find_run(client, experiment, self.tags) if self.tags else ""
        run = new_run
        if oldest and oldest != new_run.info.run_id:
            client.delete_run(new_run.info.run_id)
            run = client.get_run(oldest)
        self.run = run.info.run_id
        return run


def _sqlite_file(uri: str) -> str:
    """Return the path of the SQLite file of a tracking URI; "" for another URI."""
    return uri.removeprefix("sqlite:///") if uri.startswith("sqlite:///") else ""


def _has_experiment(file: str, name: str = "") -> bool:
    """Return whether an MLflow database in a file has the experiment `name`, or any if that is "". Only read the file."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{urllib.parse.quote(file)}?mode=ro", uri=True)) as database:
            query = "SELECT 1 FROM experiments WHERE name = ?" if name else "SELECT 1 FROM experiments"
            return database.execute(query, (name,) if name else ()).fetchone() is not None
    except sqlite3.OperationalError:  # the file or the table does not exist yet
        return False


def lacks_tables(environ: Mapping[str, str]) -> bool:
    """Return whether the tracking URI is a SQLite file in which the exporter has not created MLflow's tables yet."""
    file = _sqlite_file(environ.get(env.MLFLOW_TRACKING_URI, ""))
    return file != "" and not _has_experiment(file)


def wait_for_tables(environ: Mapping[str, str]) -> None:
    """Wait for the exporter to create MLflow's tables. After `_PATIENCE` seconds, choose the trial's local store instead.

    The MLflow of a program that a trial starts would create them too. If two processes do so at once, one of them fails, and
    the program's would store the artifacts of all runs in its own folder.
    """
    deadline = time.monotonic() + _PATIENCE
    while lacks_tables(environ) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    if lacks_tables(environ) and _trial is not None and _trial.store is not None:
        _trial.use_local_store(_trial.store, f"it has no tables after {_PATIENCE:.0f} s")


def find_run(client: Any, experiment: str, tags: Mapping[str, str]) -> str:
    """Return the id of the oldest run with certain tags in the experiment with an id; "" if there is none."""
    query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    runs = client.search_runs([experiment], query, max_results=1, order_by=["attributes.start_time ASC"])
    return str(runs[0].info.run_id) if runs else ""


def identifying_tags(environ: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the tags that identify the MLflow run of an attempt; empty outside of a trial.

    The attempts of a promoted trial continue one another, and have one run together.

    Args:
        environ: Environment variables of the attempt's process.
        number: Number of the attempt in the ledger, or of the first one of those that continue one another.
    """
    context: dict[str, str] = json.loads(environ.get(env.MLFLOW_CONTEXT) or "{}")
    return {**context, labels.NUMBER: str(number)} if context else {}


# A global variable, as the replaced functions belong to the whole process too. None in a template.
_trial: _Trial | None = None
# Called with the step and the metrics that a script logs into the trial's run; None if they are logged directly.
_report: Callable[[int, Mapping[str, float]], None] | None = None


def replace_on_import(environ: Mapping[str, str]) -> None:
    """Replace MLflow's functions when the job imports MLflow, if a tracking URI is set in `environ`."""
    if environ.get(env.MLFLOW_TRACKING_URI):
        for name, replace in _REPLACED.items():
            imports.on_import(name, replace)


def enter(environ: Mapping[str, str], number: int = 0, store: Path | None = None) -> None:
    """Record which trial this process runs, alone or as a rank, and make MLflow's functions use the trial's run.

    Args:
        environ: Environment variables for the trial; the job may have changed those in `os.environ`.
        number: Number in the ledger of the first of the attempts that continue one another, which share a run.
        store: File for a local MLflow store, which is used if MLflow does not answer.
    """
    global _trial
    replace_on_import(environ)
    uri = environ.get(env.MLFLOW_TRACKING_URI)
    if not uri:
        return
    _trial = _Trial(
        uri=uri,
        name=environ.get(env.MLFLOW_EXPERIMENT_NAME, "Default"),
        run=environ.get(env.MLFLOW_RUN_ID, ""),
        tags=identifying_tags(environ, number),
        store=store,
    )
    if _trial.tags:
        # For the runs of programs that the trial starts, which must not be taken for the trial's own run.
        tags = {name: value for name, value in _trial.tags.items() if name != labels.NUMBER}
        os.environ[env.MLFLOW_CONTEXT] = json.dumps({**tags, labels.LOGGED_BY: str(number)})
    _trial.set_tracking_uri()
    if _FLUENT in sys.modules:  # the fork has dropped the exit functions of the template, including MLflow's
        atexit.register(_end_open_run)


def report_to(report: Callable[[int, Mapping[str, float]], None]) -> None:
    """Pass the metrics that the job logs into the trial's run to a function, instead of logging them.

    The function gets a step and its metrics. They are reports of the trial then, and the exporter writes them to the run.
    """
    global _report
    _report = report


def own_run() -> str:
    """Return the id of the trial's run, after a search if MLflow is imported. "" if there is none."""
    if _trial is not None and _CLIENT in sys.modules:
        _trial.find_run_once()
    return current()


def current() -> str:
    """Return the id of the trial's run if it was found or created before; otherwise ""."""
    return os.environ.get(env.MLFLOW_RUN_ID, "") or (_trial.run if _trial else "")


def _end_open_run() -> None:
    """End a child run that the job has left open. The trial's own run is ended by the exporter."""
    fluent = sys.modules[_FLUENT]
    active = fluent.active_run()
    if active is not None and active.info.run_id != current():
        fluent._safe_end_run()


@functools.cache  # so that each line is written only once
def _log_ignored_call(call: str, reason: str) -> None:
    """Write a line about an ignored call to standard error, which is the log of the trial or of the slot."""
    sys.stderr.write(f"trialplane: {call} is ignored: {reason}\n")


def _replace_in_service(module: ModuleType) -> None:
    """Make MLflow's module of the tracking service ignore other tracking URIs than the trial's."""
    if _trial is not None:
        _trial.set_tracking_uri()

    @functools.wraps(module.set_tracking_uri)
    def set_tracking_uri(uri: Any) -> None:
        if str(uri) != module.get_tracking_uri():
            reason = "a trial logs to the server of its study, which is MLFLOW_TRACKING_URI at the time of the submission"
            _log_ignored_call(f"mlflow.set_tracking_uri({str(uri)!r})", reason)

    module.set_tracking_uri = set_tracking_uri  # type: ignore[attr-defined]


def _replace_in_client(module: ModuleType) -> None:
    """Make clients use the trial's server, create runs as children of the trial's, and report the trial's metrics."""
    _replace_run_functions(module.MlflowClient)
    _replace_metric_functions(module.MlflowClient)


def _replace_run_functions(client_class: Any) -> None:
    """Replace `__init__`, so that a client uses the trial's server, and `create_run`.

    The first run that is created becomes the trial's run, unless the trial has one. Each further run becomes its child.
    """
    original_init, original_create_run = client_class.__init__, client_class.create_run

    @functools.wraps(original_init)
    def init(client: Any, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        """Initialize a client; at the trial's server unless it names another one."""
        if _trial is not None and tracking_uri in (None, _trial.uri):
            _trial.find_run_once()  # may change the URI to that of the local store
            tracking_uri = _trial.uri
        original_init(client, tracking_uri, registry_uri)

    @functools.wraps(original_create_run)
    def create_run(
        client: Any,
        experiment_id: str,
        start_time: int | None = None,
        tags: dict[str, Any] | None = None,
        run_name: str | None = None,
    ) -> Any:
        """Create the trial's run, or a child of it. Outside of a trial, or at another server, create the run unchanged."""
        if _trial is None or client.tracking_uri != _trial.uri:
            return original_create_run(client, experiment_id, start_time, tags, run_name)
        _trial.find_run_once()  # the client may have been created before the trial was set
        if client.tracking_uri != _trial.uri:  # the search has changed it to that of the local store
            original_init(client, _trial.uri)

        def create(experiment: str, tags: dict[str, Any]) -> Any:
            return original_create_run(client, experiment, start_time, tags, run_name)

        return _trial.create_run(client, create, dict(tags or {}), run_name)

    client_class.__init__, client_class.create_run = init, create_run


def _replace_metric_functions(client_class: Any) -> None:
    """Replace `log_metric` and `log_batch`, which report metrics of the trial's run instead of logging them."""
    original_log_metric, original_log_batch = client_class.log_metric, client_class.log_batch

    @functools.wraps(original_log_metric)
    def log_metric(
        client: Any,
        run_id: str,
        key: str,
        value: float,
        timestamp: int | None = None,
        step: int | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Report a metric of the trial's run. Log a metric of any other run."""
        if _report is None or run_id != current():
            return original_log_metric(client, run_id, key, value, timestamp, step, *rest, **options)
        _report(step or 0, {key: float(value)})
        return None

    @functools.wraps(original_log_batch)
    def log_batch(client: Any, run_id: str, metrics: Sequence[Any] = (), *rest: Any, **options: Any) -> Any:
        """Report the metrics of the trial's run by step, and log its parameters and tags. Log a batch of any other run."""
        if _report is None or run_id != current():
            return original_log_batch(client, run_id, metrics, *rest, **options)
        by_step: dict[int, dict[str, float]] = {}  # a report has the metrics of one step
        for metric in metrics:
            by_step.setdefault(metric.step or 0, {})[metric.key] = float(metric.value)
        for step, values in by_step.items():
            _report(step, values)
        return original_log_batch(client, run_id, (), *rest, **options)

    client_class.log_metric, client_class.log_batch = log_metric, log_batch


def _replace_in_fluent(module: ModuleType) -> None:
    """Make MLflow's fluent functions use the trial's experiment, and by default the trial's run."""
    _replace_experiment_functions(module)
    _replace_start_functions(module)


def _replace_experiment_functions(module: Any) -> None:
    """Make `set_experiment`, and functions without an experiment, use the trial's experiment."""
    original_set_experiment, original_get_experiment_id = module.set_experiment, module._get_experiment_id

    @functools.wraps(original_set_experiment)
    def set_experiment(experiment_name: str | None = None, experiment_id: str | None = None, **_: Any) -> Any:
        """Return the experiment of the trial. Log that a request for another one is ignored."""
        trial_experiment = os.environ.get(env.MLFLOW_EXPERIMENT_NAME, "") if _trial is None else _trial.name
        if experiment_name != trial_experiment:
            requested = experiment_id if experiment_name is None else experiment_name
            reason = f"a trial's runs are in its job's experiment, {trial_experiment}"
            _log_ignored_call(f"mlflow.set_experiment({requested!r})", reason)
        if _trial is None:  # in the process from which trials are forked, which must not call the server
            from mlflow.entities import Experiment

            return Experiment(experiment_id="", name=trial_experiment, artifact_location="", lifecycle_stage="active")
        return original_set_experiment(experiment_id=_trial.experiment_id(module.MlflowClient()))

    @functools.wraps(original_get_experiment_id)
    def get_experiment_id() -> Any:
        return original_get_experiment_id() if _trial is None else _trial.experiment_id(module.MlflowClient())

    module.set_experiment, module._get_experiment_id = set_experiment, get_experiment_id


def _replace_start_functions(module: Any) -> None:
    """Make `start_run`, and functions that log without a run, use the trial's run."""
    original_start_run, original_get_or_start_run = module.start_run, module._get_or_start_run

    @functools.wraps(original_start_run)
    def start_run(
        run_id: str | None = None,
        experiment_id: str | None = None,
        run_name: str | None = None,
        nested: bool = False,
        parent_run_id: str | None = None,
        tags: dict[str, Any] | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Start the trial's run or a child of it, after the search for the trial's run."""
        if _trial is not None:
            _trial.find_run_once()
        # The trial's run keeps the name from the exporter; the name that the job gives it becomes a tag.
        is_own_run = _trial is not None and (run_id or os.environ.get(env.MLFLOW_RUN_ID)) == _trial.run
        if run_name and is_own_run:
            tags, run_name = {**(tags or {}), labels.RUN_NAME: run_name}, None
        return original_start_run(run_id, experiment_id, run_name, nested, parent_run_id, tags, *rest, **options)

    @functools.wraps(original_get_or_start_run)
    def get_or_start_run() -> Any:
        """Return the active run. If the job has ended the trial's run, resume it instead of starting a new one."""
        # The job has ended the trial's run if MLflow has removed the variable with its id.
        was_ended = module.active_run() is None and env.MLFLOW_RUN_ID not in os.environ
        if was_ended and _trial is not None and _trial.run:
            return module.start_run(run_id=_trial.run)
        return original_get_or_start_run()

    module.start_run, module._get_or_start_run = start_run, get_or_start_run


_REPLACED: Mapping[str, imports.Replace] = {
    _SERVICE: _replace_in_service,
    _CLIENT: _replace_in_client,
    _FLUENT: _replace_in_fluent,
}
