"""`platform export RUN mlflow:URI` and `report --mlflow`: an MLflow gets the records of a run, by the exporter.

Not checked here: what the exporter writes (tests/exporter).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pytest
from click.testing import CliRunner
from mlflow.tracking import MlflowClient
from tests.controller.conftest import outcome, request
from tests.exporter.conftest import Place
from tests.exporter.state import state

from trialplane.cli import report, results
from trialplane.wire import env, labels, records
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

pytestmark = pytest.mark.slow


@pytest.fixture
def ended(tmp_path: Path, mlflow_tables: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run on this machine that has ended, with a log in its folder, and whose MLflow has nothing of it."""
    place = Place(tmp_path / "home", mlflow_tables, {"trials": 2})
    monkeypatch.setenv(env.HOME, str(place.home))
    place.play(0)
    place.play(1)
    status = RunStatus("toy-1", "toy", RunState.SUCCEEDED, 2, reason="all trials ended", complete=2, ended=3000.0)
    place.run.status.write_text(records.to_json(status))
    place.run.code.mkdir()
    yield place
    place.close()
    mlflow.set_tracking_uri(None)


def export(uri: str) -> Any:
    return CliRunner().invoke(results.export_command, ["toy-1", f"mlflow:{uri}", "--local"], catch_exceptions=False)


def test_an_mlflow_is_filled_again_and_once_more_changes_nothing(ended: Place) -> None:
    ended.storage.close()  # its controller has ended
    assert "exported toy-1 to sqlite:///" in export(ended.uri).output
    first = state(ended)
    assert first.keys() == {"toy-1", "trial-0000", "trial-0001"}
    assert {run["status"] for run in first.values()} == {"FINISHED"}
    assert first["toy-1"]["tags"][labels.MESSAGE] == "all trials ended"
    assert first["toy-1"]["end"] == 3_000_000
    export(ended.uri)
    assert state(ended) == first
    (parent,) = ended.runs("study")
    assert [item.path for item in ended.client.list_artifacts(parent.info.run_id)] == ["job.json"]


def test_a_report_is_stored_with_the_run_of_the_study(ended: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.MLFLOW_TRACKING_URI, ended.uri)
    words = ["toy-1", "--local", "--mlflow", "--out", str(tmp_path / "page.html")]
    active = CliRunner().invoke(report.report_command, words)
    assert "toy-1 is active; store its report in MLflow when it has ended" in str(active.exception)
    ended.storage.close()  # its controller has ended
    done = CliRunner().invoke(report.report_command, words, catch_exceptions=False)
    assert "stored it as report.html of toy-1 in sqlite:///" in done.output
    (parent,) = ended.runs("study")
    artifacts = [item.path for item in ended.client.list_artifacts(parent.info.run_id)]
    assert artifacts == ["job.json", "report.html"]
    tags = ended.client.get_run(parent.info.run_id).data.tags
    assert tags["trialplane.page"] == "the artifact report.html; `platform ui toy-1` shows it live"
    stored = ended.client.download_artifacts(parent.info.run_id, "report.html", str(tmp_path))
    assert Path(stored).read_text() == (tmp_path / "page.html").read_text()


def test_of_a_run_that_goes_on_an_export_is_what_there_is(ended: Place, tmp_path: Path) -> None:
    ended.begin(request(2))
    ended.report(2, 0, score=0.25)
    uri = f"sqlite:///{tmp_path}/other.db"
    export(uri)
    client = MlflowClient(uri)
    (experiment,) = [one for one in client.search_experiments() if one.name == "toy"]
    assert experiment.artifact_location.startswith(tmp_path.as_uri()), "beside the store"
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert runs["trial-0002"].data.metrics == {"score": 0.25}
    ended.end(request(2), outcome(2, step=0))
    export(uri)
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 4
    assert runs["trial-0002"].info.status == "FINISHED"


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("mlruns", "mlruns is not the URI of a database or a server"),
        ("file:///tmp/mlruns", "For a file, write mlflow:sqlite:///mlflow.db"),
        ("sqlite:////no/such/folder/mlflow.db", "there is no folder /no/such/folder"),
        ("http://ann:s3cret@127.0.0.1:9", "MLflow at http://ann:***@127.0.0.1:9 cannot be written to"),
    ],
)
def test_what_cannot_be_exported_to_is_told(ended: Place, uri: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = CliRunner().invoke(results.export_command, ["toy-1", f"mlflow:{uri}", "--local"])
    assert text in str(result.exception)
    assert "s3cret" not in str(result.exception)
