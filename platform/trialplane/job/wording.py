"""Pydantic's errors as issues: at the path that a user wrote, with a message that explains what would be right."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import kinds, models, space

# Parts pydantic puts into a location that are no fields: the forms of a union, and a key as opposed to its value.
_FORMS = ("parameters", "function")
_UNKNOWN = "there is no such field"
_MISSING = "is missing"
_PARAMETERS: Mapping[str, type[models.Model]] = {
    "float": space.FloatParameter,
    "int": space.IntParameter,
    "categorical": space.CategoricalParameter,
    "normal": space.NormalParameter,
}


def translate(error: ValidationError, data: Mapping[str, Any]) -> list[Issue]:
    """Every issue in `error`, raised when validating `data` as a job."""
    found: list[Issue] = []
    for entry in error.errors(include_url=False):
        place = _place(entry["loc"])
        if entry["type"] == models.ISSUES:
            found += [issue.below(*place) for issue in entry["ctx"][models.ISSUES]]
        else:
            found.append(Issue(place, message(entry, place, data)))
    # A list with invalid items is reported as too short as well, because those items do not count.
    wrong = [issue.place for issue in found if issue.message.startswith(_UNKNOWN)]
    found = [issue for issue in found if not (issue.message == _MISSING and _is_misspelt(issue.place, wrong))]
    if any(issue.place == ("kind",) for issue in found):  # checked as a study, whose fields another kind may lack
        own = {name for kind in kinds.CLASSES.values() for name in kind.model_fields}
        named = any(issue.place == ("kind",) and not issue.message.startswith(_MISSING) for issue in found)
        found = [
            issue
            for issue in found
            if not (named and issue.place == ("objectives",))
            and not (issue.message.startswith(_UNKNOWN) and issue.place[0] in own and len(issue.place) == 1)
        ]
    deeper = {issue.place[:1] for issue in found if len(issue.place) > 1}
    return [issue for issue in found if not (issue.place in deeper and issue.message.startswith("needs at least"))]


def _place(loc: tuple[str | int, ...]) -> Place:
    """A pydantic location as the path that a user wrote."""
    if loc[:1] == ("space",) and len(loc) > 1 and loc[1] in _FORMS:
        name, rest = loc[2:3], loc[3:]
        loc = ("space", *name, *(rest[1:] if rest[:1] and rest[0] in _PARAMETERS else rest))
    if loc[:1] == ("stop",) and loc[1:2] and loc[1] in ("rule", "rules"):
        loc = ("stop", *loc[2:])
    if loc[:1] and loc[0] in ("sampler", "pruner") and loc[1:2] == ("options",):
        loc = (loc[0], *loc[2:])
    return tuple(step for step in loc if step != "[key]")


def message(entry: Any, place: Place, data: Mapping[str, Any]) -> str:
    """Our message for one of pydantic's errors.

    Args:
        entry: of `ValidationError.errors`.
        place: where it is.
        data: all that was validated.
    """
    kind, given, context = entry["type"], entry.get("input"), entry.get("ctx", {})
    shown = _short(given)
    if kind == "extra_forbidden":
        if place == ("name",):
            return "is the name of the job's folder; drop this line"
        foreign = kinds.of_kind(data.get("kind")).foreign if len(place) == 1 else {}
        if place[-1] in foreign and data.get("kind") in list(kinds.CLASSES):
            return f"{foreign[str(place[-1])]}; drop it"
        meant = _elsewhere(place, data) or errors.nearest(str(place[-1]), _fields(place[:-1], data))
        return f"{_UNKNOWN}; {meant}".rstrip("; ")
    if kind == "missing" or (place == ("collect",) and given is None):
        return _missing(place)
    if kind == "union_tag_not_found":
        return f"has no type; write type: {', '.join(space.TYPES[:-1])} or {space.TYPES[-1]}"
    if kind == "union_tag_invalid":
        return f"type {context['tag']!r} is unknown; {errors.nearest(str(context['tag']), space.TYPES)}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error" and place == ("kind",):
        *most, last = map(repr, kinds.CLASSES)
        return f"{shown} is not {', '.join(most)} or {last}"
    if kind == "literal_error":
        return f"{shown} is not {context['expected']}"
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(str(place[0]), f"{shown} must be module:function, for example train:run")
    bound = {
        "greater_than": "over",
        "greater_than_equal": "at least",
        "less_than": "under",
        "less_than_equal": "at most",
    }.get(kind)
    if bound:
        limit = next(iter(context.values()))
        return f"{shown} must be {bound} {limit:g}"
    if kind == "too_short":
        return f"needs at least {context['min_length']}, and is empty"
    expected = _KINDS.get(kind)
    return f"must be {expected}, not {shown}" if expected else str(entry["msg"])


_KINDS = {
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
_PATTERNS = {
    "name": "the folder's name must be lower-case letters, digits, - and _, at most 63, for it names the job",
    "resume": "must be the name of a run, as `platform list` shows them",
    "checkpoints": "must name a place as fsspec does: s3://bucket/path, gs://bucket/path",
    "space": "a parameter's name is letters, digits, _ and -, with . or / between them; "
    "a space in code is module:function, as in space:define",
}


def _is_misspelt(place: Place, wrong: Collection[Place]) -> bool:
    """Whether one of the unknown fields `wrong` is the missing field `place` with an error in it."""
    beside = [str(other[-1]) for other in wrong if other[:-1] == place[:-1]]
    return bool(difflib.get_close_matches(str(place[-1]), beside, n=1, cutoff=0.6))


def _missing(place: Place) -> str:
    if place == ("objectives",):
        return "is missing; write objective: {metric: …, direction: maximize}, or --objective METRIC:max"
    if place == ("kind",):
        return "is missing; write kind: hpo (a search), kind: train (one training) or kind: collect (self-play)"
    if place == ("collect",):
        return "is missing; write collect: {units: 80, workers: 2, learner: train:learn}"
    if len(place) == 3 and place[0] == "space" and place[2] == "choices":
        return "is missing; write choices: [a, b]"
    return _MISSING


def _elsewhere(place: Place, data: Mapping[str, Any]) -> str:
    """The field meant by a top-level name that belongs in a section: collect.workers for workers."""
    if len(place) != 1:
        return ""
    found = []
    for where, model in _sections(kinds.of_kind(data.get("kind"))):
        found += [".".join(map(str, (*where, place[0])))] if place[0] in model.model_fields else []
    return f"did you mean {' or '.join(found)}?" if found else ""


def _sections(model: type[models.Model], above: Place = ()) -> Iterator[tuple[Place, type[models.Model]]]:
    """The fields that are mappings of fields themselves, and those below; not a sampler, whose options are Optuna's."""
    for name, field in model.model_fields.items():
        below = _model(field.annotation, items=False)
        if below and "options" not in below.model_fields:
            yield (*above, name), below
            yield from _sections(below, (*above, name))


def _model(annotation: Any, items: bool = True) -> type[models.Model] | None:
    """The model in the type of a field: itself, that of an optional value, or with `items` that of those."""
    if isinstance(annotation, type) and issubclass(annotation, models.Model):
        return annotation
    below = () if typing.get_origin(annotation) in (dict, tuple) and not items else typing.get_args(annotation)
    return next((found for one in below if (found := _model(one, items))), None)


def _fields(place: Place, data: Mapping[str, Any]) -> Collection[str]:
    """Names of the fields at a place, for the nearest to a misspelt one."""
    model: type[models.Model] | None = kinds.of_kind(data.get("kind"))
    for step in place:  # a key or an index is none of the fields
        if model and step in model.model_fields:
            model = _model(model.model_fields[str(step)].annotation)
    if place[:1] == ("space",) and len(place) == 2:
        model = _PARAMETERS.get(data["space"][place[1]].get("type"))
    names = list(model.model_fields) if model else []
    return names if place else [name for name in (*names, "objective", "profiles") if name != "name"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
