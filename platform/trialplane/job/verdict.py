"""Validation of a draft: a job, or all of its issues."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from trialplane.errors import Issue, Place
from trialplane.job import kinds, wording
from trialplane.job.draft import Draft, Origin
from trialplane.job.kinds import Job


class Judgment(NamedTuple):
    """The result of validating a draft.

    Attributes:
        job: The job; None if there are issues.
        issues: All issues.
        partial: The job without its invalid parts; None if too little is valid.
        broken: Paths of the invalid parts.
    """

    job: Job | None
    issues: list[Issue]
    partial: Job | None
    broken: frozenset[Place]


def judge(draft: Draft, has_objective: bool = False, valid_paths: Collection[Place] = ()) -> Judgment:
    """Validate a draft.

    Args:
        draft: The job file with all overrides.
        has_objective: Whether the file has `objective`, so that issues name this field instead of `objectives`.
        valid_paths: Paths of fields that are valid in the file alone, and whose issues with overrides are no issues.
    """
    if "objective" in draft.data:
        issues_found = [Issue(("objective",), "stands beside objectives; keep one of them")]
        data = {key: value for key, value in draft.data.items() if key != "objective"}
    else:
        issues_found, data = [], draft.data
    kind = kinds.kind_class(data.get("kind"))
    job: Job | None = None
    broken = set[Place]()
    try:
        job = kind.model_validate(data)
    except ValidationError as error:
        issues_found += wording.translate(error, data)
        broken = {_part(issue.place) for issue in issues_found}
    partial = job or _partial(kind, data, broken)
    if partial is not None:
        # A field with an issue gets no second one by the rules across fields.
        reported = {issue.place for issue in issues_found}
        rule_issues = [issue for issue in partial.check(broken) if issue.place not in (*reported, *valid_paths)]
        issues_found += _with_hints(draft, rule_issues)
    issues = [*draft.issues, *(locate(draft, issue, has_objective) for issue in issues_found)]
    return Judgment(None if issues else job, issues, partial, frozenset(broken))


def _part(field_path: Place) -> Place:
    """Return the smallest part that can be left out of a job: a top-level field or one parameter."""
    return field_path[:2] if field_path[:1] == ("space",) and len(field_path) > 1 else field_path[:1]


def _partial(kind: type[Job], data: Mapping[str, Any], broken: set[Place]) -> Job | None:
    """Return the job without its invalid parts, for further checks. None if too little is valid."""
    valid_fields = {key: value for key, value in data.items() if (key,) not in broken and key in kind.model_fields}
    if isinstance(valid_fields.get("space"), dict):
        valid_fields["space"] = {key: value for key, value in valid_fields["space"].items() if ("space", key) not in broken}
    name = next(name for name, cls in kinds.CLASSES.items() if cls is kind)
    for key, value in {**kind.stand_in, "kind": name}.items():
        if key in kind.model_fields:
            valid_fields.setdefault(key, value)
    try:
        return kind.model_validate(valid_fields)
    except ValidationError:  # the cause is in another part; show the issues found so far
        return None


def _with_hints(draft: Draft, issues: Collection[Issue]) -> Iterator[Issue]:
    """Yield issues. A point that an override of the space made invalid gets a hint. Such a condition is left out."""
    origins: dict[str | int, list[Origin]] = {}
    for field_path, origin in draft.origins.items():
        if field_path[:1] == ("space",) and len(field_path) > 1:
            origins.setdefault(field_path[1], []).append(origin)
    for issue in issues:
        # Of ("enqueue", 0, name) and of ("space", other, "when", name).
        parameter = {"enqueue": issue.place[2:3], "space": issue.place[3:4]}.get(str(issue.place[0]), ())
        if not parameter or (issue.place[0] == "space" and issue.place[2:3] != ("when",)):
            yield issue
            continue
        own_source = draft.origin(issue.place).source
        overrides = [origin.source for origin in origins.get(parameter[0], ()) if origin.source != own_source]
        if not overrides:
            yield issue
        elif issue.place[0] == "enqueue":
            hint = f" (by {overrides[0]}; --set 'enqueue=[]' drops the points)"
            yield Issue(issue.place, issue.message + hint)
        # A condition that an override makes impossible is no issue: its parameter is never drawn.


def locate(draft: Draft, issue: Issue, has_objective: bool = False) -> Issue:
    """Return an issue with the source and the line of its value.

    Args:
        draft: The job file with all overrides.
        issue: Issue with the path of the value.
        has_objective: Whether the file has `objective`, which the issue then names instead of `objectives`.
    """
    field_path, origin = issue.place, draft.origin(issue.place)
    if has_objective and field_path[:1] == ("objectives",):
        field_path = ("objective", *field_path[2:])
    return Issue((*origin.within, *(field_path or ("job",))), issue.message, origin.source, origin.line)
