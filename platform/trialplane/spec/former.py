"""Former names of fields of a job: accepted for this version, with a note to the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialplane.errors import Place

NAMES: Mapping[Place, Place] = {("collect", "consumer"): ("collect", "learner")}


def current(place: Place) -> Place:
    """The place of a field by its current names."""
    for old, new in NAMES.items():
        if place[: len(old)] == old:
            return (*new, *place[len(old) :])
    return place


def renamed(section: Mapping[str, Any], above: Place) -> tuple[dict[str, Any], list[Place]]:
    """A section by current names, and the former names it had; if it has both, it is unchanged, to be refused."""
    made, found = dict(section), []
    for old, new in NAMES.items():
        if old[:-1] == above and old[-1] in made and new[-1] not in made:
            made[str(new[-1])] = made.pop(str(old[-1]))
            found.append(old)
    return made, found


def path(field: str) -> str:
    """The same of a dotted path."""
    return ".".join(map(str, current(tuple(field.split(".")))))
