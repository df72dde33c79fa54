"""A draft: the unvalidated data of a job file, with overrides merged over them, and the origin of each field.

Mappings are merged field by field; everything else is replaced. A parameter with another `type`, and a sampler or pruner
with another name, replace the previous one completely, because its other fields do not apply. `null` removes a parameter
from the space. The origin of a field is the line or the flag that has set it, which messages about the field name.

A path such as ("space", "lr", "low") leads to a field: keys of mappings and indices of lists, from the outermost one.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trialplane.errors import FieldPath, Issue
from trialplane.job.document import MAX_DEPTH, Document

START_POINTS: tuple[FieldPath, ...] = (
    ("sampler", "x0"),
    ("sampler", "options", "x0"),
)  # of cmaes; the latter in a run's job
# Fields whose value is a mapping with a name, or the name alone: `pruner: median`.
_NAMED_FIELDS = ("sampler", "pruner", "wrapped_pruner", "independent_sampler", "crossover", "mutation")
_NAME_KEYS = ("name", "class", "tune")  # keys of their names; the last two are for a sampler of another package
_LEARNER: FieldPath = ("collect", "learner")  # a mapping, or its entrypoint alone: `learner: train:learn`
_STEP = re.compile(r'(?:^|(?<=\.))(?:"[^"]+"|[^.]*)(?=\.|$)')  # each of the three in the field space."model.lr".high
_LONGEST_INDEX = 9  # digits of an index in a list


@dataclasses.dataclass(frozen=True)
class Origin:
    """Source of a value.

    Attributes:
        source: Name of the file, flag or variable.
        line: 1-based line; 0 if the source has no lines.
        within: Path of the section of the file that contains the draft's fields: ("profiles", "max").
    """

    source: str
    line: int = 0
    within: FieldPath = ()


class Draft:
    """Unvalidated data of a job, built from layers. A later layer replaces values of an earlier one.

    Attributes:
        data: Mappings, lists and scalars.
        origins: Origin of each field, by its path.
        issues: Issues of overrides that cannot be applied.
    """

    def __init__(self, data: Mapping[str, Any], origins: Mapping[FieldPath, Origin]) -> None:
        self.data: dict[str, Any] = copy.deepcopy(dict(data))
        self.origins: dict[FieldPath, Origin] = dict(origins)
        self.issues: list[Issue] = []

    @classmethod
    def from_document(cls, document: Document) -> Draft:
        """Return a draft with the content of a job file, without its profiles."""
        data = {key: value for key, value in document.data.items() if key != "profiles"}
        origins = {
            field_path: Origin(document.source, line)
            for field_path, line in document.lines.items()
            if field_path[:1] != ("profiles",)
        }
        return cls(*_expand_learner(*_expand_objective(data, origins)))

    def copy(self) -> Draft:
        """Return an independent draft with the same content."""
        other = Draft(self.data, self.origins)  # which copies both
        other.issues = list(self.issues)
        return other

    def origin(self, field_path: FieldPath) -> Origin:
        """Return the origin of the value at a path, or else of the nearest section above it that has an origin."""
        for length in range(len(field_path), -1, -1):  # from the value itself up to the whole draft
            if origin := self.origins.get(field_path[:length]):
                return origin
        return Origin("")

    def merge(self, data: Mapping[str, Any], origins: Mapping[FieldPath, Origin]) -> None:
        """Merge a layer over the current content.

        If the draft has one objective, `objective` in the layer changes fields of it. Otherwise, it replaces the objectives.
        """
        data = dict(data)
        objectives = self.data.get("objectives")
        has_one_objective = isinstance(objectives, list) and len(objectives) == 1 and isinstance(objectives[0], dict)
        if "objective" in data and has_one_objective:
            objective = data.pop("objective")
            changed_fields = objective if isinstance(objective, dict) else {"metric": objective}
            for key, value in changed_fields.items():
                field_path: FieldPath = ("objectives", 0, key)
                self.set(field_path, value, origins.get(("objective", key), Origin("")))
        data, origins = _expand_learner(*_expand_objective(data, origins))
        for key, value in data.items():
            field_origins = {field_path: origin for field_path, origin in origins.items() if field_path[:1] == (key,)}
            self._put((key,), value, field_origins)

    def set(self, field_path: FieldPath, value: Any, origin: Origin) -> None:
        """Set the value at a path, and create missing mappings above it. If there can be no such path, add an issue.

        In a list, the index after the last one appends an item.

        Args:
            field_path: Path of the value. `objective` stands for the first of `objectives`.
            value: The value.
            origin: Origin of the value.
        """
        if field_path[:1] == ("objective",):
            field_path = ("objectives", 0, *field_path[1:])
        if field_path == _LEARNER and not isinstance(value, dict):  # learner: train:learn
            field_path = (*_LEARNER, "entrypoint")
        if len(field_path) > MAX_DEPTH:
            self._add_issue(field_path[:1], f"has a field more than {MAX_DEPTH} levels deep", origin)
            return
        container: Any = self.data
        for depth in range(1, len(field_path)):
            container_or_problem = self._enter(container, field_path[:depth], origin)
            if isinstance(container_or_problem, str):
                self._add_issue(field_path, container_or_problem, origin)
                return
            container = container_or_problem
        parents, last = field_path[:-1], field_path[-1]
        if isinstance(container, dict):
            child_path = (*parents, str(last))
            self._put(child_path, value, {child_path: origin})
        elif _is_index(last) and int(last) <= len(container):
            index = int(last)
            container[index : index + 1] = [value]  # replaces the item, or appends one
            self._set_origins((*parents, index), {(*parents, index): origin})
        else:
            self._add_issue(field_path, f"{last!r} is not an index of a list of {len(container)}", origin)

    def get(self, field_path: FieldPath) -> Any:
        """Return the value at a path, or None."""
        value: Any = self.data
        for step in field_path:
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and _is_index(step) and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
        return value

    def keep_items(self, list_path: FieldPath, indices: Sequence[int]) -> None:
        """Remove all items of a list except those at `indices`, with their origins."""
        items = self.get(list_path)
        items[:] = [items[index] for index in indices]
        new_indices: dict[str | int, int] = {old_index: new_index for new_index, old_index in enumerate(indices)}
        depth = len(list_path)  # at which the path of something in the list has the index of its item
        old_origins, self.origins = self.origins, {}
        for path, origin in old_origins.items():
            is_in_list = path[:depth] == list_path and len(path) > depth
            if not is_in_list:
                self.origins[path] = origin
            elif path[depth] in new_indices:
                self.origins[(*list_path, new_indices[path[depth]], *path[depth + 1 :])] = origin

    def _enter(self, container: Any, child_path: FieldPath, origin: Origin) -> dict[str, Any] | list[Any] | str:
        """Return a mapping or list on the way to a value that is set. Create it if it is missing.

        The short form of a sampler or a pruner, its name alone, is expanded to a mapping.

        Args:
            container: The mapping or list that contains it.
            child_path: Path of the mapping or list to return.
            origin: Origin of the value that is set.

        Returns:
            The mapping or list. If there can be none, the reason as a message.
        """
        step: Any = child_path[-1]
        if isinstance(container, list):
            if _is_index(step) and int(step) == len(container):
                container.append({})
            if not _is_index(step) or int(step) >= len(container):
                return f"{step!r} is not an index of {'.'.join(map(str, child_path[:-1]))}"
            step = int(step)
        elif container.get(step) is None:
            container[step] = [] if child_path == ("objectives",) else {}
            self._set_origins(child_path, {child_path: origin})
        child = container[step]
        if isinstance(child, str) and step in _NAMED_FIELDS:
            child = container[step] = {"name": child}
        return (
            child if isinstance(child, (dict, list)) else f"{'.'.join(map(str, child_path))} is {child!r} and has no fields"
        )

    def _put(self, field_path: FieldPath, value: Any, origins: Mapping[FieldPath, Origin]) -> None:
        """Set one field of a mapping of the draft: merge a mapping over the present one, replace anything else.

        Args:
            field_path: Path of the field.
            value: The value. null removes a parameter from the space, and from the start point of a sampler.
            origins: Origins of the value and of its parts, by their paths.
        """
        parents, key = field_path[:-1], field_path[-1]
        mapping = self.get(parents)
        if value is None and parents in (("space",), *START_POINTS):
            mapping.pop(key, None)
            self._set_origins(field_path, origins={})
            return
        present: Any = mapping.get(key)
        if isinstance(present, str) and key in _NAMED_FIELDS and isinstance(value, dict):  # pruner: median
            present = {"name": present}
        is_merge = isinstance(present, dict) and isinstance(value, dict)
        if is_merge and not _is_replacement(field_path, old=present, new=value):
            mapping[key] = present  # which may be the expanded short form
            self._merge_fields(field_path, value, origins)
            return
        if key in _identifying_keys(parents) and present != value:
            mapping.clear()  # its other fields are those of the previous type of parameter, sampler or pruner
        mapping[key] = copy.deepcopy(value)
        self._set_origins(field_path, origins)

    def _merge_fields(self, field_path: FieldPath, fields: Mapping[str, Any], origins: Mapping[FieldPath, Origin]) -> None:
        """Merge fields over a mapping of the draft.

        Args:
            field_path: Path of the mapping.
            fields: The fields.
            origins: Origins of the fields and of their parts, by their paths. A field without one has that of the mapping,
                as with `--set 'budget={time: 1h}'`.
        """
        origins_by_name = _origins_by_child(field_path, origins)
        for name, value in fields.items():
            child_path = (*field_path, name)
            field_origins = origins_by_name.get(name, {})
            if not field_origins and field_path in origins:
                field_origins = {child_path: origins[field_path]}
            self._put(child_path, value, field_origins)

    def _set_origins(self, field_path: FieldPath, origins: Mapping[FieldPath, Origin]) -> None:
        """Replace the origins of a field and of everything below it."""
        if field_path in self.origins:  # otherwise nothing below it has an origin either
            for old_path in [path for path in self.origins if path[: len(field_path)] == field_path]:
                del self.origins[old_path]
        self.origins.update(origins)

    def _add_issue(self, field_path: FieldPath, message: str, origin: Origin) -> None:
        self.issues.append(Issue(field_path, message, origin.source, origin.line))


def _origins_by_child(
    field_path: FieldPath, origins: Mapping[FieldPath, Origin]
) -> dict[str | int, dict[FieldPath, Origin]]:
    """Return the origins of all that is below a field, in a group for each key or index of the field."""
    groups: dict[str | int, dict[FieldPath, Origin]] = {}
    for origin_path, origin in origins.items():
        if len(origin_path) > len(field_path):  # not that of the field itself
            child = origin_path[len(field_path)]
            groups.setdefault(child, {})[origin_path] = origin
    return groups


def _is_replacement(field_path: FieldPath, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a new mapping replaces the old one at a path, because it names another type of parameter, sampler or pruner.

    Otherwise, it is merged over the old one.
    """
    keys = _identifying_keys(field_path)
    return any(key in new for key in keys) and any(new.get(key) != old.get(key) for key in keys)


