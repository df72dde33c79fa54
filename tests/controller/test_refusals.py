"""What MLflow refuses and what nobody thought of costs one value or one event, never a run's end or the writer.

Not checked here: an MLflow that is away (test_recorder).
"""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from tests.controller.conftest import FACTS, Place, outcome, play, request

from trialplane.controller import adoption, mlflow_writer
from trialplane.controller.batch import Batch, Sender
from trialplane.policies import transport
from trialplane.wire import env
from trialplane.wire.records import TrialReport
from trialplane.wire.states import FailureClass, RunState, TrialState

pytestmark = pytest.mark.slow


def test_names_that_mlflow_refuses(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    odd = request(0, params={"a(b)": 1, "x": 2})
    recorder.started(odd, uses_mlflow=False)
    recorder.ended(odd, outcome(0, metrics={"score": 0.5, "recall@5": 0.25}))
    assert recorder.close(60)
    run = place.trial(0)
    assert run.data.params == {"a_b_": "1", "x": "2"}
    assert run.data.metrics == {"score": 0.5, "recall_5": 0.25, "trial_seconds": 3.0}
    assert (run.info.status, run.data.tags["trialplane.state"]) == ("FINISHED", "COMPLETE")


def test_only_the_value_that_mlflow_refuses_is_left_out(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = place.client.create_experiment("toy")
    run_id = place.client.create_run(experiment).info.run_id
    batch = Batch(metrics=[Metric("bad@" if step == 7 else "good", 1.0, 1, step) for step in range(20)], status="FINISHED")
    batch.add_tags({f"t{index}": index for index in range(120)})
    batch.add_params({"x": 1})
    batch.params["bad("] = "1"
    Sender(place.client).send(run_id, batch)
    run = place.client.get_run(run_id)
    assert len(place.client.get_metric_history(run_id, "good")) == 19
    assert run.data.params == {"x": "1"}
    assert {f"t{index}" for index in range(120)} <= run.data.tags.keys()
    assert run.info.status == "FINISHED"
    said = capsys.readouterr().err
    assert "'bad@'" in said
    assert "'bad('" in said
    assert "'good'" not in said


def test_what_a_proxy_finds_too_large_goes_in_smaller_pieces(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    client = place.client
    run_id = client.create_run(client.create_experiment("toy")).info.run_id
    batch = Batch(metrics=[Metric("loss", 1.0, 1, step) for step in range(20)], status="FINISHED")
    log_batch = client.log_batch

    def proxied(run_id: str, metrics: Sequence[Metric] = (), **others: Any) -> None:
        if len(metrics) > 6:
            raise MlflowException("API request to endpoint /x failed with error code 413 != 200. Response body: '<h1>'")
        log_batch(run_id, metrics, **others)

    monkeypatch.setattr(client, "log_batch", proxied)
    assert Sender(client).send(run_id, batch)
    assert len(client.get_metric_history(run_id, "loss")) == 20


def test_runs_that_have_no_place_any_more_hold_nothing_else_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial logged one below its own, and the experiment is gone."""
    store = place.run.trial_store(0)
    store.parent.mkdir(parents=True, exist_ok=True)
    for name, value in env.own_mlflow(store).items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(f"sqlite:///{store}")
    there = client.create_experiment("toy", artifact_location=store.with_suffix(".artifacts").as_uri())
    own = client.create_run(there).info.run_id
    client.log_metric(own, "from_the_job", 0.5)
    client.create_run(there, tags={"mlflow.parentRunId": own})
    experiment = place.client.create_experiment("toy")
    run_id = place.client.create_run(experiment).info.run_id
    place.client.delete_experiment(experiment)
    batches: dict[str, Batch] = collections.defaultdict(Batch)
    adoption.take_over(store, place.client, run_id, batches)
    assert [metric.key for metric in batches[run_id].metrics] == ["from_the_job"]
    assert list(batches) == [run_id]
    assert f"refuses runs below its run {run_id}" in capsys.readouterr().err


def test_an_infinite_best_value(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    recorder.best("score", float("inf"), 0, 1)
    recorder.best("loss", float("nan"), 0, 1)
    recorder.study_ended(RunState.SUCCEEDED, "all trials ended")
    assert recorder.close(60)
    (parent,) = place.runs("study")
    assert parent.data.metrics["best_score"] > 1e308
    assert "best_loss" in parent.data.metrics


def test_events_that_nobody_thought_of_are_skipped(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    recorder.reported([TrialReport(99, 0, {"score": 1.0}, 1.0)])  # of an attempt that never started
    recorder._append("best", {"metric": "score"})
    recorder.started(request(0), uses_mlflow=False)
    place.run.trial_store(0).write_bytes(b"no database at all" * 100)
    failed = {"state": TrialState.FAILED, "failure": FailureClass.CRASHED, "message": "no file '\udcff'"}
    recorder.ended(request(0), outcome(0, **failed))
    first = recorder._writer
    play(recorder, 1)
    assert recorder.close(60)
    assert recorder._writer is first, "the writer never died"
    assert place.trial(0).data.tags["trialplane.message"] == r"no file '\udcff'"
    assert place.trial(0).info.status == "FAILED"
    assert place.trial(1).info.status == "FINISHED"
    log = place.run.controller_log.read_text()
    for word in ("KeyError: 99", '"number": 99', "KeyError: 'value'", "DatabaseError"):
        assert word in log


def test_an_error_of_mlflow_that_may_pass_is_not_skipped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    play(recorder, 0)
    assert recorder.close(60)
    place.run.written.unlink()
    writer = mlflow_writer.Writer(place.run, place.uri)

    def away(*_: Any, **__: Any) -> None:
        raise MlflowException("the connection is refused")

    monkeypatch.setattr(writer._client, "log_batch", away)
    with pytest.raises(MlflowException):
        writer.write()
    assert writer.offset == 0
    writer._journal._file.close()


def test_arrays_that_a_former_controller_left_are_found(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    place.run.arrays.mkdir()
    for number in (0, 1):
        transport.pack({"logits": np.arange(6.0)}).tofile(place.run.packed(number))
        recorder.started(request(number), uses_mlflow=False)
    recorder.ended(request(0), outcome(0, arrays=48))
    lost = outcome(1, state=TrialState.FAILED, failure=FailureClass.LOST)  # came with no arrays: the file may be half
    recorder.ended(request(1), lost)
    assert recorder.close(60)
    folder = place.client.download_artifacts(place.trial(0).info.run_id, "arrays")
    assert [file.name for file in Path(folder).iterdir()] == ["result.npz"]
    assert place.client.list_artifacts(place.trial(1).info.run_id, "arrays") == []


def test_arrays_that_cannot_be_read_cost_nothing_else(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    place.run.arrays.mkdir()
    place.run.packed(0).write_bytes(b"half")
    recorder.started(request(0), uses_mlflow=False)
    recorder.ended(request(0), outcome(0), place.run.packed(0))
    assert recorder.close(60)
    assert place.trial(0).info.status == "FINISHED"
    assert place.run.packed(0).exists()
    assert str(place.run.packed(0)) in place.run.controller_log.read_text()


def test_closing_twice_and_closing_in_a_hurry(place: Place) -> None:
    recorder = place.recorder("http://127.0.0.1:9")  # nobody answers there
    recorder.study(FACTS)
    asked: list[bool] = []

    def stopped() -> bool:
        asked.append(True)
        return len(asked) > 2

    assert recorder.close(3600, stopped) is False
    assert len(asked) > 2
    assert recorder.close(3600) is False
    assert recorder._writer.poll() is not None
    assert json.loads(place.run.events.read_text())["kind"] == "study"
