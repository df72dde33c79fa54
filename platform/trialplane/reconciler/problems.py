"""Problems that keep a Run from its start: an invalid spec, a name that is taken, a record of another job. Pure."""

from __future__ import annotations

from trialplane.errors import SpecError
from trialplane.plan import changes as changing
from trialplane.plan import run as runs
from trialplane.reconciler.observation import Observation, Problem
from trialplane.wire import labels


def problem(observed: Observation) -> Problem | None:
    """Return why nothing is started or changed. None if all is well."""
    if observed.read.issues:
        return Problem("Invalid", str(SpecError(observed.read.issues)))
    if observed.ray_cluster is not None and observed.own_cluster is None and not _is_leaving(observed):
        return Problem(
            "NameTaken",
            f"the RayCluster {observed.name} is not of this Run; give the Run another name, or, if nobody needs the other, "
            f"`kubectl delete raycluster {observed.name}`",
        )
    return _unlike(observed) or observed.blocked


def _is_leaving(observed: Observation) -> bool:
    """Whether the RayCluster is of an earlier Run of its name, with which it is being removed."""
    owners = [] if observed.ray_cluster is None else observed.ray_cluster["metadata"].get("ownerReferences") or []
    return (runs.KIND, observed.name) in [(owner.get("kind"), owner.get("name")) for owner in owners]


def _unlike(observed: Observation) -> Problem | None:
    """Whether the ledger's record is of another job or other code."""
    if observed.recorded is None:
        return None
    if observed.is_anothers:
        whose = observed.recorded.submission[labels.OWNER]
        text = (
            f"there was a run {observed.name} of {whose}, whose record only its owner goes on with; give the Run another "
            f"name, or `platform delete {observed.name}` the record first"
        )
        return Problem("NameTaken", text)
    old = observed.recorded.job
    same_code = str(observed.recorded.submission.get("code_hash", "")) == observed.spec.code.sha256
    if not observed.is_recorded:
        lines = changing.changed_fields(old, observed.job) + ([] if same_code else ["code: changed"])
        return Problem("NameTaken", changing.refusal(observed.name, lines)) if lines else None
    issues = [issue.below("spec", "job") for issue in changing.resume_issues(old, observed.job)]
    if not same_code:
        return Problem("Invalid", f"the code of {observed.name} has changed; submit it under another name")
    return Problem("Invalid", str(SpecError(issues))) if issues else None
