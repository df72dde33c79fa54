"""The chart rendered by Helm for several sets of values, as plain objects; without Helm on PATH these tests are skipped."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "platform"
CONTROL = "control"  # the release's namespace
TEAM = "studies"  # that of the one team, where values name none
Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]

# By what they show. `values-kind.yaml` is one more.
SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "kind": yaml.safe_load((CHART / "values-kind.yaml").read_text()),
    "cloud": {
        "teams": [
            {
                "namespace": TEAM,
                "users": [{"kind": "User", "name": "ada"}, {"kind": "ServiceAccount", "name": "ci"}],
                "quota": {"pods": "200"},
                "warm": {"pods": 2, "requests": {"nvidia.com/gpu": "1"}},
            }
        ],
        "image": {
            "pullSecrets": ["registry"],
            "prePull": {"enabled": True, "images": ["team/vision:1"]},
            "controller": {"repository": "team/controller", "tag": "1"},
            "trial": {"repository": "team/trial", "digest": "sha256:" + "0" * 64},
        },
        "studies": {
            "controller": {"cpus": 2, "memory": "4Gi"},
            "queue": "team-a",
            "priorityClass": "research",
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "env": {"HTTPS_PROXY": "http://proxy:3128"},
        },
        "runs": {"storageClass": "nfs", "size": "500Gi"},
        "data": {"enabled": True, "existingClaim": "datasets"},
        "checkpoints": {"url": "s3://bucket/checkpoints", "secret": "checkpoints-s3", "grace": 300},
        "mlflow": {
            "replicas": 2,
            "artifacts": {"uri": "s3://bucket/mlflow"},
            "extraEnvFrom": [{"secretRef": {"name": "s3-credentials"}}],
        },
        "gateway": {
            "nodeSelector": {"pool": "services"},
            "tls": {"secret": "gateway-tls", "ca": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"},
        },
        "serviceAccounts": {"mlflow": {"example.org/role": "artifacts"}},
        "networkPolicy": {
            "apiServer": {"cidrs": ["10.0.0.1/32"], "fromHeads": True},
            "prometheusNamespace": "monitoring",
            "trial": {"egress": [{"ports": [{"port": 443}]}]},
        },
        "priorityClasses": {"enabled": True, "warm": -2000},
        "metrics": {"enabled": True, "check": False, "labels": {"release": "prometheus"}, "alerts": True, "dashboard": True},
    },
    "outside": {
        "postgresql": {"enabled": False},
        "externalDatabase": {"ledger": {"secret": "studies-db", "key": "dsn"}},
        "mlflow": {"enabled": False, "trackingUri": "https://mlflow.example.org", "existingSecret": "mlflow-login"},
    },
    "two": {
        "teams": [
            {
                "namespace": "vision",
                "labels": {"cost": "1"},
                "annotations": {"who": "ada"},
                "users": [{"kind": "Group", "name": "vision"}, {"kind": "User", "name": "ada"}],
                "quota": {"requests.nvidia.com/gpu": 16},
                "limits": [{"type": "Container", "defaultRequest": {"cpu": "100m"}}],
                "queue": {"name": "vision", "clusterQueue": "gpus"},
                "priorityClass": "high",
                "studies": {"nodeSelector": {"pool": "a100"}},
                "runs": {"enabled": False},
                "data": {"enabled": True, "existingClaim": "images"},
                "checkpoints": {"enabled": True},
            },
            {
                "namespace": "speech",
                "create": False,
                "users": [{"kind": "User", "name": "ada"}, {"kind": "ServiceAccount", "name": "ci"}],
                "checkpoints": {"url": "s3://speech/checkpoints", "ports": [9000]},
            },
        ],
        "studies": {"queue": "everybody"},
        "priorityClasses": {"enabled": True},
    },
    # The namespace of the release is a team's too.
    "own": {"teams": [{"namespace": CONTROL}, {"namespace": TEAM}]},
    "bare": {
        "runs": {"enabled": False},
        "keepVolumes": False,
        "admission": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "podSecurity": {"check": False},
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and shutil.which("helm") is None:
            item.add_marker(pytest.mark.skip(reason="helm is not on PATH"))


@pytest.fixture(scope="session", name="chart")
def _chart() -> Path:
    return CHART


@pytest.fixture(scope="session", name="helm")
def _helm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Helm with values in a file, and one team where they name none; gives what it did."""
    folder = tmp_path_factory.mktemp("values")

    def run(*words: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        file = folder / "values.yaml"
        file.write_text(json.dumps({"teams": [{"namespace": TEAM}], **(values or {})}))
        return subprocess.run(
            ["helm", *words, "--values", str(file)], capture_output=True, text=True, timeout=300, check=False
        )

    return run


@pytest.fixture(scope="session", name="template")
def _template(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`helm template` as for a cluster with KubeRay."""

    def run(values: dict[str, Any], *more: str, release: str = "platform") -> subprocess.CompletedProcess[str]:
        words = ("template", release, str(CHART), "--namespace", CONTROL, "--kube-version", "1.34.0")
        return helm(*words, *(more or ("--api-versions", "ray.io/v1")), values=values)

    return run


@pytest.fixture(scope="session", name="render")
def _render(template: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """The objects for a set of values."""
    rendered: dict[str, list[Thing]] = {}

    def run(values: dict[str, Any]) -> list[Thing]:
        key = json.dumps(values, sort_keys=True)
        if key not in rendered:
            done = template(values)
            assert done.returncode == 0, done.stderr
            rendered[key] = [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]
        return rendered[key]

    return run


@pytest.fixture(params=SETS, name="values")
def _values(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SETS[request.param]


@pytest.fixture(name="objects")
def _objects(render: Render, values: dict[str, Any]) -> list[Thing]:
    """Render the chart with one of the sets of values."""
    return render(values)


@pytest.fixture(scope="session", name="sets")
def _sets() -> dict[str, dict[str, Any]]:
    return SETS


@pytest.fixture(scope="session", name="pods")
def _pods() -> Callable[[list[Thing]], Iterator[tuple[str, Thing]]]:
    """All pods of rendered objects: the name of what makes them, and metadata with spec."""

    def found(objects: list[Thing]) -> Iterator[tuple[str, Thing]]:
        for thing in objects:
            if thing["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
                yield thing["metadata"]["name"], thing["spec"]["template"]
            elif thing["kind"] == "Pod":
                yield thing["metadata"]["name"], thing

    return found


@pytest.fixture(scope="session", name="named")
def _named() -> Callable[..., Thing]:
    """The one object of a kind and a name, in whatever namespace or in one."""

    def found(objects: list[Thing], kind: str, name: str, namespace: str = "") -> Thing:
        (thing,) = (
            thing
            for thing in objects
            if (thing["kind"], thing["metadata"]["name"]) == (kind, name)
            and namespace in ("", thing["metadata"].get("namespace", CONTROL))
        )
        return thing

    return found
