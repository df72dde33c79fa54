"""The ledger as the reconciler uses it, on the studies of a `NamespaceDouble`; the real one: `ledger/archive.py`.

It refuses what the real one refuses: a name that is taken, and a run that a controller works on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.client.kuberay_double import NamespaceDouble

from trialplane import errors
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.ledger import run_status
from trialplane.ledger.archive import Snapshot
from trialplane.ledger.run_status import Counts
from trialplane.plan import plan as planning
from trialplane.wire import labels, ledger
from trialplane.wire.records import Change, Desired
from trialplane.wire.states import RunState


class ArchiveDouble:
    """Records, reads and changes studies as `Archive` does."""

    def __init__(self, namespace: NamespaceDouble) -> None:
        self._namespace = namespace

    def snapshot(self, run: str) -> Snapshot | None:
        self._namespace.step()
        study = self._namespace.studies.get(run)
        if study is None:
            return None
        desired = Desired(study.desired, study.parallel)
        described = kinds.read(json.loads(study.job))
        return Snapshot(
            described,
            study.submission,
            study.status,
            desired,
            study.alive,
            study.token and ledger.token_digest(study.token),
            study.changes[-1] if study.changes else None,
            study.images,
        )

    def counts(self, run: str) -> Counts:
        study = self._namespace.studies[run]
        return run_status.recount(kinds.read(study.job), study.rows)

    def record_run(self, run: str, job: Job, submission: Mapping[str, Any], code: bytes, *, new: bool) -> None:
        study = self._namespace.studies.get(run)
        if study is not None and new:
            raise errors.RunExists(f"the ledger has a study {run} already")
        if study is not None and study.alive:
            raise errors.LedgerLocked(f"a controller works on {run}")
        if study is None:
            self._namespace.recorded(run, job, dict(submission), code)
            return
        study.job, study.submission, study.code = job.model_dump_json().encode(), dict(submission), code
        if study.status.started is None:
            study.status = planning.pending_status(run, job, float(submission["submitted"]))

    def set_token(self, run: str, token: str) -> None:
        if run in self._namespace.studies:
            self._namespace.studies[run].token = token

    def revoke_tokens(self, run: str) -> None:
        if run in self._namespace.studies:
            self._namespace.studies[run].token = None

    def runs_with_token(self) -> list[str]:
        return [run for run, study in self._namespace.studies.items() if study.token is not None]

    def record_change(self, run: str, change: Change) -> None:
        changes = self._namespace.studies[run].changes
        if (change.uid, change.generation) not in [(noted.uid, noted.generation) for noted in changes]:
            changes.append(change)

    def add_images(self, run: str, images: Iterable[tuple[str, str]]) -> None:
        known = self._namespace.studies[run].images
        for image, digest in images:
            known[image] = tuple(dict.fromkeys((*known.get(image, ()), digest)))

    def unmark_for_removal(self, run: str, uid: str) -> bool:
        study = self._namespace.studies[run]
        if study.submission.get(labels.UID) != uid:
            return False
        study.mark = ""
        return True

    def removal_marks(self) -> dict[str, str]:
        return {name: study.mark for name, study in self._namespace.studies.items() if study.mark}

    def delete(self, run: str) -> None:
        if self._namespace.studies[run].alive:
            raise errors.LedgerLocked(f"a controller works on {run}; `platform cancel {run}` ends it")
        del self._namespace.studies[run]

    def change_desired(self, run: str, changed: Mapping[str, Any]) -> None:
        study = self._namespace.studies.get(run)
        if study is None:
            raise errors.RunNotFound(f"the ledger has no run {run}")
        state = RunState(changed.get("state", study.desired))
        if not (study.desired is RunState.CANCELLED and state is RunState.PAUSED):
            study.desired = state
        study.parallel = changed.get("parallel", study.parallel)
