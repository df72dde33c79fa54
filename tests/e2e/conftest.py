"""A real cluster: the chart in a namespace of its own with two teams, `platform` and `kubectl` as their users type them.

`TRIALPLANE_E2E_CONTEXT` names a kubeconfig context with KubeRay's operator and the two images
(`trialplane/controller:dev`, `trialplane/trial:dev`); without it these tests are skipped. `TRIALPLANE_E2E_VALUES` is a file
of values for the chart beside values-kind.yaml; with values-nodes.yaml runs come to all nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLATFORM = Path(sysconfig.get_path("scripts")) / "platform"
CHART = ROOT / "charts" / "platform"
CONTEXT = os.environ.get("TRIALPLANE_E2E_CONTEXT", "")
CONTROL = os.environ.get("TRIALPLANE_E2E_NAMESPACE", "trialplane-e2e")
TEAM, OTHER = f"{CONTROL}-team", f"{CONTROL}-other"  # the namespaces of two teams
USERS = {TEAM: "ada", OTHER: "cleo"}
VALUES = [CHART / "values-kind.yaml", *map(Path, filter(None, [os.environ.get("TRIALPLANE_E2E_VALUES")]))]
RELEASE = "platform"
POLL = 1.0  # seconds; the cluster is asked, it tells nobody by itself
# An API server on a busy machine may answer nobody for half a minute. What kubectl prints then was never sent, so any of its
# commands may be repeated, as may a verb that only reads.
OUTAGE = 120.0  # seconds
UNREACHABLE = ("Unable to connect to the server", "cannot be reached")
READS = frozenset({"status", "results", "list", "logs", "best", "doctor"})

# Says what it does in its log; a step takes as long as the test wants.
JOB = """
import time

def run(ctx):
    for step in range(3):
        time.sleep(ctx.params["pause"])
        print("step", step, flush=True)
        ctx.report(step, score=ctx.params["x"] * (step + 1))
    return {"score": ctx.params["x"]}
"""
SPEC = """
kind: hpo
params: {pause: 0.3}
space:
  x: {type: float, low: 0.0, high: 1.0}
objectives: [{metric: score, direction: maximize}]
trials: 6
parallel: 2
seed: 3
retries: {crashed: 5, lost: 9}
resources: {cpus: 1, memory: 512Mi}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(900))
            if not CONTEXT:
                item.add_marker(pytest.mark.skip(reason="TRIALPLANE_E2E_CONTEXT names no cluster"))


# For a program that runs in a pod: whether it can connect to an address.
REACHES = """
import socket
def reaches(host, port):
    try:
        socket.create_connection((host, int(port)), timeout=4).close()
        return True
    except OSError:
        return False
"""


