"""Names of the environment variables that trialplane reads and sets, each in one place."""

from __future__ import annotations

from pathlib import Path

HOME = "TRIALPLANE_HOME"  # where runs, the ledger, MLflow's store and the cache live on a laptop
CONTEXT = "TRIALPLANE_CONTEXT"  # of the kubeconfig, where no flag chooses a place
NAMESPACE = "TRIALPLANE_NAMESPACE"  # of that context
LEDGER = (
    "TRIALPLANE_LEDGER"  # URL of the database, or for a controller on a cluster of the gateway; "" is a file of the run's
)
TOKEN_FILE = "TRIALPLANE_TOKEN_FILE"  # has the run's token, which opens its ledger at the gateway
RUN = "TRIALPLANE_RUN"
TRIAL = "TRIALPLANE_TRIAL"
ATTEMPT = "TRIALPLANE_ATTEMPT"
SEED = "TRIALPLANE_SEED"
PARAMS = "TRIALPLANE_PARAMS"  # of a script's or command's trial, as JSON
WANDB_FOLDER = "TRIALPLANE_WANDB_FOLDER"  # in which processes of a script or command put what they log to W&B
TRIAL_CHECKPOINTS = "TRIALPLANE_TRIAL_CHECKPOINTS"  # of a script's or command's trial: folder or URL that outlives attempts
CACHE = "TRIALPLANE_CACHE"  # folder shared by all trials of all runs
CHECKPOINTS = "TRIALPLANE_CHECKPOINTS"  # in a cluster: folder or URL that trials of the run keep their checkpoints below
PACKAGES = "TRIALPLANE_PACKAGES"  # in a trial pod that has installed packages: the folder with them
BLAS_THREADS = "TRIALPLANE_BLAS_THREADS"  # threads of numpy that the user has asked for, which a template may not have
GRACE = "TRIALPLANE_GRACE"  # seconds a trial gets to save a checkpoint when it must end
STATUS = "TRIALPLANE_STATUS"  # host:port of the controller's /status and /metrics; a free port of loopback without it
BUDGETS = "TRIALPLANE_BUDGETS"  # of namespaces, for gateway and operator, as `ledger.budget` reads them
MAX_RUNS = "TRIALPLANE_MAX_RUNS"  # runs whose ledgers a gateway has open at a time
MAX_ARTIFACT = "TRIALPLANE_MAX_ARTIFACT"  # bytes of an artifact that the gateway lets through to MLflow

# Set by KubeRay, or by Ray.
RAY_ADDRESS = "RAY_ADDRESS"
RAY_AUTH_TOKEN = "RAY_AUTH_TOKEN"

MLFLOW_TRACKING_URI = "MLFLOW_TRACKING_URI"
MLFLOW_ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"  # where a store that a client makes puts its artifacts
MLFLOW_RUN_ID = "MLFLOW_RUN_ID"
MLFLOW_CONTEXT = "MLFLOW_RUN_CONTEXT"  # JSON: tags that MLflow puts on each run that a process starts
MLFLOW_USERNAME = "MLFLOW_TRACKING_USERNAME"
MLFLOW_PASSWORD = "MLFLOW_TRACKING_PASSWORD"
MLFLOW_TOKEN = "MLFLOW_TRACKING_TOKEN"  # which MLflow's client sends as `Authorization: Bearer`
MLFLOW_EXPERIMENT_NAME = "MLFLOW_EXPERIMENT_NAME"


def own_mlflow(store: Path) -> dict[str, str]:
    """The environment variables with which a trial logs into an MLflow store of its own."""
    return {MLFLOW_TRACKING_URI: f"sqlite:///{store}", MLFLOW_ARTIFACT_ROOT: store.with_suffix(".artifacts").as_uri()}
