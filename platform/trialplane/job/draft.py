"""An unvalidated job: the raw data of a job file with overrides merged over it, and the origin of each piece.

Merging: mappings merge field by field, everything else replaces. A parameter whose `type` changes and a sampler or
pruner whose name changes are replaced whole, because the other fields belong to the former one. `null` takes a
parameter out of the space.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trialplane.errors import Issue, Place
from trialplane.job.document import MAX_DEPTH, Document

_NAMED = ("sampler", "pruner")
# Fields with a name, which may replace the whole mapping: `pruner: median`.
_SHORT = (*_NAMED, "wrapped_pruner", "independent_sampler", "crossover", "mutation")
_LEARNER: Place = ("collect", "learner")  # its entrypoint may replace the mapping: `learner: train:learn`
_STEP = re.compile(r'(?:^|(?<=\.))(?:"[^"]+"|[^.]*)(?=\.|$)')
_LONGEST_INDEX = 9  # digits of a place in a list


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a value came from.

    Attributes:
        source: the file, flag or variable.
        line: 1-based line, or 0.
        within: path in front of the field there: ("profiles", "max").
    """

    source: str
    line: int = 0
    within: Place = ()


class Draft:
    """Raw data that grows by layers; a later layer wins."""

    def __init__(self, data: Mapping[str, Any], origins: Mapping[Place, Origin]) -> None:
        self.data: dict[str, Any] = copy.deepcopy(dict(data))
        self.origins: dict[Place, Origin] = dict(origins)
        self.issues: list[Issue] = []

    @classmethod
    def of(cls, document: Document, skip: Sequence[str] = ()) -> Draft:
        """A document without the top-level fields `skip`."""
        data = {key: value for key, value in document.data.items() if key not in skip}
        origins = {
            place: Origin(document.source, line)
            for place, line in document.lines.items()
            if not place or place[0] not in skip
        }
        return cls(*_long(*plural(data, origins)))

    def copy(self) -> Draft:
        """An independent draft with the same content."""
        other = Draft(self.data, self.origins)
        other.issues = list(self.issues)
        return other

    def origin(self, place: Place) -> Origin:
        """Where the value at `place` came from, or what holds it when it is missing."""
        for length in range(len(place), -1, -1):
            found = self.origins.get(place[:length])
            if found:
                return found
        return Origin("")

    def lay(self, data: Mapping[str, Any], origins: Mapping[Place, Origin]) -> None:
        """Merge a mapping over the current content."""
        data, present = dict(data), self.data.get("objectives")
        if "objective" in data and isinstance(present, list) and len(present) == 1 and isinstance(present[0], dict):
            changed = data.pop("objective")
            for key, value in changed.items() if isinstance(changed, dict) else [("metric", changed)]:
                place: Place = ("objectives", 0, key)
                self.set(place, value, origins.get(("objective", key), Origin("")))
        data, origins = _long(*plural(data, origins))
        for key, value in data.items():
            below = {place: origin for place, origin in origins.items() if place[:1] == (key,)}
            self._put(self.data, (), key, value, below)

    def set(self, place: Place, value: Any, origin: Origin) -> None:
        """Set `value` at one place, creating the mappings above it; an impossible place is an issue."""
        if place[:1] == ("objective",):
            place = ("objectives", 0, *place[1:])
        if place == _LEARNER and not isinstance(value, dict):
            place = (*_LEARNER, "entrypoint")
        if len(place) > MAX_DEPTH:
            self._refuse(place[:1], f"has a field more than {MAX_DEPTH} levels deep", origin)
            return
        here: Any = self.data
        for depth, step in enumerate(place[:-1]):
            below = self._step(here, place[: depth + 1], step, place, origin)
            if below is None:
                return
            here = below
        last = place[-1]
        if isinstance(here, list):
            if not _is_index(last) or int(last) > len(here):
                self._refuse(place, f"{last!r} is no place in a list of {len(here)}", origin)
                return
            if int(last) == len(here):
                here.append(None)
            here[int(last)] = value
            self._mark((*place[:-1], int(last)), {(): origin})
        else:
            self._put(here, place[:-1], str(last), value, {(*place[:-1], str(last)): origin})

    def get(self, place: Place) -> Any:
        """The value at `place`, or None."""
        here: Any = self.data
        for step in place:
            if isinstance(here, dict) and step in here:
                here = here[step]
            elif isinstance(here, list) and _is_index(step) and int(step) < len(here):
                here = here[int(step)]
            else:
                return None
        return here

    def keep(self, place: Place, indices: Sequence[int]) -> None:
        """Drop all items of a list but those at `indices`, which keep their lines."""
        items = self.get(place)
        items[:] = [items[index] for index in indices]
        size = len(place)
        old = {spot: origin for spot, origin in self.origins.items() if spot[:size] == place and len(spot) > size}
        for spot in old:
            del self.origins[spot]
        for spot, origin in old.items():
            if spot[size] in indices:
                self.origins[(*place, indices.index(int(spot[size])), *spot[size + 1 :])] = origin

    def _step(self, here: Any, so_far: Place, step: str | int, place: Place, origin: Origin) -> Any:
        """The container below `here`, created if missing; None after an issue."""
        if isinstance(here, list):
            if _is_index(step) and int(step) == len(here):
                here.append({})
            if not _is_index(step) or int(step) >= len(here):
                self._refuse(place, f"{step!r} is no place in {'.'.join(map(str, so_far[:-1]))}", origin)
                return None
            below, key = here[int(step)], int(step)
        else:
            below, key = here.get(step), step  # type: ignore[assignment]
            if below is None:
                below = here[step] = [] if so_far == ("objectives",) else {}
                self._mark(so_far, {so_far: origin})
        if isinstance(below, str) and step in _SHORT:
            below = here[key] = {"name": below}
        if not isinstance(below, (dict, list)):
            self._refuse(place, f"{'.'.join(map(str, so_far))} is {below!r} and has no fields", origin)
            return None
        return below

    def _put(self, here: dict[str, Any], above: Place, key: str, value: Any, origins: Mapping[Place, Origin]) -> None:
        """Merge `value` into one field of the mapping `here`."""
        place = (*above, key)
        if value is None and above == ("space",):
            here.pop(key, None)
            self._mark(place, {})
            return
        old = here.get(key)
        if isinstance(old, str) and key in _SHORT and isinstance(value, dict):
            old = {"name": old}
        if isinstance(old, dict) and isinstance(value, dict) and not is_another(above, key, old, value):
            here[key] = old
            inner: dict[str | int, dict[Place, Origin]] = {}
            for spot, origin in origins.items():
                if len(spot) > len(place):
                    inner.setdefault(spot[len(place)], {})[spot] = origin
            for name, below in value.items():
                mine = inner.get(name) or ({(*place, name): origins[place]} if place in origins else {})
                self._put(old, place, name, below, mine)
            return
        if key == "name" and above and above[-1] in _SHORT and old != value:
            here.clear()  # options of the former one would not fit
        if key == "type" and above[:1] == ("space",) and len(above) == 2 and old != value:
            here.clear()
        here[key] = copy.deepcopy(value)
        self._mark(place, origins)

    def _mark(self, place: Place, origins: Mapping[Place, Origin]) -> None:
        """Replace the origins of `place` and everything below."""
        if place in self.origins:  # else nothing below it has one either
            for stale in [spot for spot in self.origins if spot[: len(place)] == place]:
                del self.origins[stale]
        for spot, origin in origins.items():
            self.origins[spot or place] = origin

    def _refuse(self, place: Place, message: str, origin: Origin) -> None:
        self.issues.append(Issue(place, message, origin.source, origin.line))


