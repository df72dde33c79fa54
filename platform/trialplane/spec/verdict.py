"""A draft becomes a job, or the list of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from trialplane.errors import Complaint
from trialplane.spec import jobs, wording
from trialplane.spec.document import Place
from trialplane.spec.draft import Draft, Origin
from trialplane.spec.faults import Fault
from trialplane.spec.jobs import Job

_STAND_INS: Mapping[str, Any] = {
    "name": "job",
    "objectives": [{"metric": "objective", "direction": "maximize"}],
    "collect": {"units": 1, "write": {}},
}


class Verdict(NamedTuple):
    """What a draft came to.

    Attributes:
        job: None when anything is wrong.
        complaints: what is wrong.
        sound: the job without its wrong parts; None when nothing can be saved.
        broken: those parts.
    """

    job: Job | None
    complaints: list[Complaint]
    sound: Job | None
    broken: frozenset[Place]


def judge(draft: Draft, singular: bool = False, settled: Collection[Place] = ()) -> Verdict:
    """Validates a draft.

    Args:
        draft: what the job file and all overrides came to.
        singular: whether the file says `objective:`; complaints then do too.
        settled: fields that were right in the file alone, and that no override can make wrong.
    """
    if "objective" in draft.data:
        found = [Fault(("objective",), "stands beside objectives; keep one of them")]
        data = {key: value for key, value in draft.data.items() if key != "objective"}
    else:
        found, data = [], draft.data
    kind = jobs.of_kind(data.get("kind"))
    job: Job | None = None
    broken = set[Place]()
    try:
        job = kind.model_validate(data)
    except ValidationError as error:
        found += wording.translate(error, data)
        broken = {_part(fault.field) for fault in found}
    partial = job or _partial(kind, data, broken)
    if partial is not None:
        # A field that has a complaint already gets no second one from the rules that look at several.
        taken = {fault.field for fault in found}
        seen = [fault for fault in partial.check(broken) if fault.field not in (*taken, *settled)]
        found += _hinted(draft, seen)
    complaints = [*draft.complaints, *(complaint(draft, fault, singular) for fault in found)]
    return Verdict(None if complaints else job, complaints, partial, frozenset(broken))


def _part(place: Place) -> Place:
    """The smallest part that can be left out of a job: a top-level field or one parameter."""
    return place[:2] if place[:1] == ("space",) and len(place) > 1 else place[:1]


def _partial(kind: type[Job], data: Mapping[str, Any], broken: set[Place]) -> Job | None:
    """The job without its broken parts, so that the rules can look at the rest; None when nothing can be saved."""
    kept = {key: value for key, value in data.items() if (key,) not in broken and key in kind.model_fields}
    if isinstance(kept.get("space"), dict):
        kept["space"] = {key: value for key, value in kept["space"].items() if ("space", key) not in broken}
    name = next(name for name, cls in jobs.CLASSES.items() if cls is kind)
    for key, value in {**_STAND_INS, "kind": name}.items():
        if key in kind.model_fields:
            kept.setdefault(key, value)
    try:
        return kind.model_validate(kept)
    except ValidationError:  # a part whose fault lies elsewhere than it says; the complaints found so far are shown
        return None


def _hinted(draft: Draft, found: Collection[Fault]) -> Iterator[Fault]:
    """Says so where an override narrowed the space from under what the file says about it."""
    origins: dict[str | int, list[Origin]] = {}
    for place, origin in draft.origins.items():
        if place[:1] == ("space",) and len(place) > 1:
            origins.setdefault(place[1], []).append(origin)
    for fault in found:
        name = {"enqueue": fault.field[2:3], "space": fault.field[3:4]}.get(str(fault.field[0]), ())
        if not name or (fault.field[0] == "space" and fault.field[2:3] != ("when",)):
            yield fault
            continue
        own = draft.origin(fault.field).source
        narrowed = [origin.source for origin in origins.get(name[0], ()) if origin.source != own]
        if not narrowed:
            yield fault
        elif fault.field[0] == "enqueue":
            hint = f" (by {narrowed[0]}; --set 'enqueue=[]' drops the points)"
            yield Fault(fault.field, fault.message + hint)
        # A condition that can no longer come true costs nothing: its parameter is never drawn.


def complaint(draft: Draft, fault: Fault, singular: bool = False) -> Complaint:
    """A fault with the place that its value came from."""
    place = fault.field
    origin = draft.origin(place)
    shown = ("objective", *place[2:]) if singular and place[:1] == ("objectives",) else place
    if not shown:
        shown = ("job",)
    return Complaint(origin.within + ".".join(map(str, shown)), fault.message, origin.source, origin.line)
