"""Changes of a Run's spec that the ledger has not recorded yet: who changed what, and when. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trialplane.job.kinds import Job
from trialplane.kube import metadata
from trialplane.kube.metadata import KubeObject
from trialplane.plan import plan as planning
from trialplane.plan.run import RunSpec
from trialplane.reconciler.observation import Observation
from trialplane.wire import cluster as names
from trialplane.wire.records import Change


def unrecorded_change(observed: Observation) -> Change | None:
    """Return the newest change of the spec. None if the ledger has it, the Run has no record, or its spec is not valid.

    Several changes since the last one in the ledger are returned as one, by the user who made the last, with their number in
    the description.
    """
    if observed.record is None or not observed.is_recorded or observed.parsed.spec is None:
        return None
    last = observed.record.change
    # Generations are counted for each Run object. So the last change of an earlier Run of this name does not count.
    last_of_run = last if last is not None and last.uid == observed.uid else None
    last_generation = 0 if last_of_run is None else last_of_run.generation
    change_count = observed.generation - last_generation  # the API server adds 1 for each change of the spec
    if change_count <= 0:
        return None
    requested = _requested_fields(observed.spec, observed.parsed.job)
    if last_of_run is not None:
        text = ", ".join(_differences(last_of_run.requested, requested)) or "fields without effect"
    else:
        text = "submitted" if not observed.spec.resumes else "resumed, as a new Run"
    if change_count > 1:
        since = "the Run was created" if last_of_run is None else "the last change in the ledger"
        text += f" (the last of {change_count} changes since {since})"
    return Change(
        at=_change_time(observed.run),
        by=str(metadata.annotations_of(observed.run).get(names.CHANGED_BY) or observed.owner),
        description=text,
        uid=observed.uid,
        generation=observed.generation,
        requested=requested,
    )


def _requested_fields(spec: RunSpec, job: Job | None) -> dict[str, Any]:
    """Return the fields of a spec whose changes are described, by name. The job is replaced by its digest."""
    return {
        "state": spec.state,
        "parallel": spec.parallel,
        "resumes": spec.resumes,
        "now": spec.now,
        "job": "" if job is None else planning.spec_hash(job),
    }


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of a spec's fields in words.

    Earlier fields in the ledger may lack some.
    """
    if new["resumes"] != old.get("resumes"):
        yield "resumed"
    if new["state"] != old.get("state"):
        yield f"state: {old.get('state')} → {new['state']}"
    if new["parallel"] != old.get("parallel"):
        yield f"parallel: {old.get('parallel') or 'as the job says'} → {new['parallel'] or 'as the job says'}"
    if new["now"] and not old.get("now"):
        yield "at once"
    if new["job"] != old.get("job"):
        yield "job changed"


def _change_time(run: KubeObject) -> float:
    """Return the time of the last change of a Run's spec by the API server's records, in seconds since the epoch."""
    write_times = [
        entry.get("time")
        for entry in run["metadata"].get("managedFields") or []
        if not entry.get("subresource") and "f:spec" in (entry.get("fieldsV1") or {})
    ]
    return max((metadata.timestamp(time) or 0.0 for time in write_times), default=0.0) or metadata.creation_time(run)
