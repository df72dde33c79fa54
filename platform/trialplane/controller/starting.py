"""What a controller finds of its run when it starts: the facts of the submission, the last status, MLflow's address."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from trialplane.controller import journal
from trialplane.job.kinds import Job
from trialplane.wire import env, escapes, labels, paths, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus

log = logging.getLogger(__name__)


def facts(run: RunPaths) -> dict[str, Any]:
    """The facts of the run's submission."""
    found: dict[str, Any] = json.loads(run.submission.read_text())
    return found


def last_status(run: RunPaths) -> RunStatus | None:
    """The last status in the run's folder; None without one, or when it is damaged."""
    try:
        return records.from_json(RunStatus, run.status.read_bytes())
    except (OSError, ValueError, TypeError, KeyError):
        return None  # it only tells how far the run was when its controller was killed


def tracking_uri(run: RunPaths, *, is_door: bool = False) -> str:
    """The tracking URI of a run and its trials: the one it has been recorded to so far, with the current login.

    Args:
        run: the run's files.
        is_door: whether the one in the environment is the gateway's: whatever address it had before, MLflow is the same.
    """
    given = os.environ.get(env.MLFLOW_TRACKING_URI, "")
    if given and is_door:
        return given
    known = journal.tracking_uri(run.written)
    if known and given and _without_login(given) != _without_login(known):
        log.warning(
            "%s is still recorded to %s, where it began, and not to the current %s (%s); submit under another name for that",
            *(run.root.name, escapes.without_passwords(known), env.MLFLOW_TRACKING_URI, escapes.without_passwords(given)),
        )
        return known
    return given or known or paths.mlflow_uri(run.root.parent.parent)


def _without_login(uri: str) -> str:
    """A URI without user name and password."""
    return re.sub(r"(?<=://)[^/?#]*@", "", uri).rstrip("/")


def study_facts(submission: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Names, parameters and tags of the study's MLflow run."""
    return {
        "tags": {
            labels.JOB: job.name,
            labels.SEED: job.seed,
            labels.STATE: "RUNNING",
            labels.GIT_REVISION: submission.get("git_revision", ""),
            labels.CODE_HASH: submission.get("code_hash", ""),
            labels.SPEC_HASH: submission.get("spec_hash", ""),
            "mlflow.note.content": job.description,
        },
        "params": {
            **job.facts(),
            "objectives": ", ".join(f"{o.direction} {o.metric}" for o in job.objectives),
        },
    }
