"""The job file's JSON schema (draft 2020-12), as users write it, so that an editor completes and checks it.

The models describe the resolved job; this adds what only the file has: short forms, options written beside a
sampler's name, `objective`, and profiles, in which every field may be left out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from trialplane.job import kinds, options, values
from trialplane.job.options import Choice, Kind, Option
from trialplane.job.sampling import WATCHED

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PREFIX = "#/$defs/"
_PARTIAL = "Partial"
_PROFILE = "Profile"
_NAMES = {
    Kind.SAMPLER: "Sampler",
    Kind.PRUNER: "WrappedPruner",
    Kind.CROSSOVER: "Crossover",
    Kind.MUTATION: "Mutation",
}


def json_schema() -> dict[str, Any]:
    """The schema of job.yaml."""
    _, made = models_json_schema([(kind, "validation") for kind in kinds.CLASSES.values()], by_alias=True)
    defs: dict[str, Any] = made["$defs"]
    for kind, name in _NAMES.items():
        defs[name] = _named(kind)
    watched = {key: defs["Pruner"]["properties"][key] for key in WATCHED}
    defs["Pruner"] = _watching(defs[_NAMES[Kind.PRUNER]], watched)
    learner = defs["Collect"]["properties"]["learner"]
    description = learner.pop("description")
    short = {"type": "string", "pattern": f"^{values.FUNCTION}$"}
    defs["Collect"]["properties"]["learner"] = {"anyOf": [short, learner, {"type": "null"}], "description": description}
    by_kind = {name: defs.pop(kind.__name__) for name, kind in kinds.CLASSES.items()}
    for definition in (*defs.values(), *by_kind.values()):
        _conditions(definition)
        _keys(definition)
    partials = {_PARTIAL + name: _partial(definition) for name, definition in defs.items()}
    for kind, name in _NAMES.items():
        partials[_PARTIAL + name] = _named_partly(kind)
    partials[_PARTIAL + "Pruner"] = _watching(partials[_PARTIAL + _NAMES[Kind.PRUNER]], watched)
    for name, definition in by_kind.items():
        title = kinds.CLASSES[name].__name__
        defs[title] = _file(definition)
        partials[title + _PROFILE] = _profile(defs[title])
        defs[title]["properties"]["profiles"] = {
            "type": "object",
            "additionalProperties": _of_any_kind(name),
            "description": "Named overrides of any fields, selected with --profile: {quick: {trials: 4}}.",
        }
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
        "$defs": {**defs, **partials},
    }


def _file(definition: dict[str, Any]) -> dict[str, Any]:
    """The file of a kind: without the name, and with `objective` as a short form of `objectives`."""
    properties = {key: value for key, value in definition["properties"].items() if key != "name"}
    for key in ("sampler", "pruner"):
        if key in properties:
            properties[key].pop("default", None)
    if "space" in properties:
        _parameters(definition)["additionalProperties"] = False  # a name that does not match the pattern
    properties["objective"] = {
        "$ref": f"{_PREFIX}Objective",
        "description": "Metric to optimize. Use `objectives` for more than one.",
    }
    needed = [key for key in definition["required"] if key != "name"]
    both: dict[str, Any] = {"not": {"required": ["objective", "objectives"]}}
    if "objectives" in needed:
        needed.remove("objectives")
        both = {"oneOf": [{"required": ["objective"]}, {"required": ["objectives"]}]}
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": needed, **both}


def _of_any_kind(own: str) -> dict[str, Any]:
    """A profile, which may be of another kind than its file."""
    made: dict[str, Any] = {"$ref": f"{_PREFIX}{kinds.CLASSES[own].__name__}{_PROFILE}"}
    for name, kind in kinds.CLASSES.items():
        if name != own:
            asked = {"properties": {"kind": {"const": name}}, "required": ["kind"]}
            made = {"if": asked, "then": {"$ref": f"{_PREFIX}{kind.__name__}{_PROFILE}"}, "else": made}
    return made


def _profile(definition: dict[str, Any]) -> dict[str, Any]:
    """The same with nothing required; null takes a parameter out of the space."""
    made: dict[str, Any] = _partial({key: value for key, value in definition.items() if key not in ("oneOf", "not")})
    if "space" in made["properties"]:
        parameters = _parameters(made)
        parameters["patternProperties"] = {
            pattern: {"anyOf": [parameter, {"type": "null"}]}
            for pattern, parameter in parameters["patternProperties"].items()
        }
    return made


def _named(kind: Kind) -> dict[str, Any]:
    """A name alone, or a mapping with the name and the options of just that one."""
    table = options.TABLES[kind]
    alone = [name for name, choice in table.items() if not any(option.required for option in choice.options.values())]
    if kind is Kind.PRUNER:
        alone.remove("threshold")  # needs lower or upper
    return {
        "description": f"{kind.value[0].upper()}{kind.value[1:]} of Optuna, by name or with its options.",
        "anyOf": [{"enum": alone}, *(_with_options(name, choice) for name, choice in table.items())],
    }


def _watching(named: dict[str, Any], watched: dict[str, Any]) -> dict[str, Any]:
    """The job's own pruner: with the metric that it watches."""
    forms = [
        {**form, "properties": {**form["properties"], **watched}} if "properties" in form else form
        for form in named["anyOf"]
    ]
    return {**named, "anyOf": forms}


