"""Where the MLflow runs of existing scripts land, in trials of a real template: in the trial's run, or below it.

Not checked here: that the controller takes over what a trial's own store holds (tests/exporter/test_job_logging.py).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from tests.worker.conftest import Bench, Event, wait_until

from trialplane.wire import env, labels
from trialplane.wire.paths import RunPaths

pytestmark = pytest.mark.slow

CODE = """
import os, threading
import mlflow
from mlflow import log_metric, set_experiment, start_run

os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"
mlflow.set_tracking_uri("http://127.0.0.1:9")
EXPERIMENT = mlflow.set_experiment("of the module")

def opening():
    mlflow.set_tracking_uri("sqlite:///mine.db")
    set_experiment("of the script")
    with start_run(run_name="mine"):
        mlflow.log_params({"depth": 3})
        log_metric("first", 1.0)

def experiment_by_hand():
    found = mlflow.get_experiment_by_name("by hand")
    experiment = found.experiment_id if found else mlflow.create_experiment("by hand")
    with mlflow.start_run(experiment_id=experiment):
        log_metric("first", 1.0)
    with mlflow.start_run(experiment_id=experiment):
        log_metric("second", 2.0)

def several():
    for fold in range(2):
        with mlflow.start_run(run_name=f"fold {fold}"):
            log_metric("fold", fold)
            with mlflow.start_run(nested=True, run_name="inner"):
                log_metric("inner", fold)
    mlflow.MlflowClient().create_run("0", run_name="of a logger")

def trainer():  # what the callback of Hugging Face's Trainer does, and evaluate() after it
    mlflow.set_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"])
    mlflow.start_run(run_name=None, nested=False)
    mlflow.log_params({"epochs": 3.0}, synchronous=False)
    mlflow.log_metrics({"loss": 0.5}, step=1, synchronous=False)
    mlflow.end_run()
    mlflow.log_metrics({"eval_loss": 0.25}, step=1, synchronous=False)

def thread():
    log_metric("first", 1.0)
    other = threading.Thread(target=lambda: log_metric("second", 2.0))
    other.start()
    other.join()

def program():
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "import mlflow; mlflow.log_metric('inside', 1.0)"], check=True)

def as_a_second_rank():
    from trialplane.training import mlflow_runs
    trial = mlflow_runs._trial
    trial.find_run_once()
    client = mlflow.MlflowClient()
    other, trial.tags = trial.tags, {}
    mlflow_runs._trial = None  # the first rank
    client.create_run(trial.experiment, start_time=1, tags=dict(other), run_name="of the first")
    mlflow_runs._trial, trial.tags = trial, other
    log_metric("first", 1.0)

def left_open():
    mlflow.start_run()
    mlflow.end_run()
    mlflow.start_run(run_name="open")
    log_metric("open", 1.0)

def run(ctx):
    globals()[ctx.params["what"]]()
    return {"score": 1.0}
"""


@dataclasses.dataclass
class Store:
    """An MLflow store and what is in it."""

    uri: str
    name: str = "toy"

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.uri)

    def experiments(self) -> set[str]:
        """Names; every store has MLflow's own."""
        return {experiment.name for experiment in self.client.search_experiments()} - {"Default"}

    def below(self, run_id: str) -> dict[str, Any]:
        """Name → run, of those directly below one, in its experiment."""
        experiment = self.client.get_run(run_id).info.experiment_id
        runs = self.client.search_runs([experiment], f"tags.mlflow.parentRunId = '{run_id}'")
        return {run.info.run_name: run for run in runs}

    def count(self) -> int:
        everywhere = [experiment.experiment_id for experiment in self.client.search_experiments()]
        return len(self.client.search_runs(everywhere))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without a run; making one takes seconds."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A template that has imported MLflow; each trial says where it logs."""
    given = {env.MLFLOW_TRACKING_URI: "sqlite:////nowhere/mlflow.db", env.MLFLOW_EXPERIMENT_NAME: "toy"}
    with Bench(tmp_path_factory.mktemp("bench"), {"train": CODE}, env=given) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path, empty: Path) -> Store:
    return Store(f"sqlite:///{shutil.copy(empty, tmp_path / 'mlflow.db')}")


def complete(bench: Bench, what: str, given: Mapping[str, str]) -> str:
    """Runs a trial; gives its log."""
    event: Event = bench.run(what, env=dict(given))
    assert event.outcome is not None
    assert event.outcome.metrics == {"score": 1.0}, bench.log(event.outcome)
    return bench.log(event.outcome)


