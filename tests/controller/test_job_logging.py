"""What a job logs to MLflow by itself, beside what the recorder writes of its trial.

Not checked here: where its calls land in the trial's process (tests/training/test_mlflow_runs.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.entities import Param
from mlflow.tracking import MlflowClient
from tests.controller.conftest import FACTS, Place, outcome, play, request, wait_until

from trialplane.wire import labels

pytestmark = pytest.mark.slow


def test_what_a_job_logs_is_not_refused_because_of_our_parameters(place: Place) -> None:
    """A batch of a job's parameters is all there, though one of them is ours with another value, from the start on."""
    recorder = place.recorder()
    recorder.study(FACTS)
    epochs = request(0, params={"epochs": 3, "lr": 0.1, "layers": 2})
    recorder.started(epochs, uses_mlflow=False)
    wait_until(lambda: recorder.tick() or not recorder.behind, "the start is in MLflow")
    living = place.trial(0)
    run_id = living.info.run_id
    assert living.data.params == {}
    assert living.data.tags.items() >= {"trialplane.param.epochs": "3", "trialplane.param.lr": "0.1"}.items()
    of_the_job = {"epochs": 3.0, "lr": 0.1, **{f"argument_{index}": index for index in range(54)}}
    place.client.log_batch(run_id, params=[Param(name, str(value)) for name, value in of_the_job.items()])
    recorder.ended(epochs, outcome(0))
    assert recorder.close(20)
    assert place.trial(0).data.params == {**{name: str(value) for name, value in of_the_job.items()}, "layers": "2"}
    assert place.trial(0).data.tags["trialplane.param.epochs"] == "3"


