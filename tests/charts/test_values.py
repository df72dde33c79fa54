"""Values: a typing error anywhere is refused by name, contradictions and a cluster without KubeRay are explained, and every
value is described where it stands.

Not checked here: what the values do (the other files of this folder).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

Template = Callable[..., subprocess.CompletedProcess[str]]
# Maps whose keys are the user's; so are those below `serviceAccounts`.
FREE = {"nodeSelector", "podAnnotations", "affinity", "env", "hard", "labels", "requests", "limits", "parameters"}


def _values(chart: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((chart / "values.yaml").read_text())
    return values


def _maps(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for key, value in tree.items():
        if isinstance(value, dict) and key not in FREE and path != ("serviceAccounts",):
            yield from _maps(value, (*path, key))


def _at(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    made: dict[str, Any] = value
    return made


def test_a_typing_error_is_refused_at_every_place(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    checker = jsonschema.Draft7Validator(schema)
    values = _values(chart)
    assert not list(checker.iter_errors(values))
    paths = list(_maps(values))
    assert len(paths) > 30
    for path in paths:
        errors = list(checker.iter_errors(_at((*path, "typo"), 1)))
        assert any("typo" in error.message for error in errors), path


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"mlflow": {"worker": 2}}, "worker"),
        ({"mlflow": {"workers": "two"}}, "workers"),
        ({"image": {"pullPolicy": "Allways"}}, "pullPolicy"),
        ({"runs": {"accessModes": ["RWX"]}}, "accessModes"),
        ({"runs": {"size": "10 GB"}}, "size"),
        ({"studies": {"env": {"A": 1}}}, "env"),
        ({"users": [{"kind": "Person", "name": "ada"}]}, "kind"),
        ({"admission": {"actions": ["Deny", "Warn"]}}, "actions"),
        ({"postgresql": {"image": {"digest": "latest"}}}, "digest"),
        ({"networkPolicy": {"trial": {"egres": []}}}, "egres"),
        # It would stand in a ConfigMap.
        ({"mlflow": {"enabled": False, "trackingUri": "https://ada:secret@mlflow"}}, "trackingUri"),
        ({"admission": {"tokenAudiences": ["it's"]}}, "tokenAudiences"),
        ({"checkpoints": {"url": "bucket/path"}}, "url"),
        ({"checkpoints": {"grace": "2 minutes"}}, "grace"),
    ],
)
def test_helm_names_the_wrong_value(template: Template, values: dict[str, Any], told: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert told in done.stderr


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"postgresql": {"enabled": False}}, ["externalDatabase.ledger.secret", "externalDatabase.mlflow.secret"]),
        ({"externalDatabase": {"ledger": {"secret": "db"}}}, ["postgresql.enabled=false"]),
        ({"mlflow": {"enabled": False}}, ["mlflow.trackingUri"]),
        ({"mlflow": {"trackingUri": "http://mlflow"}}, ["mlflow.enabled=false"]),
        ({"mlflow": {"replicas": 2}}, ["mlflow.artifacts.uri", "ReadWriteMany"]),
        ({"checkpoints": {"enabled": True, "url": "s3://b"}}, ["checkpoints.enabled=false"]),
        ({"checkpoints": {"secret": "s3"}}, ["checkpoints.url names none"]),
        ({"checkpoints": {"url": "s3://b", "secret": "platform-ledger"}}, ["no trial may read"]),
        ({"metrics": {"enabled": True}}, ["Prometheus operator", "metrics.check=false"]),
        ({"metrics": {"enabled": True, "check": False}}, ["networkPolicy.prometheusNamespace"]),
    ],
)
def test_contradictions_are_explained(template: Template, values: dict[str, Any], told: list[str]) -> None:
    done = template(values)
    assert done.returncode != 0
    for part in told:
        assert part in done.stderr


def test_a_cluster_without_kuberay_is_told_what_to_install(template: Template) -> None:
    done = template({}, "--api-versions", "batch/v1")
    assert done.returncode != 0
    assert "install the KubeRay operator (1.6 or newer)" in done.stderr
    assert template({"kuberay": {"check": False}}, "--api-versions", "batch/v1").returncode == 0


def test_all_complaints_come_at_once(template: Template) -> None:
    done = template({"postgresql": {"enabled": False}, "mlflow": {"enabled": False}}, "--api-versions", "batch/v1")
    for part in ("KubeRay", "externalDatabase.ledger.secret", "mlflow.trackingUri"):
        assert part in done.stderr


def test_the_readme_names_values_that_there_are(chart: Path) -> None:
    values = _values(chart)
    named = re.findall(r"^\| `([\w.]+)`", (chart / "README.md").read_text(), re.M)
    assert len(named) > 15
    for name in named:
        place: Any = values
        for key in name.split("."):
            assert key in place, name
            place = place[key]


def test_the_examples_of_the_readme_render(chart: Path, template: Template) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (chart / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        done = template(yaml.safe_load(block), "--api-versions", "ray.io/v1", "--api-versions", "monitoring.coreos.com/v1")
        assert done.returncode == 0, done.stderr