@pytest.fixture
def own(store: Store) -> Any:
    """The trial's run, which is there before the trial, as the controller makes it."""
    experiment = store.client.create_experiment("toy")
    return store.client.create_run(experiment, run_name="trial-0000")


def given(store: Store, run: Any) -> dict[str, str]:
    return {env.MLFLOW_TRACKING_URI: store.uri, env.MLFLOW_RUN_ID: run.info.run_id}


def test_a_scripts_opening_gets_the_trials_run(bench: Bench, store: Store, own: Any) -> None:
    """Server, experiment, run: what nearly every script does first, in its module and in its function."""
    log = complete(bench, "opening", given(store, own))
    run = store.client.get_run(own.info.run_id)
    assert run.data.metrics == {"first": 1.0}
    assert run.data.params == {"depth": "3"}
    assert (run.info.run_name, run.data.tags["trialplane.run_name"]) == ("trial-0000", "mine")
    assert (store.count(), store.experiments()) == (1, {"toy"})
    assert "mlflow.set_tracking_uri('sqlite:///mine.db') is ignored" in log
    assert "mlflow.set_experiment('of the script') is ignored: a trial's runs are in its job's experiment, toy" in log
    assert "mlflow.set_experiment('of the module') is ignored" in bench.slot_log()


def test_an_experiment_chosen_by_its_id_does_not_lead_away(bench: Bench, store: Store, own: Any) -> None:
    complete(bench, "experiment_by_hand", given(store, own))
    assert store.client.get_run(own.info.run_id).data.metrics == {"first": 1.0}
    (second,) = store.below(own.info.run_id).values()
    assert second.data.metrics == {"second": 2.0}
    assert store.count() == 2


def test_further_runs_are_below_the_trials(bench: Bench, store: Store, own: Any) -> None:
    complete(bench, "several", given(store, own))
    assert store.client.get_run(own.info.run_id).data.metrics == {"fold": 0.0}
    below = store.below(own.info.run_id)
    assert {name: run.data.metrics for name, run in below.items()} == {
        "inner": {"inner": 0.0},
        "fold 1": {"fold": 1.0},
        "of a logger": {},
    }
    (inner,) = store.below(below["fold 1"].info.run_id).values()
    assert inner.data.metrics == {"inner": 1.0}
    assert store.count() == 5


def test_what_is_logged_after_the_run_ended_is_in_it_too(bench: Bench, store: Store, own: Any) -> None:
    complete(bench, "trainer", given(store, own))
    run = store.client.get_run(own.info.run_id)
    assert run.data.metrics == {"loss": 0.5, "eval_loss": 0.25}
    assert run.data.params == {"epochs": "3.0"}
    assert store.count() == 1


def test_a_thread_logs_into_the_trials_run(bench: Bench, store: Store, own: Any) -> None:
    complete(bench, "thread", given(store, own))
    assert store.client.get_run(own.info.run_id).data.metrics == {"first": 1.0, "second": 2.0}
    assert store.count() == 1


def test_a_run_that_a_script_leaves_open_ends_with_the_trial(bench: Bench, store: Store, own: Any) -> None:
    complete(bench, "left_open", given(store, own))
    assert store.below(own.info.run_id)["open"].info.status == "FINISHED"


@pytest.mark.parametrize("what", ["opening", "experiment_by_hand", "trainer", "thread"])
def test_in_a_store_of_its_own_the_first_run_is_the_trials(bench: Bench, store: Store, tmp_path: Path, what: str) -> None:
    complete(bench, what, env.mlflow_store_variables(tmp_path / "mlflow.db"))
    everywhere = [experiment.experiment_id for experiment in store.client.search_experiments()]
    (first,) = [run for run in store.client.search_runs(everywhere) if "mlflow.parentRunId" not in run.data.tags]
    assert set(first.data.metrics) & {"first", "loss"}
    assert len(store.below(first.info.run_id)) == store.count() - 1
    assert first.data.tags.get("trialplane.run_name") == {"opening": "mine"}.get(what)


CONTEXT = {labels.RUN: "toy-1", labels.SUBMITTED: "then"}


def looked_up(store: Store) -> dict[str, str]:
    return {env.MLFLOW_TRACKING_URI: store.uri, env.MLFLOW_CONTEXT: json.dumps(CONTEXT)}