def test_a_trial_that_logged_a_parameter_of_ours_with_another_value(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    run_id = place.trials_own(0)
    place.client.log_param(run_id, "x", "1e-05")
    place.client.log_param(run_id, "of_the_job", "yes")
    recorder.started(request(0), uses_mlflow=True)
    recorder.ended(request(0), outcome(0))
    play(recorder, 1)
    assert recorder.close(20)
    first = place.trial(0)
    assert first.data.params == {"x": "1e-05", "of_the_job": "yes", "kind": "a"}
    assert first.data.tags["trialplane.param.x"] == "0.0"
    assert place.trial(1).info.status == "FINISHED"


def test_the_run_that_a_trial_has_created_is_its_run(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    run_id = place.trials_own(0)
    place.client.log_metric(run_id, "from_the_job", 2.5)
    recorder.started(request(0), uses_mlflow=True)
    recorder.ended(request(0), outcome(0))
    assert recorder.close(60)
    run = place.trial(0)
    assert (run.info.run_id, run.data.metrics["from_the_job"], run.info.end_time) == (run_id, 2.5, 2_003_000)
    assert labels.LOGGED_BY not in run.data.tags
    assert run.data.tags[labels.PARENT] == place.runs("study")[0].info.run_id


def test_a_run_that_a_trial_created_at_the_same_moment_is_below_its_run(place: Place) -> None:
    """So are those of a program that the trial has started, which have no number. Children of theirs stay where they are."""
    recorder = place.recorder()
    recorder.study(FACTS)
    recorder.started(request(0), uses_mlflow=False)
    wait_until(lambda: recorder.tick() or not recorder.behind, "the start is in MLflow")
    late, program, child = place.trials_own(0), place.trials_own(0, program=True), place.trials_own(0, program=True)
    place.client.set_tag(child, labels.PARENT, program)
    recorder.ended(request(0), outcome(0))
    assert recorder.close(60)
    own = place.trial(0).info.run_id
    parents = {run_id: place.client.get_run(run_id).data.tags[labels.PARENT] for run_id in (late, program, child)}
    assert parents == {late: own, program: own, child: program}
    marks = {labels.LOGGED_BY, labels.NUMBER, labels.STATE}
    assert not any(marks & place.client.get_run(run_id).data.tags.keys() for run_id in parents)
    assert {place.client.get_run(run_id).info.status for run_id in parents} == {"KILLED"}


def test_a_tag_that_is_no_number_holds_nothing_up(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    play(recorder, 0)
    odd = place.trials_own(0, program=True)
    place.client.set_tag(odd, labels.LOGGED_BY, "9" * 4500)
    assert recorder.close(60)
    assert labels.LOGGED_BY not in place.client.get_run(odd).data.tags


def test_what_a_trial_logged_while_mlflow_was_away_is_taken_over(place: Place) -> None:
    store = place.run.trial_store(0)
    recorder = place.recorder()
    uri = f"sqlite:///{store}"
    own = MlflowClient(uri)
    run = own.create_run(own.create_experiment("any", artifact_location=store.with_suffix(".artifacts").as_uri()))
    own.log_param(run.info.run_id, "of_the_job", "yes")
    own.set_tag(run.info.run_id, "note", "mine")
    for step in range(3):
        own.log_metric(run.info.run_id, "inner", step * 2.0, step=step)
    own.log_text(run.info.run_id, "hello", "note.txt")
    own.log_text(run.info.run_id, "below", "folder/deep.txt")
    recorder.study(FACTS)
    recorder.started(request(0), uses_mlflow=False)
    recorder.ended(request(0), outcome(0))
    assert recorder.close(60)
    taken = place.trial(0)
    assert taken.data.params == {"x": "0.0", "kind": "a", "of_the_job": "yes"}
    assert taken.data.tags["note"] == "mine"
    assert place.history(taken)["inner"] == [(0, 0.0), (1, 2.0), (2, 4.0)]
    assert {item.path for item in place.client.list_artifacts(taken.info.run_id)} == {"note.txt", "folder"}
    assert [item.path for item in place.client.list_artifacts(taken.info.run_id, "folder")] == ["folder/deep.txt"]


def test_runs_below_the_first_in_a_store_of_its_own_stay_below_it(place: Place, tmp_path: Path) -> None:
    """Also when they are taken over twice, as after an interruption."""
    own = MlflowClient(f"sqlite:///{place.run.trial_store(0)}")
    experiment = own.create_experiment("toy", artifact_location=(tmp_path / "own").as_uri())
    root = own.create_run(experiment, run_name="any").info.run_id
    fold = own.create_run(experiment, run_name="fold", start_time=1_000, tags={"mlflow.parentRunId": root}).info.run_id
    inner = own.create_run(experiment, run_name="inner", tags={"mlflow.parentRunId": fold}).info.run_id
    for number, run_id in enumerate((root, fold, inner)):
        own.log_metric(run_id, "accuracy", number)
        own.log_param(run_id, "depth", number)
    own.set_terminated(fold, "FAILED", end_time=2_000)
    for _ in range(2):
        recorder = place.recorder()
        recorder.study(FACTS)
        if not recorder.has("ended", 0):
            recorder.started(request(0), uses_mlflow=False)
            recorder.ended(request(0), outcome(0))
        assert recorder.close(60)
        lines = place.run.written.read_text().splitlines(keepends=True)  # all but how far the writer came
        place.run.written.write_text("".join(line for line in lines if not line.startswith(('["offset"', '["written"'))))

    trial = place.trial(0)
    everything = place.client.search_runs([trial.info.experiment_id])
    below = {run.info.run_name: run for run in everything if run.data.tags.get("trialplane.copy_of")}
    assert (trial.data.metrics["accuracy"], trial.data.params["depth"]) == (0.0, "0")
    assert below.keys() == {"fold", "inner"}
    assert len(everything) == 2 + len(below)
    assert below["fold"].data.tags["mlflow.parentRunId"] == trial.info.run_id
    assert below["inner"].data.tags["mlflow.parentRunId"] == below["fold"].info.run_id
    taken = below["fold"].info
    assert (taken.status, taken.start_time, taken.end_time) == ("FAILED", 1_000, 2_000)
    assert below["inner"].info.status == "KILLED", "it was left open"
    assert below["inner"].data.metrics == {"accuracy": 2.0}
