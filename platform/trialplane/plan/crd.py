"""The CustomResourceDefinition of a Run, generated from its models.

`python -m trialplane.plan.crd` prints it. Kubernetes only accepts structural schemas: no references, one type for each
value, no conditions on other values. So the fields of the three kinds of job are merged, and a field with several types is
left open, with its description. The reconciler checks everything else as `platform validate` does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import TypeAdapter

from trialplane.job import kinds
from trialplane.plan import run as runs
from trialplane.plan.run import RunSpec, Status
from trialplane.wire import cluster

Schema = dict[str, Any]

_ANY_VALUE = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_RULES = "x-kubernetes-validations"
# Keyword of a bound → function that returns the stricter of two bounds.
_BOUNDS = {"minimum": max, "maximum": min, "minLength": max, "maxLength": min, "minItems": max, "maxItems": min}
_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}  # types of constants


def definition() -> Schema:
    """Return the CustomResourceDefinition that the chart installs."""
    group, escaped = cluster.GROUP, cluster.OWNER.replace(".", "\\.")
    owner = f".metadata.annotations['{escaped}']"
    columns = [
        {"name": "Kind", "type": "string", "jsonPath": ".spec.job.kind", "description": "Kind of the job."},
        {"name": "State", "type": "string", "jsonPath": ".status.state", "description": "Current state."},
        {"name": "Ended", "type": "string", "jsonPath": ".status.progress", "description": "Ended trials and total."},
        {"name": "Best", "type": "string", "jsonPath": ".status.best", "description": "Objective of the best trial."},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {
            "name": "Reason",
            "type": "string",
            "jsonPath": ".status.reason",
            "priority": 1,
            "description": "Reason for the state.",
        },
        {"name": "Owner", "type": "string", "jsonPath": owner, "priority": 1, "description": "User who submitted the run."},
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"runs.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": runs.KIND,
                "listKind": f"{runs.KIND}List",
                "plural": "runs",
                "singular": "run",
                "shortNames": ["trun"],
                "categories": ["trialplane"],
            },
            "versions": [
                {
                    "name": runs.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": _run_schema()},
                }
            ],
        },
    }


def _run_schema() -> Schema:
    """Return the schema of a Run: its spec, its status, and rules that the API server checks."""
    spec, status = structural(_model_schema(RunSpec), keep_defaults=True), structural(_model_schema(Status))
    spec["description"] = "The job to run, and its desired state."
    status["description"] = "Current state of the run, written by the operator."
    spec["properties"]["job"] = {**_job_schema(), "description": spec["properties"]["job"]["description"]}
    spec["properties"]["submission"][_ANY_VALUE] = True  # the API server would drop fields that a schema does not name
    spec["properties"]["code"][_RULES] = [
        _rule("self == oldSelf", "the code of a run cannot change; submit it under another name"),
    ]
    spec[_RULES] = [
        _rule("!has(self.parallel) || self.job.kind != 'train'", "the ranks of a training are fixed: leave parallel out"),
        _rule("self.resumes >= oldSelf.resumes", "resumes counts up"),
    ]
    conditions = status["properties"]["conditions"]
    conditions.update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
    name = "self.metadata.name"
    return {
        "type": "object",
        "description": "A study, a training or a collection, as submitted.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        _RULES: [
            _rule(
                f"{name}.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && {name}.size() <= 47",
                "the name of a run has at most 47 lower-case letters, digits and -, begins with a letter and ends in no -",
            ),
            _rule(
                f"self.spec.code.configMaps[0] == {name} + '-code'",
                "spec.code.configMaps must begin with the name of the run with -code",
            ),
        ],
    }


def _job_schema() -> Schema:
    """Return the schema of a job of any kind, which has the fields of all kinds.

    If not all kinds have a field, its description names those that have it.
    """
    schemas = {name: structural(_model_schema(kind)) for name, kind in kinds.CLASSES.items()}
    for schema in schemas.values():
        for key, field in schema["properties"].items():
            kind_names = [name for name, other in schemas.items() if key in other["properties"]]
            if len(kind_names) < len(schemas):
                field["description"] = f"({', '.join(kind_names)}) {field.get('description', '')}".strip()
    merged = _union(list(schemas.values()))
    merged["properties"]["kind"] = {
        "type": "string",
        "enum": list(schemas),
        "description": "Kind of job. hpo: a search for good hyperparameters. train: one trial with one or more ranks. "
        "collect: iterations in which workers produce data and a learner consumes it.",
    }
    merged[_RULES] = [
        _rule(
            "self.kind == oldSelf.kind && self.name == oldSelf.name",
            "a run keeps its job; submit another under another name",
        )
    ]
    return merged


def _rule(expression: str, message: str) -> Schema:
    """Return a rule that the API server checks: an expression in CEL, and the message if it is false."""
    return {"rule": expression, "message": message}


def _model_schema(model: Any) -> Schema:
    """Return pydantic's schema of a model, with its definitions."""
    return TypeAdapter(model).json_schema(by_alias=True)


