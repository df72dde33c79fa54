"""A final model in a real MLflow store: the artifact, and versions in the registry. Not checked: MLflow itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialplane import errors
from trialplane.training import final_model
from trialplane.wire import env


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "final"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "weights.pt").write_bytes(b"weights")
    return folder


def test_a_script_that_runs_alone_exports_nothing(model: Path) -> None:
    assert final_model.export_model(model, register="cnm-bert") is None


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match=r"there is no model in .*save it there first"):
        final_model.export_model(tmp_path)


@pytest.mark.slow
def test_a_model_becomes_an_artifact_and_on_request_a_version(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    store = env.mlflow_store_variables(tmp_path / "mlflow.db")
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    client = mlflow.MlflowClient(store[env.MLFLOW_TRACKING_URI])
    run = client.create_run(client.create_experiment("training")).info.run_id
    monkeypatch.setenv(env.MLFLOW_RUN_ID, run)

    plain = final_model.export_model(model)
    assert plain is not None
    assert (plain.name, plain.version) == ("", "")
    assert {item.path for item in client.list_artifacts(run, "model")} == {"model/config.json", "model/weights.pt"}

    first = final_model.export_model(model, register="cnm-bert", tags={"profile": "smoke"})
    second = final_model.export_model(model, register="cnm-bert")
    assert first is not None
    assert second is not None
    assert (first.version, second.version) == ("1", "2")
    version = client.get_model_version("cnm-bert", "1")
    assert (version.run_id, version.source, version.tags) == (run, first.uri, {"profile": "smoke"})

    monkeypatch.setenv(env.MLFLOW_RUN_ID, "none-such")
    with pytest.raises(errors.CheckpointError, match=r"MLflow did not accept the model .* for its run none-such"):
        final_model.export_model(model)
