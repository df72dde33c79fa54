"""What MLflow refuses and what nobody thought of costs one value or one attempt, never a run's end or the exporter.

Not checked here: an MLflow that is away (tests/controller/test_exporter_process.py).
"""

from __future__ import annotations

import collections
import http.server
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.tracking import MlflowClient
from tests.controller.conftest import outcome, request
from tests.exporter.conftest import DONE, Place, bring

from trialplane.exporter import __main__ as exporter_main
from trialplane.exporter import adoption
from trialplane.exporter.batch import Batch, Sender
from trialplane.policies import transport
from trialplane.wire import env, labels
from trialplane.wire.states import FailureClass, TrialState

pytestmark = pytest.mark.slow


def test_names_that_mlflow_refuses(place: Place) -> None:
    odd = request(0, params={"a(b)": 1, "x": 2})
    place.begin(odd)
    place.end(odd, outcome(0, metrics={"score": 0.5, "recall@5": 0.25}))
    place.export(DONE)
    run = place.trial(0)
    assert run.data.params == {"a_b_": "1", "x": "2"}
    assert run.data.metrics == {"score": 0.5, "recall_5": 0.25, "trial_seconds": 3.0}
    assert (run.info.status, run.data.tags["trialplane.state"]) == ("FINISHED", "COMPLETE")


def test_only_the_value_that_mlflow_refuses_is_left_out(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = place.experiment
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
    run_id = client.create_run(place.experiment).info.run_id
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
    for name, value in env.mlflow_store_variables(store).items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(f"sqlite:///{store}")
    there = client.create_experiment("toy", artifact_location=store.with_suffix(".artifacts").as_uri())
    own = client.create_run(there).info.run_id
    client.log_metric(own, "from_the_job", 0.5)
    client.create_run(there, tags={"mlflow.parentRunId": own})
    experiment = place.experiment
    run_id = place.client.create_run(experiment).info.run_id
    place.client.delete_experiment(experiment)
    batches: dict[str, Batch] = collections.defaultdict(Batch)
    adoption.copy_store(store, place.client, run_id, batches)
    assert [metric.key for metric in batches[run_id].metrics] == ["from_the_job"]
    assert list(batches) == [run_id]
    assert f"refuses runs below its run {run_id}" in capsys.readouterr().err


def test_an_infinite_best_value(place: Place) -> None:
    place.begin(request(0))
    place.end(request(0), outcome(0, metrics={"score": float("inf")}))
    place.export(DONE)
    (parent,) = place.runs("study")
    assert parent.data.metrics["best_score"] > 1e308


def test_what_nobody_thought_of_is_skipped(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.report(99, 0, score=1.0)  # of an attempt that never started
    place.begin(request(0))
    place.run.stores.mkdir()
    place.run.trial_store(0).write_bytes(b"no database at all" * 100)
    failed = {"state": TrialState.FAILED, "failure": FailureClass.CRASHED, "message": "no file '\udcff'"}
    place.end(request(0), outcome(0, **failed))
    place.begin(request(1))
    place.end(request(1), outcome(1, metrics={}))  # without the metric of the objective
    place.play(2)
    place.export(DONE)
    assert place.trial(0).data.tags["trialplane.message"] == r"no file '\udcff'"
    assert place.trial(0).info.status == "FAILED"
    assert place.trial(2).info.status == "FINISHED"
    said = capfd.readouterr().err
    for word in ("reports of attempt 99", "the end of attempt 1", "DatabaseError"):
        assert word in said


def test_an_error_of_mlflow_that_may_pass_is_not_skipped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.play(0)
    exporter = place.exporter(end=DONE)

    def away(*_: Any, **__: Any) -> None:
        raise MlflowException("the connection is refused")

    with monkeypatch.context() as broken:
        broken.setattr(exporter.client, "log_batch", away)
        for _ in range(2):
            with pytest.raises(MlflowException):
                exporter.advance()
    bring(exporter, closes=True)
    assert place.trial(0).info.status == "FINISHED"


def test_arrays_that_a_former_controller_left_are_found(place: Place) -> None:
    place.run.arrays.mkdir()
    for number in (0, 1):
        transport.pack({"logits": np.arange(6.0)}).tofile(place.run.packed(number))
        place.begin(request(number))
    place.end(request(0), outcome(0, arrays=48))
    lost = outcome(1, state=TrialState.FAILED, failure=FailureClass.LOST)  # came with no arrays: the file may be half
    place.end(request(1), lost)
    place.export(DONE)
    folder = place.client.download_artifacts(place.trial(0).info.run_id, "arrays")
    assert [file.name for file in Path(folder).iterdir()] == ["result.npz"]
    assert place.client.list_artifacts(place.trial(1).info.run_id, "arrays") == []


def test_arrays_that_cannot_be_read_cost_nothing_else(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.run.arrays.mkdir()
    place.run.packed(0).write_bytes(b"half")
    place.begin(request(0))
    place.end(request(0), outcome(0, arrays=48))
    place.export(DONE)
    assert place.trial(0).info.status == "FINISHED"
    assert place.run.packed(0).exists()
    assert str(place.run.packed(0)) in capfd.readouterr().err


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"message": "the disk is full"}', "the disk is full"),
        ('{"message": 5}', ""),
        ("{}", ""),
        ('["message"]', ""),
        ('"message"', ""),
        ("null", ""),
        ("<h1>", ""),
    ],
)
def test_the_reason_of_a_server_is_shown_only_in_the_form_of_mlflow(body: str, reason: str) -> None:
    class Unavailable(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    with http.server.HTTPServer(("127.0.0.1", 0), Unavailable) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert exporter_main._server_reason(f"http://127.0.0.1:{server.server_port}") == reason
        thread.join()


def test_a_duplicate_that_cannot_be_deleted_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It must not make the exporter start again for ever."""
    place.play(0)
    exporters = [place.exporter(end=DONE), place.exporter(end=DONE)]
    for exporter in exporters:
        exporter._ensure_parent()
        exporter._earlier_runs = {}  # the runs that the other one creates are unknown to it
    for exporter in exporters:
        exporter.advance()
    assert len(place.runs()) == 2
    last, refusals = exporters[1], []

    def refuse(run_id: str) -> None:
        refusals.append(run_id)
        raise MlflowException("nobody may delete runs here", INVALID_PARAMETER_VALUE)

    monkeypatch.setattr(last.client, "delete_run", refuse)
    for _ in range(5):
        while last.advance() or last.files.send():
            pass
        if last.close():
            break
    else:
        pytest.fail("the exporter starts again and again")
    assert len(refusals) == 1
    assert len(place.runs()) == 2
    (run,) = [run for run in place.runs() if run.info.run_id not in refusals]
    assert run.info.status == "FINISHED"
    assert f"run {refusals[0]}" in capfd.readouterr().err


def test_a_position_that_cannot_be_read_is_the_beginning(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.play(0)
    place.export(DONE)
    (parent,) = place.runs("study")
    place.client.set_tag(parent.info.run_id, labels.EXPORTED, "[somebody's own")
    place.play(1)
    place.export(DONE)
    assert [place.trial(number).info.status for number in (0, 1)] == ["FINISHED", "FINISHED"]
    assert len(place.everything()) == 3
    assert labels.EXPORTED in capfd.readouterr().err
