"""Translates pydantic's errors to issues, with the path that the user wrote and a message that says what to write.

A path is the sequence of keys and indices that lead to a field: ("space", "lr", "low").
"""

from __future__ import annotations

import difflib
import functools
import typing
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from trialplane import errors
from trialplane.errors import FieldPath, Issue
from trialplane.job import kinds, models, space

_UNION_TAGS = ("parameters", "function")  # steps of pydantic's locations that are not fields, but the forms of `space`
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
    unknown_fields = [issue.field_path for issue in issues if issue.message.startswith(_UNKNOWN)]
    unfounded_fields = _unfounded_fields(issues, unknown_fields)
    lists_with_invalid_items = {issue.field_path[:1] for issue in issues if len(issue.field_path) > 1}
    reported: list[Issue] = []
    for issue in issues:
        # A required field that is misspelt is both unknown and missing. It is reported once, as unknown.
        is_misspelt = issue.message == _MISSING and _is_misspelt(issue.field_path, unknown_fields)
        # Pydantic does not count invalid items of a list, and so also reports the list as too short.
        is_consequence = issue.field_path in lists_with_invalid_items and issue.message.startswith("needs at least")
        if not (is_misspelt or is_consequence or issue.field_path in unfounded_fields):
            reported.append(issue)
    return reported


def _unfounded_fields(issues: Collection[Issue], unknown_fields: Collection[FieldPath]) -> set[FieldPath]:
    """Return the fields whose issues may be wrong because the job's kind is missing or invalid; empty with a valid kind.

    The job was validated as a study, but may be of another kind. So the fields of other kinds are not unknown. With an
    invalid kind, it is unknown whether the job needs objectives; without a kind, it is probably a study.

    Args:
        issues: All issues of the job.
        unknown_fields: Fields that were reported as unknown.
    """
    kind_messages = [issue.message for issue in issues if issue.field_path == ("kind",)]
    if not kind_messages:
        return set()
    known_fields = {name for kind in kinds.CLASSES.values() for name in kind.model_fields}
    fields: set[FieldPath] = {(name,) for name in known_fields if (name,) in unknown_fields}
    has_invalid_kind = not all(text.startswith(_MISSING) for text in kind_messages)
    if has_invalid_kind:
        fields.add(("objectives",))
    return fields


def _field_path(loc: tuple[str | int, ...]) -> FieldPath:
    """Return the path that the user wrote for a location of pydantic.

    A location also has the tags of unions, the field `options`, which users do not write, and a mark for errors of a key.
    """
    match loc:
        case ("space", tag, name, str(kind), *rest) if tag in _UNION_TAGS and kind in _PARAMETERS:
            loc = ("space", name, *rest)
        case ("space", tag, *rest) if tag in _UNION_TAGS:
            loc = ("space", *rest)
        case ("stop", "rule" | "rules", *rest):
            loc = ("stop", *rest)
        case ("sampler" | "pruner" as field, "options", *rest):
            loc = (field, *rest)
    return tuple(step for step in loc if step != "[key]")


def message(entry: Any, field_path: FieldPath, data: Mapping[str, Any]) -> str:
    """Return the message for an error of pydantic: the problem with the field, and what to write.

    Args:
        entry: Item of `ValidationError.errors`.
        field_path: Path of the field.
        data: Data that were validated.
    """
    error_type, value, context = entry["type"], entry.get("input"), entry.get("ctx", {})
    value_text = _shorten(value)
    match error_type:
        case "extra_forbidden":
            return _unknown_field_message(field_path, data)
        case "missing":
            return _missing_message(field_path)
        case "model_type" if field_path == ("collect",) and value is None:  # `collect:` with nothing behind it
            return _missing_message(field_path)
        case "union_tag_not_found":
            return f"has no type; write type: {', '.join(space.TYPES[:-1])} or {space.TYPES[-1]}"
        case "union_tag_invalid":
            return f"type {context['tag']!r} is unknown; {errors.nearest(str(context['tag']), space.TYPES)}"
        case "value_error":
            return str(context["error"])
        case "literal_error":
            *names, last_name = map(repr, kinds.CLASSES)
            expected = f"{', '.join(names)} or {last_name}" if field_path == ("kind",) else context["expected"]
            return f"{value_text} is not {expected}"
        case "string_pattern_mismatch":
            return _PATTERN_MESSAGES.get(str(field_path[0]), f"{value_text} must be module:function, for example train:run")
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            [limit] = context.values()
            return f"{value_text} must be {_BOUNDS[error_type]} {limit:g}"
        case "too_short":
            return f"needs at least {context['min_length']}, and is empty"
    if error_type not in _TYPE_NAMES:
        return str(entry["msg"])
    if field_path[0] == "notify":  # the value may contain a password
        return f"must be {_TYPE_NAMES[error_type]}; write notify: [{{url: json://HOST/PATH}}], or url: secret:NAME"
    return f"must be {_TYPE_NAMES[error_type]}, not {value_text}"


