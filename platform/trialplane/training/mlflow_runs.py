"""Redirects MLflow's fluent interface, so that all that a job logs is in its trial's MLflow run, or below it.

A script that ran by itself names its server and its experiment, starts runs and ends them. In a trial all of that is
given. So a few of MLflow's functions are replaced, where MLflow defines them and before anybody can have another reference
to them:

- `set_tracking_uri` and `set_experiment` are ignored, and a line in the log says so;
- the first `start_run`, and whatever logs without a run, get the trial's run;
- every further run becomes a child of it, in its experiment, also one that `MlflowClient` makes.

The trial's run is looked up by its tags at the first call, and created if the exporter has not done so yet. While MLflow is
away, the trial gets a store of its own for good, whose first run stands for the trial's. Nothing here imports MLflow: the
functions are replaced when the job imports it. Programs that a trial starts have MLFLOW_RUN_CONTEXT, by which the exporter
puts their runs below the trial's.
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

from trialplane.training import imports
from trialplane.wire import env, labels

_SERVICE = "mlflow.tracking._tracking_service.utils"
_CLIENT = "mlflow.tracking.client"
_FLUENT = "mlflow.tracking.fluent"
_PATIENCE = 60.0  # seconds for the exporter to make MLflow's tables and the experiment, after which MLflow counts as away
_PAUSE = 0.1  # seconds between two looks
# Of the lookup; MLflow's own patience is minutes.
_LOOKUP = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


@dataclasses.dataclass
class _Trial:
    """The MLflow runs of this process's trial.

    Attributes:
        uri: URI of the tracking server, or of the trial's own store.
        name: Name of the experiment.
        run: Id of the trial's run; "" until it is looked up or created.
        tags: Tags that identify the trial's run; none in a store of its own.
        store: File for a store of its own; None outside of a slot.
        experiment: Id of the experiment; "" until it is needed.
    """

    uri: str
    name: str
    run: str = ""
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    store: Path | None = None
    experiment: str = ""
    _is_located: bool = False
    locating: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    def locate(self) -> None:
        """Look the trial's run up, once; turn to a store of its own if MLflow is away."""
        with self.locating:
            if self._is_located or self.run or not self.tags:
                return
            self._is_located = True  # first, as the client below comes through here
            before = {name: os.environ[name] for name in _LOOKUP if name in os.environ}
            os.environ.update(_LOOKUP)
            try:
                self.experiment, client = self._wait()
                self.run = find(client, self.experiment, self.tags)
            except Exception as error:
                if self.store is None:
                    raise
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
                sys.stderr.write(f"trialplane: MLflow is away ({reason}): this trial logs to {self.store}\n")
                self._use_own_store(self.store)
            finally:
                for name in _LOOKUP:
                    os.environ.pop(name, None)
                os.environ.update(before)
            if self.run:
                os.environ[env.MLFLOW_RUN_ID] = self.run

    def _wait(self) -> tuple[str, Any]:
        """Wait until the exporter has created the experiment; return its id and a client.

        A trial creates neither tables nor experiments: two processes that do so at the same time break the database.
        """
        deadline = time.monotonic() + _PATIENCE
        file = self.uri.removeprefix("sqlite:///") if self.uri.startswith("sqlite:///") else ""
        client = None
        while time.monotonic() < deadline:
            if client is None and (not file or _has_experiment(file, self.name)):
                client = sys.modules[_CLIENT].MlflowClient(self.uri)
            if client is not None and (experiment := client.get_experiment_by_name(self.name)) is not None:
                return experiment.experiment_id, client
            time.sleep(_PAUSE)
        raise TimeoutError(f"it had no experiment {self.name} within {_PATIENCE:.0f} s")

    def _use_own_store(self, store: Path) -> None:
        store.parent.mkdir(parents=True, exist_ok=True)
        os.environ.update(env.mlflow_store_variables(store))
        self.uri, self.tags, self.experiment = os.environ[env.MLFLOW_TRACKING_URI], {}, ""
        sys.modules[_SERVICE]._tracking_uri = self.uri  # type: ignore[attr-defined]

    def experiment_of(self, client: Any) -> str:
        """Return the id of the experiment; create it in a store of the trial's own."""
        if not self.experiment:
            if self.run:
                self.experiment = client.get_run(self.run).info.experiment_id
            else:
                experiment = client.get_experiment_by_name(self.name)
                self.experiment = experiment.experiment_id if experiment else client.create_experiment(self.name)
        return self.experiment


