"""Names of the environment variables that trialplane reads and sets."""

from __future__ import annotations

from pathlib import Path

HOME = "TRIALPLANE_HOME"  # folder with runs, ledgers, MLflow's store and the cache on a laptop
CONTEXT = "TRIALPLANE_CONTEXT"  # context of the kubeconfig, unless a flag chooses one
NAMESPACE = "TRIALPLANE_NAMESPACE"  # namespace in that context
# URL of the ledger's database. A controller on a cluster has the gateway's URL instead. Without it, the ledger is a file.
LEDGER = "TRIALPLANE_LEDGER"
TOKEN_FILE = "TRIALPLANE_TOKEN_FILE"  # file with the run's token, which opens its ledger at the gateway
RUN = "TRIALPLANE_RUN"
TRIAL = "TRIALPLANE_TRIAL"
ATTEMPT = "TRIALPLANE_ATTEMPT"
SEED = "TRIALPLANE_SEED"
PARAMS = "TRIALPLANE_PARAMS"  # parameters of a script's or command's trial, as JSON
WANDB_FOLDER = "TRIALPLANE_WANDB_FOLDER"  # folder for the W&B records of a script's or command's processes
TRIAL_CHECKPOINTS = "TRIALPLANE_TRIAL_CHECKPOINTS"  # folder or URL of a script's trial that its attempts share
CACHE = "TRIALPLANE_CACHE"  # folder shared by all trials of all runs
CHECKPOINTS = "TRIALPLANE_CHECKPOINTS"  # folder or URL of the checkpoints of all trials of a run on a cluster
PACKAGES = "TRIALPLANE_PACKAGES"  # folder with the packages that a trial pod has installed
MODULE_FOLDERS = "TRIALPLANE_MODULE_FOLDERS"  # folders that are first in PYTHONPATH, also if a trial's command sets it
BLAS_THREADS = "TRIALPLANE_BLAS_THREADS"  # number of numpy's threads that the user has set; a template may use fewer
GPU_MEMORY = "TRIALPLANE_GPU_MEMORY"  # share of its memory that a trial may use on the device of a pod with a share of a GPU
GPU_PRICE = "TRIALPLANE_GPU_PRICE"  # price of an hour of one GPU, for `budget.cost`
CPU_PRICE = "TRIALPLANE_CPU_PRICE"  # price of an hour of one CPU core
GRACE = "TRIALPLANE_GRACE"  # seconds a trial gets to save a checkpoint when it must end
STATUS = "TRIALPLANE_STATUS"  # host:port of the controller's /status and /metrics; without it, a free port of loopback
BUDGETS = "TRIALPLANE_BUDGETS"  # budgets of namespaces for gateway and operator; `ledger.budget` parses them
MAX_RUNS = "TRIALPLANE_MAX_RUNS"  # number of runs whose ledgers a gateway may have open at the same time
MAX_ARTIFACT = "TRIALPLANE_MAX_ARTIFACT"  # size limit of an artifact that the gateway passes to MLflow, in bytes

# Set by KubeRay, or by Ray.
RAY_ADDRESS = "RAY_ADDRESS"
RAY_AUTH_TOKEN = "RAY_AUTH_TOKEN"

MLFLOW_TRACKING_URI = "MLFLOW_TRACKING_URI"
MLFLOW_ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"  # folder of the artifacts of a store that MLflow's client creates
MLFLOW_RUN_ID = "MLFLOW_RUN_ID"
MLFLOW_CONTEXT = "MLFLOW_RUN_CONTEXT"  # JSON: tags that MLflow puts on each run that a process starts
MLFLOW_USERNAME = "MLFLOW_TRACKING_USERNAME"
MLFLOW_PASSWORD = "MLFLOW_TRACKING_PASSWORD"
MLFLOW_CA = (
    "MLFLOW_TRACKING_SERVER_CERT_PATH"  # file with the authority of the server's certificate; in pods of a run the gateway's
)
MLFLOW_TOKEN = "MLFLOW_TRACKING_TOKEN"  # MLflow's client sends it as `Authorization: Bearer`
MLFLOW_EXPERIMENT_NAME = "MLFLOW_EXPERIMENT_NAME"


def mlflow_store_variables(store: Path) -> dict[str, str]:
    """Return the environment variables with which MLflow's client in a trial writes to the trial's own store.

    Args:
        store: SQLite file of the store. Artifacts are written to a folder beside it.
    """
    return {MLFLOW_TRACKING_URI: f"sqlite:///{store}", MLFLOW_ARTIFACT_ROOT: store.with_suffix(".artifacts").as_uri()}
