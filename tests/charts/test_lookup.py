"""What an upgrade finds in the cluster before it changes anything: runs of a team that is not in the list any more, and the
cluster's default PriorityClass.

By Helm against an API server of a few objects; with a real one tests/e2e/test_upgrade.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.conftest import CHART, CONTROL

from trialplane.plan.site import Site
from trialplane.wire import cluster

KINDS = {
    "namespaces": "Namespace",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "rayclusters": "RayCluster",
    "priorityclasses": "PriorityClass",
}
GROUPS = {"/apis/ray.io/v1": ("RayCluster",), "/apis/scheduling.k8s.io/v1": ("PriorityClass",)}
CORE = tuple(kind for kind in KINDS.values() if not any(kind in kinds for kinds in GROUPS.values()))


class Cluster:
    """An API server that knows of some objects.

    Attributes:
        found: by path below a version; a list for all of a kind.
    """

    def __init__(self, folder: Path) -> None:
        self.found: dict[str, Any] = {}
        double = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
                return

            def do_GET(self) -> None:
                found = double.answer(self.path.partition("?")[0])
                body = json.dumps(
                    found or {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
                ).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self._kubeconfig = folder / "kubeconfig"
        address = f"http://127.0.0.1:{self._server.server_port}"
        self._kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "ada"}}],
                    "clusters": [{"name": "here", "cluster": {"server": address}}],
                    "users": [{"name": "ada", "user": {}}],
                }
            )
        )

    def answer(self, path: str) -> Any:
        """What is at a path of the API; None for nothing."""
        if kinds := {**GROUPS, "/api/v1": CORE}.get(path):
            clusterwide = ("Namespace", "PriorityClass")
            resources = [
                {"name": name, "kind": kind, "namespaced": kind not in clusterwide, "verbs": ["get", "list"]}
                for name, kind in KINDS.items()
                if kind in kinds
            ]
            return {"kind": "APIResourceList", "groupVersion": path.split("/", 2)[2], "resources": resources}
        *_, last = path.split("/")
        found = self.found.get(path)
        if last in KINDS:
            return {"kind": f"{KINDS[last]}List", "apiVersion": "v1", "items": found or []}
        return found

    def template(self, *teams: str) -> subprocess.CompletedProcess[str]:
        """An upgrade with these teams, each in a namespace that is there."""
        words = ["helm", "template", "platform", str(CHART), "--namespace", CONTROL, "--dry-run=server"]
        words += ["--api-versions", "ray.io/v1", "--set-json"]
        words.append(f"teams={json.dumps([{'namespace': team} for team in teams])}")
        given = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        return subprocess.run(words, env=given, capture_output=True, text=True, timeout=300, check=False)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _thing(kind: str, name: str, **labels: str) -> dict[str, Any]:
    version = next((path.removeprefix("/apis/") for path, kinds in GROUPS.items() if kind in kinds), "v1")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}}


@pytest.fixture(name="there")
def _there(tmp_path: Path) -> Iterator[Cluster]:
    """With a namespace that the release made, its own, one of another release, and one that is nobody's; each with a run."""
    made = Cluster(tmp_path)
    labels = {"vision": {cluster.CONTROL: CONTROL}, CONTROL: {}, "others": {cluster.CONTROL: "elsewhere"}, "free": {}}
    made.found["/api/v1/namespaces"] = [_thing("Namespace", name, **its) for name, its in labels.items()]
    for name in labels:
        of_run = _thing("RayCluster", f"toy-of-{name}", **{cluster.RUN: f"toy-of-{name}"})
        path = f"/apis/ray.io/v1/namespaces/{name}/rayclusters"
        made.found[path] = [of_run, _thing("RayCluster", "somebodys-own")]
    yield made
    made.close()


@pytest.mark.parametrize(("dropped", "other"), [("vision", CONTROL), (CONTROL, "vision")])
def test_a_team_whose_runs_have_pods_is_not_dropped(there: Cluster, dropped: str, other: str) -> None:
    done = there.template("speech", other)
    assert done.returncode != 0
    said = f"teams: {dropped} is not in the list any more, and runs there have pods (toy-of-{dropped}): they would wait"
    assert said in done.stderr and f"`platform cancel RUN --namespace {dropped}` each" in done.stderr
    assert f"toy-of-{other}" not in done.stderr
    assert "toy-of-others" not in done.stderr and "toy-of-free" not in done.stderr and "somebodys-own" not in done.stderr


def test_a_team_whose_runs_are_over_is(there: Cluster) -> None:
    del there.found["/apis/ray.io/v1/namespaces/vision/rayclusters"]
    done = there.template("speech", CONTROL)
    assert done.returncode == 0, done.stderr


def test_the_clusters_default_priority_class_is_allowed(there: Cluster) -> None:
    """For Kubernetes gives it to every pod that names none."""
    default = {**_thing("PriorityClass", "everybody"), "globalDefault": True}
    there.found["/apis/scheduling.k8s.io/v1/priorityclasses"] = [default, _thing("PriorityClass", "urgent")]
    done = there.template("vision", CONTROL)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]
    (site, _) = (one["data"][cluster.SITE_KEY] for one in objects if one["metadata"]["name"] == cluster.SITE)
    assert Site.read(site, "vision").allowed.priority_classes == ("everybody",)