def _unknown_field_message(field_path: FieldPath, data: Mapping[str, Any]) -> str:
    """Return the message for a field that the job or one of its sections does not have, with the one to write instead."""
    if field_path == ("name",):
        return "is the name of the job's folder; drop this line"
    if len(field_path) == 1 and (reason := _other_kind_reason(str(field_path[0]), data.get("kind"))):
        return f"{reason}; drop it"
    hint = _section_hint(field_path, data) or errors.nearest(str(field_path[-1]), _field_names(field_path[:-1], data))
    return f"{_UNKNOWN}; {hint}".rstrip("; ")


_BOUNDS = {"greater_than": "over", "greater_than_equal": "at least", "less_than": "under", "less_than_equal": "at most"}
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
    "space": "a parameter's name is letters, digits, _ and -, with ., / or : between them; "
    "a space in code is module:function, as in space:define",
}


def _is_misspelt(field_path: FieldPath, unknown_fields: Collection[FieldPath]) -> bool:
    """Whether the name of a missing field is similar to that of an unknown field of the same section."""
    siblings = [str(other[-1]) for other in unknown_fields if other[:-1] == field_path[:-1]]
    return bool(difflib.get_close_matches(str(field_path[-1]), siblings, n=1, cutoff=0.6))


def _other_kind_reason(field: str, kind: Any) -> str:
    """Return the reason why a kind refuses a field of other kinds. "" if no kind has the field, or the kind is invalid."""
    owners = [f"kind: {name}" for name, cls in kinds.CLASSES.items() if field in cls.model_fields]
    if not owners or kind not in list(kinds.CLASSES):  # a list, because an invalid kind may not be hashable
        return ""
    return kinds.kind_class(kind).foreign_fields.get(field) or f"is for {' and '.join(owners)}, and the kind is {kind}"


def _missing_message(field_path: FieldPath) -> str:
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


def _section_hint(field_path: FieldPath, data: Mapping[str, Any]) -> str:
    """Return a hint for a top-level field that belongs in a section: collect.workers for workers. "" if there is none."""
    if len(field_path) != 1:
        return ""
    candidates = [
        ".".join(map(str, (*section_path, field_path[0])))
        for section_path, model in _sections(kinds.kind_class(data.get("kind")))
        if field_path[0] in model.model_fields
    ]
    return f"did you mean {' or '.join(candidates)}?" if candidates else ""


@functools.cache
def _sections(model: type[models.Model]) -> tuple[tuple[FieldPath, type[models.Model]], ...]:
    """Return the sections of a model with their paths: fields that are models, except samplers and pruners."""
    sections: list[tuple[FieldPath, type[models.Model]]] = []
    for name, field in model.model_fields.items():
        section = _find_model(field.annotation, enters_items=False)
        if section and "options" not in section.model_fields:
            sections.append(((name,), section))
            sections += [((name, *path), subsection) for path, subsection in _sections(section)]
    return tuple(sections)


def _find_model(annotation: Any, *, enters_items: bool = True) -> type[models.Model] | None:
    """Return the first model in the type of a field, such as the model of an optional value. None if there is none.

    Args:
        annotation: Type of the field.
        enters_items: Whether to search the items of tuples and mappings too.
    """
    if isinstance(annotation, type) and issubclass(annotation, models.Model):
        return annotation
    if typing.get_origin(annotation) in (dict, tuple) and not enters_items:
        return None
    for argument in typing.get_args(annotation):
        if model := _find_model(argument, enters_items=enters_items):
            return model
    return None


def _field_names(field_path: FieldPath, data: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the fields that users may write below a path, for hints: low, high … below ("space", "lr").

    Empty if no fields are known there.
    """
    model: type[models.Model] | None = kinds.kind_class(data.get("kind"))
    for step in field_path:
        if model and step in model.model_fields:  # other steps are keys and indices
            model = _find_model(model.model_fields[str(step)].annotation)
    if field_path[:1] == ("space",) and len(field_path) == 2:  # a parameter, whose fields depend on its type
        model = _PARAMETERS.get(data["space"][field_path[1]].get("type"))
    names = list(model.model_fields) if model else []
    if not field_path:  # fields of the job file, which differ from those of the resolved job
        return [name for name in (*names, "objective", "profiles") if name != "name"]
    return names


def _shorten(value: Any) -> str:
    """Return a value in Python's notation, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
