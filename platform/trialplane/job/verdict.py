"""Validation of a draft, the data of a job file with all overrides: a job, or all of its issues at once.

Pydantic checks each field. Rules across fields are checked even if some fields are invalid, on a job without these fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from trialplane.errors import FieldPath, Issue
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
    broken: frozenset[FieldPath]


def judge(draft: Draft, has_objective: bool = False, valid_paths: Collection[FieldPath] = ()) -> Judgment:
    """Validate a draft.

    Args:
        draft: The job file with all overrides.
        has_objective: Whether the file has `objective`, so that issues name this field instead of `objectives`.
        valid_paths: Paths whose issues are ignored: the fields are valid in the file alone, and an override has removed the
            fields to which they refer.
    """
    data = draft.data
    job_issues: list[Issue] = []
    if "objective" in data:  # a draft keeps it only beside `objectives`
        job_issues.append(Issue(("objective",), "stands beside objectives; keep one of them"))
        data = {key: value for key, value in data.items() if key != "objective"}
    kind = kinds.kind_class(data.get("kind"))
    job: Job | None = None
    broken = set[FieldPath]()
    try:
        job = kind.model_validate(data)
    except ValidationError as error:
        job_issues += wording.translate(error, data)
        broken = {_removable_path(issue.field_path) for issue in job_issues}
    partial = job or _partial_job(kind, data, broken)
    if partial is not None:
        # A field that has an issue does not get another one from the rules across fields.
        reported = {issue.field_path for issue in job_issues}
        rule_issues = [issue for issue in partial.check(broken) if issue.field_path not in (*reported, *valid_paths)]
        job_issues += _with_hints(draft, rule_issues)
    issues = [*draft.issues, *(locate(draft, issue, has_objective) for issue in job_issues)]
    return Judgment(job=None if issues else job, issues=issues, partial=partial, broken=frozenset(broken))


def space_issues(space: Mapping[str, Any], source: str) -> list[Issue]:
    """Return the issues of a space alone, as of a choice that is listed twice.

    Args:
        space: Fields of the parameters by name.
        source: Name of the space in messages.
    """
    data = {"kind": "hpo", "space": dict(space)}
    try:
        kinds.kind_class("hpo").model_validate(data)
    except ValidationError as error:
        issues = [issue for issue in wording.translate(error, data) if issue.field_path[:1] == ("space",)]
        return [dataclasses.replace(issue, source=source) for issue in issues]
    return []


def _removable_path(field_path: FieldPath) -> FieldPath:
    """Return the path of the smallest removable part of a job with a field: a top-level field or one parameter."""
    return field_path[:2] if field_path[:1] == ("space",) and len(field_path) > 1 else field_path[:1]


def _partial_job(job_class: type[Job], data: Mapping[str, Any], broken: set[FieldPath]) -> Job | None:
    """Return the job without its invalid parts, for further checks. None if too little is valid.

    Required fields that are missing or invalid get stand-ins, see `Base.stand_in`.

    Args:
        job_class: Class of the job's kind.
        data: Fields of the job.
        broken: Paths of the invalid parts, from `_removable_path`.
    """
    valid_fields = {key: value for key, value in data.items() if (key,) not in broken and key in job_class.model_fields}
    if isinstance(valid_fields.get("space"), dict):
        valid_fields["space"] = {key: value for key, value in valid_fields["space"].items() if ("space", key) not in broken}
    kind = next(kind for kind, cls in kinds.CLASSES.items() if cls is job_class)
    for key, value in {**job_class.stand_in, "kind": kind}.items():
        if key in job_class.model_fields:
            valid_fields.setdefault(key, value)
    try:
        return job_class.model_validate(valid_fields)
    except ValidationError:  # the issues that are known so far have to suffice
        return None


def _with_hints(draft: Draft, issues: Collection[Issue]) -> Iterator[Issue]:
    """Yield the issues of the rules across fields, with regard to overrides of the space.

    An override may change a parameter so that a point in `enqueue` or a condition (`when`) on it does not fit it any more.
    The issue of the point gets a hint at the override. The issue of the condition is dropped, because the parameter with the
    condition is simply never drawn.

    Args:
        draft: The job file with all overrides.
        issues: The issues.
    """
    origins: dict[str | int, list[Origin]] = {}  # name of a parameter → origins of its fields
    for field_path, origin in draft.origins.items():
        if field_path[:1] == ("space",) and len(field_path) > 1:
            origins.setdefault(field_path[1], []).append(origin)
    for issue in issues:
        overrides: list[str] = []  # sources of the parameter's fields that are not the source of the point or condition
        match issue.field_path:
            case ("enqueue", _, parameter, *_) | ("space", _, "when", parameter, *_):
                own_source = draft.origin(issue.field_path).source
                overrides = [origin.source for origin in origins.get(parameter, ()) if origin.source != own_source]
        if not overrides:
            yield issue
        elif issue.field_path[0] == "enqueue":
            hint = f" (by {overrides[0]}; --set 'enqueue=[]' drops the points)"
            yield dataclasses.replace(issue, message=issue.message + hint)


def locate(draft: Draft, issue: Issue, has_objective: bool = False) -> Issue:
    """Return an issue with the source and the line of its value. The path of a field in a profile names the profile.

    Args:
        draft: The job file with all overrides.
        issue: Issue with the path of the value in the job.
        has_objective: Whether the file has `objective`, which the issue then names instead of `objectives`.
    """
    field_path, origin = issue.field_path, draft.origin(issue.field_path)
    if has_objective and field_path[:1] == ("objectives",):
        field_path = ("objective", *field_path[2:])
    path = (*origin.within, *(field_path or ("job",)))
    return dataclasses.replace(issue, field_path=path, source=origin.source, line=origin.line)
