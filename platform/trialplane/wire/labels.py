"""Names that mark what belongs to a run, in MLflow and in the ledger."""

from __future__ import annotations

import hashlib

# Tags of MLflow runs. `mlflow.*` are MLflow's own, everything of ours starts with `trialplane.`.
PARENT = "mlflow.parentRunId"
KIND = "trialplane.kind"  # "study" on the parent run, "trial" on its children
RUN = "trialplane.run"
NAMESPACE = "trialplane.namespace"  # of the run; set by the gateway, and missing where all runs are in one
SUBMITTED = "trialplane.submitted"  # date and time; on a laptop it names a study for good, with the run's name
RECORD = "trialplane.record"  # on a cluster this does: the uid of the Run that the record began with, as the operator has it
JOB = "trialplane.job"
TRIAL = "trialplane.trial"
NUMBER = "trialplane.number"
ATTEMPT = "trialplane.attempt"
STATE = "trialplane.state"
CLASS = "trialplane.class"
MESSAGE = "trialplane.message"
NODE = "trialplane.node"
RECORDED = "trialplane.recorded"  # written last: the run has everything that the recorder knows of its attempt
SEED = "trialplane.seed"
START_METHOD = "trialplane.start_method"
RETRY_OF = "trialplane.retry_of"
PARAM = "trialplane.param."  # and a parameter's name: its value, also before or where MLflow has it as no parameter
RUN_NAME = "trialplane.run_name"  # what the job calls its trial's run, which has the trial's name
COPY_OF = "trialplane.copy_of"  # of a run below a trial's: the id that it has in the trial's own store
GIT_REVISION = "trialplane.git_revision"
CODE_HASH = "trialplane.code_hash"
SPEC_HASH = "trialplane.spec_hash"

# Columns of a run in the ledger: in a database that outlives the run's folder, all there is to know of it.
LEDGER_JOB = "job"
LEDGER_SUBMISSION = "submission"
LEDGER_CODE = "code"  # SHA-256 of the packed folder, in hexadecimal digits and no JSON
LEDGER_STATUS = "status"  # the last RunStatus
LEDGER_DESIRED = "desired"  # a `Desired`; written by the operator, read by the controller
LEDGER_IMAGES = "images"  # by name, the digests that its pods have run; written by the operator
# In the facts of a submission on a cluster: seconds since the epoch when its last start was recorded, before anything was
# made for that. A status is of this start if it was written after that.
UID = "uid"  # of the Run that a record is of, for another Run may get its name
RECORD_UID = "record_uid"  # of the first of them: a Run that is made again to resume it has another
OWNER = "owner"  # of that Run, as admission has compared it with the API server's name of its user
BEGUN = "begun"


def ledger_lock(run: str) -> int:
    """The key of PostgreSQL's advisory lock that the controller of a run holds."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:8], "big", signed=True)
