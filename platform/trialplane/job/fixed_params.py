"""Parameters set on the command line: `--params` removes them from the space and resolves conditions on them.

A condition (`when`) says for which values of another parameter a parameter exists.

Names that are not in job.yaml are refused, in `--params` and in `--set params.…`, because no code would read them. With a
script instead of a job.yaml, any name is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.errors import FieldPath, Issue, SpecError
from trialplane.job import space
from trialplane.job.draft import START_POINTS, Draft, Origin

SOURCE = "--params"


def parameter_names(*jobs: Mapping[str, Any]) -> set[str]:
    """Return the names of all parameters, fixed or searched, of unvalidated jobs or profiles."""
    sections = [job.get(field) for job in jobs for field in ("params", "space")]
    return {name for section in sections if isinstance(section, dict) for name in section}


def full_name(name: str, known_names: Collection[str], source: str, *, are_all_known: bool) -> str:
    """Return the known name of a parameter: `optim.batch_size` for `batch_size` or `batch-size`, and `lr` for `optim.lr`.

    The name itself if it is known, or similar to none.

    Args:
        name: Name that the user has typed.
        known_names: Names of the program's parameters.
        source: Option with the name, for messages.
        are_all_known: Whether the program has no other parameters. If it may have some, `optim.lr` is one of them.

    Raises:
        SpecError: It is part of several known names, or has several in it.
    """
    if name in known_names:
        return name
    key = f".{name}".replace("-", "_")
    keys = {known_name: f".{known_name}".replace("-", "_") for known_name in known_names}
    matches = sorted(
        other for other, other_key in keys.items() if other_key.endswith(key) or (are_all_known and key.endswith(other_key))
    )
    if len(matches) > 1:
        raise SpecError(
            [Issue(("space", name), f"may be {' or '.join(matches)}; type the one that you mean", source=source)]
        )
    return matches[0] if matches else name


class Override(NamedTuple):
    """A value that `--set`, a flag or the SDK sets.

    Attributes:
        source: Name of the assignment or flag in messages.
        field_path: Path of the field.
        value: The value.
    """

    source: str
    field_path: FieldPath
    value: Any

    @property
    def parameter_names(self) -> list[str]:
        """Names of the fixed parameters that it sets."""
        match self.field_path:
            case ("params", name, *_):  # --set params.lr=0.1
                return [str(name)]
            case ("params",) if isinstance(self.value, dict):  # --set 'params={lr: 0.1}'
                return list(self.value)
        return []


def override_issues(job_draft: Draft, overrides: Collection[Override], known_names: Collection[str]) -> Iterator[Issue]:
    """Yield issues of parameters that `--set`, flags or the SDK set: unknown names, and names that are searched.

    Args:
        job_draft: Draft with all overrides.
        overrides: The overrides.
        known_names: `parameter_names` of the draft without overrides.
    """
    searched = job_draft.data.get("space")
    for override in overrides:
        for name in override.parameter_names:
            if name not in known_names:
                hint = errors.nearest(name, known_names)
                message = "; ".join(part for part in ("there is no such parameter", hint.rstrip("?")) if part)
                message = f"{message}; add new ones to params in job.yaml"
            elif isinstance(searched, dict) and name in searched:
                message = f"is searched, and what is drawn wins; --set space.{name}=null removes it from the space"
            else:
                continue
            yield Issue(("params", name), message, source=override.source)


def fix_parameters(
    job_draft: Draft, params: Mapping[str, Any], commented_names: Collection[str] = (), *, accepts_new: bool = False
) -> None:
    """Set parameters of `--params` in a draft, and add issues of unknown names.

    A parameter of the space becomes a fixed one. Conditions on it are resolved: parameters whose condition does not hold are
    removed too. Points in `enqueue` with another value are dropped.

    Args:
        job_draft: Draft to change.
        params: Values by name.
        commented_names: Names of further parameters that the job file lists as comments.
        accepts_new: Whether to accept names that the draft does not have.
    """
    space_fields = job_draft.data.get("space")
    present_params = job_draft.data.get("params") or {}
    if not isinstance(present_params, dict):  # which the validation reports
        return
    for name, value in params.items():
        is_searched = isinstance(space_fields, dict) and name in space_fields
        if is_searched:
            _fix_searched(job_draft, name, value)
        if is_searched or accepts_new or name in (*present_params, *commented_names):
            job_draft.set(("params", name), value, Origin(SOURCE))
        else:
            job_draft.issues.append(Issue((name,), _unknown_name_problem(name, present_params, space_fields), source=SOURCE))


def _unknown_name_problem(name: str, params: Collection[str], space_fields: Any) -> str:
    """Return the message for a parameter of `--params` that the job does not have.

    Args:
        name: Name of the parameter.
        params: Names in `params`.
        space_fields: Unvalidated `space` of the job: a mapping, or the name of a function.
    """
    reason = "the space is code, so only names in params can be fixed; " if isinstance(space_fields, str) else ""
    hint = errors.nearest(name, [*params, *(space_fields if isinstance(space_fields, dict) else ())])
    remedy = f"for a new one write `params: {{{name}: VALUE}}` into job.yaml"
    return "; ".join(filter(None, ("there is no such parameter", f"{reason}{hint}".rstrip("; "), remedy)))


def _fix_searched(job_draft: Draft, name: str, value: Any) -> None:
    """Remove a parameter that is fixed from the space, with the parameters that do not exist for its value."""
    _remove_from_space(job_draft, name)
    removed_names = {name}
    for dependent, fields in list(job_draft.data["space"].items()):
        if not _resolve_condition(fields, name, value):
            _remove_from_space(job_draft, dependent)
            removed_names.add(dependent)
    _drop_points(job_draft, name, value, removed_names)


def _resolve_condition(fields: Any, name: str, value: Any) -> bool:
    """Remove a condition on a parameter that is now fixed; return whether the condition holds. True without a condition.

    Args:
        fields: Fields of the parameter that may have the condition, which are changed.
        name: The fixed parameter.
        value: Its value.
    """
    conditions = fields.get("when") if isinstance(fields, dict) else None
    if not isinstance(conditions, dict) or name not in conditions:
        return True
    allowed = conditions.pop(name)
    allowed_values = allowed if isinstance(allowed, (list, tuple)) else [allowed]
    return any(space.is_same(value, allowed_value) for allowed_value in allowed_values)


def _remove_from_space(job_draft: Draft, name: str) -> None:
    """Remove a parameter from the space and from the start point of the sampler."""
    job_draft.set(("space", name), None, Origin(SOURCE))
    for field_path in START_POINTS:
        start_point = job_draft.get(field_path)
        if isinstance(start_point, dict) and name in start_point:
            job_draft.set((*field_path, name), None, Origin(SOURCE))


def _drop_points(job_draft: Draft, name: str, value: Any, removed_names: set[str]) -> None:
    """Remove points and parameters from `enqueue` that a fixed parameter makes impossible.

    Args:
        job_draft: Draft to change.
        name: The fixed parameter. Points with another value of it are removed.
        value: Its value.
        removed_names: Parameters that are not in the space any more. They are removed from the points, and so are points
            without any other parameter.
    """
    points = job_draft.data.get("enqueue")
    if not isinstance(points, list):
        return
    kept_indices = []
    for index, point in enumerate(points):
        is_kept = True  # also what is not a mapping, which the validation reports
        if isinstance(point, dict):
            points[index] = {key: item for key, item in point.items() if key not in removed_names}
            has_other_value = name in point and not space.is_same(point[name], value)
            is_emptied = bool(point) and not points[index]
            is_kept = not has_other_value and not is_emptied
        if is_kept:
            kept_indices.append(index)
    job_draft.keep_items(("enqueue",), kept_indices)
