"""Names that fields of a job had in earlier versions: taken for this version, with a note where a user wrote them."""

from __future__ import annotations

from collections.abc import Mapping

Place = tuple[str | int, ...]

NAMES: Mapping[Place, Place] = {("collect", "consumer"): ("collect", "learner")}


def current(place: Place) -> Place:
    """The place of a field by the names of today."""
    for old, new in NAMES.items():
        if place[: len(old)] == old:
            return (*new, *place[len(old) :])
    return place


def path(field: str) -> str:
    """The same of a dotted path."""
    return ".".join(map(str, current(tuple(field.split(".")))))
