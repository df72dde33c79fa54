"""Whatever a job does with MLflow's fluent interface lands in its trial's MLflow run, or below it.

A script that ran by itself names its server and its experiment, starts runs and ends them. In a trial all of that is
given: the run is there before the trial starts, and its id is in MLFLOW_RUN_ID, which MLflow takes once and for the first
run alone. So a few of MLflow's functions are replaced, where MLflow defines them and before anybody can have another
reference to them:

- `set_tracking_uri` and `set_experiment` are ignored, and a line in the log says so;
- the first `start_run`, and whatever logs without a run, get the trial's run;
- every further run becomes a child of it, in its experiment, also one that `MlflowClient` makes.

In a store of the trial's own, which it has while MLflow is away, the first run stands for the trial's. Nothing here imports
MLflow: the functions are replaced when the job imports it. Programs that a trial starts have their variables alone.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from trialplane.training import imports
from trialplane.wire import env, labels

_SERVICE = "mlflow.tracking._tracking_service.utils"
_CLIENT = "mlflow.tracking.client"
_FLUENT = "mlflow.tracking.fluent"


@dataclasses.dataclass
class _Trial:
    """Where the runs of this process's trial belong.

    Attributes:
        uri: of the tracking server, or of the trial's own store.
        name: of the experiment.
        run: id of the trial's run; "" in a store of its own, until the first run is there.
        experiment: id of the experiment; "" until it is needed.
    """

    uri: str
    name: str
    run: str
    experiment: str = ""

    def experiment_of(self, client: Any) -> str:
        """The id of the experiment; a store of the trial's own gets it here."""
        if not self.experiment:
            if self.run:
                self.experiment = client.get_run(self.run).info.experiment_id
            else:
                known = client.get_experiment_by_name(self.name)
                self.experiment = known.experiment_id if known else client.create_experiment(self.name)
        return self.experiment


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


def enter(environ: Mapping[str, str]) -> None:
    """This process is a trial's, or a rank's, from now on.

    Args:
        environ: the variables that it was given, whatever the job has made of those in `os.environ` meanwhile.
    """
    global _trial
    watch(environ)
    uri = environ.get(env.MLFLOW_TRACKING_URI)
    if not uri:
        return
    _trial = _Trial(uri, environ.get(env.MLFLOW_EXPERIMENT_NAME, "Default"), environ.get(env.MLFLOW_RUN_ID, ""))
    if _SERVICE in sys.modules:
        sys.modules[_SERVICE]._tracking_uri = uri  # type: ignore[attr-defined]  # before the variable, which a job may set
    if _FLUENT in sys.modules:  # what it registered at its import went with the template's other exit functions
        atexit.register(_end_what_is_left)


def report_to(report: Callable[[int, Mapping[str, float]], None]) -> None:
    """Has metrics that the job logs into its trial's run reported instead, by which they come there too, and only once."""
    global _report
    _report = report


def current() -> str:
    """The id of the trial's run; "" without a trial, and in a store of its own before the first run."""
    return os.environ.get(env.MLFLOW_RUN_ID, "") or (_trial.run if _trial else "")


def _end_what_is_left() -> None:
    """End a run below the trial's that the job left open; the trial's own is ended when all of it is recorded."""
    fluent = sys.modules[_FLUENT]
    active = fluent.active_run()
    if active is not None and active.info.run_id != current():
        fluent._safe_end_run()


@functools.cache  # once is enough
def _tell(what: str, cure: str) -> None:
    """A line in the trial's log, or the slot's."""
    sys.stderr.write(f"trialplane: {what} is ignored: {cure}\n")


def _replace_in_service(module: ModuleType) -> None:
    """Keep the tracking URI."""
    if _trial is not None:
        module._tracking_uri = _trial.uri  # type: ignore[attr-defined]  # before the variable, which a job may have set

    @functools.wraps(module.set_tracking_uri)
    def set_tracking_uri(uri: Any) -> None:
        if str(uri) != module.get_tracking_uri():
            cure = "a trial's runs are where the study is recorded, as MLFLOW_TRACKING_URI said when it was submitted"
            _tell(f"mlflow.set_tracking_uri({str(uri)!r})", cure)

    module.set_tracking_uri = set_tracking_uri  # type: ignore[attr-defined]


