"""Names that mark what belongs to a run, in MLflow and in the ledger."""

from __future__ import annotations

# Tags of MLflow runs. `mlflow.*` are MLflow's own, everything of ours starts with `trialplane.`.
PARENT = "mlflow.parentRunId"
KIND = "trialplane.kind"  # "study" on the parent run, "trial" on its children
RUN = "trialplane.run"
JOB = "trialplane.job"
TRIAL = "trialplane.trial"
NUMBER = "trialplane.number"
ATTEMPT = "trialplane.attempt"
STATE = "trialplane.state"
CLASS = "trialplane.class"
MESSAGE = "trialplane.message"
NODE = "trialplane.node"
SEED = "trialplane.seed"
START_METHOD = "trialplane.start_method"
RETRY_OF = "trialplane.retry_of"
PARAM = "trialplane.param."  # and a parameter's name: its newer value, where MLflow keeps the first
GIT_REVISION = "trialplane.git_revision"
CODE_HASH = "trialplane.code_hash"
SPEC_HASH = "trialplane.spec_hash"

# Attributes of trials and studies in the Optuna storage.
LEDGER_REQUEST = "trialplane:request"
LEDGER_OUTCOME = "trialplane:outcome"
LEDGER_EPOCH = "trialplane:epoch"