@pytest.mark.parametrize("what", ["opening", "experiment_by_hand", "trainer", "thread"])
def test_the_trials_run_is_found_by_its_tags(bench: Bench, store: Store, what: str) -> None:
    experiment = store.client.create_experiment("toy")
    store.client.create_run(experiment, tags={**CONTEXT, labels.SUBMITTED: "before", labels.NUMBER: str(bench.next)})
    tags = {**CONTEXT, labels.NUMBER: str(bench.next)}
    own = store.client.create_run(experiment, run_name="trial-0000", tags=tags).info.run_id
    complete(bench, what, looked_up(store))
    run = store.client.get_run(own)
    assert set(run.data.metrics) & {"first", "loss"}
    assert run.info.run_name == "trial-0000"
    assert store.count() == 2 + len(store.below(own))


def test_a_trial_that_is_faster_than_the_exporter_creates_its_run(bench: Bench, store: Store) -> None:
    number = str(bench.next)
    store.client.create_experiment("toy")
    complete(bench, "several", looked_up(store))
    everywhere = [experiment.experiment_id for experiment in store.client.search_experiments()]
    (own,) = [run for run in store.client.search_runs(everywhere) if labels.PARENT not in run.data.tags]
    assert {**CONTEXT, labels.NUMBER: number, labels.OWN: labels.NEW}.items() <= own.data.tags.items()
    assert store.experiments() == {"toy"}
    below = store.below(own.info.run_id)
    assert below.keys() == {"inner", "fold 1", "of a logger"}
    assert not any({labels.NUMBER, labels.LOGGED_BY, labels.OWN} & run.data.tags.keys() for run in below.values())


def test_a_trial_waits_for_tables_and_experiment(bench: Bench, empty: Path, tmp_path: Path) -> None:
    """Two processes that create MLflow's tables at the same time break the database."""
    file = tmp_path / "later.db"

    def create() -> None:
        wait_until((Path(bench.config.root) / "trials" / f"{number:04d}").exists, "the trial has begun")
        shutil.copy(empty, file)
        store.client.create_experiment("toy")

    number, store = bench.next, Store(f"sqlite:///{file}")
    creator = threading.Thread(target=create)
    creator.start()
    complete(bench, "thread", looked_up(store))
    creator.join()
    assert store.experiments() == {"toy"}
    assert store.count() == 1


def test_of_two_processes_that_create_the_run_the_first_counts(bench: Bench, store: Store) -> None:
    """As of two ranks: the other one finds nothing, and then the first one's run."""
    experiment = store.client.create_experiment("toy")
    number = bench.next
    complete(bench, "as_a_second_rank", looked_up(store))
    (run,) = store.client.search_runs([experiment], f"tags.`{labels.NUMBER}` = '{number}'")
    assert (run.info.run_name, run.data.metrics) == ("of the first", {"first": 1.0})


def test_a_program_that_a_trial_starts_leaves_its_attempts_number(bench: Bench, store: Store) -> None:
    number = str(bench.next)
    complete(bench, "program", looked_up(store))
    everywhere = [experiment.experiment_id for experiment in store.client.search_experiments()]
    (run,) = store.client.search_runs(everywhere)
    assert {**CONTEXT, labels.LOGGED_BY: number}.items() <= run.data.tags.items()
    assert labels.NUMBER not in run.data.tags
    assert (run.data.metrics, store.experiments()) == ({"inside": 1.0}, {"toy"})


def test_while_mlflow_is_away_a_trial_logs_to_a_store_of_its_own(bench: Bench, tmp_path: Path) -> None:
    number = bench.next
    away = {env.MLFLOW_TRACKING_URI: "http://127.0.0.1:9", env.MLFLOW_CONTEXT: json.dumps(CONTEXT)}
    log = complete(bench, "opening", away)
    file = RunPaths(Path(bench.config.root)).trial_store(number)
    assert "MLflow does not answer (MlflowException: API request to http://127.0.0.1:9" in log
    assert f"this trial logs to {file}\n" in log
    store = Store(f"sqlite:///{file}")
    (run,) = store.client.search_runs([store.client.get_experiment_by_name("toy").experiment_id])
    assert run.data.metrics == {"first": 1.0}
    assert not {labels.NUMBER, labels.LOGGED_BY} & run.data.tags.keys()


def test_a_job_without_mlflow_does_not_get_it() -> None:
    """Nothing is imported for it, and another process's MLflow is as it was."""
    program = """
import sys
from trialplane.training import mlflow_runs
mlflow_runs.enter({"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"})
assert not any(name.partition(".")[0] == "mlflow" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
