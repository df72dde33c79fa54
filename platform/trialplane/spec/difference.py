"""What differs between two jobs, field by field, for a run name that exists with another spec."""

from __future__ import annotations

import json
from typing import Any

from trialplane.spec.jobs import Job

# Words for people change nothing in a run.
_IGNORED = ("description",)


def difference(old: Job, new: Job) -> list[str]:
    """One line for each field that differs: `trials: 24 → 800`."""
    before, after = _flat(old), _flat(new)
    return [
        f"{field}: {_show(before, field)} → {_show(after, field)}"
        for field in dict.fromkeys([*before, *after])
        if field not in before or field not in after or not _equal(before[field], after[field])
    ]


def _flat(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict) and value:
            for key, below in value.items():
                # Options stand beside the name in a job file.
                walk(below, path if path in (("sampler",), ("pruner",)) and key == "options" else (*path, key))
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                walk(item, (*path, str(index)))
        elif not (isinstance(value, dict) and path):
            found[".".join(path)] = value

    walk(job.model_dump(mode="json", exclude=set(_IGNORED)), ())
    return found


def _equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are written alike; 1 is not true, and 1 is 1.0."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _show(fields: dict[str, Any], field: str) -> str:
    return json.dumps(fields[field], ensure_ascii=False) if field in fields else "(not there)"