def _has_experiment(file: str, name: str) -> bool:
    """Whether an MLflow database has an experiment; it is neither created nor changed."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{urllib.parse.quote(file)}?mode=ro", uri=True)) as database:
            query = "SELECT 1 FROM experiments WHERE name = ?"
            return database.execute(query, (name,)).fetchone() is not None
    except sqlite3.OperationalError:  # there is no file, or no table yet
        return False


def find(client: Any, experiment: str, tags: Mapping[str, str]) -> str:
    """Return the id of the run with all of these tags in an experiment, the first one created, or "".

    Args:
        client: MLflow's.
        experiment: Id of the experiment.
        tags: Tags of the run.
    """
    query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    runs = client.search_runs([experiment], query, max_results=1, order_by=["attributes.start_time ASC"])
    return str(runs[0].info.run_id) if runs else ""


def tags_of(environ: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the tags that identify the run of an attempt, or of the segments of a trial that continue one another.

    Args:
        environ: Variables of its process.
        number: Number of the attempt in the ledger that began its series.
    """
    context: dict[str, str] = json.loads(environ.get(env.MLFLOW_CONTEXT) or "{}")
    return {**context, labels.NUMBER: str(number)} if context else {}


# Of the process, as are the functions that are replaced: a script reaches both through MLflow's modules alone. None in a
# template.
_trial: _Trial | None = None
# Takes the step and the metrics that a script logs into its trial's run; None where they go there directly.
_report: Callable[[int, Mapping[str, float]], None] | None = None


def watch(environ: Mapping[str, str]) -> None:
    """Replace MLflow's functions as soon as the job imports MLflow, if it is given where to log.

    Args:
        environ: the variables that this process was given.
    """
    if environ.get(env.MLFLOW_TRACKING_URI):
        for name, replace in _REPLACED.items():
            imports.on_import(name, replace)


def enter(environ: Mapping[str, str], number: int = 0, store: Path | None = None) -> None:
    """Make this process a trial's, or a rank's, from now on.

    Args:
        environ: Its variables, whatever the job has made of those in `os.environ` meanwhile.
        number: Number of the attempt in the ledger that began its series.
        store: File for an MLflow store of its own, for the time in which MLflow is away.
    """
    global _trial
    watch(environ)
    uri = environ.get(env.MLFLOW_TRACKING_URI)
    if not uri:
        return
    name, run = environ.get(env.MLFLOW_EXPERIMENT_NAME, "Default"), environ.get(env.MLFLOW_RUN_ID, "")
    _trial = _Trial(uri, name, run, tags_of(environ, number), store)
    if _trial.tags:
        tags = {name: value for name, value in _trial.tags.items() if name != labels.NUMBER}
        os.environ[env.MLFLOW_CONTEXT] = json.dumps({**tags, labels.LOGGED_BY: str(number)})
    if _SERVICE in sys.modules:
        sys.modules[_SERVICE]._tracking_uri = uri  # type: ignore[attr-defined]  # before the variable, which a job may set
    if _FLUENT in sys.modules:  # what it registered at its import went with the template's other exit functions
        atexit.register(_end_what_is_left)


def report_to(report: Callable[[int, Mapping[str, float]], None]) -> None:
    """Report metrics that the job logs into its trial's run, through which they reach that run too, and only once."""
    global _report
    _report = report


def own_run() -> str:
    """Return the id of the trial's run; "" without a trial, and before the trial has started a run."""
    if _trial is not None and _CLIENT in sys.modules:
        _trial.locate()
    return current()


def current() -> str:
    """Return the id of the trial's run if it was needed already, or ""."""
    return os.environ.get(env.MLFLOW_RUN_ID, "") or (_trial.run if _trial else "")


def _end_what_is_left() -> None:
    """End a run below the trial's that the job left open; the trial's own is ended when all of it is recorded."""
    fluent = sys.modules[_FLUENT]
    active = fluent.active_run()
    if active is not None and active.info.run_id != current():
        fluent._safe_end_run()


@functools.cache  # once is enough
def _tell(call: str, advice: str) -> None:
    """Write a line to the trial's log, or the slot's."""
    sys.stderr.write(f"trialplane: {call} is ignored: {advice}\n")


def _replace_in_service(module: ModuleType) -> None:
    """Keep the tracking URI."""
    if _trial is not None:
        module._tracking_uri = _trial.uri  # type: ignore[attr-defined]  # before the variable, which a job may have set

    @functools.wraps(module.set_tracking_uri)
    def set_tracking_uri(uri: Any) -> None:
        if str(uri) != module.get_tracking_uri():
            advice = "a trial's runs are where the study is recorded, as MLFLOW_TRACKING_URI said when it was submitted"
            _tell(f"mlflow.set_tracking_uri({str(uri)!r})", advice)

    module.set_tracking_uri = set_tracking_uri  # type: ignore[attr-defined]


