"""The fields of a job.yaml, read from its JSON schema: for `platform explain` and for the reference page."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from trialplane import errors
from trialplane.job import kinds, options, schema
from trialplane.job.options import Choice, Option

_ALGORITHMS = {"Sampler": options.SAMPLERS, "Pruner": options.PRUNERS, "WrappedPruner": options.PRUNERS}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a job file.

    Attributes:
        path: Dotted path in the job file: "budget.time".
        pattern: The path with "*" for each name that the job chooses: "space.*.low".
        kinds: Kinds of job that have the field.
        type: Type in words.
        default: Default as JSON; "" without one.
        text: Description; "" for a value of a mapping with names that the user chooses.
        fields: Fields below it.
        choices: For a sampler or pruner, the algorithms by name, each with its options.
    """

    path: str
    pattern: str
    kinds: tuple[str, ...]
    type: str
    default: str
    text: str
    fields: tuple[Field, ...] = ()
    choices: Mapping[str, Choice] = dataclasses.field(default_factory=dict)


def explain(path: str) -> Field:
    """Return a field with the fields directly below it.

    Args:
        path: Dotted path; "" for the job itself. For a name that the job chooses, as in `space`, any name is accepted:
            `space.lr.low`. The name of a sampler or a pruner is followed by its options: `sampler.tpe.n_startup_trials`.

    Raises:
        InputError: No kind of job has such a field.
    """
    # Each name leads from the schemas of a field, one for each kind of job that has the field, to those of a field below it.
    # At first, the field is the job itself.
    schemas: dict[str, Any] = {kind: {"$ref": f"#/$defs/{cls.__name__}"} for kind, cls in kinds.CLASSES.items()}
    pattern: list[str] = []
    option_text = ""  # of an option beside a sampler's or pruner's name, which has no description in the schema
    names = path.split(".") if path else []
    for index, name in enumerate(names):
        parent = ".".join(names[:index])
        algorithms = _ALGORITHMS.get(_definition_name(_any_schema(schemas)), {})
        if name in algorithms:
            option_names = names[index + 1 :]
            return _algorithm_field(f"{parent}.{name}", option_names, tuple(schemas), choice=algorithms[name])
        subfields = {kind: _subfields(schema) for kind, schema in schemas.items()}
        # Kinds without such a field drop out. "*" stands for a name that the job chooses.
        schemas = {
            kind: fields.get(name, fields.get("*")) for kind, fields in subfields.items() if {name, "*"} & set(fields)
        }
        existing_names = set[str]().union(*subfields.values())
        if not schemas:
            raise _unknown_field(parent, name, (existing_names - {"*"}) | set(algorithms))
        pattern.append(name if name in existing_names else "*")
        option_text = _option_text(name, algorithms)
    field = _field(path, kind_names=tuple(schemas), field=_any_schema(schemas))
    field = dataclasses.replace(field, pattern=".".join(pattern), text=field.text or option_text)
    return field if field.choices else dataclasses.replace(field, fields=_fields_below(schemas))


@functools.cache
def _definitions() -> Mapping[str, Any]:
    """Return the definitions to which schemas refer, by name."""
    definitions: Mapping[str, Any] = schema.json_schema()["$defs"]
    return definitions


def _fields_below(schemas: Mapping[str, Any]) -> tuple[Field, ...]:
    """Return the fields directly below a field, each with the kinds of job that have it.

    Args:
        schemas: Kind of job → its schema of the field.
    """
    kinds_by_name: dict[str, list[str]] = {}
    schema_by_name: dict[str, Any] = {}
    for kind, kind_schema in schemas.items():
        for name, subfield in _subfields(kind_schema).items():
            kinds_by_name.setdefault(name, []).append(kind)
            schema_by_name.setdefault(name, subfield)
    return tuple(
        _field(name, kind_names=tuple(kinds_by_name[name]), field=subfield) for name, subfield in schema_by_name.items()
    )


def _any_schema(schemas: Mapping[str, Any]) -> Any:
    """Return one of the schemas that the kinds have for a field. All kinds describe it in the same way."""
    return next(iter(schemas.values()))


def type_of(field: Mapping[str, Any], refer: Callable[[str], str] = str) -> str:
    """Return a field's type in words.

    Args:
        field: Schema of the field.
        refer: Function from the name of a definition to the words for it. Default: the name itself.
    """
    if "$ref" in field:
        return refer(_definition_name(field))
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(type_of(part, refer) for part in field[key]))
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    json_type = field.get("type", "any")
    if json_type == "array":
        return f"list of {type_of(field.get('items', {}), refer)}"
    if json_type == "object":
        value = _value_schema(field)
        return f"mapping to {type_of(value, refer)}" if value is not None else "mapping"
    return " or ".join(json_type) if isinstance(json_type, list) else str(json_type)


def default_of(field: Mapping[str, Any]) -> str:
    """Return a field's default as JSON. "" if it has none, or null."""
    return "" if field.get("default") is None else json.dumps(field["default"])


