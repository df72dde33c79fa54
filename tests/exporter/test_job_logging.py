"""What a job logs to MLflow by itself, beside what the exporter writes of its trial.

Not checked here: where its calls land in the trial's process (tests/training/test_mlflow_runs.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.entities import Param
from mlflow.tracking import MlflowClient
from tests.controller.conftest import outcome, request
from tests.exporter.conftest import DONE, Place, bring

from trialplane.wire import labels

pytestmark = pytest.mark.slow


def test_what_a_job_logs_is_not_refused_because_of_our_parameters(place: Place) -> None:
    """A batch of a job's parameters is all there, though one of them is ours with another value, from the start on."""
    exporter = place.exporter()
    epochs = request(0, params={"epochs": 3, "lr": 0.1, "layers": 2})
    place.begin(epochs)
    bring(exporter, closes=False)
    living = place.trial(0)
    run_id = living.info.run_id
    assert living.data.params == {}
    assert living.data.tags.items() >= {"trialplane.param.epochs": "3", "trialplane.param.lr": "0.1"}.items()
    of_the_job = {"epochs": 3.0, "lr": 0.1, **{f"argument_{index}": index for index in range(54)}}
    place.client.log_batch(run_id, params=[Param(name, str(value)) for name, value in of_the_job.items()])
    place.end(epochs, outcome(0))
    bring(exporter, closes=False)
    assert place.trial(0).data.params == {**{name: str(value) for name, value in of_the_job.items()}, "layers": "2"}
    assert place.trial(0).data.tags["trialplane.param.epochs"] == "3"


def test_a_trial_that_logged_a_parameter_of_ours_with_another_value(place: Place) -> None:
    run_id = place.trials_own(0)
    place.client.log_param(run_id, "x", "1e-05")
    place.client.log_param(run_id, "of_the_job", "yes")
    place.play(0)
    place.play(1)
    place.export(DONE)
    first = place.trial(0)
    assert first.data.params == {"x": "1e-05", "of_the_job": "yes", "kind": "a"}
    assert first.data.tags["trialplane.param.x"] == "0.0"
    assert place.trial(1).info.status == "FINISHED"


@pytest.mark.parametrize("restarted", [False, True])
def test_the_run_that_a_trial_has_created_is_its_run(place: Place, restarted: bool) -> None:
    """Whether the exporter sees it as one that a trial has just created, or among those of a run that it takes up."""
    exporter = place.exporter()
    bring(exporter, closes=False)
    run_id = place.trials_own(0)
    place.client.log_metric(run_id, "from_the_job", 2.5)
    place.begin(request(0))
    bring(exporter if not restarted else place.exporter(), closes=False)
    place.end(request(0), outcome(0))
    place.export(DONE)
    (run,) = place.runs()
    assert (run.info.run_id, run.data.metrics["from_the_job"], run.info.end_time) == (run_id, 2.5, 2_003_000)
    assert run.data.tags[labels.OWN] == labels.TAKEN
    assert run.data.tags[labels.PARENT] == place.runs("study")[0].info.run_id


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_that_a_trial_created_at_the_same_moment_gets_all_of_the_trial(place: Place, restarted: bool) -> None:
    """The trial has logged to its own, so the exporter's is deleted, also when that was killed before it could do so."""
    exporter = place.exporter()
    place.begin(request(0))
    place.report(0, 0, score=0.25)
    bring(exporter, closes=False)
    late = place.trials_own(0)
    place.client.log_metric(late, "from_the_job", 2.5)
    place.report(0, 1, score=0.5)
    bring(exporter, closes=False)
    place.end(request(0), outcome(0, step=1))
    if restarted:
        exporter = place.exporter()
    bring(exporter, closes=False)
    (run,) = place.runs()
    assert (run.info.run_id, run.info.status, run.data.params) == (late, "FINISHED", {"x": "0.0", "kind": "a"})
    assert run.data.tags[labels.OWN] == labels.TAKEN
    assert place.history(run)["score"] == [(0, 0.25), (1, 0.5), (1, 0.5)]
    assert run.data.metrics["from_the_job"] == 2.5
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    assert [run.info.run_id for run in place.runs()] == [late]


def test_a_run_that_a_trial_deleted_again_is_not_taken(place: Place) -> None:
    exporter = place.exporter()
    place.begin(request(0))
    bring(exporter, closes=False)
    late = place.trials_own(0)
    bring(exporter, closes=False)
    place.client.delete_run(late)
    place.end(request(0), outcome(0))
    place.export(DONE)
    assert place.trial(0).info.status == "FINISHED"


