"""The CRD of Runs: up to date in the chart, structural as Kubernetes defines that, and wide enough for every shipped job.

Not here: an API server that takes it, and its CEL rules (seen on kind; tests/e2e).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from trialplane.job import load
from trialplane.plan import crd
from trialplane.plan import plan as planning
from trialplane.plan import run as runs
from trialplane.plan.plan import Provenance

ROOT = Path(__file__).parents[2]
FILE = ROOT / "charts" / "platform" / "crds" / "runs.yaml"
JOBS = sorted((ROOT / "jobs").glob("*/job.yaml"))
OPEN, INT_OR_STRING = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"
# What a node of a structural schema may have, as far as it is used here.
WORDS = {
    *(
        "type",
        "description",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "pattern",
        "format",
        "default",
    ),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "minLength", "maxLength"),
    *("nullable", OPEN, INT_OR_STRING),
    *("x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}
TYPES = {"object", "array", "string", "integer", "number", "boolean"}


@pytest.fixture(scope="module", name="schema")
def _schema() -> dict[str, Any]:
    (version,) = crd.definition()["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"])


def test_the_chart_has_the_newest() -> None:
    assert FILE.read_text() == crd.as_yaml(), "python -m trialplane.plan.crd > charts/platform/crds/runs.yaml"
    assert yaml.safe_load(FILE.read_text()) == crd.definition()


def complaints(node: dict[str, Any], where: str) -> Iterator[str]:
    """What Kubernetes would say against a node, and what the house asks: a description for each field that has a name."""
    if unknown := set(node) - WORDS:
        yield f"{where}: {sorted(unknown)}"
    is_open = node.get(OPEN) or node.get(INT_OR_STRING)
    if node.get("type") not in TYPES and not is_open:
        yield f"{where}: no type"
    if node.get(INT_OR_STRING) and "type" in node:
        yield f"{where}: int-or-string has no type"
    if node.get("nullable") and "enum" in node:
        yield f"{where}: null beside a list of values, which the API server refuses"
    if "properties" in node and "additionalProperties" in node:
        yield f"{where}: properties beside additionalProperties"
    if node.get("additionalProperties") in (True, False):
        yield f"{where}: additionalProperties is not a schema"
    if node.get("type") == "array" and "items" not in node:
        yield f"{where}: no items"
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if not isinstance(node.get(key, False), bool):
            yield f"{where}: {key} is not a boolean"
    for name in node.get("required", ()):
        if name not in node.get("properties", {}):
            yield f"{where}: {name} is required and unknown"
    for name, below in node.get("properties", {}).items():
        if not below.get("description") and where.startswith((".spec", ".status")):
            yield f"{where}.{name}: no description"
        yield from complaints(below, f"{where}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from complaints(node[key], f"{where}[]")


def test_it_is_structural_and_described(schema: dict[str, Any]) -> None:
    assert list(complaints(schema, "")) == []


@pytest.mark.parametrize(
    "node",
    [
        {},
        {"$ref": "#/$defs/A"},
        {"anyOf": [{"type": "string"}]},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}},
        {"type": "array"},
        {"type": "string", "nullable": True, "enum": ["a"]},
        {"type": "integer", "exclusiveMinimum": 0},
        {"type": "object", "properties": {}, "required": ["a"]},
    ],
)
def test_the_check_finds_what_is_not_structural(node: dict[str, Any]) -> None:
    assert list(complaints(node, ".spec"))


def as_json_schema(node: dict[str, Any]) -> dict[str, Any]:
    """What the API server accepts of a value and does not prune, for `jsonschema`."""
    made: dict[str, Any] = {key: node[key] for key in ("type", "required", "enum", "pattern", "minItems") if key in node}
    if node.get(INT_OR_STRING):
        made["type"] = ["integer", "string"]
    for key, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if key in node:
            made[exclusive if node.get(exclusive) else key] = node[key]
    if "items" in node:
        made["items"] = as_json_schema(node["items"])
    if "properties" in node:
        made["properties"] = {name: as_json_schema(below) for name, below in node["properties"].items()}
        made["additionalProperties"] = bool(node.get(OPEN))
    if "additionalProperties" in node:
        made["additionalProperties"] = as_json_schema(node["additionalProperties"])
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") else made


@pytest.mark.parametrize("file", JOBS, ids=[file.parent.name for file in JOBS])
def test_every_shipped_job_fits_and_nothing_of_it_is_pruned(schema: dict[str, Any], file: Path) -> None:
    job = load.load_job(file.parent)
    run, _ = runs.manifests(planning.plan(job, file.parent, "a", Provenance("", "", "")), "", 0.0)
    check = jsonschema.Draft202012Validator(as_json_schema(schema["properties"]["spec"]))
    assert [f"{error.json_path}: {error.message}" for error in check.iter_errors(run["spec"])] == []
    run["spec"]["job"]["unknown"] = 1
    assert list(check.iter_errors(run["spec"]))


def test_a_status_fits(schema: dict[str, Any]) -> None:
    condition = {"type": "Ready", "status": "True", "reason": "Working", "message": "", "observedGeneration": 1}
    condition["lastTransitionTime"] = "2026-11-23T01:00:00Z"
    status = runs.Status.model_validate({"state": "Running", "conditions": [condition]}).model_dump(mode="json")
    jsonschema.validate(status, as_json_schema(schema["properties"]["status"]))


@pytest.mark.parametrize(
    ("part", "node"),
    [
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"type": "integer", "nullable": True}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {INT_OR_STRING: True}),
        ({"anyOf": [{"type": "number"}, {"type": "string"}], "description": "A."}, {OPEN: True, "description": "A."}),
        ({"anyOf": [{"const": "a"}, {"enum": ["b"]}]}, {"type": "string", "enum": ["a", "b"]}),
        ({"anyOf": [{"enum": ["a"]}, {"type": "string"}]}, {"type": "string"}),
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, {"type": "string", "nullable": True}),
        ({"type": "object", "additionalProperties": True}, {"type": "object", OPEN: True}),
        (
            {"$ref": "#/$defs/A", "description": "B.", "$defs": {"A": {"type": "string"}}},
            {"type": "string", "description": "B."},
        ),
    ],
)
def test_schemas_become_structural(part: dict[str, Any], node: dict[str, Any]) -> None:
    assert crd.structural(part) == node