def _field(path: str, kind_names: tuple[str, ...], field: Mapping[str, Any]) -> Field:
    """Return the field for a schema, without the fields below it.

    Args:
        path: Dotted path of the field.
        kind_names: Kinds of job that have the field.
        field: Schema of the field.
    """
    name = _definition_name(field)
    text = field.get("description") or _definitions().get(name, {}).get("description", "")
    return Field(
        path=path,
        pattern=path,
        kinds=kind_names,
        type=type_of(field, lambda name: "name or mapping" if name in _ALGORITHMS else "mapping"),
        default=default_of(field),
        text=" ".join(text.split()),
        choices=_ALGORITHMS.get(name, {}),
    )


def _algorithm_field(path: str, option_names: list[str], kind_names: tuple[str, ...], choice: Choice) -> Field:
    """Return the field for a sampler or a pruner with its options, or for one of the options.

    Args:
        path: Dotted path of the sampler or pruner: "sampler.tpe".
        option_names: Parts of the path that the user has typed after it: ["n_startup_trials"]. Empty for the sampler or
            pruner itself. Options have no fields of their own, so several parts are no option.
        kind_names: Kinds of job that have the field.
        choice: The sampler or pruner: its class and options.

    Raises:
        InputError: It has no such option.
    """
    if option_names:
        name = ".".join(option_names)
        if name not in choice.options:
            raise _unknown_field(path, name, sorted(choice.options))
        field = _option_field(f"{path}.{name}", choice.options[name], kind_names)
        return field if field.text else dataclasses.replace(field, text=f"Option of Optuna's {choice.cls}.")
    text = f"Optuna's {choice.cls}. Its options have Optuna's meanings."
    if any(option.text for option in choice.options.values()):  # only the platform's own options have a text
        text = "The platform's own; see `platform docs studies`."
    return Field(
        path=path,
        pattern=path,
        kinds=kind_names,
        type="mapping",
        default="",
        text=text,
        fields=tuple(_option_field(name, option, kind_names) for name, option in sorted(choice.options.items())),
    )


def _option_field(path: str, option: Option, kind_names: tuple[str, ...]) -> Field:
    """Return the field for an option of a sampler or a pruner.

    Args:
        path: Dotted path of the option.
        option: The option.
        kind_names: Kinds of job that have the field.
    """
    default = default_of({"default": option.default})
    return Field(path, path, kind_names, type=option.kind.value, default=default, text=option.text)


def _option_text(name: str, choices: Mapping[str, Choice]) -> str:
    """Return the text for an option of samplers or pruners: the platform's, or the names of those that have it.

    Args:
        name: Name of the option, or "name" itself.
        choices: The samplers or pruners, by name. Empty for a field that is no option.
    """
    owners = [owner for owner, choice in sorted(choices.items()) if name in choice.options]
    if len(owners) == 1 and (text := choices[owners[0]].options[name].text):
        return text
    if owners:
        return f"Option of {', '.join(owners)}."
    return f"One of {', '.join(sorted(choices))}." if choices else ""


def _unknown_field(parent: str, name: str, names: Collection[str]) -> errors.InputError:
    """Return the error for a field that does not exist. It names a similar field or all fields.

    Args:
        parent: Dotted path of the field above it. "" for the job.
        name: Name of the missing field.
        names: Names of the existing fields of `parent`.
    """
    advice = errors.nearest(name, names) or (f"it has {', '.join(sorted(names))}" if names else "it has no fields")
    return errors.InputError(f"{f'`{parent}`' if parent else 'a job'} has no field {name!r}; {advice}")


def _subfields(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas of the fields below a field, by name.

    These are the fields of a mapping, of the items of a list, or of all types that the field may have. "*" is the name of
    the values of a mapping whose keys the job chooses.
    """
    if "$ref" in field:
        return _subfields(_definitions()[_definition_name(field)])
    fields: dict[str, Any] = {}
    for part in _alternatives(field):
        for name, subfield in _subfields(part).items():
            fields[name] = _union_schema(fields[name], subfield) if name in fields else subfield
    fields.update(field.get("properties", {}))
    if (value := _value_schema(field)) is not None:
        fields["*"] = value
    return fields


def _union_schema(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a field that two alternatives of a mapping have, with both types and both descriptions."""
    descriptions = dict.fromkeys(field["description"] for field in (first, second) if "description" in field)
    types = [
        {key: value for key, value in field.items() if key not in ("title", "description", "default")}
        for field in (first, second)
    ]
    union = first if types[0] == types[1] else {"anyOf": types}
    return {**union, "description": " Or: ".join(descriptions)}


def _alternatives(field: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of a field's alternatives. The schema of a list's items counts as one."""
    for key in ("anyOf", "oneOf", "allOf"):
        yield from field.get(key, [])
    if isinstance(field.get("items"), dict):
        yield field["items"]


def _value_schema(field: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of the values of a mapping whose keys the job chooses. None for any other field."""
    patterns = list(field.get("patternProperties", {}).values())  # pydantic writes one pattern for all keys
    value = patterns[-1] if patterns else field.get("additionalProperties")
    return value if isinstance(value, dict) else None


def _definition_name(field: Mapping[str, Any]) -> str:
    """Return the name of the definition that a field refers to. "" if it refers to none."""
    return str(field.get("$ref", "")).rpartition("/")[2]
