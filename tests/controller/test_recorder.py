"""The recorder and its writer process against real MLflow stores: what ends up there, once, whatever happens in between.

Not checked here: that a controller uses it so (tests/study).
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.controller.conftest import FACTS, Place, Server, outcome, play, request, wait_until

from trialplane.controller import journal
from trialplane.controller.recorder import Recorder
from trialplane.policies import transport
from trialplane.wire import labels
from trialplane.wire.records import TrialReport
from trialplane.wire.states import FailureClass, RunState, TrialState

pytestmark = pytest.mark.slow


def assert_whole(place: Place, trials: int) -> None:
    """Every trial that `play` played is there, once, with every metric once."""
    runs = place.runs()
    assert sorted(int(run.data.tags["trialplane.number"]) for run in runs) == list(range(trials))
    for run in runs:
        assert place.history(run) == {
            "score": [(0, 0.0), (1, 0.25), (2, 0.5)] if trials < 0 else [(0, 0.0), (1, 0.25), (2, 0.5), (2, 0.5)],
            "loss": [(0, 1.0), (1, 1.0), (2, 0.25), (2, 1.0)],
            "trial_seconds": [(2, 3.0)],
        }
        assert (run.info.status, run.info.end_time) == ("FINISHED", 2_003_000)
    (parent,) = place.runs("study")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {parent.info.run_id}


@pytest.mark.usefixtures("started")
def test_a_study_in_mlflow(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    play(recorder, 0)
    # A retry, one that failed with a log, one that was pruned, one with arrays.
    retry = request(1, trial=7, attempt=2, retry_of=0, params={"b": 1, "a": None, "text": "x" * 7000})
    recorder.started(retry, uses_mlflow=False)
    log = place.run.trial_log(7, 2)
    log.parent.mkdir(parents=True)
    log.write_text("Traceback: all of it")
    failure = {
        "state": TrialState.FAILED,
        "failure": FailureClass.CRASHED,
        "message": "killed",
        "node": "pod-1",
        "metrics": {},
    }
    recorder.ended(retry, outcome(1, **failure, retried=True))
    recorder.started(request(2), uses_mlflow=False)
    recorder.reported([TrialReport(2, 4, {"score": 0.1}, 2002.0)])
    recorder.ended(request(2), outcome(2, state=TrialState.PRUNED, metrics={"score": 0.1}, start_method="fork"))
    recorder.started(request(3), uses_mlflow=False)
    packed = place.run.arrays / "3.packed"
    packed.parent.mkdir()
    transport.pack({"logits": np.arange(6.0).reshape(2, 3), "parts": {"ids": [np.array([1, 2])]}}).tofile(packed)
    recorder.ended(request(3), outcome(3), packed)
    recorder.best("score", 0.5, 0, 1)
    recorder.study_ended(RunState.SUCCEEDED, "all 4 trials ended")
    assert recorder.close(60)

    (parent,) = place.runs("study")
    assert parent.info.run_name == "toy-1"
    assert (parent.info.status, parent.info.start_time) == ("FINISHED", 1_000_000)
    assert parent.data.params == {"trials": "24", "sampler": "tpe"}
    wanted = {
        "trialplane.seed": "7",
        "trialplane.state": "SUCCEEDED",
        "trialplane.message": "all 4 trials ended",
        "trialplane.submitted": "1970-01-01 00:16:40.000+00:00",
    }
    assert wanted.items() <= parent.data.tags.items()
    assert parent.data.metrics == {"best_score": 0.5, "best_trial": 0.0}
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
    assert second.info.run_name == "trial-0007-attempt-2"
    assert second.info.status == "FAILED"
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
    assert len(place.runs()) == 4


def test_many_metrics_and_params_go_in_several_calls(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    wide = request(0, params={f"p{index:03}": index for index in range(250)})
    recorder.started(wide, uses_mlflow=False)
    steps = 450  # the writer takes 400 together, and MLflow 1000 metrics a call
    reported = {"score": 1.0, "loss": 2.0, "rate": 3.0}
    recorder.reported([TrialReport(0, step, reported, 2000.0) for step in range(steps)])
    recorder.ended(wide, outcome(0, metrics={"score": float("nan"), "loss": float("inf")}))
    assert recorder.close(60)
    run = place.trial(0)
    assert len(run.data.params) == 250
    history = place.client.get_metric_history(run.info.run_id, "loss")
    assert sorted(metric.step for metric in history) == [*range(steps), steps - 1]


def test_a_killed_writer_loses_and_doubles_nothing(place: Place) -> None:
    rng = random.Random(3)
    recorder = place.recorder()
    recorder.study(FACTS)
    trials, kills = 24, set(rng.sample(range(1, 23), 5))
    for number in range(trials):
        play(recorder, number)
        if number in kills:
            wait_until(lambda: recorder.tick() or recorder._done, "the writer is at work")
            time.sleep(rng.uniform(0, 0.1))  # the random moment itself
            victim = recorder._writer
            os.kill(victim.pid, signal.SIGKILL)
            wait_until(lambda victim=victim: recorder.tick() or recorder._writer is not victim, "there is a new writer")
    assert recorder.close(90)
    assert_whole(place, trials)


def test_a_writer_killed_between_the_last_report_and_the_end_knows_the_step(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    recorder.started(request(0), uses_mlflow=False)
    recorder.reported([TrialReport(0, step, {"score": 1.0}, 2000.0) for step in range(5)])
    wait_until(lambda: recorder.tick() or not recorder.behind, "the reports are in MLflow")
    victim = recorder._writer
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: recorder.tick() or recorder._writer is not victim, "there is a new writer")
    recorder.ended(request(0), outcome(0))
    assert recorder.close(60)
    assert place.history(place.trial(0))["score"] == [*((step, 1.0) for step in range(4)), (4, 0.5), (4, 1.0)]


def test_a_server_that_is_away_for_a_while(place: Place, server: Server) -> None:
    recorder = place.recorder(server.uri)
    recorder.study(FACTS)
    for number in range(4):
        play(recorder, number)
    server.stop()
    for number in range(4, 12):
        play(recorder, number)
    wait_until(lambda: recorder.tick() or recorder.away, "the recorder knows it")
    assert server.uri in recorder.away
    play(recorder, 12)
    server.start()
    for number in range(13, 16):
        play(recorder, number)
    assert recorder.close(90)
    assert recorder.away == ""
    assert_whole(place, 16)


@pytest.mark.usefixtures("started")
def test_the_password_of_a_server_is_neither_in_arguments_nor_in_what_is_said(place: Place) -> None:
    recorder = place.recorder("http://ann:s3cret@127.0.0.1:9")
    recorder.study(FACTS)
    assert b"s3cret" not in Path(f"/proc/{recorder._writer.pid}/cmdline").read_bytes()
    wait_until(lambda: recorder.tick() or recorder.away, "the recorder knows that nobody answers")
    assert "http://ann:***@127.0.0.1:9" in recorder.away
    assert "s3cret" not in recorder.away


def test_a_server_that_stays_away_until_the_next_life(place: Place, server: Server) -> None:
    recorder = place.recorder(server.uri)
    recorder.study(FACTS)
    for number in range(2):
        play(recorder, number)
    wait_until(lambda: recorder.tick() or not recorder.behind, "all is written so far")
    server.stop()
    for number in range(2, 4):
        play(recorder, number)
    assert recorder.close(0.5) is False
    server.start()
    recorder = place.recorder(server.uri)
    recorder.study(FACTS)
    for number in range(4, 6):
        play(recorder, number)
    assert recorder.close(60)
    assert_whole(place, 6)


def test_the_next_life_writes_what_was_left_and_goes_on(place: Place) -> None:
    """The controller is killed: its recorder is never closed, and the spool ends in half a line."""
    first = place.recorder()
    first.study(FACTS)
    for number in range(3):
        play(first, number)
    first.started(request(3), uses_mlflow=False)
    os.kill(first._writer.pid, signal.SIGKILL)
    first._writer.wait()
    first._spool.close()
    with place.run.events.open("ab") as spool:
        spool.write(b'{"kind":"ended","outcome":{"number":3,"st')
    with place.run.written.open("ab") as written:
        written.write(b'["offset","",1')
    second = place.recorder()
    assert second.has("started", 3)
    assert not second.has("ended", 3)
    assert not second.has("started", 4)
    second.study(FACTS)
    second.reported([TrialReport(3, step, {"score": step / 4, "loss": 1.0}, 2000.0 + step) for step in range(3)])
    second.ended(request(3), outcome(3, metrics={"score": 0.5, "loss": 0.25}))
    play(second, 4)
    assert second.close(60)
    assert_whole(place, 5)


def test_a_study_that_goes_on_with_more_trials(place: Place) -> None:
    """MLflow refuses another value of a parameter; that must not stop the writer for ever."""
    for life, trials in enumerate((24, 48)):
        recorder = place.recorder()
        recorder.study({**FACTS, "params": {**FACTS["params"], "trials": trials}})
        play(recorder, life)
        assert recorder.close(20)
    (parent,) = place.runs("study")
    assert parent.data.tags["trialplane.param.trials"] == "48"
    assert_whole(place, 2)


def test_a_study_is_found_again_by_the_time_of_its_submission(place: Place) -> None:
    """The journal is lost, as with the disk of a head pod."""
    experiment = place.client.create_experiment("toy", artifact_location=(place.home / "artifacts").as_uri())
    tags = {"trialplane.kind": "study", "trialplane.run": "toy-1"}
    place.client.create_run(
        experiment, tags={**tags, labels.SUBMITTED: journal.moment(999.0)}, run_name="of another submission"
    )
    older = place.client.create_run(experiment, tags={**tags, labels.SUBMITTED: journal.moment(1000.0)})
    recorder = Recorder(place.run, place.uri, keeps_folder=False)  # in a pod
    place.recorders.append(recorder)
    recorder.study(FACTS)
    play(recorder, 0)
    assert recorder.close(20)
    assert place.trial(0).data.tags["mlflow.parentRunId"] == older.info.run_id


def test_a_run_that_somebody_deletes_does_not_stop_the_others(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    recorder.started(request(0), uses_mlflow=False)
    wait_until(lambda: recorder.tick() or not recorder.behind, "the start is in MLflow")
    run_id = place.trial(0).info.run_id
    place.client.delete_run(run_id)
    recorder.ended(request(0), outcome(0))
    play(recorder, 1)
    assert recorder.close(20)
    assert place.trial(1).info.status == "FINISHED"
    assert run_id in place.run.controller_log.read_text(), "the log says what could not be written"


def test_a_former_writer_that_has_the_journal_is_waited_for(place: Place) -> None:
    place.run.spool.mkdir()
    former = journal.Journal(place.run.written)
    recorder = place.recorder()
    recorder.study(FACTS)
    play(recorder, 0)
    wait_until(lambda: recorder.tick() or recorder.away, "the recorder knows it")
    assert str(place.run.written) in recorder.away
    former._file.close()
    assert recorder.close(60)
    assert recorder.away == ""
    assert_whole(place, 1)


def test_the_spool_catches_up_with_the_ledger(place: Place) -> None:
    """The controller died after it had told the ledger and before the recorder."""
    recorder = place.recorder()
    recorder.study(FACTS)
    recorder.started(request(0), uses_mlflow=False)
    recorder.ended(request(0), outcome(0))
    recorder.started(request(1), uses_mlflow=False)
    attempts: list[tuple[Any, Any]] = [
        (request(0), outcome(0)),
        (request(1), outcome(1, state=TrialState.FAILED, failure=FailureClass.LOST, metrics={}, started=0.0)),
        (request(2), outcome(2)),
        (request(3), None),
    ]
    ledger: Any = SimpleNamespace(attempts=lambda: iter(attempts))
    assert recorder.catch_up(ledger.attempts()) == 3
    assert recorder.catch_up(ledger.attempts()) == 0
    assert recorder.close(60)
    states = {int(run.data.tags["trialplane.number"]): run.data.tags["trialplane.state"] for run in place.runs()}
    assert states == {0: "COMPLETE", 1: "FAILED", 2: "COMPLETE", 3: "RUNNING"}


def test_the_spool_is_strict_json(place: Place) -> None:
    recorder = place.recorder()
    recorder.started(request(0), uses_mlflow=False)
    recorder.reported([TrialReport(0, 0, {"score": float("nan")}, 1.0)])
    lines = place.run.events.read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["kind"] for line in lines] == ["started", "report"]