def structural(schema: Mapping[str, Any], *, keep_defaults: bool = False) -> Schema:
    """Return the structural schema for a JSON schema.

    Args:
        schema: Schema of pydantic, with its definitions.
        keep_defaults: Keep the defaults, which the API server then sets.
    """
    return _Converter(schema.get("$defs", {}), keep_defaults).convert(schema)


class _Converter:
    """Converter of JSON schemas to structural ones.

    Args:
        definitions: Definitions to which the schemas refer, by name.
        keep_defaults: Keep the defaults of fields.
    """

    def __init__(self, definitions: Mapping[str, Any], keep_defaults: bool) -> None:
        self._definitions = definitions
        self._keep_defaults = keep_defaults

    def convert(self, schema: Mapping[str, Any]) -> Schema:
        """Return the structural schema for a schema or a part of one."""
        if "$ref" in schema:
            definition = self._definitions[schema["$ref"].rpartition("/")[2]]
            schema = {**definition, **{key: value for key, value in schema.items() if key != "$ref"}}
        forms = schema.get("anyOf") or schema.get("oneOf")
        if forms:
            converted = _union([self.convert(form) for form in forms])
        elif isinstance(schema.get("type"), list):
            converted = _union([{"type": type_name} for type_name in schema["type"]])
        else:
            converted = self._convert_type(schema)
        if schema.get("description"):
            converted["description"] = schema["description"]
        if self._keep_defaults and schema.get("default") not in (None, {}, []):
            converted["default"] = schema["default"]
        return converted

    def _convert_type(self, schema: Mapping[str, Any]) -> Schema:
        """Return the structural schema for a schema of a single type, without description and default.

        If the type is unknown, any value is allowed.
        """
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        type_name = schema.get("type") or (_TYPES.get(type(values[0])) if values else None)
        if type_name == "null":
            return {"nullable": True}
        if type_name is None:
            return {_ANY_VALUE: True}
        converted: Schema = {"type": type_name}
        if values:
            converted["enum"] = list(values)
        for key in ("pattern", "format", *_BOUNDS):
            if key in schema:
                converted[key] = schema[key]
        # pydantic writes `exclusiveMinimum: 0`, and Kubernetes `minimum: 0` with `exclusiveMinimum: true`.
        for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if exclusive not in schema:
                continue
            bound, inclusive_bound = schema[exclusive], converted.get(inclusive)
            stricter = _BOUNDS[inclusive]
            if inclusive_bound is None or stricter(bound, inclusive_bound) == bound:
                converted |= {inclusive: bound, exclusive: True}
        if type_name == "array":
            converted["items"] = self.convert(schema.get("items", {}))
        if type_name == "object":
            converted |= self._convert_fields(schema)
        return converted

    def _convert_fields(self, schema: Mapping[str, Any]) -> Schema:
        """Return the part of an object's structural schema for its fields.

        These are `properties` if their names are known, `additionalProperties` if only the type of their values is, or else
        any fields.
        """
        if "properties" in schema:
            converted: Schema = {"properties": {key: self.convert(field) for key, field in schema["properties"].items()}}
            return converted | ({"required": list(schema["required"])} if schema.get("required") else {})
        value_schemas = [*schema.get("patternProperties", {}).values()]
        if isinstance(schema.get("additionalProperties"), dict):
            value_schemas.append(schema["additionalProperties"])
        if not value_schemas:
            return {_ANY_VALUE: True}
        return {"additionalProperties": _union([self.convert(value_schema) for value_schema in value_schemas])}


