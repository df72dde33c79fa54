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
FREE |= {"dashboardLabels"}


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
        ({"teams": [{"namespace": "a", "users": [{"kind": "Person", "name": "ada"}]}]}, "kind"),
        ({"teams": [{"name": "a"}]}, "namespace"),
        ({"teams": [{"namespace": "A"}]}, "namespace"),
        ({"teams": [{"namespace": "a", "queue": {"name": "a"}}]}, "clusterQueue"),
        ({"teams": [{"namespace": "a", "runs": {"sise": "1Gi"}}]}, "sise"),
        ({"admission": {"actions": ["Deny", "Warn"]}}, "actions"),
        ({"postgresql": {"image": {"digest": "latest"}}}, "digest"),
        ({"networkPolicy": {"trial": {"egres": []}}}, "egres"),
        # It would stand in a ConfigMap.
        ({"mlflow": {"enabled": False, "trackingUri": "https://ada:secret@mlflow"}}, "trackingUri"),
        ({"admission": {"tokenAudiences": ["it's"]}}, "tokenAudiences"),
        ({"studies": {"install": {"index": "https://ada:secret@packages.example.org/simple"}}}, "index"),
        ({"studies": {"install": {"index": "packages.example.org"}}}, "index"),
        ({"studies": {"install": {"maxSize": "2 GB"}}}, "maxSize"),
        ({"checkpoints": {"url": "bucket/path"}}, "url"),
        ({"checkpoints": {"grace": "2 minutes"}}, "grace"),
        # Runs without a class have the priority 0 and could not preempt the warm pods.
        ({"priorityClasses": {"warm": 0}}, "warm"),
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
        (
            {"teams": [{"namespace": "control"}], "checkpoints": {"url": "s3://b", "secret": "platform-ledger"}},
            ["- checkpoints.secret: platform-ledger is a Secret of MLflow or a database, which no trial may read"],
        ),
        (
            {"teams": [{"namespace": "control", "checkpoints": {"url": "s3://b", "secret": "platform-ledger"}}]},
            ["- teams[0].checkpoints.secret: platform-ledger is a Secret"],
        ),
        (
            {
                "teams": [
                    {"namespace": "a", "checkpoints": {"url": "s3://b/c"}},
                    {"namespace": "b", "checkpoints": {"url": "s3://b/c/"}},
                ]
            },
            ["teams[1].checkpoints.url: s3://b/c is that of teams[0] (a) too"],
        ),
        (
            {
                "teams": [{"namespace": "a"}, {"namespace": "b", "checkpoints": {"url": "s3://b/a"}}],
                "checkpoints": {"url": "s3://b"},
            },
            ["teams[1].checkpoints.url: s3://b/a is that of teams[0] (a) too"],
        ),
        ({"networkPolicy": {"apiServer": {"fromHeads": False}}}, ["- studies.autoscale is true"]),
        (
            {
                "teams": [{"namespace": "a", "studies": {"autoscale": True}}],
                "studies": {"autoscale": False},
                "networkPolicy": {"apiServer": {"fromHeads": False}},
            },
            ["- teams[0].studies.autoscale is true", "--set 'teams[0].studies.autoscale=false'"],
        ),
        (
            {"studies": {"install": {"enabled": True}}},
            ["studies.install.enabled is true for teams[0]", "studies.install.index"],
        ),
        (
            {"teams": [{"namespace": "a"}, {"namespace": "b", "studies": {"install": {"enabled": True}}}]},
            ["studies.install.enabled is true for teams[1] (b)"],
        ),
        ({"teams": []}, ["teams:\n      - namespace: vision", "--set 'teams[0].namespace=vision'"]),
        ({"teams": [{"namespace": "a"}, {"namespace": "b"}, {"namespace": "a"}]}, ["teams[2].namespace: a is there twice"]),
        ({"teams": [{"namespace": "kube-system"}]}, ["is for Kubernetes itself"]),
        ({"teams": [{"namespace": "public"}]}, ["PostgreSQL's default schema"]),
        (
            {"teams": [{"namespace": "a", "checkpoints": {"enabled": True, "url": "s3://b"}}]},
            ["teams[0].checkpoints.url and teams[0].checkpoints.enabled are two places"],
        ),
        ({"metrics": {"enabled": True}}, ["Prometheus operator", "metrics.check=false"]),
        ({"metrics": {"alerts": True}}, ["Prometheus operator", "metrics.alerts=false"]),
        ({"metrics": {"enabled": True, "check": False}}, ["networkPolicy.prometheusNamespace"]),
    ],
)
def test_contradictions_are_explained(template: Template, values: dict[str, Any], told: list[str]) -> None:
    done = template(values)
    assert done.returncode != 0
    for part in told:
        assert part in done.stderr


def test_what_only_some_teams_have_is_no_contradiction(template: Template) -> None:
    values = {
        "teams": [{"namespace": "a", "studies": {"autoscale": False}}],
        "networkPolicy": {"apiServer": {"fromHeads": False}},
        "checkpoints": {"url": "s3://b", "secret": "platform-ledger"},  # in the team's namespace, and its own
    }
    assert template(values).returncode == 0


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
    teams, _, others = (chart / "README.md").read_text().partition("\n## Values\n")
    named = re.findall(r"^\| `([\w.]+)`", others, re.M)
    assert len(named) > 15
    schema = json.loads((chart / "values.schema.json").read_text())["definitions"]["team"]["properties"]
    rows = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`[^|]*) \|", teams, re.M)]
    assert [name for row in rows for name in row] == list(schema)
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


def test_connections_to_postgresql_that_do_not_add_up_are_refused(template: Template) -> None:
    def rendered(most: int) -> subprocess.CompletedProcess[str]:
        return template({"postgresql": {"parameters": {"max_connections": str(most)}}})

    assert rendered(292).returncode == 0
    assert "max_connections is 291, and gateways, operators and MLflow may take 292 together" in rendered(291).stderr
