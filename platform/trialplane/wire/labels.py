"""Names of the tags of a run's records in MLflow, and of the columns of a run in the ledger."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any

# Tags of MLflow runs. Those that start with `mlflow.` are MLflow's, those that start with `trialplane.` are ours.
PARENT = "mlflow.parentRunId"
KIND = "trialplane.kind"  # "study" on the parent run, "trial" on its children
RUN = "trialplane.run"
SUBMITTED = "trialplane.submitted"  # time of the submission; with the run's name, it identifies a run on a laptop
RECORD = "trialplane.record"  # uid of the run's first Run object, which identifies a run on a cluster
JOB = "trialplane.job"
TRIAL = "trialplane.trial"
NUMBER = "trialplane.number"  # number in the ledger of the attempt that began the series; it identifies a trial's run
ATTEMPT = "trialplane.attempt"  # the newest attempt of the series
RUNG = "trialplane.rung"  # of a trial that can be paused: number of steps at which its newest segment ends, 0 for no limit
PROMOTIONS = "trialplane.promotions"  # of a trial that can be paused: number of rungs at which it was promoted
PARENT_NUMBER = "trialplane.parent"  # of a trial that took over another one's state: NUMBER of the run it continues
PARENT_TRIAL = "trialplane.parent_trial"  # the same: TRIAL of that run
PARENT_STEP = "trialplane.parent_step"  # the same: the last step that it had reported
STATE = "trialplane.state"
CLASS = "trialplane.class"
MESSAGE = "trialplane.message"
ANSWERED_BY = "trialplane.answered_by"
BEGUN_FROM = "trialplane.begun_from"  # of a trial that has begun from a checkpoint of an earlier run: that trial, run:trial
SPARED_STEPS = "trialplane.spared_steps"  # the same: number of steps of that checkpoint
NODE = "trialplane.node"
PAGE = "trialplane.page"  # on the parent run: where the page of `platform report` is, for people
EXPORTED = "trialplane.exported"  # on the parent run: position of the exporter in the ledger, as JSON
EXPORTER = "trialplane.exporter"  # on the parent run: id of the newest exporter that writes to it
SEED = "trialplane.seed"
START_METHOD = "trialplane.start_method"
RETRY_OF = "trialplane.retry_of"
PARAM = "trialplane.param."  # prefix of a parameter's name: its value, even if MLflow refused the parameter
RUN_NAME = "trialplane.run_name"  # name that the job gave its MLflow run; the exporter names the run after the trial
OWN = "trialplane.own"  # on a trial's run that its process created: NEW, or TAKEN after the exporter has taken it over
NEW, TAKEN = "new", "taken"
LOGGED_BY = "trialplane.logged_by"  # on a run that a trial's program started: NUMBER of the trial's run; finally removed
COPY_OF = "trialplane.copy_of"  # on a child of a trial's run: its id in the trial's own store
GIT_REVISION = "trialplane.git_revision"
CODE_HASH = "trialplane.code_hash"
SPEC_HASH = "trialplane.spec_hash"

# Columns of a run in the ledger. In a database, which outlives the run's folder, they are the complete record of the run.
LEDGER_JOB = "job"
LEDGER_SUBMISSION = "submission"
LEDGER_CODE = "code"  # SHA-256 of the packed folder, as hexadecimal digits instead of JSON
LEDGER_STATUS = "status"  # the last RunStatus
LEDGER_DESIRED = "desired"  # a `Desired`, written by the operator and read by the controller
LEDGER_IMAGES = "images"  # digests of the images of the run's pods, by image name, written by the operator
# Fields of a submission on a cluster.
UID = "uid"  # uid of the Run object; a later Run may have the same name
RECORD_UID = "record_uid"  # uid of the record's first Run object; resuming a deleted Run creates a new object
OWNER = "owner"  # user who owns the Run object; the admission policy has compared it with the authenticated user
BEGUN = "begun"  # time of the last start, in seconds since the epoch; a status that is newer belongs to this start


def ledger_lock_key(run: str) -> int:
    """Return the key of PostgreSQL's advisory lock on a run, which is a 64-bit integer with a sign."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:8], "big", signed=True)


def identity(run: str, submission: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags that identify the MLflow records of a run, by the facts of its submission.

    The name alone does not identify them, because other runs may have had the same name.
    """
    if uid := submission.get(RECORD_UID):
        return {RUN: run, RECORD: str(uid)}
    return {RUN: run, SUBMITTED: submitted_tag(float(submission.get("submitted", 0.0)))}


def submitted_tag(submitted: float) -> str:
    """Return the time of a submission, in seconds since the epoch, in the form of the tag `SUBMITTED`."""
    return datetime.datetime.fromtimestamp(submitted, datetime.UTC).isoformat(" ", "milliseconds")
