"""The JSON schema (draft 2020-12) of the job file that users write, for completion and checks in an editor.

Pydantic writes the schema of the models, which describe the resolved job. This module changes it to that of the file: it
adds short forms, options beside a sampler's name, `objective`, and profiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from trialplane.job import kinds, options, values
from trialplane.job.options import Choice, Option, ValueKind
from trialplane.job.sampling import WATCHED

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PREFIX = "#/$defs/"
_NAMES = {  # kind of algorithm → name of its definition
    ValueKind.SAMPLER: "Sampler",
    ValueKind.PRUNER: "WrappedPruner",
    ValueKind.CROSSOVER: "Crossover",
    ValueKind.MUTATION: "Mutation",
}
# Schemas of samplers of other packages, whose options are unknown.
_CLASSES: list[dict[str, Any]] = [
    {
        "type": "object",
        "title": field,
        "properties": {
            field: {"type": "string", "pattern": f"^{values.FUNCTION}$", "description": description},
        },
        "required": [field],
        "not": {"anyOf": [{"required": ["name"]}, {"required": [other]}]},
    }
    for field, other, description in (
        ("class", "tune", "package.module:Class of a sampler for Optuna; its arguments stand beside it."),
        ("tune", "class", "package.module:Class of a searcher of Ray Tune; its arguments stand beside it."),
    )
]


def json_schema() -> dict[str, Any]:
    """Return the schema of job.yaml: the kind of job, and for each kind a definition with the other fields."""
    _, schema = models_json_schema([(kind, "validation") for kind in kinds.CLASSES.values()], by_alias=True)
    defs: dict[str, Any] = schema["$defs"]
    _define_algorithms(defs)
    _allow_short_learner(defs["Collect"]["properties"])
    by_kind = {name: defs.pop(kind.__name__) for name, kind in kinds.CLASSES.items()}
    for definition in (*defs.values(), *by_kind.values()):
        _allow_single_values(definition)
        _forbid_other_keys(definition)
    files = {kinds.CLASSES[name].__name__: _file_schema(definition) for name, definition in by_kind.items()}
    _add_profiles(list(files.values()))
    return {
        "$schema": _DIALECT,
        "title": "trialplane job",
        "description": "A job of trialplane.",
        "type": "object",
        "properties": {
            "kind": {
                "enum": list(kinds.CLASSES),
                "description": "Kind of job. hpo: a search for good hyperparameters. train: one trial with one or more "
                "ranks. collect: iterations in which workers produce data and a learner consumes it.",
            }
        },
        "required": ["kind"],
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": name}}, "required": ["kind"]},
                "then": {"$ref": _PREFIX + kind.__name__},
            }
            for name, kind in kinds.CLASSES.items()
        ],
        "$defs": {**defs, **files},
    }


def _define_algorithms(defs: dict[str, Any]) -> None:
    """Replace the definitions of samplers and pruners, of which pydantic has only a name and any options."""
    for kind, name in _NAMES.items():
        defs[name] = _algorithm_schema(kind)
    defs["Sampler"]["anyOf"] += _CLASSES
    watched = {key: defs["Pruner"]["properties"][key] for key in WATCHED}
    defs["Pruner"] = _with_watched_fields(defs[_NAMES[ValueKind.PRUNER]], watched)


def _allow_short_learner(properties: dict[str, Any]) -> None:
    """Change the fields of a collection so that `learner` may be null or its short form, the entrypoint alone."""
    learner = properties["learner"]
    description = learner.pop("description")
    entrypoint = {"type": "string", "pattern": f"^{values.FUNCTION}$"}
    properties["learner"] = {"anyOf": [entrypoint, learner, {"type": "null"}], "description": description}


def _add_profiles(files: Sequence[dict[str, Any]]) -> None:
    """Add the field `profiles` to the schemas of the job files of all kinds.

    Of a profile, which may change any part of a field and the kind, only the names of the fields are checked.
    """
    fields = {key: {"description": field["description"]} for file in files for key, field in file["properties"].items()}
    for file in files:
        file["properties"]["profiles"] = {
            "type": "object",
            "additionalProperties": {"type": "object", "properties": fields, "additionalProperties": False},
            "description": "Named overrides of any fields, selected with --profile: {quick: {trials: 4}}.",
        }


def _file_schema(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a job file of one kind.

    The file has no `name`, and may have `objective` as a short form of `objectives`.

    Args:
        definition: Schema of the resolved job.
    """
    properties = {key: value for key, value in definition["properties"].items() if key != "name"}
    for key in ("sampler", "pruner"):
        if key in properties:
            properties[key].pop("default", None)  # it is a mapping with `options`, which users do not write
    if "space" in properties:
        _space_parameters(definition)["additionalProperties"] = False  # refuses names that do not match the pattern
    properties["objective"] = {
        "$ref": f"{_PREFIX}Objective",
        "description": "Metric to optimize. Use `objectives` for more than one.",
    }
    required = [key for key in definition["required"] if key != "name"]
    objective_rule: dict[str, Any] = {"not": {"required": ["objective", "objectives"]}}
    if "objectives" in required:
        required.remove("objectives")
        objective_rule = {"oneOf": [{"required": ["objective"]}, {"required": ["objectives"]}]}
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "required": required,
        **objective_rule,
    }


