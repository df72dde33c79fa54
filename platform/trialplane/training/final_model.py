"""The final model of a training: an artifact of its MLflow run and, on request, a version in MLflow's model registry.

MLflow is imported when a model is exported and not before: it takes seconds. What is exported is a folder, as
`save_pretrained` writes it; no code of the job is pickled.
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
    """Where a model went.

    Attributes:
        uri: of the artifact's folder.
        name: in the registry; "" when it was not registered.
        version: in the registry; "" when it was not registered.
    """

    uri: str
    name: str = ""
    version: str = ""


def export_model(
    folder: str | Path, *, register: str = "", artifact: str = "model", tags: Mapping[str, str] | None = None
) -> Exported | None:
    """Copies a model's folder to the trial's MLflow run; only rank 0 calls it.

    Args:
        folder: its files: weights, configuration, tokenizer.
        register: a name in the model registry, which gets a new version; "" for none.
        artifact: folder among the run's artifacts.
        tags: of the registry's version.

    Returns:
        Where it is; None for a script that runs alone, unless MLFLOW_TRACKING_URI names a store.

    Raises:
        InputError: the folder is missing or empty.
        CheckpointError: MLflow did not take it.
    """
    folder = Path(folder)
    if not folder.is_dir() or not any(folder.iterdir()):
        raise errors.InputError(f"there is no model in {folder}: save it there first, for example by save_pretrained")
    run = mlflow_runs.current()
    if not run and not os.environ.get(env.MLFLOW_TRACKING_URI):
        return None
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    try:
        if not run:  # MLflow was away when the trial began: it has a store of its own, which the platform takes over
            with mlflow.start_run() as begun:
                run = begun.info.run_id
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
            f"MLflow did not take the model in {folder} for its run {run}: {errors.first_line(error)}. The folder is there "
            "until the trial ends; the last checkpoint has the same weights"
        ) from error
    return Exported(uri, register, str(version.version))
