"""Changes of a Run's spec that the ledger has not recorded yet: who changed what, and when. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trialplane.job.kinds import Job
from trialplane.kube import metadata
from trialplane.plan import plan as planning
from trialplane.plan.run import RunSpec
from trialplane.reconciler.observation import Observation, Thing
from trialplane.wire import cluster as names
from trialplane.wire.records import Change


def change(observed: Observation) -> Change | None:
    """The change of its spec that the ledger has not; None if it has the newest.

    Changes that follow each other before they are seen are one, by who made the last, and it says how many they were.
    """
    if observed.recorded is None or not observed.is_recorded or observed.read.spec is None:
        return None
    last = observed.recorded.change
    before = last if last is not None and last.uid == observed.uid else None
    last_generation = 0 if before is None else before.generation
    if observed.generation <= last_generation:
        return None
    state = _requested(observed.spec, observed.read.job)
    if before is not None:
        text = ", ".join(_differences(before.requested, state)) or "fields without effect"
    else:
        text = "submitted" if not observed.spec.resumes else "resumed, as a new Run"
    if observed.generation - last_generation > 1:
        since = "it was made" if before is None else "then"
        text += f" (the last of {observed.generation - last_generation} changes since {since})"
    annotations = observed.run["metadata"].get("annotations") or {}
    who = str(annotations.get(names.CHANGED_BY) or observed.owner)
    return Change(_changed(observed.run), who, text, observed.uid, observed.generation, state)


def _requested(spec: RunSpec, job: Job | None) -> dict[str, Any]:
    """Return the fields of a Run that changes compare; the job by its digest."""
    return {
        "state": spec.state,
        "parallel": spec.parallel,
        "resumes": spec.resumes,
        "now": spec.now,
        "job": "" if job is None else planning.spec_hash(job),
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Return the changes in words."""
    if after["resumes"] != before.get("resumes"):
        yield "resumed"
    if after["state"] != before.get("state"):
        yield f"state: {before.get('state')} → {after['state']}"
    if after["parallel"] != before.get("parallel"):
        yield f"parallel: {before.get('parallel') or 'as the job says'} → {after['parallel'] or 'as the job says'}"
    if after["now"] and not before.get("now"):
        yield "at once"
    if after["job"] != before.get("job"):
        yield "job changed"


def _changed(run: Thing) -> float:
    """When the spec of a Run was written last, in seconds since the epoch, as the API server noted it."""
    writers = [
        entry.get("time")
        for entry in run["metadata"].get("managedFields") or []
        if not entry.get("subresource") and "f:spec" in (entry.get("fieldsV1") or {})
    ]
    return max((metadata.moment(time) or 0.0 for time in writers), default=0.0) or metadata.created(run)
