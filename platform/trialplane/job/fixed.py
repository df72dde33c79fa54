"""Parameters set on the command line: `--params` removes them from the space and resolves conditions on them.

Names that are not in job.yaml are refused, in `--params` and in `--set params.…`, because nothing would read them. A script
without a job.yaml accepts any name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import space
from trialplane.job.draft import Draft, Origin

SOURCE = "--params"


def named(*jobs: Mapping[str, Any]) -> set[str]:
    """Return the names of parameters in raw jobs or profiles, fixed or searched."""
    parts = [job.get(field) for job in jobs for field in ("params", "space")]
    return {name for part in parts if isinstance(part, dict) for name in part}


def refused(whole: Draft, overrides: Mapping[str, tuple[Place, Any]], known_names: Collection[str]) -> Iterator[Issue]:
    """Yield issues of parameters set by `--set`, flags or the SDK.

    Args:
        whole: the draft with all overrides.
        overrides: source → field and value.
        known_names: `named` of the draft without overrides.
    """
    searched = whole.data.get("space")
    for source, (field_path, value) in overrides.items():
        if field_path[:1] != ("params",):
            continue
        new_params = value if isinstance(value, dict) else ()
        for name in [str(field_path[1])] if len(field_path) > 1 else new_params:
            if name not in known_names:
                hint = errors.nearest(name, known_names)
                message = "; ".join(part for part in ("there is no such parameter", hint.rstrip("?")) if part)
                yield Issue(("params", name), f"{message}; add new ones to params in job.yaml", source)
            elif isinstance(searched, dict) and name in searched:
                advice = f"--set space.{name}=null removes it from the space"
                yield Issue(("params", name), f"is searched, and what is drawn wins; {advice}", source)


def lay(whole: Draft, params: Mapping[str, Any], *, takes_any: bool = False) -> None:
    """Fix parameters in a draft.

    A parameter of the space becomes a fixed one. Conditions on it are resolved: parameters whose condition does not hold are
    removed too. Points in `enqueue` with another value are dropped.

    Args:
        whole: the draft.
        params: values by name.
        takes_any: accept new names.
    """
    searched = whole.data.get("space")
    present_params = whole.data.get("params") or {}
    if not isinstance(present_params, dict):
        return  # params itself has an issue
    for name, value in params.items():
        if isinstance(searched, dict) and name in searched:
            removed = _leave(whole, searched, name)
            for other in list(searched):
                if other in searched:
                    removed |= _settle(whole, searched, other, name, value)
            _drop_points(whole, name, value, removed)
        elif name not in present_params and not takes_any:
            reason = "the space is code, so only names in params can be fixed; " if isinstance(searched, str) else ""
            hint = errors.nearest(name, [*present_params, *(searched if isinstance(searched, dict) else ())])
            whole.issues.append(Issue((name,), f"there is no such parameter; {reason}{hint}".rstrip("; "), SOURCE))
            continue
        whole.set(("params", name), value, Origin(SOURCE))


def _settle(whole: Draft, searched: dict[str, Any], other: str, name: str, value: Any) -> set[str]:
    """Resolve the condition on `name` of a parameter: remove the condition, or the parameter. Return removed names."""
    conditions = searched[other].get("when") if isinstance(searched[other], dict) else None
    if not isinstance(conditions, dict) or name not in conditions:
        return set()
    allowed = conditions.pop(name)
    listed = allowed if isinstance(allowed, (list, tuple)) else [allowed]
    return set() if any(space.same(value, allowed_value) for allowed_value in listed) else _leave(whole, searched, other)


def _leave(whole: Draft, searched: dict[str, Any], name: str) -> set[str]:
    whole.set(("space", name), None, Origin(SOURCE))
    return {name}


def _drop_points(whole: Draft, name: str, value: Any, removed: set[str]) -> None:
    points = whole.data.get("enqueue")
    if not isinstance(points, list):
        return
    kept_indices = []
    for index, point in enumerate(points):
        if isinstance(point, dict):
            if name in point and not space.same(point[name], value):
                continue
            points[index] = {key: item for key, item in point.items() if key not in removed}
            if point and not points[index]:
                continue
        kept_indices.append(index)
    whole.keep(("enqueue",), kept_indices)
