"""`python -m trialplane.exporter.registration`: adds a version to the model registry of the MLflow of MLFLOW_TRACKING_URI.

It reads a `Registration` from stdin, and prints the number of the version. The model is the one that the trial has logged,
or otherwise the files of the trial that the job keeps.
"""

from __future__ import annotations

import json
import os
import sys

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trialplane import errors
from trialplane.errors import InputError
from trialplane.wire import env, labels, records
from trialplane.wire.exports import Registration

FOLDERS = ("model", "kept_files")  # of artifacts: the first is from `training.final_model`, the second from `keep.files`


def register(client: MlflowClient, order: Registration) -> str:
    """Add a version to the model registry, and create the registered model if needed; return the version's number.

    Args:
        client: Client of MLflow.
        order: Order with the model's name, the attempts of the configuration, and the attempt whose model is registered.

    Raises:
        InputError: MLflow has no run of the attempt, or this run has no model.
    """
    runs = _runs_by_number(client, order)
    model_run = runs.get(order.number)
    if model_run is None:
        raise InputError(f"MLflow has no run of attempt {order.number}; `platform export` brings it up to date")
    source = f"{model_run.info.artifact_uri.rstrip('/')}/{_model_folder(client, model_run)}"
    try:
        client.create_registered_model(order.model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    seeds = [int(run.data.tags[labels.SEED]) for _, run in sorted(runs.items())]
    tags = {**order.tags, "trialplane.seeds": json.dumps(seeds)}
    version = client.create_model_version(
        order.model, source, model_run.info.run_id, tags=tags, description=order.description
    )
    return str(version.version)


def _runs_by_number(client: MlflowClient, order: Registration) -> dict[int, Run]:
    """Return the runs in MLflow of the attempts that an order names, by number."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    is_of_run = " and ".join(f"tags.`{name}` = '{value}'" for name, value in order.identity.items())
    run_by_number: dict[int, Run] = {}
    for number in order.numbers:
        for run in client.search_runs(experiments, f"{is_of_run} and tags.`{labels.NUMBER}` = '{number}'"):
            run_by_number[number] = run
    return run_by_number


def _model_folder(client: MlflowClient, run: Run) -> str:
    """Return the folder of the model among a run's artifacts.

    Raises:
        InputError: The run has no model.
    """
    artifact_folders = {entry.path for entry in client.list_artifacts(run.info.run_id)}
    folder = next((name for name in FOLDERS if name in artifact_folders), None)
    if folder is None:
        name = run.data.tags.get("mlflow.runName", run.info.run_id)
        raise InputError(
            f"the trial {name} has no model in MLflow: call trialplane.training.final_model.export_model in the job, or "
            "list its files in keep.files"
        )
    return folder


def main() -> int:
    """Add the version and print its number; return an exit code of `errors`."""
    # MLflow may print to stdout. So the number goes to a copy of stdout, which itself is redirected to stderr.
    answers = os.dup(1)
    os.dup2(2, 1)
    order = records.from_json(Registration, sys.stdin.buffer.read())
    try:
        number = register(MlflowClient(os.environ[env.MLFLOW_TRACKING_URI]), order)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except (MlflowException, OSError) as error:
        sys.stderr.write(f"MLflow did not take the version: {errors.first_line(error)}\n")
        return errors.EXIT_PLATFORM
    os.write(answers, number.encode())
    return errors.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
