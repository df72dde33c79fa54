"""Problems that prevent the start or the change of a Run. Pure.

These are an invalid spec, a name that is taken, a record of another owner or job, and what observing has found
(`Observation.start_problem`): code that is missing or differs, or a job that the chart does not allow.
"""

from __future__ import annotations

from trialplane.errors import SpecError
from trialplane.plan import changes as changing
from trialplane.plan import run as runs
from trialplane.reconciler.observation import Observation, Problem
from trialplane.wire import labels


def problem(observed: Observation) -> Problem | None:
    """Return the first problem that prevents the start or the change of a Run; None without a problem."""
    if observed.parsed.issues:
        return Problem("Invalid", str(SpecError(observed.parsed.issues)))
    if observed.ray_cluster is not None and observed.own_cluster is None and not _is_cluster_of_earlier_run(observed):
        return Problem(
            "NameTaken",
            f"the RayCluster {observed.name} does not belong to this Run; give the Run another name, or, if nobody needs "
            f"that RayCluster, `kubectl delete raycluster {observed.name}`",
        )
    return _record_conflict(observed) or observed.start_problem


def _is_cluster_of_earlier_run(observed: Observation) -> bool:
    """Whether the RayCluster belongs to an earlier Run of its name, and so is removed together with it."""
    owners = [] if observed.ray_cluster is None else observed.ray_cluster["metadata"].get("ownerReferences") or []
    return any(owner.get("kind") == runs.KIND and owner.get("name") == observed.name for owner in owners)


def _record_conflict(observed: Observation) -> Problem | None:
    """Return the problem if the record has another owner than the Run, or a job or code that the spec may not change.

    None if the ledger has no record of the name, or if there is no problem.
    """
    if observed.record is None:
        return None
    if observed.is_record_of_another:
        owner = observed.record.submission[labels.OWNER]
        text = (
            f"the ledger has a run {observed.name} of {owner}, which only its owner may continue; give the Run another "
            f"name, or first `platform delete {observed.name}` the record"
        )
        return Problem("NameTaken", text)
    recorded_job = observed.record.job
    has_same_code = str(observed.record.submission.get("code_hash", "")) == observed.spec.code.sha256
    if not observed.is_recorded:  # a new Run may continue the record of an earlier one only if nothing has changed
        lines = changing.changed_fields(recorded_job, observed.job) + ([] if has_same_code else ["code: changed"])
        return Problem("NameTaken", changing.refusal(observed.name, lines)) if lines else None
    issues = [issue.below("spec", "job") for issue in changing.resume_issues(recorded_job, observed.job)]
    if not has_same_code:
        return Problem("Invalid", f"the code of {observed.name} has changed; submit it under another name")
    return Problem("Invalid", str(SpecError(issues))) if issues else None