def _algorithm_schema(kind: ValueKind) -> dict[str, Any]:
    """Return the schema of a sampler, pruner, crossover or mutation: its name, or a mapping with its name and options."""
    table = options.TABLES[kind]
    short_forms = [name for name, choice in table.items() if not any(option.required for option in choice.options.values())]
    if kind is ValueKind.PRUNER:
        short_forms.remove("threshold")  # it needs `lower` or `upper`
    return {
        "description": f"{kind.value[0].upper()}{kind.value[1:]} of Optuna, by name or with its options.",
        "anyOf": [{"enum": short_forms}, *(_options_schema(name, choice) for name, choice in table.items())],
    }


def _with_watched_fields(pruner: dict[str, Any], watched: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the job's pruner.

    Args:
        pruner: Schema of a pruner that is an option of another pruner.
        watched: Schemas of the fields that only the job's pruner has: the metric that it compares, and its direction.
    """
    forms: list[dict[str, Any]] = []
    for form in pruner["anyOf"]:
        is_mapping = "properties" in form  # otherwise it is the list of names that need no options
        forms.append({**form, "properties": {**form["properties"], **watched}} if is_mapping else form)
    return {**pruner, "anyOf": forms}


def _options_schema(name: str, choice: Choice) -> dict[str, Any]:
    """Return the schema of a mapping with an algorithm's name and its options."""
    return {
        "type": "object",
        "title": name,
        "properties": {"name": {"const": name}, **{key: _option_schema(option) for key, option in choice.options.items()}},
        "required": ["name", *(key for key, option in choice.options.items() if option.required)],
        "additionalProperties": False,
    }


def _option_schema(option: Option) -> dict[str, Any]:
    """Return the schema of an option's value, which may be null."""
    schema = _not_null_schema(option)
    return {"anyOf": [schema, {"type": "null"}]} if option.nullable else schema


def _not_null_schema(option: Option) -> dict[str, Any]:
    """Return the schema of an option's value that is not null."""
    all_bounds = {"minimum": option.minimum, "maximum": option.maximum, "exclusiveMinimum": option.above}
    bounds = {key: value for key, value in all_bounds.items() if value is not None}
    if option.kind in _NAMES:
        return {"$ref": _PREFIX + _NAMES[option.kind]}
    if option.kind in (ValueKind.FUNCTION, ValueKind.FACTORY):
        return {"type": "string", "pattern": f"^{values.FUNCTION}$", "description": option.kind.value}
    if option.kind is ValueKind.INT_OR_AUTO:
        return {"anyOf": [{"type": "integer", **bounds}, {"const": "auto"}]}
    if option.kind is ValueKind.AMOUNT:
        return {"anyOf": [{"type": "integer", **bounds}, {"type": "string", "description": "parameter in params"}]}
    simple: Mapping[ValueKind, dict[str, Any]] = {
        ValueKind.BOOL: {"type": "boolean"},
        ValueKind.INT: {"type": "integer", **bounds},
        ValueKind.NUMBER: {"type": "number", **bounds},
        ValueKind.TEXT: {"enum": list(option.allowed)},
        ValueKind.POINT: {"type": "object"},
        ValueKind.POINTS: {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    }
    return simple[option.kind]


def _allow_single_values(definition: dict[str, Any]) -> None:
    """Change a parameter's schema so that a condition may be a single value instead of a list, but not an empty list."""
    when = definition.get("properties", {}).get("when")
    if when is not None:
        when["additionalProperties"] = {"not": {"type": "array", "maxItems": 0}}


def _forbid_other_keys(definition: dict[str, Any]) -> None:
    """Change the schema of a model so that the keys of its mappings must match their pattern, if they have one."""
    for field in definition.get("properties", {}).values():
        for form in (field, *field.get("anyOf", ())):
            if "patternProperties" in form:
                form["additionalProperties"] = False


def _space_parameters(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a job's schema for a `space` that is a mapping of parameters. Changing it changes the schema."""
    forms: list[dict[str, Any]] = definition["properties"]["space"]["oneOf"]
    return next(form for form in forms if form["type"] == "object")
