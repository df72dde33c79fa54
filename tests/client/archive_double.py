"""The ledger as the reconciler uses it, on the studies of a `NamespaceDouble`; the real one: `controller/store/archive.py`.

It refuses what the real one refuses: a name that is taken, and a run that a controller works on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from tests.client.kuberay_double import NamespaceDouble

from trialplane import errors
from trialplane.controller.store.archive import Recorded
from trialplane.plan import plan as planning
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire.records import Desired
from trialplane.wire.states import RunState


class ArchiveDouble:
    """Records, reads and changes studies as `Archive` does."""

    def __init__(self, namespace: NamespaceDouble) -> None:
        self._namespace = namespace

    def recorded(self, run: str) -> Recorded | None:
        self._namespace.step()
        study = self._namespace.studies.get(run)
        if study is None:
            return None
        desired = Desired(study.desired, study.parallel)
        return Recorded(jobs.read(json.loads(study.job)), study.submission, study.status, desired, study.alive)

    def record(self, run: str, job: Job, submission: Mapping[str, Any], code: str, *, new: bool) -> None:
        study = self._namespace.studies.get(run)
        if study is not None and new:
            raise errors.RunExists(f"the ledger has a study {run} already")
        if study is not None and study.alive:
            raise errors.LedgerLocked(f"a controller works on {run}")
        packed = base64.b64decode(code)
        if study is None:
            self._namespace.recorded(run, job, dict(submission), packed)
            return
        study.job, study.submission, study.code = job.model_dump_json().encode(), dict(submission), packed
        if study.status.started is None:
            study.status = planning.pending(run, job, float(submission["submitted"]))

    def desire(self, run: str, changed: Mapping[str, Any]) -> None:
        study = self._namespace.studies.get(run)
        if study is None:
            raise errors.RunNotFound(f"the ledger has no run {run}")
        state = RunState(changed.get("state", study.desired))
        if not (study.desired is RunState.CANCELLED and state is RunState.PAUSED):
            study.desired = state
        study.parallel = changed.get("parallel", study.parallel)