def _replace_in_client(module: ModuleType) -> None:
    """Make further runs children of the trial's, and let the trial's metrics be reported."""
    initialize, original = module.MlflowClient.__init__, module.MlflowClient.create_run

    @functools.wraps(initialize)
    def located(client: Any, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        if _trial is not None and tracking_uri in (None, _trial.uri):
            _trial.locate()
            tracking_uri = _trial.uri
        initialize(client, tracking_uri, registry_uri)

    module.MlflowClient.__init__ = located

    @functools.wraps(original)
    def create_run(
        client: Any,
        experiment_id: str,
        start_time: int | None = None,
        tags: dict[str, Any] | None = None,
        run_name: str | None = None,
    ) -> Any:
        if _trial is None or client.tracking_uri != _trial.uri:
            return original(client, experiment_id, start_time, tags, run_name)
        _trial.locate()  # the client may be older than the trial
        if client.tracking_uri != _trial.uri:
            initialize(client, _trial.uri)
        tags = dict(tags or {})
        tags.pop(labels.LOGGED_BY, None)  # MLflow adds it to each run that a process starts
        with _trial.locating:
            experiment = _trial.experiment_of(client)
            if _trial.run:
                tags.setdefault(labels.PARENT, _trial.run)
            else:
                if run_name:
                    tags[labels.RUN_NAME] = run_name
                if _trial.tags:
                    tags |= {**_trial.tags, labels.OWN: labels.NEW}
            run = original(client, experiment, start_time, tags, run_name)
            if not _trial.run:
                first = find(client, experiment, _trial.tags) if _trial.tags else ""
                if first and first != run.info.run_id:  # of another rank, or of the exporter
                    client.delete_run(run.info.run_id)
                    run = client.get_run(first)
                _trial.run = run.info.run_id
        return run

    module.MlflowClient.create_run = create_run
    log_metric, log_batch = module.MlflowClient.log_metric, module.MlflowClient.log_batch

    @functools.wraps(log_metric)
    def reported_metric(
        client: Any,
        run_id: str,
        key: str,
        value: float,
        timestamp: int | None = None,
        step: int | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if _report is None or run_id != current():
            return log_metric(client, run_id, key, value, timestamp, step, *rest, **options)
        _report(step or 0, {key: float(value)})
        return None

    @functools.wraps(log_batch)
    def reported_batch(client: Any, run_id: str, metrics: Sequence[Any] = (), *rest: Any, **options: Any) -> Any:
        if _report is None or run_id != current():
            return log_batch(client, run_id, metrics, *rest, **options)
        by_step: dict[int, dict[str, float]] = {}
        for metric in metrics:
            by_step.setdefault(metric.step or 0, {})[metric.key] = float(metric.value)
        for step, values in by_step.items():
            _report(step, values)
        return log_batch(client, run_id, (), *rest, **options)

    module.MlflowClient.log_metric, module.MlflowClient.log_batch = reported_metric, reported_batch


def _replace_in_fluent(module: ModuleType) -> None:
    """Keep the experiment, and the trial's run as the one that is logged into without another."""
    set_experiment, start_run = module.set_experiment, module.start_run
    get_or_start_run, get_experiment_id = module._get_or_start_run, module._get_experiment_id

    @functools.wraps(set_experiment)
    def kept_experiment(experiment_name: str | None = None, experiment_id: str | None = None, **_: Any) -> Any:
        job_experiment = os.environ.get(env.MLFLOW_EXPERIMENT_NAME, "") if _trial is None else _trial.name
        if experiment_name != job_experiment:
            requested = experiment_id if experiment_name is None else experiment_name
            _tell(f"mlflow.set_experiment({requested!r})", f"a trial's runs are in its job's experiment, {job_experiment}")
        if _trial is None:  # a template, which asks no server and makes no experiment
            from mlflow.entities import Experiment

            return Experiment("", job_experiment, "", "active")
        return set_experiment(experiment_id=_trial.experiment_of(module.MlflowClient()))

    @functools.wraps(start_run)
    def start(
        run_id: str | None = None,
        experiment_id: str | None = None,
        run_name: str | None = None,
        nested: bool = False,
        parent_run_id: str | None = None,
        tags: dict[str, Any] | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if _trial is not None:
            _trial.locate()
        # The trial's run has the same name everywhere; the job's name for it becomes a tag.
        if run_name and _trial is not None and (run_id or os.environ.get(env.MLFLOW_RUN_ID)) == _trial.run:
            tags, run_name = {**(tags or {}), labels.RUN_NAME: run_name}, None
        return start_run(run_id, experiment_id, run_name, nested, parent_run_id, tags, *rest, **options)

    @functools.wraps(get_or_start_run)
    def trials_run() -> Any:
        ended = module.active_run() is None and env.MLFLOW_RUN_ID not in os.environ
        return module.start_run(run_id=_trial.run) if ended and _trial is not None and _trial.run else get_or_start_run()

    @functools.wraps(get_experiment_id)
    def own_experiment() -> Any:
        return get_experiment_id() if _trial is None else _trial.experiment_of(module.MlflowClient())

    for name, function in (
        ("set_experiment", kept_experiment),
        ("start_run", start),
        ("_get_or_start_run", trials_run),
        ("_get_experiment_id", own_experiment),
    ):
        setattr(module, name, function)


_REPLACED: Mapping[str, imports.Replace] = {
    _SERVICE: _replace_in_service,
    _CLIENT: _replace_in_client,
    _FLUENT: _replace_in_fluent,
}
