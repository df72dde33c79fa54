"""The exporter against real MLflow stores: what a run becomes there, whenever and however often it is exported.

Not checked here: its process (tests/controller/test_exporter_process.py), kills at random (test_kills), files (test_files).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from tests.controller.conftest import outcome, request
from tests.exporter.conftest import DONE, POPULATION, PROMOTION, Place, bring, segment
from tests.exporter.state import state

from trialplane.exporter.projection import MOST_PARAMS
from trialplane.policies import transport
from trialplane.wire import labels
from trialplane.wire.exports import End
from trialplane.wire.records import BestReport, Parent, Segment
from trialplane.wire.states import FailureClass, RunState, TrialState

pytestmark = pytest.mark.slow


def check_a_late_export(place: Place) -> None:
    """A week late, into an MLflow that has nothing, an export has the same result as the live one."""
    live = state(place)
    for run in place.everything():
        place.client.delete_run(run.info.run_id)
    place.export(DONE)
    assert state(place) == live, "a week late"


def test_a_study_in_mlflow(place: Place) -> None:
    place.play(0)
    # A retry that failed with a log, one that was pruned, one with arrays.
    retry = request(1, trial=7, attempt=2, retry_of=0, params={"b": 1, "a": None, "text": "x" * 7000})
    place.begin(retry)
    log = place.run.trial_log(7, 2)
    log.parent.mkdir(parents=True)
    log.write_text("Traceback: all of it")
    failure = {"state": TrialState.FAILED, "failure": FailureClass.CRASHED, "message": "killed", "node": "pod-1"}
    place.end(retry, outcome(1, **failure, metrics={}, retried=True))
    place.begin(request(2))
    place.report(2, 4, 2002.0, score=0.1)
    place.end(request(2), outcome(2, state=TrialState.PRUNED, metrics={"score": 0.1}, start_method="fork", step=4))
    place.begin(request(3))
    packed = place.run.packed(3)
    packed.parent.mkdir()
    transport.pack({"logits": np.arange(6.0).reshape(2, 3), "parts": {"ids": [np.array([1, 2])]}}).tofile(packed)
    place.end(request(3), outcome(3, metrics={"score": 0.75}, arrays=48))
    place.export(DONE)

    (parent,) = place.runs("study")
    assert parent.info.run_name == "toy-1"
    assert (parent.info.status, parent.info.start_time, parent.info.end_time) == ("FINISHED", 1_000_000, 3_000_000)
    assert parent.data.params["trials"] == "24"
    assert parent.data.params["objectives"] == "maximize score"
    wanted = {
        "trialplane.seed": "7",
        "trialplane.state": "SUCCEEDED",
        "trialplane.message": "all trials ended",
        "trialplane.submitted": "1970-01-01 00:16:40.000+00:00",
    }
    assert wanted.items() <= parent.data.tags.items()
    assert labels.EXPORTER not in parent.data.tags
    assert place.history(parent) == {"best_score": [(1, 0.5), (3, 0.75)], "best_trial": [(1, 0.0), (3, 3.0)]}
    assert [item.path for item in place.client.list_artifacts(parent.info.run_id)] == ["job.json"]

    first = place.trial(0)
    assert first.info.run_name == "trial-0000"
    assert first.data.params == {"x": "0.0", "kind": "a"}
    tags = {
        "trialplane.state": "COMPLETE",
        "trialplane.attempt": "1",
        "trialplane.seed": "5",
        "trialplane.git_revision": "abc",
        "trialplane.code_hash": "def",
    }
    assert tags.items() <= first.data.tags.items()
    assert place.history(first)["score"] == [(0, 0.0), (1, 0.25), (2, 0.5), (2, 0.5)]

    second = place.trial(1)
    assert (second.info.run_name, second.info.status) == ("trial-0007-attempt-2", "FAILED")
    tags = {
        "trialplane.state": "LOST",
        "trialplane.class": "crashed",
        "trialplane.message": "killed",
        "trialplane.node": "pod-1",
        "trialplane.retry_of": "0",
        "trialplane.trial": "7",
    }
    assert tags.items() <= second.data.tags.items()
    assert len(second.data.params["text"]) == 6000
    assert [item.path for item in place.client.list_artifacts(second.info.run_id, "logs")] == ["logs/attempt-2.log"]

    third = place.trial(2)
    assert (third.info.status, third.data.tags["trialplane.state"]) == ("FINISHED", "PRUNED"), "no red cross"
    assert third.data.tags["trialplane.start_method"] == "fork"
    assert place.history(third)["score"] == [(4, 0.1)], "the metrics of its end are those of its last report"

    folder = place.client.download_artifacts(place.trial(3).info.run_id, "arrays")
    (archive,) = Path(folder).iterdir()
    with np.load(archive) as arrays:
        np.testing.assert_array_equal(arrays["logits"], np.arange(6.0).reshape(2, 3))
        np.testing.assert_array_equal(arrays["parts.ids.0"], [1, 2])
    assert not packed.exists()
    assert len(place.everything()) == 5


def test_a_running_trial_is_there_with_its_reports_before_it_ends(place: Place) -> None:
    exporter = place.exporter()
    place.begin(request(0))
    place.report(0, 0, score=0.25)
    bring(exporter, closes=False)
    living = place.trial(0)
    assert (living.info.status, living.data.tags[labels.STATE]) == ("RUNNING", "RUNNING")
    assert living.data.params == {}, "a parameter never changes, and the job may have its own"
    assert living.data.tags["trialplane.param.x"] == "0.0"
    assert place.history(living) == {"score": [(0, 0.25)]}
    (parent,) = place.runs("study")
    assert (parent.info.status, parent.data.tags[labels.STATE]) == ("RUNNING", "RUNNING")
    place.report(0, 1, score=0.5)
    place.end(request(0), outcome(0, step=1))
    bring(exporter, closes=False)
    assert place.trial(0).info.run_id == living.info.run_id
    assert place.history(place.trial(0))["score"] == [(0, 0.25), (1, 0.5), (1, 0.5)]
    assert (place.trial(0).info.status, place.trial(0).info.end_time) == ("FINISHED", 2_003_000)


def test_a_report_with_very_many_metrics_steps_that_go_backwards_and_values_that_are_none(place: Place) -> None:
    place.begin(request(0))
    place.report(0, 5, **{f"m{index:05}": float(index) for index in range(10_000)})
    place.report(0, 2, score=0.5)
    place.report(0, 1, score=float("nan"))
    place.report(0, 0, score=float("inf"))
    place.report(0, 0, 2000.5, score=float("-inf"))
    place.end(request(0), outcome(0, metrics={"score": float("nan"), "loss": float("inf")}, step=5))
    for _ in range(2):
        place.export(DONE)
    run = place.trial(0)
    assert len(run.data.metrics) == 10_003
    assert run.data.metrics["m09999"] == 9999.0
    steps = sorted(metric.step for metric in place.client.get_metric_history(run.info.run_id, "score"))
    assert steps == [0, 0, 1, 2, 5], "each once"


def test_a_paused_trial_that_is_dropped_ends_once_more_in_the_same_run(place: Place) -> None:
    exporter = place.exporter()
    place.begin(request(0))
    place.report(0, 0, score=0.25)
    paused = outcome(0, state=TrialState.PAUSED, metrics={"score": 0.25}, step=0)
    place.end(request(0), paused)
    bring(exporter, closes=False)
    assert place.trial(0).info.status == "KILLED"
    place.end(request(0), dataclasses.replace(paused, state=TrialState.PRUNED, message="not promoted"))
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    assert (place.trial(0).info.status, place.trial(0).data.tags[labels.STATE]) == ("FINISHED", "PRUNED")
    check_a_late_export(place)


def test_a_promoted_trial_is_one_run(place: Place, tmp_path: Path, mlflow_tables: Path) -> None:
    place = Place(tmp_path / "promoted", mlflow_tables, PROMOTION)
    exporter = place.exporter()
    one = segment(0, 0)
    place.begin(one)
    place.report(0, 0, score=0.25)
    paused = {"state": TrialState.PAUSED, "step": 0, "message": "paused", "ended": 2001.0}
    place.end(one, outcome(0, metrics={"score": 0.25}, **paused))
    bring(exporter, closes=False)
    run = place.trial(0)
    tags = run.data.tags
    assert (run.info.status, tags[labels.STATE], tags[labels.RUNG], tags[labels.PROMOTIONS]) == (
        "KILLED",
        "PAUSED",
        "1",
        "0",
    )
    assert run.data.params == {}, "its next segment may log its own"

    two = segment(1, 0, one)
    place.begin(two)
    place.report(1, 1, score=0.5)
    bring(exporter, closes=False)
    run = place.trial(0)
    tags = run.data.tags
    assert (run.info.status, tags[labels.STATE], tags[labels.RUNG], tags[labels.PROMOTIONS]) == (
        "RUNNING",
        "RUNNING",
        "4",
        "1",
    )
    assert tags[labels.ATTEMPT] == "2"

    place.end(two, outcome(1, **{**paused, "step": 3, "ended": 2005.0}))
    three = segment(2, 0, two)
    place.begin(three)  # both in one look
    bring(exporter, closes=False)
    assert (place.trial(0).info.status, place.trial(0).data.tags[labels.RUNG]) == ("RUNNING", "0")
    place.report(2, 4, score=1.0)
    place.end(three, outcome(2, metrics={"score": 1.0}, step=15, ended=2009.0))
    dropped = segment(3, 1)
    place.begin(dropped)
    place.end(dropped, outcome(3, metrics={"score": 0.0}, **{**paused, "state": TrialState.PRUNED, "message": "dropped"}))
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    assert exporter.progress.trials == 2

    assert sorted(run.info.run_name for run in place.runs()) == ["trial-0000", "trial-0001"]
    run = place.trial(0)
    tags = {labels.STATE: "COMPLETE", labels.ATTEMPT: "3", labels.PROMOTIONS: "2", labels.MESSAGE: ""}
    assert tags.items() <= run.data.tags.items()
    assert labels.RETRY_OF not in run.data.tags
    assert (run.info.status, run.info.end_time, run.data.params["epochs"]) == ("FINISHED", 2_009_000, "16")
    assert place.history(run)["score"] == [(0, 0.25), (1, 0.5), (4, 1.0), (15, 1.0)]
    assert place.history(place.runs("study")[0])["best_trial"] == [(1, 0.0)]
    check_a_late_export(place)
    place.close()


def test_a_promoted_trial_that_fails_goes_on_in_another_run(place: Place, tmp_path: Path, mlflow_tables: Path) -> None:
    place = Place(tmp_path / "promoted", mlflow_tables, PROMOTION)
    one = segment(0, 0)
    two = segment(1, 0, one)
    assert two.segment is not None
    retry = dataclasses.replace(two, attempt=3, number=2, retry_of=1, segment=dataclasses.replace(two.segment, series=None))
    lost = {"state": TrialState.FAILED, "failure": FailureClass.LOST, "metrics": {}, "retried": True}
    for asked, ended in ((one, {"state": TrialState.PAUSED}), (two, lost), (retry, {})):
        place.begin(asked)
        place.end(asked, outcome(asked.number, **ended))
    exporter = place.export(DONE)
    states = {run.info.run_name: run.data.tags[labels.STATE] for run in place.runs()}
    assert states == {"trial-0000": "LOST", "trial-0000-attempt-3": "COMPLETE"}
    assert place.trial(2).data.tags[labels.RETRY_OF] == "1"
    assert exporter.progress.trials == 1
    place.close()


def test_a_member_that_takes_over_another_ones_state_has_another_run(
    place: Place, tmp_path: Path, mlflow_tables: Path
) -> None:
    place = Place(tmp_path / "population", mlflow_tables, POPULATION)
    exporter = place.exporter()
    first = [request(trial, trial=trial, segment=Segment(4, ("score",), folder=4)) for trial in range(2)]
    for asked, score in zip(first, (0.25, 0.75), strict=True):
        place.begin(asked)
        place.end(asked, outcome(asked.number, state=TrialState.PAUSED, metrics={"score": score}, step=4, ended=2001.0))
    bring(exporter, closes=False)
    parent = Parent(1, 4, "digest", 1, 4)
    child = request(2, trial=0, attempt=2, retry_of=0, segment=Segment(8, ("score",), 4, 0, parent, folder=8))
    own = request(3, trial=1, attempt=2, retry_of=1, segment=Segment(8, ("score",), 4, 0, parent, series=1, folder=8))
    for asked in (child, own):
        place.begin(asked)
    bring(exporter, closes=False)
    tags = place.trial(2).data.tags
    assert (tags[labels.PARENT_NUMBER], tags[labels.PARENT_TRIAL], tags[labels.PARENT_STEP]) == ("1", "1", "4")
    assert labels.PARENT_TRIAL not in place.trial(1).data.tags
    for asked in (child, own):
        place.end(asked, outcome(asked.number, metrics={"score": 1.0}, step=8, ended=2005.0))
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    assert exporter.progress.trials == 2
    assert {run.data.tags[labels.NUMBER]: run.data.tags[labels.STATE] for run in place.runs()} == {
        "0": "PRUNED",
        "1": "COMPLETE",
        "2": "COMPLETE",
    }
    replaced = place.trial(0)
    assert (replaced.info.status, replaced.data.params["x"]) == ("FINISHED", replaced.data.tags[f"{labels.PARAM}x"])
    assert replaced.data.tags[labels.MESSAGE] == "took over the state of trial 1 after step 4"
    check_a_late_export(place)
    place.close()


def test_trials_are_counted_and_not_their_attempts(place: Place) -> None:
    lost = {"state": TrialState.FAILED, "failure": FailureClass.LOST, "metrics": {}}
    counts = []
    for number, ended in enumerate(({**lost, "retried": True}, lost, {})):  # the user has the last failure tried again
        asked = request(number, trial=0, attempt=number + 1, retry_of=number - 1 if number else None)
        place.begin(asked)
        place.end(asked, outcome(number, **ended))
        counts.append(place.export().progress.trials)
    assert counts == [0, 1, 1]


def test_mlflow_has_the_best_report_and_its_step(place: Place) -> None:
    place.begin(request(0))
    for step, value in enumerate((0.9, 0.4)):
        place.report(0, step, score=value)
    place.end(request(0), outcome(0, metrics={"score": 0.9}, best={"score": BestReport(0.9, 0)}, step=1))
    place.export()
    run = place.trial(0)
    assert (run.data.metrics["score"], run.data.metrics["best_step_score"]) == (0.9, 0.0)


def test_of_very_many_params_mlflow_shows_the_searched_ones_and_a_file_has_all(place: Place) -> None:
    params = {**{f"fixed{index}": index for index in range(1500)}, "lr": 0.5}
    place.begin(request(0, params=params))
    place.end(request(0, params=params), outcome(0))
    place.export(DONE)
    run = place.trial(0)
    assert len(run.data.params) == MOST_PARAMS and run.data.params["lr"] == "0.5"
    assert json.loads(Path(place.client.download_artifacts(run.info.run_id, "params.json")).read_text()) == params


def test_exported_twice_or_a_week_late_or_again_from_the_beginning_it_is_the_same(place: Place, tmp_path: Path) -> None:
    exporter = place.exporter()
    for number in range(3):
        place.play(number)
        bring(exporter, closes=False)
    place.begin(request(3))
    place.report(3, 0, score=1.0)
    bring(exporter, closes=False)
    place.end(request(3), outcome(3, step=0))
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    live = state(place)
    ids = {run.info.run_id for run in place.everything()}

    place.export(DONE)
    assert state(place) == live, "twice"
    place.client.delete_tag(place.runs("study")[0].info.run_id, labels.EXPORTED)
    place.export(DONE)
    assert state(place) == live, "from the beginning"
    assert {run.info.run_id for run in place.everything()} == ids

    for run in place.everything():
        place.client.delete_run(run.info.run_id)
    place.export(DONE)
    assert state(place) == live, "a week late, into an MLflow that has nothing"


def test_a_run_that_goes_on_is_open_again_and_keeps_its_records(place: Place) -> None:
    place.play(0)
    place.export(End(RunState.PAUSED, "paused by the user", 2500.0))
    (parent,) = place.runs("study")
    assert (parent.info.status, parent.data.tags[labels.STATE]) == ("SCHEDULED", "PAUSED")
    job = json.loads(place.run.job.read_text())
    place.run.job.write_text(json.dumps({**job, "trials": 48}))
    exporter = place.export()
    assert place.runs("study")[0].info.status == "RUNNING"
    place.play(1)
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    (parent,) = place.runs("study")
    assert parent.data.tags["trialplane.param.trials"] == "48", "MLflow refuses another value of a parameter"
    assert parent.info.status == "FINISHED"
    assert [place.trial(number).info.status for number in (0, 1)] == ["FINISHED", "FINISHED"]


def test_a_name_that_is_used_again_is_another_study(place: Place) -> None:
    for number in range(3):
        place.play(number)
    place.export(DONE)
    facts = json.loads(place.run.submission.read_text())
    place.run.submission.write_text(json.dumps({**facts, "submitted": facts["submitted"] + 60}))
    place.export(DONE)
    parents = [run.info.run_id for run in place.runs("study")]
    assert len(parents) == 2
    children = [run.data.tags["mlflow.parentRunId"] for run in place.runs()]
    assert sorted(children.count(parent) for parent in parents) == [3, 3]


def test_an_iteration_of_which_units_failed_keeps_the_logs_that_say_why(place: Place) -> None:
    job = {
        "name": "toy",
        "kind": "collect",
        "entrypoint": "play:run",
        "collect": {"iterations": 3, "workers": 1, "units": 4, "learner": {"entrypoint": "learn:run"}},
    }
    place.run.job.write_text(json.dumps(job))
    for number, failed in enumerate((0.0, 2.0)):
        for log in (place.run.trial_log(number, 1), place.run.trial_log(number, 1, worker=0)):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("all of it")
        place.begin(request(number))
        place.end(request(number), outcome(number, metrics={"units": 4.0, "units_failed": failed}))
    place.begin(request(2))
    stopped = outcome(2, state=TrialState.FAILED, failure=FailureClass.STOPPED, metrics={}, retried=True)
    place.end(request(2), stopped)
    place.export(End(RunState.PAUSED, "paused by the user", 3000.0))
    kept = [[item.path for item in place.client.list_artifacts(place.trial(n).info.run_id, "logs")] for n in (0, 1)]
    assert kept == [[], ["logs/attempt-1.log", "logs/worker-0.log"]]
    assert [place.trial(number).info.run_name for number in (0, 1)] == ["iteration-0000", "iteration-0001"]
    paused = place.trial(2)
    assert (paused.info.status, paused.data.tags["trialplane.state"]) == ("KILLED", "PAUSED")


def test_where_the_folder_is_lost_with_the_pod_all_logs_go_to_mlflow(place: Place) -> None:
    log = place.run.trial_log(0, 1)
    log.parent.mkdir(parents=True)
    log.write_text("what it printed")
    place.run.controller_log.write_text("what the controller did")
    place.play(0)
    place.export(DONE, keeps_folder=False)
    assert [item.path for item in place.client.list_artifacts(place.trial(0).info.run_id, "logs")] == ["logs/attempt-1.log"]
    (parent,) = place.runs("study")
    assert [item.path for item in place.client.list_artifacts(parent.info.run_id, "logs")] == ["logs/controller.log"]


def test_a_run_that_somebody_deletes_does_not_stop_the_others(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    exporter = place.exporter()
    place.begin(request(0))
    bring(exporter, closes=False)
    run_id = place.trial(0).info.run_id
    place.client.delete_run(run_id)
    place.end(request(0), outcome(0))
    place.play(1)
    bring(exporter, closes=False)
    assert place.trial(1).info.status == "FINISHED"
    assert run_id in capfd.readouterr().err, "the log says what could not be written"


def test_runs_that_mlflow_made_although_its_answers_were_lost_are_found_or_deleted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.begin(request(0))
    place.report(0, 0, score=1.0)
    exporter = place.exporter()
    create = exporter.client.create_run

    def lost(*arguments: Any, **options: Any) -> Any:
        create(*arguments, **options)
        raise MlflowException("the answer did not come")

    def twice(*arguments: Any, **options: Any) -> Any:
        create(*arguments, **options)
        return create(*arguments, **options)

    monkeypatch.setattr(exporter.client, "create_run", lost)
    for _ in range(2):  # the parent, and the trial
        with pytest.raises(MlflowException):
            exporter.advance()
    monkeypatch.setattr(exporter.client, "create_run", twice)
    place.play(1)  # MLflow makes one of its two only later
    bring(exporter, closes=False)
    assert len(place.runs("study")) == 1
    assert len(place.runs()) == 3
    place.end(request(0), outcome(0))
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    assert len(place.runs()) == 2
    assert place.history(place.trial(1))["score"] == [(0, 0.0), (1, 0.25), (2, 0.5), (2, 0.5)]


@pytest.mark.parametrize("last", [0, 1])
def test_two_exporters_at_once_leave_what_one_does(place: Place, last: int, tmp_path: Path, mlflow_tables: Path) -> None:
    """Each creates runs that the other has not seen; the last to end puts that right."""
    for number in range(3):
        place.play(number)
    both = [place.exporter(end=DONE), place.exporter(end=DONE)]
    for one in both:
        one._ensure_parent()
        one._earlier_runs = {}  # what the other creates from now on is unknown to it
    for one in both:
        one.advance()
    assert len(place.runs()) == 6, "each attempt twice"
    for one in (both[1 - last], both[last]):
        bring(one, closes=True)
    alone = Place(tmp_path / "alone", mlflow_tables)
    for number in range(3):
        alone.play(number)
    alone.export(DONE)
    assert state(place) == state(alone)
    alone.close()


def test_two_parents_become_one(place: Place) -> None:
    place.play(0)
    exporter = place.exporter(end=DONE)
    exporter.advance()
    (parent,) = place.runs("study")
    kept = ("trialplane.run", "trialplane.submitted", "trialplane.kind")
    place.client.create_run(parent.info.experiment_id, tags={key: parent.data.tags[key] for key in kept})
    bring(exporter, closes=True)
    (left,) = place.runs("study")
    assert place.trial(0).data.tags[labels.PARENT] == left.info.run_id
    assert left.info.status == "FINISHED"