def reached(run: Callable[[], subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    """Runs a command again for as long as the API server cannot be reached; gives what it printed in the end."""
    deadline = time.monotonic() + OUTAGE
    while True:
        done = run()
        if done.returncode == 0 or time.monotonic() > deadline or not any(said in done.stderr for said in UNREACHABLE):
            return done
        time.sleep(POLL)


def seen(context: str, kinds: str) -> str:
    """Objects of all namespaces, for whoever reads why a test failed."""
    words = ["kubectl", "--context", context, "get", kinds, "--all-namespaces", "--output", "wide"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


class Cluster:
    """One namespace of a cluster, from outside."""

    def __init__(self, namespace: str, home: Path, context: str = CONTEXT) -> None:
        self.namespace = namespace
        self.context = context
        self.home = home
        self.environ = {**os.environ, "TRIALPLANE_HOME": str(home), "COLUMNS": "200"}

    def at(self, namespace: str) -> Cluster:
        """Another namespace of it."""
        return Cluster(namespace, self.home, self.context)

    @property
    def control(self) -> Cluster:
        """The namespace of the chart's own pods."""
        return self.at(CONTROL)

    def command(self, *words: str) -> list[str]:
        """A verb of `platform` with this cluster named."""
        return [str(PLATFORM), *words, "--context", self.context, "--namespace", self.namespace]

    def platform(self, *words: str, code: int = 0, cwd: Path = ROOT, timeout: float = 600) -> str:
        """Run a verb; return its stdout, and stderr too when it should fail."""

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                self.command(*words), cwd=cwd, env=self.environ, capture_output=True, text=True, timeout=timeout, check=False
            )

        done = reached(run) if words[0] in READS else run()
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stdout + done.stderr

    def said(self, *words: str, **options: Any) -> Any:
        """Run a verb; return the JSON that it prints."""
        return json.loads(self.platform(*words, "--output", "json", **options))

    def kubectl(self, *words: str, stdin: str | None = None, code: int = 0, timeout: float = 180) -> str:
        command = ["kubectl", "--context", self.context, "--namespace", self.namespace, *words]
        done = reached(
            lambda: subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        )
        assert done.returncode == code, f"kubectl {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stdout + done.stderr

    def objects(self, kind: str, **labels: str) -> list[dict[str, Any]]:
        chosen = ",".join(f"trialplane.io/{name}={value}" for name, value in labels.items())
        things: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-l", chosen, "-o", "json"))["items"]
        return things

    def running(self, **labels: str) -> list[str]:
        """Names of pods that run and are not being deleted."""
        return [
            pod["metadata"]["name"]
            for pod in self.objects("pods", **labels)
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    def status(self, run: str) -> dict[str, Any]:
        status: dict[str, Any] = self.said("status", run)
        return status

    def ended(self, run: str) -> int:
        status = self.status(run)
        return int(status["complete"]) + int(status["pruned"]) + int(status["failed"])

    def connects(self, pod: dict[str, Any], addresses: Sequence[tuple[str, int]]) -> list[bool]:
        """Whether a trial's pod can connect to each address."""
        code = f"{REACHES}\nimport json\nprint(json.dumps([reaches(*one) for one in {list(addresses)!r}]))"
        said = self.kubectl("exec", pod["metadata"]["name"], "-c", "ray-worker", "--", "python", "-c", code)
        results: list[bool] = json.loads(said.splitlines()[-1])
        return results

    def until(self, description: str, holds: Callable[[], Any], patience: float = 300) -> Any:
        """Waits for something that a cluster does in its own time."""
        deadline = time.monotonic() + patience
        while True:
            value = holds()
            if value:
                return value
            if time.monotonic() > deadline:
                error = AssertionError(f"after {patience:g} s: no {description}")
                error.add_note(seen(self.context, "nodes,runs.trialplane.io,pods,events"))
                raise error
            time.sleep(POLL)

    def job(self, folder: Path, code: str = JOB, spec: str = SPEC) -> str:
        """Writes a job; gives its folder as `submit` takes it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.py").write_text(code)
        (folder / "job.yaml").write_text(spec)
        return str(folder)

    def check_exact(self, run: str, trials: int) -> list[dict[str, Any]]:
        """As many logical trials ended as were asked for, each once; gives the attempts."""
        rows: list[dict[str, Any]] = self.said("results", run)
        assert sorted(row["trial"] for row in rows) == list(range(trials))
        assert {row["state"] for row in rows} <= {"COMPLETE", "PRUNED"}
        return rows


def helm(*words: str, timeout: float = 600) -> str:
    done = subprocess.run(
        ["helm", "--kube-context", CONTEXT, *words], cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"helm {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(*more: str) -> str:
    """Installs or upgrades the chart as the README says, with two teams of one user each."""
    words = ["upgrade", "--install", RELEASE, str(CHART), "--namespace", CONTROL, "--create-namespace", "--wait"]
    values = [word for file in VALUES for word in ("--values", str(file))]
    for index, (namespace, user) in enumerate(USERS.items()):
        words += ["--set", f"teams[{index}].namespace={namespace}"]
        words += ["--set", f"teams[{index}].users[0].kind=User,teams[{index}].users[0].name={user}"]
    try:
        return helm(*words, "--timeout", "8m", *values, *more)
    except AssertionError as error:  # helm says that it waited, not for what
        error.add_note(seen(CONTEXT, "nodes,pods,pvc,events"))
        raise


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The first team's namespace, with the chart; all is left standing when TRIALPLANE_E2E_KEEP is set."""
    install()
    yield Cluster(TEAM, tmp_path_factory.mktemp("home"))
    if not os.environ.get("TRIALPLANE_E2E_KEEP"):
        helm("uninstall", RELEASE, "--namespace", CONTROL, "--wait")
        gone = ["kubectl", "--context", CONTEXT, "delete", "namespace", CONTROL, TEAM, OTHER, "--wait=false"]
        subprocess.run(gone, check=True)


@pytest.fixture(scope="session")
def other(cluster: Cluster) -> Cluster:
    """The second team's namespace."""
    return cluster.at(OTHER)