def _with_options(name: str, choice: Choice) -> dict[str, Any]:
    return {
        "type": "object",
        "title": name,
        "properties": {"name": {"const": name}, **{key: _option(option) for key, option in choice.options.items()}},
        "required": ["name", *(key for key, option in choice.options.items() if option.required)],
        "additionalProperties": False,
    }


def _named_partly(kind: Kind) -> dict[str, Any]:
    """A name, or any of the options of any of them, since the name may stand in the file below."""
    table = options.TABLES[kind]
    every: dict[str, Any] = {}
    for choice in table.values():
        for key, option in choice.options.items():
            every.setdefault(key, []).append(_partial(_option(option)))
    properties = {key: forms[0] if len(forms) == 1 else {"anyOf": forms} for key, forms in every.items()}
    return {
        "anyOf": [
            {"enum": list(table)},
            {
                "type": "object",
                "properties": {"name": {"enum": list(table)}, **properties},
                "additionalProperties": False,
            },
        ]
    }


def _option(option: Option) -> dict[str, Any]:
    schema = _plain_option(option)
    return {"anyOf": [schema, {"type": "null"}]} if option.nullable else schema


def _plain_option(option: Option) -> dict[str, Any]:
    bounds = {
        key: value
        for key, value in (
            ("minimum", option.minimum),
            ("maximum", option.maximum),
            ("exclusiveMinimum", option.above),
        )
        if value is not None
    }
    if option.kind in _NAMES:
        return {"$ref": _PREFIX + _NAMES[option.kind]}
    if option.kind in (Kind.FUNCTION, Kind.FACTORY):
        return {"type": "string", "pattern": f"^{values.FUNCTION}$", "description": option.kind.value}
    if option.kind is Kind.INT_OR_AUTO:
        return {"anyOf": [{"type": "integer", **bounds}, {"const": "auto"}]}
    simple: Mapping[Kind, dict[str, Any]] = {
        Kind.BOOL: {"type": "boolean"},
        Kind.INT: {"type": "integer", **bounds},
        Kind.NUMBER: {"type": "number", **bounds},
        Kind.TEXT: {"enum": list(option.allowed)},
        Kind.POINT: {"type": "object"},
        Kind.POINTS: {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    }
    return simple[option.kind]


def _conditions(definition: dict[str, Any]) -> None:
    """A condition may name one value instead of a list, which has at least one."""
    when = definition.get("properties", {}).get("when")
    if when is not None:
        when["additionalProperties"] = {"not": {"type": "array", "maxItems": 0}}


def _keys(definition: dict[str, Any]) -> None:
    """A key that does not fit its pattern is wrong, not free."""
    for field in definition.get("properties", {}).values():
        for form in (field, *field.get("anyOf", ())):
            if "patternProperties" in form:
                form["additionalProperties"] = False


def _partial(schema: Any) -> Any:
    """A schema with nothing required, referring to partial definitions."""
    if isinstance(schema, dict):
        made = {key: _partial(value) for key, value in schema.items() if key not in ("required", "discriminator")}
        if isinstance(made.get("$ref"), str):
            made["$ref"] = made["$ref"].replace(_PREFIX, _PREFIX + _PARTIAL)
        if "oneOf" in made and any("$ref" in form for form in made["oneOf"]):
            made["anyOf"] = made.pop("oneOf")  # `{high: 1}` fits a float and an int
        return made
    return [_partial(item) for item in schema] if isinstance(schema, list) else copy.copy(schema)


def _parameters(root: dict[str, Any]) -> dict[str, Any]:
    """The part of `space` that is a mapping of parameters, and no code."""
    forms: list[dict[str, Any]] = root["properties"]["space"]["oneOf"]
    return next(form for form in forms if form["type"] == "object")
