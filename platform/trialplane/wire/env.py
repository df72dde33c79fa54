"""Names of the environment variables that trialplane reads and sets, each in one place."""

from __future__ import annotations

HOME = "TRIALPLANE_HOME"  # where runs, the ledger, MLflow's store and the cache live on a laptop
LEDGER = "TRIALPLANE_LEDGER"  # the controller's database, where it is not a file in the run's folder: a cluster's
RUN = "TRIALPLANE_RUN"
TRIAL = "TRIALPLANE_TRIAL"
ATTEMPT = "TRIALPLANE_ATTEMPT"
SEED = "TRIALPLANE_SEED"
CACHE = "TRIALPLANE_CACHE"  # folder shared by all trials of all runs

MLFLOW_TRACKING_URI = "MLFLOW_TRACKING_URI"
MLFLOW_ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"  # where a store that a client makes puts its artifacts
MLFLOW_RUN_ID = "MLFLOW_RUN_ID"
MLFLOW_EXPERIMENT_NAME = "MLFLOW_EXPERIMENT_NAME"