def _union(forms: Sequence[Schema]) -> Schema:
    """Return the narrowest structural schema that allows all values of several structural schemas.

    Kubernetes allows one type for each value, except integer or string. So for other types, any value is allowed: the union
    of {"type": "string"} and {"type": "boolean"} has only the keyword `_ANY_VALUE`.
    """
    nullable = {"nullable": True} if any(form.get("nullable") for form in forms) else {}
    alternatives = [{key: value for key, value in form.items() if key != "nullable"} for form in forms]
    alternatives = [form for form in alternatives if form]  # that of null is empty now
    texts = list(dict.fromkeys(form["description"] for form in alternatives if form.get("description")))
    description = {"description": " Or: ".join(texts)} if texts else {}
    types = {form.get("type") for form in alternatives}
    if types == {"integer", "string"}:
        return {_INT_OR_STRING: True, **description, **nullable}
    if types == {"integer", "number"}:
        types = {"number"}
    if len(types) != 1 or None in types:  # a form without a type allows any value
        return {_ANY_VALUE: True, **description, **nullable}
    (type_name,) = types
    if len(alternatives) == 1:
        return _without_nullable_enum({**alternatives[0], **nullable})
    merged: Schema = {"type": type_name, **description, **nullable}
    # A restriction is kept if all alternatives have the same. Different enums are merged.
    for key in ("enum", "pattern", "format", *_BOUNDS, "exclusiveMinimum", "exclusiveMaximum"):
        restrictions = [form.get(key) for form in alternatives]
        if restrictions[0] is not None and all(restriction == restrictions[0] for restriction in restrictions):
            merged[key] = restrictions[0]
        elif key == "enum" and None not in restrictions:
            merged[key] = list(dict.fromkeys(value for values in restrictions if values for value in values))
    if type_name == "array":
        merged["items"] = _union([form["items"] for form in alternatives])
    if type_name == "object":
        merged |= _merge_objects(alternatives)
    return _without_nullable_enum(merged)


def _without_nullable_enum(schema: Schema) -> Schema:
    """Return a schema without its enum if it is nullable, because the API server refuses a nullable enum."""
    return {key: value for key, value in schema.items() if key != "enum" or not schema.get("nullable")}


def _merge_objects(forms: Sequence[Schema]) -> Schema:
    """Return the part for the fields of several objects' schemas in their union. A field is required if all require it."""
    if any("properties" not in form for form in forms):
        value_schemas = [form["additionalProperties"] for form in forms if "additionalProperties" in form]
        has_all = len(value_schemas) == len(forms)
        return {"additionalProperties": _union(value_schemas)} if has_all else {_ANY_VALUE: True}
    keys = dict.fromkeys(key for form in forms for key in form["properties"])
    fields = {key: _union([form["properties"][key] for form in forms if key in form["properties"]]) for key in keys}
    required = [key for key in forms[0].get("required", ()) if all(key in form.get("required", ()) for form in forms)]
    return {"properties": fields} | ({"required": required} if required else {})


def as_yaml() -> str:
    """Return the CustomResourceDefinition as the text of the chart's file."""
    comment = "# Made by `python -m trialplane.plan.crd`, from the models of the job and of the Run; do not edit.\n"
    return comment + yaml.safe_dump(definition(), sort_keys=False, allow_unicode=True, width=120)


if __name__ == "__main__":
    sys.stdout.write(as_yaml())
