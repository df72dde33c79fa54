"""The fields of a job.yaml, read from its JSON schema: for `platform explain` and for the reference page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from trialplane import errors
from trialplane.job import kinds, options, schema
from trialplane.job.options import Choice

_NAMED = {"Sampler": options.SAMPLERS, "Pruner": options.PRUNERS, "WrappedPruner": options.PRUNERS}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a job file.

    Attributes:
        path: its name behind those of the mappings around it, with dots.
        kinds: the kinds of job that have it.
        type: its type in words.
        default: as JSON; "" without one.
        text: its meaning.
        fields: those below it.
        choices: of a sampler or pruner, each with its options.
    """

    path: str
    kinds: tuple[str, ...]
    type: str
    default: str
    text: str
    fields: tuple[Field, ...] = ()
    choices: Mapping[str, Choice] = dataclasses.field(default_factory=dict)


def explain(path: str) -> Field:
    """Return a field with those directly below it; of "" all that a job can have.

    Where the job chooses the names, as in `space`, any will do: `space.lr.low`. The name of a sampler or a pruner stands for
    its options: `sampler.tpe`.

    Raises:
        InputError: there is no such field.
    """
    root = schema.json_schema()
    definitions = root["$defs"]
    schemas: dict[str, Any] = {kind: {"$ref": f"#/$defs/{cls.__name__}"} for kind, cls in kinds.CLASSES.items()}
    above = ""
    parts = path.split(".") if path else []
    for index, part in enumerate(parts):
        if part in (choices := _NAMED.get(_name(next(iter(schemas.values()))), {})):
            return _choice(f"{above}.{part}", parts[index + 1 :], tuple(schemas), choices[part])
        below = {kind: _below(field, definitions) for kind, field in schemas.items()}
        schemas = {
            kind: fields.get(part, fields.get("*", {})) for kind, fields in below.items() if {part, "*"} & fields.keys()
        }
        if not schemas:
            raise _unknown(above, part, {name for fields in below.values() for name in fields} - {"*"} | set(choices))
        above = f"{above}.{part}".lstrip(".")
    kinds_of: dict[str, list[str]] = {}
    fields: dict[str, Any] = {}
    for kind, of_kind in schemas.items():
        for name, field in _below(of_kind, definitions).items():
            kinds_of.setdefault(name, []).append(kind)
            fields.setdefault(name, field)
    subfields = tuple(_field(name, tuple(kinds_of[name]), field, definitions) for name, field in fields.items())
    field = _field(above, tuple(schemas), next(iter(schemas.values())), definitions)
    return field if field.choices else dataclasses.replace(field, fields=subfields)


def type_of(field: Mapping[str, Any], definitions: Mapping[str, Any], refer: Callable[[str], str] = str) -> str:
    """Return a field's type in words; `refer` returns the words for a definition."""
    if "$ref" in field:
        return refer(_name(field))
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(type_of(part, definitions, refer) for part in field[key]))
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {type_of(field.get('items', {}), definitions, refer)}"
    if kind == "object":
        value = _values(field)
        return f"mapping to {type_of(value, definitions, refer)}" if value is not None else "mapping"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def default_of(field: Mapping[str, Any]) -> str:
    """Return a field's default as JSON; "" when it has none, or null."""
    return "" if field.get("default") is None else json.dumps(field["default"])


def _field(path: str, of_kinds: tuple[str, ...], field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Field:
    name = _name(field)
    text = field.get("description") or definitions.get(name, {}).get("description", "")
    return Field(
        path=path,
        kinds=of_kinds,
        type=type_of(field, definitions, lambda name: "name or mapping" if name in _NAMED else "mapping"),
        default=default_of(field),
        text=" ".join(text.split()),
        choices=_NAMED.get(name, {}),
    )


def _choice(path: str, option: list[str], of_kinds: tuple[str, ...], choice: Choice) -> Field:
    """Return a sampler or a pruner with its options, or one of these."""
    text = f"Optuna's {choice.cls}. Its options have Optuna's meanings."
    fields = {
        name: Field(name, of_kinds, option.kind.value, default_of({"default": option.default}), "")
        for name, option in sorted(choice.options.items())
    }
    if not option:
        return Field(path, of_kinds, "mapping", "", text, tuple(fields.values()))
    name = ".".join(option)
    if name not in fields:
        raise _unknown(path, name, fields)
    return dataclasses.replace(fields[name], path=f"{path}.{name}", text=f"Option of Optuna's {choice.cls}.")


def _unknown(above: str, name: str, names: Collection[str]) -> errors.InputError:
    advice = errors.nearest(name, names) or (f"it has {', '.join(sorted(names))}" if names else "it has no fields")
    return errors.InputError(f"{f'`{above}`' if above else 'a job'} has no field {name!r}; {advice}")


def _below(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a mapping, of the items of a list, or of all types of a field; "*" stands for any name."""
    if "$ref" in field:
        return _below(definitions[_name(field)], definitions)
    fields: dict[str, Any] = {}
    for part in _parts(field):
        for name, below in _below(part, definitions).items():
            fields[name] = _either(fields[name], below) if name in fields else below
    fields.update(field.get("properties", {}))
    if (value := _values(field)) is not None:
        fields["*"] = value
    return fields


def _either(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a field that two types of a mapping have, with both meanings."""
    types = [
        {key: field[key] for key in field if key not in ("title", "description", "default")} for field in (first, second)
    ]
    texts = dict.fromkeys(field["description"] for field in (first, second) if "description" in field)
    return {**(first if types[0] == types[1] else {"anyOf": types}), "description": " Or: ".join(texts)}


def _parts(field: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what a field may be instead, and what a list holds."""
    for key in ("anyOf", "oneOf", "allOf"):
        yield from field.get(key, [])
    if isinstance(field.get("items"), dict):
        yield field["items"]


def _values(field: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of a mapping's values, if its keys are free."""
    patterns = list(field.get("patternProperties", {}).values())
    value = patterns[-1] if patterns else field.get("additionalProperties")
    return value if isinstance(value, dict) else None


def _name(field: Mapping[str, Any]) -> str:
    """Return the name of the definition that a field refers to, or ""."""
    return str(field.get("$ref", "")).rpartition("/")[2]