def _identifying_keys(field_path: FieldPath) -> tuple[str, ...]:
    """Return the keys that say which type of parameter, sampler or pruner the mapping at a path is. Empty for others."""
    if field_path[:1] == ("space",) and len(field_path) == 2:
        return ("type",)
    return _NAME_KEYS if field_path and field_path[-1] in _NAMED_FIELDS else ()


def _expand_objective(
    data: dict[str, Any], origins: Mapping[FieldPath, Origin]
) -> tuple[dict[str, Any], dict[FieldPath, Origin]]:
    """Return a layer with `objective: {…}` expanded to `objectives: [{…}]`.

    Also return the origins of its fields. A layer with both fields stays unchanged, because the validation reports it.
    """
    if "objective" not in data or "objectives" in data:
        return data, dict(origins)
    other_fields = {key: value for key, value in data.items() if key != "objective"}
    expanded_origins: dict[FieldPath, Origin] = {}
    for field_path, origin in origins.items():
        is_objective = field_path[:1] == ("objective",)
        expanded_origins[("objectives", 0, *field_path[1:]) if is_objective else field_path] = origin
    if ("objective",) in origins:
        expanded_origins[("objectives",)] = origins[("objective",)]
    return {**other_fields, "objectives": [data["objective"]]}, expanded_origins