def test_a_run_of_a_program_that_a_trial_has_started_is_below_its_run(place: Place) -> None:
    """Children of such a run stay where they are."""
    exporter = place.exporter()
    place.begin(request(0))
    bring(exporter, closes=False)
    program, child = place.trials_own(0, program=True), place.trials_own(0, program=True)
    place.client.set_tag(child, labels.PARENT, program)
    place.end(request(0), outcome(0))
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    own = place.trial(0).info.run_id
    parents = {run_id: place.client.get_run(run_id).data.tags[labels.PARENT] for run_id in (program, child)}
    assert parents == {program: own, child: program}
    marks = {labels.LOGGED_BY, labels.NUMBER, labels.STATE, labels.OWN}
    assert not any(marks & place.client.get_run(run_id).data.tags.keys() for run_id in parents)
    assert {place.client.get_run(run_id).info.status for run_id in parents} == {"KILLED"}


def test_a_tag_that_is_no_number_holds_nothing_up(place: Place) -> None:
    place.play(0)
    odd = place.trials_own(0, program=True)
    place.client.set_tag(odd, labels.LOGGED_BY, "9" * 4500)
    place.export(DONE)
    assert labels.LOGGED_BY not in place.client.get_run(odd).data.tags


def test_what_a_trial_logged_while_mlflow_was_away_is_copied(place: Place) -> None:
    store = place.run.trial_store(0)
    store.parent.mkdir(parents=True)
    own = MlflowClient(f"sqlite:///{store}")
    run = own.create_run(own.create_experiment("any", artifact_location=store.with_suffix(".artifacts").as_uri()))
    own.log_param(run.info.run_id, "of_the_job", "yes")
    own.set_tag(run.info.run_id, "note", "mine")
    for step in range(3):
        own.log_metric(run.info.run_id, "inner", step * 2.0, step=step)
    own.log_text(run.info.run_id, "hello", "note.txt")
    own.log_text(run.info.run_id, "below", "folder/deep.txt")
    place.begin(request(0))
    place.end(request(0), outcome(0))
    place.export(DONE)
    copied = place.trial(0)
    assert copied.data.params == {"x": "0.0", "kind": "a", "of_the_job": "yes"}
    assert copied.data.tags["note"] == "mine"
    assert place.history(copied)["inner"] == [(0, 0.0), (1, 2.0), (2, 4.0)]
    assert {item.path for item in place.client.list_artifacts(copied.info.run_id)} == {"note.txt", "folder"}
    assert [item.path for item in place.client.list_artifacts(copied.info.run_id, "folder")] == ["folder/deep.txt"]


def test_runs_below_the_first_in_a_store_of_its_own_stay_below_it(place: Place, tmp_path: Path) -> None:
    """Also when they are copied twice, as after an interruption."""
    place.run.stores.mkdir()
    own = MlflowClient(f"sqlite:///{place.run.trial_store(0)}")
    experiment = own.create_experiment("toy", artifact_location=(tmp_path / "own").as_uri())
    root = own.create_run(experiment, run_name="any").info.run_id
    fold = own.create_run(experiment, run_name="fold", start_time=1_000, tags={"mlflow.parentRunId": root}).info.run_id
    inner = own.create_run(experiment, run_name="inner", tags={"mlflow.parentRunId": fold}).info.run_id
    for number, run_id in enumerate((root, fold, inner)):
        own.log_metric(run_id, "accuracy", number)
        own.log_param(run_id, "depth", number)
    own.set_terminated(fold, "FAILED", end_time=2_000)
    place.begin(request(0))
    place.end(request(0), outcome(0))
    for _ in range(2):
        place.export(DONE)
        place.client.delete_tag(place.runs("study")[0].info.run_id, labels.EXPORTED)

    trial = place.trial(0)
    everything = place.everything()
    below = {run.info.run_name: run for run in everything if run.data.tags.get("trialplane.copy_of")}
    assert (trial.data.metrics["accuracy"], trial.data.params["depth"]) == (0.0, "0")
    assert below.keys() == {"fold", "inner"}
    assert len(everything) == 2 + len(below)
    assert below["fold"].data.tags["mlflow.parentRunId"] == trial.info.run_id
    assert below["inner"].data.tags["mlflow.parentRunId"] == below["fold"].info.run_id
    copied = below["fold"].info
    assert (copied.status, copied.start_time, copied.end_time) == ("FAILED", 1_000, 2_000)
    assert below["inner"].info.status == "KILLED", "it was left open"
    assert below["inner"].data.metrics == {"accuracy": 2.0}
