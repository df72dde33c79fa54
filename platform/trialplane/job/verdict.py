"""Turns a draft into a job, or into the list of all its issues."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from trialplane.errors import Issue, Place
from trialplane.job import kinds, wording
from trialplane.job.draft import Draft, Origin
from trialplane.job.kinds import Job

_STAND_INS: Mapping[str, Any] = {
    "name": "job",
    "objectives": [{"metric": "objective", "direction": "maximize"}],
    "collect": {"units": 1, "write": {}},
}


class Verdict(NamedTuple):
    """The result of validating a draft.

    Attributes:
        job: None when anything is wrong.
        issues: what is wrong.
        sound: the job without its wrong parts; None when nothing can be saved.
        broken: those parts.
    """

    job: Job | None
    issues: list[Issue]
    sound: Job | None
    broken: frozenset[Place]


def judge(draft: Draft, singular: bool = False, settled: Collection[Place] = ()) -> Verdict:
    """Validate a draft.

    Args:
        draft: the job file with all overrides.
        singular: whether the file uses `objective:`; issues then do too.
        settled: fields that are valid in the file alone and that no override can invalidate.
    """
    if "objective" in draft.data:
        found = [Issue(("objective",), "stands beside objectives; keep one of them")]
        data = {key: value for key, value in draft.data.items() if key != "objective"}
    else:
        found, data = [], draft.data
    kind = kinds.of_kind(data.get("kind"))
    job: Job | None = None
    broken = set[Place]()
    try:
        job = kind.model_validate(data)
    except ValidationError as error:
        found += wording.translate(error, data)
        broken = {_part(issue.place) for issue in found}
    partial = job or _partial(kind, data, broken)
    if partial is not None:
        # A field with an issue gets no second one from the rules across fields.
        taken = {issue.place for issue in found}
        seen = [issue for issue in partial.check(broken) if issue.place not in (*taken, *settled)]
        found += _hinted(draft, seen)
    issues = [*draft.issues, *(located(draft, issue, singular) for issue in found)]
    return Verdict(None if issues else job, issues, partial, frozenset(broken))


def _part(place: Place) -> Place:
    """The smallest part that can be left out of a job: a top-level field or one parameter."""
    return place[:2] if place[:1] == ("space",) and len(place) > 1 else place[:1]


def _partial(kind: type[Job], data: Mapping[str, Any], broken: set[Place]) -> Job | None:
    """The job without its broken parts, so that the rules can check the rest; None if nothing remains."""
    kept = {key: value for key, value in data.items() if (key,) not in broken and key in kind.model_fields}
    if isinstance(kept.get("space"), dict):
        kept["space"] = {key: value for key, value in kept["space"].items() if ("space", key) not in broken}
    name = next(name for name, cls in kinds.CLASSES.items() if cls is kind)
    for key, value in {**_STAND_INS, "kind": name}.items():
        if key in kind.model_fields:
            kept.setdefault(key, value)
    try:
        return kind.model_validate(kept)
    except ValidationError:  # the cause is in another part; show the issues found so far
        return None


def _hinted(draft: Draft, found: Collection[Issue]) -> Iterator[Issue]:
    """Add a hint where an override narrowed the space so that fields of the file no longer fit."""
    origins: dict[str | int, list[Origin]] = {}
    for place, origin in draft.origins.items():
        if place[:1] == ("space",) and len(place) > 1:
            origins.setdefault(place[1], []).append(origin)
    for issue in found:
        name = {"enqueue": issue.place[2:3], "space": issue.place[3:4]}.get(str(issue.place[0]), ())
        if not name or (issue.place[0] == "space" and issue.place[2:3] != ("when",)):
            yield issue
            continue
        own = draft.origin(issue.place).source
        narrowed = [origin.source for origin in origins.get(name[0], ()) if origin.source != own]
        if not narrowed:
            yield issue
        elif issue.place[0] == "enqueue":
            hint = f" (by {narrowed[0]}; --set 'enqueue=[]' drops the points)"
            yield Issue(issue.place, issue.message + hint)
        # A condition that can no longer come true costs nothing: its parameter is never drawn.


def located(draft: Draft, issue: Issue, singular: bool = False) -> Issue:
    """An issue with the origin of its value, and the place it has there."""
    place, origin = issue.place, draft.origin(issue.place)
    shown = ("objective", *place[2:]) if singular and place[:1] == ("objectives",) else place
    return Issue((*origin.within, *(shown or ("job",))), issue.message, origin.source, origin.line)