def _expand_learner(
    data: dict[str, Any], origins: Mapping[FieldPath, Origin]
) -> tuple[dict[str, Any], dict[FieldPath, Origin]]:
    """Return a layer with `learner: train:learn` expanded to `learner: {entrypoint: train:learn}`, and its origins."""
    collect, expanded_origins = data.get("collect"), dict(origins)
    if not isinstance(collect, dict) or "learner" not in collect or isinstance(collect["learner"], dict):
        return data, expanded_origins
    if _LEARNER in expanded_origins:
        expanded_origins[(*_LEARNER, "entrypoint")] = expanded_origins[_LEARNER]
    return {**data, "collect": {**collect, "learner": {"entrypoint": collect["learner"]}}}, expanded_origins


def path(field: str, names: Collection[str]) -> FieldPath:
    """Return the path of a dotted field: ("enqueue", 0, "lr") for enqueue.0.lr.

    Args:
        field: Dotted field. A parameter's name in double quotes may contain dots.
        names: Names of parameters, which may contain dots without quotes.
    """
    steps: list[str | int] = []
    rest = [step.strip('"') for step in _STEP.findall(field)]  # parts between dots that are not in a step yet
    while rest:
        part_count = 1  # number of parts of `rest` that are the next step
        # As after params in params.model.lr, after enqueue.0 in enqueue.0.model.lr, or in space.lr.when.model.name.
        is_parameter_next = steps in (["params"], ["space"]) or steps[:1] == ["enqueue"] or steps[-1:] == ["when"]
        if is_parameter_next:  # take as many parts as are the name of a parameter
            part_count = next((count for count in range(len(rest), 1, -1) if ".".join(rest[:count]) in names), 1)
        step = ".".join(rest[:part_count])
        steps.append(int(step) if _is_index(step) else step)
        del rest[:part_count]
    return tuple(steps)


def _is_index(step: str | int) -> bool:
    """Whether a step of a path can be an index in a list."""
    return isinstance(step, int) or (step.isascii() and step.isdigit() and len(step) <= _LONGEST_INDEX)