def is_another(above: Place, key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether `new` names another type, sampler or pruner than `old`, so that their fields must not mix."""
    field = "type" if above == ("space",) else "name" if key in _SHORT else ""
    return bool(field) and field in new and new[field] != old.get(field)


def plural(data: dict[str, Any], origins: Mapping[Place, Origin]) -> tuple[dict[str, Any], dict[Place, Origin]]:
    """`objective: {…}` as `objectives: [{…}]`; if both are given nothing changes, and the checks refuse it."""
    if "objective" not in data or "objectives" in data:
        return data, dict(origins)
    data = {("objectives" if key == "objective" else key): value for key, value in data.items()}
    data["objectives"] = [data["objectives"]]
    moved: dict[Place, Origin] = {}
    for place, origin in origins.items():
        if place[:1] == ("objective",):
            moved[("objectives", 0, *place[1:])] = origin
            if len(place) == 1:
                moved[("objectives",)] = origin
        else:
            moved[place] = origin
    return data, moved


def _long(data: dict[str, Any], origins: Mapping[Place, Origin]) -> tuple[dict[str, Any], dict[Place, Origin]]:
    """A layer with the learner of a collection as a mapping: `learner: train:learn` as `learner: {entrypoint: …}`."""
    collect, spots = data.get("collect"), dict(origins)
    if not isinstance(collect, dict) or "learner" not in collect or isinstance(collect["learner"], dict):
        return data, spots
    if _LEARNER in spots:
        spots[(*_LEARNER, "entrypoint")] = spots[_LEARNER]
    return {**data, "collect": {**collect, "learner": {"entrypoint": collect["learner"]}}}, spots


def path(field: str, names: Collection[str]) -> Place:
    """`enqueue.0.lr` as its steps.

    A parameter's name is one step, also with dots, where it is among `names` or stands in double quotes.
    """
    steps: list[str | int] = []
    rest = [step.strip('"') for step in _STEP.findall(field)]
    while rest:
        size = 1
        if steps in (["params"], ["space"]) or steps[:1] == ["enqueue"] or steps[-1:] == ["when"]:
            size = next((length for length in range(len(rest), 1, -1) if ".".join(rest[:length]) in names), 1)
        step = ".".join(rest[:size])
        steps.append(int(step) if _is_index(step) else step)
        del rest[:size]
    return tuple(steps)


def _is_index(step: str | int) -> bool:
    return isinstance(step, int) or (step.isascii() and step.isdigit() and len(step) <= _LONGEST_INDEX)
