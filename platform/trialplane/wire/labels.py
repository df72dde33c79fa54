"""Names that mark the records of a run, in MLflow and in the ledger."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any

# Tags of MLflow runs. `mlflow.*` are MLflow's own, everything of ours starts with `trialplane.`.
PARENT = "mlflow.parentRunId"
KIND = "trialplane.kind"  # "study" on the parent run, "trial" on its children
RUN = "trialplane.run"
SUBMITTED = "trialplane.submitted"  # date and time; on a laptop it identifies the run, together with its name
RECORD = "trialplane.record"  # on a cluster this identifies the run: the uid of its first Run object
JOB = "trialplane.job"
TRIAL = "trialplane.trial"
NUMBER = "trialplane.number"  # of the attempt in the ledger that began the series; it identifies a trial's run
ATTEMPT = "trialplane.attempt"  # the newest of the series
RUNG = "trialplane.rung"  # of a trial that may be paused: steps up to which its newest segment trains, 0 for all
PROMOTIONS = "trialplane.promotions"  # the same: number of rungs at which it was promoted
STATE = "trialplane.state"
CLASS = "trialplane.class"
MESSAGE = "trialplane.message"
ANSWERED_BY = "trialplane.answered_by"
NODE = "trialplane.node"
EXPORTED = "trialplane.exported"  # on the parent run: how far the exporter is in the ledger, as JSON
EXPORTER = "trialplane.exporter"  # on the parent run: id of the newest exporter that works on it
SEED = "trialplane.seed"
START_METHOD = "trialplane.start_method"
RETRY_OF = "trialplane.retry_of"
PARAM = "trialplane.param."  # plus a parameter's name; its value, even if MLflow refused the parameter
RUN_NAME = "trialplane.run_name"  # name that the job gave its MLflow run, which is named after the trial
OWN = "trialplane.own"  # on a trial's run that its process has created: NEW until the exporter has taken it over, then TAKEN
NEW, TAKEN = "new", "taken"
LOGGED_BY = "trialplane.logged_by"  # on a run of a program that a trial started: NUMBER of the trial's; removed in the end
COPY_OF = "trialplane.copy_of"  # of a child of a trial's run: its id in the trial's own store
GIT_REVISION = "trialplane.git_revision"
CODE_HASH = "trialplane.code_hash"
SPEC_HASH = "trialplane.spec_hash"

# Columns of a run in the ledger: in a database, which outlives the run's folder, they are the complete record.
LEDGER_JOB = "job"
LEDGER_SUBMISSION = "submission"
LEDGER_CODE = "code"  # SHA-256 of the packed folder, in hexadecimal digits and no JSON
LEDGER_STATUS = "status"  # the last RunStatus
LEDGER_DESIRED = "desired"  # a `Desired`; written by the operator, read by the controller
LEDGER_IMAGES = "images"  # digests that its pods have run, by image name; written by the operator
# Fields of a submission on a cluster.
UID = "uid"  # of the Run object of a record; another Run may get the same name
RECORD_UID = "record_uid"  # of the record's first Run object; resuming a deleted Run creates another

OWNER = "owner"  # of this Run object; admission has compared it with the authenticated user
BEGUN = "begun"  # time of the last start, in seconds since the epoch; a status written later belongs to this start


def ledger_lock(run: str) -> int:
    """Return the key of PostgreSQL's advisory lock on a run."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:8], "big", signed=True)


def identity(run: str, submission: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of each record in MLflow that belongs to a run, and not to another run of its name.

    Args:
        run: its name.
        submission: the facts of its submission.
    """
    if uid := submission.get(RECORD_UID):
        return {RUN: run, RECORD: str(uid)}
    return {RUN: run, SUBMITTED: moment(float(submission.get("submitted", 0.0)))}


def moment(submitted: float) -> str:
    """Return the time of a submission in the form of the parent run's tag."""
    return datetime.datetime.fromtimestamp(submitted, datetime.UTC).isoformat(" ", "milliseconds")