def _replace_in_client(module: ModuleType) -> None:
    """Make further runs children of the trial's, and lets the trial's metrics be reported."""
    original = module.MlflowClient.create_run

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
        experiment, tags = _trial.experiment_of(client), dict(tags or {})
        if _trial.run:
            tags.setdefault(labels.PARENT, _trial.run)
        elif run_name:
            tags[labels.RUN_NAME] = run_name
        run = original(client, experiment, start_time, tags, run_name)
        _trial.run = _trial.run or run.info.run_id
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
        *given: Any,
        **named: Any,
    ) -> Any:
        if _report is None or run_id != current():
            return log_metric(client, run_id, key, value, timestamp, step, *given, **named)
        _report(step or 0, {key: float(value)})
        return None

    @functools.wraps(log_batch)
    def reported_batch(client: Any, run_id: str, metrics: Sequence[Any] = (), *given: Any, **named: Any) -> Any:
        if _report is None or run_id != current():
            return log_batch(client, run_id, metrics, *given, **named)
        by_step: dict[int, dict[str, float]] = {}
        for metric in metrics:
            by_step.setdefault(metric.step or 0, {})[metric.key] = float(metric.value)
        for step, values in by_step.items():
            _report(step, values)
        return log_batch(client, run_id, (), *given, **named)

    module.MlflowClient.log_metric, module.MlflowClient.log_batch = reported_metric, reported_batch


def _replace_in_fluent(module: ModuleType) -> None:
    """Keep the experiment, and the trial's run as the one that is logged into without another."""
    set_experiment, start_run = module.set_experiment, module.start_run
    get_or_start_run, get_experiment_id = module._get_or_start_run, module._get_experiment_id

    @functools.wraps(set_experiment)
    def kept_experiment(experiment_name: str | None = None, experiment_id: str | None = None, **_: Any) -> Any:
        kept = os.environ.get(env.MLFLOW_EXPERIMENT_NAME, "") if _trial is None else _trial.name
        if experiment_name != kept:
            which = experiment_id if experiment_name is None else experiment_name
            _tell(f"mlflow.set_experiment({which!r})", f"a trial's runs are in its job's experiment, {kept}")
        if _trial is None:  # a template, which asks no server and makes no experiment
            from mlflow.entities import Experiment

            return Experiment("", kept, "", "active")
        return set_experiment(experiment_id=_trial.experiment_of(module.MlflowClient()))

    @functools.wraps(start_run)
    def start(
        run_id: str | None = None,
        experiment_id: str | None = None,
        run_name: str | None = None,
        nested: bool = False,
        parent_run_id: str | None = None,
        tags: dict[str, Any] | None = None,
        *given: Any,
        **options: Any,
    ) -> Any:
        # The trial's run has the name by which the trial is known everywhere; the job's becomes a tag.
        if run_name and _trial is not None and (run_id or os.environ.get(env.MLFLOW_RUN_ID)) == _trial.run:
            tags, run_name = {**(tags or {}), labels.RUN_NAME: run_name}, None
        return start_run(run_id, experiment_id, run_name, nested, parent_run_id, tags, *given, **options)

    @functools.wraps(get_or_start_run)
    def own_run() -> Any:
        ended = module.active_run() is None and env.MLFLOW_RUN_ID not in os.environ
        return module.start_run(run_id=_trial.run) if ended and _trial is not None and _trial.run else get_or_start_run()

    @functools.wraps(get_experiment_id)
    def own_experiment() -> Any:
        return get_experiment_id() if _trial is None else _trial.experiment_of(module.MlflowClient())

    for name, function in (
        ("set_experiment", kept_experiment),
        ("start_run", start),
        ("_get_or_start_run", own_run),
        ("_get_experiment_id", own_experiment),
    ):
        setattr(module, name, function)


_REPLACED: Mapping[str, imports.Replace] = {
    _SERVICE: _replace_in_service,
    _CLIENT: _replace_in_client,
    _FLUENT: _replace_in_fluent,
}
