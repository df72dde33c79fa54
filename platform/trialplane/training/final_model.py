"""Export of the final model to MLflow: as an artifact of the trial and, on request, to the model registry.

A model is a folder, for example from `save_pretrained`. No code of the job is pickled.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from trialplane import errors
from trialplane.training import mlflow_runs
from trialplane.wire import env

__all__ = ["Exported", "export_model"]


@dataclasses.dataclass(frozen=True)
class Exported:
    """Location of an exported model.

    Attributes:
        uri: URI of the artifact folder.
        name: Name in the model registry. "" if not registered.
        version: Version in the model registry. "" if not registered.
    """

    uri: str
    name: str = ""
    version: str = ""


def export_model(
    folder: str | Path, *, register: str = "", artifact: str = "model", tags: Mapping[str, str] | None = None
) -> Exported | None:
    """Copy a model to the trial's MLflow run. Call it in rank 0 only.

    Args:
        folder: Folder with the model: weights, configuration, tokenizer.
        register: Name in the model registry to add a version to. Default: the model is not registered.
        artifact: Folder among the artifacts of the MLflow run.
        tags: Tags of the registered version.

    Returns:
        Location of the model. None outside of a trial, unless MLFLOW_TRACKING_URI is set.

    Raises:
        InputError: The folder is missing or empty.
        CheckpointError: MLflow refused the model, or cannot be reached.
    """
    folder = Path(folder)
    if not folder.is_dir() or not any(folder.iterdir()):
        raise errors.InputError(f"there is no model in {folder}: save it there first, for example by save_pretrained")
    if not mlflow_runs.current() and not os.environ.get(env.MLFLOW_TRACKING_URI):
        return None
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    run = mlflow_runs.own_run()
    try:
        if not run:  # outside of a trial, or MLflow does not answer and the trial uses a local store
            with mlflow.start_run() as new_run:
                run = new_run.info.run_id
        client.log_artifacts(run, str(folder), artifact)
        uri = f"{client.get_run(run).info.artifact_uri.rstrip('/')}/{artifact}"
        if not register:
            return Exported(uri)
        try:
            client.create_registered_model(register)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        version = client.create_model_version(register, uri, run, tags=dict(tags or {}))
    except (MlflowException, OSError) as error:
        raise errors.CheckpointError(
            f"MLflow did not accept the model in {folder} for its run {run}: {errors.first_line(error)}. The folder is kept "
            "until the trial ends; the last checkpoint has the same weights"
        ) from error
    return Exported(uri, name=register, version=str(version.version))
