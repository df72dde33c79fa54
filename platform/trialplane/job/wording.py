"""Pydantic's errors as issues, with the path that the user wrote and a message that explains what to write."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import kinds, models, space

# Parts of pydantic's locations that are not fields: forms of a union, and the mark of a key.
_UNION_TAGS = ("parameters", "function")
_UNKNOWN = "there is no such field"
_MISSING = "is missing"
_PARAMETERS: Mapping[str, type[models.Model]] = {
    "float": space.FloatParameter,
    "int": space.IntParameter,
    "categorical": space.CategoricalParameter,
    "normal": space.NormalParameter,
}


def translate(error: ValidationError, data: Mapping[str, Any]) -> list[Issue]:
    """Return the issues of an invalid job.

    Args:
        error: Error of pydantic.
        data: Data that were validated.
    """
    issues: list[Issue] = []
    for entry in error.errors(include_url=False):
        field_path = _field_path(entry["loc"])
        if entry["type"] == models.ISSUES:
            issues += [issue.below(*field_path) for issue in entry["ctx"][models.ISSUES]]
        else:
            issues.append(Issue(field_path, message(entry, field_path, data)))
    unknown_fields = [issue.place for issue in issues if issue.message.startswith(_UNKNOWN)]
    issues = [issue for issue in issues if not (issue.message == _MISSING and _is_misspelt(issue.place, unknown_fields))]
    if any(issue.place == ("kind",) for issue in issues):  # the job was validated as a study, but may be of another kind
        known_fields = {name for kind in kinds.CLASSES.values() for name in kind.model_fields}
        has_invalid_kind = any(issue.place == ("kind",) and not issue.message.startswith(_MISSING) for issue in issues)
        issues = [
            issue
            for issue in issues
            if not (has_invalid_kind and issue.place == ("objectives",))
            and not (issue.message.startswith(_UNKNOWN) and issue.place[0] in known_fields and len(issue.place) == 1)
        ]
    # Pydantic does not count invalid items of a list, and so also reports the list as too short.
    invalid_lists = {issue.place[:1] for issue in issues if len(issue.place) > 1}
    return [issue for issue in issues if not (issue.place in invalid_lists and issue.message.startswith("needs at least"))]


def _field_path(loc: tuple[str | int, ...]) -> Place:
    """Return the path that the user wrote for a location of pydantic, which also has the tags of unions."""
    if loc[:1] == ("space",) and len(loc) > 1 and loc[1] in _UNION_TAGS:
        name, rest = loc[2:3], loc[3:]
        loc = ("space", *name, *(rest[1:] if rest[:1] and rest[0] in _PARAMETERS else rest))
    if loc[:1] == ("stop",) and loc[1:2] and loc[1] in ("rule", "rules"):
        loc = ("stop", *loc[2:])
    if loc[:1] and loc[0] in ("sampler", "pruner") and loc[1:2] == ("options",):
        loc = (loc[0], *loc[2:])
    return tuple(step for step in loc if step != "[key]")


def message(entry: Any, field_path: Place, data: Mapping[str, Any]) -> str:
    """Return the message for an error of pydantic.

    Args:
        entry: Item of `ValidationError.errors`.
        field_path: Path of the field.
        data: Data that were validated.
    """
    kind, value, context = entry["type"], entry.get("input"), entry.get("ctx", {})
    value_text = _shorten(value)
    if kind == "extra_forbidden":
        if field_path == ("name",):
            return "is the name of the job's folder; drop this line"
        if len(field_path) == 1 and (reason := _other_kind_reason(str(field_path[0]), data.get("kind"))):
            return f"{reason}; drop it"
        hint = _section_hint(field_path, data) or errors.nearest(str(field_path[-1]), _field_names(field_path[:-1], data))
        return f"{_UNKNOWN}; {hint}".rstrip("; ")
    if kind == "missing" or (field_path == ("collect",) and value is None):
        return _missing_message(field_path)
    if kind == "union_tag_not_found":
        return f"has no type; write type: {', '.join(space.TYPES[:-1])} or {space.TYPES[-1]}"
    if kind == "union_tag_invalid":
        return f"type {context['tag']!r} is unknown; {errors.nearest(str(context['tag']), space.TYPES)}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error" and field_path == ("kind",):
        *names, last_name = map(repr, kinds.CLASSES)
        return f"{value_text} is not {', '.join(names)} or {last_name}"
    if kind == "literal_error":
        return f"{value_text} is not {context['expected']}"
    if kind == "string_pattern_mismatch":
        return _PATTERN_MESSAGES.get(str(field_path[0]), f"{value_text} must be module:function, for example train:run")
    bound = {
        "greater_than": "over",
        "greater_than_equal": "at least",
        "less_than": "under",
        "less_than_equal": "at most",
    }.get(kind)
    if bound:
        limit = next(iter(context.values()))
        return f"{value_text} must be {bound} {limit:g}"
    if kind == "too_short":
        return f"needs at least {context['min_length']}, and is empty"
    expected = _TYPE_NAMES.get(kind)
    return f"must be {expected}, not {value_text}" if expected else str(entry["msg"])


_TYPE_NAMES = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number that is not infinite",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_PATTERN_MESSAGES = {
    "name": "the folder's name must be lower-case letters, digits, - and _, at most 63, for it names the job",
    "resume": "must be the name of a run, as `platform list` shows them",
    "checkpoints": "must name a place as fsspec does: s3://bucket/path, gs://bucket/path",
    "space": "a parameter's name is letters, digits, _ and -, with . or / between them; "
    "a space in code is module:function, as in space:define",
}


def _is_misspelt(field_path: Place, unknown_fields: Collection[Place]) -> bool:
    """Whether a missing field is one of the unknown fields, misspelt."""
    siblings = [str(other[-1]) for other in unknown_fields if other[:-1] == field_path[:-1]]
    return bool(difflib.get_close_matches(str(field_path[-1]), siblings, n=1, cutoff=0.6))


def _other_kind_reason(field: str, kind: Any) -> str:
    """Return the reason for which a kind refuses a field of other kinds. "" if no kind has it, or the kind is invalid."""
    owners = [f"kind: {name}" for name, cls in kinds.CLASSES.items() if field in cls.model_fields]
    if not owners or kind not in list(kinds.CLASSES):
        return ""
    return kinds.kind_class(kind).foreign_fields.get(field) or f"is for {' and '.join(owners)}, and the kind is {kind}"


def _missing_message(field_path: Place) -> str:
    """Return the message for a missing field, with an example for those that users leave out most."""
    if field_path == ("objectives",):
        return "is missing; write objective: {metric: …, direction: maximize}, or --objective METRIC:max"
    if field_path == ("kind",):
        return "is missing; write kind: hpo (a search), kind: train (one training) or kind: collect (self-play)"
    if field_path == ("collect",):
        return "is missing; write collect: {units: 80, workers: 2, learner: train:learn}"
    if len(field_path) == 3 and field_path[0] == "space" and field_path[2] == "choices":
        return "is missing; write choices: [a, b]"
    return _MISSING


def _section_hint(field_path: Place, data: Mapping[str, Any]) -> str:
    """Return a hint for a top-level field that belongs in a section: collect.workers for workers. "" if there is none."""
    if len(field_path) != 1:
        return ""
    candidates = []
    for section, model in _sections(kinds.kind_class(data.get("kind"))):
        candidates += [".".join(map(str, (*section, field_path[0])))] if field_path[0] in model.model_fields else []
    return f"did you mean {' or '.join(candidates)}?" if candidates else ""


def _sections(model: type[models.Model], parents: Place = ()) -> Iterator[tuple[Place, type[models.Model]]]:
    """Yield the sections of a model with their paths: fields that are models, except samplers and pruners."""
    for name, field in model.model_fields.items():
        section = _model(field.annotation, items=False)
        if section and "options" not in section.model_fields:
            yield (*parents, name), section
            yield from _sections(section, (*parents, name))


def _model(annotation: Any, items: bool = True) -> type[models.Model] | None:
    """Return the model in the type of a field: the type itself, or that of an optional value. None if there is none.

    Args:
        annotation: Type of the field.
        items: Whether to search the items of tuples and mappings too.
    """
    if isinstance(annotation, type) and issubclass(annotation, models.Model):
        return annotation
    arguments = () if typing.get_origin(annotation) in (dict, tuple) and not items else typing.get_args(annotation)
    return next((model for argument in arguments if (model := _model(argument, items))), None)


def _field_names(field_path: Place, data: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the fields at a path, for hints."""
    model: type[models.Model] | None = kinds.kind_class(data.get("kind"))
    for step in field_path:  # keys and indices are not fields
        if model and step in model.model_fields:
            model = _model(model.model_fields[str(step)].annotation)
    if field_path[:1] == ("space",) and len(field_path) == 2:
        model = _PARAMETERS.get(data["space"][field_path[1]].get("type"))
    names = list(model.model_fields) if model else []
    return names if field_path else [name for name in (*names, "objective", "profiles") if name != "name"]


def _shorten(value: Any) -> str:
    """Return a value in Python's notation, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
