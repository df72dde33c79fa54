"""Parameters given on the command line: those of `--params` leave the space, and conditions on them are resolved.

A name that a job.yaml does not have is refused, in `--params` as in `--set params.…`, as nothing would read it. A script
without that file takes any.
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
    """The parameters that raw jobs or profiles have, fixed or searched."""
    parts = [job.get(field) for job in jobs for field in ("params", "space")]
    return {name for part in parts if isinstance(part, dict) for name in part}


def refused(whole: Draft, given: Mapping[str, tuple[Place, Any]], known: Collection[str]) -> Iterator[Issue]:
    """Issues of the parameters among the fields of `--set`, of flags and of the SDK.

    Args:
        whole: the draft with all of them laid over it.
        given: source → the field and its value.
        known: `named`, before they were.
    """
    searched = whole.data.get("space")
    for source, (place, value) in given.items():
        if place[:1] != ("params",):
            continue
        below = value if isinstance(value, dict) else ()
        for name in [str(place[1])] if len(place) > 1 else below:
            if name not in known:
                hint = errors.nearest(name, known)
                message = "; ".join(part for part in ("there is no such parameter", hint.rstrip("?")) if part)
                yield Issue(("params", name), f"{message}; add new ones to params in job.yaml", source)
            elif isinstance(searched, dict) and name in searched:
                cure = f"--set space.{name}=null removes it from the space"
                yield Issue(("params", name), f"is searched, and what is drawn wins; {cure}", source)


def lay(whole: Draft, params: Mapping[str, Any], *, takes_any: bool = False) -> None:
    """Fix values in a draft.

    A parameter of the space leaves it and becomes a fixed one. Conditions on it are settled: a parameter whose
    condition does not hold leaves as well. A point to try first that has another value is dropped.

    Args:
        whole: the draft.
        params: by name.
        takes_any: whether names that it does not have are new parameters.
    """
    searched = whole.data.get("space")
    known = whole.data.get("params") or {}
    if not isinstance(known, dict):
        return  # params itself has an issue
    for name, value in params.items():
        if isinstance(searched, dict) and name in searched:
            gone = _leave(whole, searched, name)
            for other in list(searched):
                if other in searched:
                    gone |= _settle(whole, searched, other, name, value)
            _drop_points(whole, name, value, gone)
        elif name not in known and not takes_any:
            why = "the space is code, so only names in params can be fixed; " if isinstance(searched, str) else ""
            hint = errors.nearest(name, [*known, *(searched if isinstance(searched, dict) else ())])
            whole.issues.append(Issue((name,), f"there is no such parameter; {why}{hint}".rstrip("; "), SOURCE))
            continue
        whole.set(("params", name), value, Origin(SOURCE))


def _settle(whole: Draft, searched: dict[str, Any], other: str, name: str, value: Any) -> set[str]:
    """Take the condition on `name` from a parameter, or the parameter when it does not hold; return the removed names."""
    conditions = searched[other].get("when") if isinstance(searched[other], dict) else None
    if not isinstance(conditions, dict) or name not in conditions:
        return set()
    allowed = conditions.pop(name)
    listed = allowed if isinstance(allowed, (list, tuple)) else [allowed]
    return set() if any(space.same(value, allowed_value) for allowed_value in listed) else _leave(whole, searched, other)


def _leave(whole: Draft, searched: dict[str, Any], name: str) -> set[str]:
    whole.set(("space", name), None, Origin(SOURCE))
    return {name}


def _drop_points(whole: Draft, name: str, value: Any, gone: set[str]) -> None:
    points = whole.data.get("enqueue")
    if not isinstance(points, list):
        return
    kept = []
    for index, point in enumerate(points):
        if isinstance(point, dict):
            if name in point and not space.same(point[name], value):
                continue
            points[index] = {key: below for key, below in point.items() if key not in gone}
            if point and not points[index]:
                continue
        kept.append(index)
    whole.keep(("enqueue",), kept)
