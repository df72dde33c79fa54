"""A team's records in MLflow are out of reach of all others, by every endpoint that MLflow's own server lists, and viewers
change none; with a real server and Kubeflow's plugin, by the chart's roles.

A run of the same team may write them: the boundary is the team's. Not checked here: the API server's own RBAC and the
network (tests/e2e).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.gateway_site import STRANGER, TOKEN, VIEWER, Reply
from tests.gateway.mlflow_site import OTHER, Door, other, own, postgres, server, site

from trialplane.gateway import mlflow_paths
from trialplane.wire import ledger
from trialplane.wire import mlflow as wire

__all__ = ["other", "own", "postgres", "server", "site"]  # fixtures
pytestmark = [pytest.mark.services, pytest.mark.slow]

SECRET = "s3cr3t"  # is in all that the victim has, and in no request
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
GRAPHQL = "query Q($data: MlflowGetRunInput!) { mlflowGetRun(input: $data) { run { data { tags { key value } } } } }"
# Prints what MLflow's server lists: Flask's routes and FastAPI's.
LISTED = """
import json
from mlflow.server import app
from mlflow.server.fastapi_app import app as outer
found = {(method, rule.rule) for rule in app.url_map.iter_rules() for method in rule.methods}
for route in outer.routes:
    found |= {(method, route.path) for method in getattr(route, "methods", None) or ()}
print(json.dumps(sorted(found)))
"""
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclasses.dataclass(frozen=True)
class Records:
    """What a run of a team has in MLflow, and how requests name it."""

    run: str
    experiment: str
    model: str
    trace: str
    dataset: str
    root: str  # of its artifacts, as a path

    @property
    def names(self) -> dict[str, Any]:
        """By the names of fields and of parameters in paths."""
        location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": self.experiment}}
        return {
            **dict.fromkeys(("run_id", "run_uuid", "source_run_id"), self.run),
            **dict.fromkeys(("trace_id", "request_id"), self.trace),
            "run_ids": [self.run],
            "experiment_id": self.experiment,
            "experiment_ids": [self.experiment],
            "model_id": self.model,
            "trace_ids": [self.trace],
            "request_ids": [self.trace],
            "dataset_id": self.dataset,
            "experiment_name": "toy",
            "locations": [location],
            "name": "net",
            "version": "1",
            "key": "mark",
            "value": "theirs",
            "metric_key": "loss",
            "metric_keys": ["loss"],
            "alias": "best",
            "status": "FAILED",
            "path": "notes/secret.txt",
            "artifact_path": self.root.strip("/") + "/notes/secret.txt",
            "artifact_file_path": "notes/secret.txt",
            "metrics": [{"key": "loss", "value": 9.0, "timestamp": 1, "step": 9}],
            "tags": [{"key": "mark", "value": "theirs"}],
            "source": f"mlflow-artifacts:{self.root}",
            "max_results": 10,
            "max_timestamp_millis": 1 << 50,
            "stage": "Archived",
            "stages": ["None"],
            "new_name": "theirs",
            "description": "theirs",
            "workspace_name": "studies",
        }


@pytest.fixture
def victim(own: Door) -> Records:
    """A team's run with all kinds of records, each with the secret."""
    info = own.new_run(mark=SECRET)
    run, experiment, root = info["run_id"], info["experiment_id"], info["artifact_uri"].removeprefix("mlflow-artifacts:")
    own.done("experiments/set-experiment-tag", {"experiment_id": experiment, "key": "mark", "value": SECRET})
    own.done("runs/log-batch", {"run_id": run, "params": [{"key": "secret", "value": SECRET}]})
    own.done("runs/log-batch", {"run_id": run, "metrics": [{"key": "loss", "value": 0.5, "timestamp": 1, "step": 1}]})
    assert own.ask("PUT", f"{ARTIFACTS}{root}/notes/secret.txt", SECRET.encode()).code == 200
    assert own.ask("PUT", f"{ARTIFACTS}{root}/traces.json", json.dumps({"spans": [SECRET]}).encode()).code == 200
    tags = [{"key": "mark", "value": SECRET}]
    model = own.done("logged-models", {"experiment_id": experiment, "source_run_id": run, "name": "net", "tags": tags})
    known = own.call("registered-models/create", {"name": "net", "description": SECRET, "tags": tags})
    assert known.code == 200 or known.json()["error_code"] == "RESOURCE_ALREADY_EXISTS"
    body = {"name": "net", "run_id": run, "source": f"mlflow-artifacts:{root}", "description": SECRET}
    own.done("model-versions/create", body)
    trace = "tr-" + run
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    described = {"trace_id": trace, "trace_location": place, "request_time": "2026-01-01T00:00:00Z", "state": "OK"}
    described |= {"execution_duration": "0.1s", "tags": {"mark": SECRET}, "trace_metadata": {}}
    reply = own.ask("POST", "/api/3.0/mlflow/traces", {"trace": {"trace_info": described}})
    assert reply.code == 200, reply.data
    made = own.ask("POST", "/api/3.0/mlflow/datasets/create", {"name": f"d-{run}", "experiment_ids": [experiment]})
    assert made.code == 200, made.data
    return Records(run, experiment, model["model"]["info"]["model_id"], trace, made.json()["dataset"]["dataset_id"], root)


@functools.cache
def listed() -> list[tuple[str, str]]:
    done = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True, check=True)
    return [(method, path) for method, path in json.loads(done.stdout.splitlines()[-1]) if method in _METHODS]


def requests(victim: Records) -> list[tuple[str, str, Any]]:
    """One for each endpoint, which names all that the victim has wherever something can be named."""
    names, found = victim.names, []
    for method, template in listed():
        path = re.sub(r"[<{](?:path:)?(\w+)(?::path)?[>}]", lambda match: str(names.get(match[1], victim.run)), template)
        if method == "GET":
            plain = {name: value for name, value in names.items() if name not in ("locations", "metrics", "tags")}
            path += "?" + urllib.parse.urlencode(plain, doseq=True)
        found.append((method, path, None if method == "GET" else names))
    root = victim.root.strip("/")
    climbing = ("../../{}", "%2e%2e/%2e%2e/{}", "%252e%252e/{}", "workspaces%2Fother/../../{}", "./{}", "//{}", "..%5c{}")
    for method in ("GET", "PUT", "DELETE"):
        found += [(method, f"{ARTIFACTS}/{step.format(root)}/notes/secret.txt", None) for step in climbing]
    found += [("GET", f"{ARTIFACTS}?path={step}", None) for step in (root, "workspaces/studies", "../studies", "")]
    found.append(("POST", "/graphql", {"query": GRAPHQL, "variables": {"data": {"runId": victim.run}}}))
    found.append(("POST", "/graphql", {"query": "{ mlflowSearchRuns(input: {}) { runs { data { tags { value } } } } }"}))
    return found


def as_run(door: Door) -> Callable[[str, str, Any], Reply]:
    return lambda method, path, body: door.ask(method, path, body if method != "PUT" else json.dumps(body).encode())


def as_user(door: Door, token: str, namespace: str) -> Callable[[str, str, Any], Reply]:
    def ask(method: str, path: str, body: Any) -> Reply:
        sent = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", wire.WORKSPACE: "studies", "X-Remote-User": "trialplane-user"}
        target = f"{ledger.namespace_path(namespace)}{wire.UI}{path}"
        return door.site.ask(method, target, sent, token=token, **headers, **{"X-Remote-Groups": "trialplane:users:studies"})

    return ask


def state(own: Door, victim: Records) -> list[Any]:
    """All that somebody could have changed."""
    gets = [
        own.done("runs/get", {"run_id": victim.run}, get=True)["run"],
        own.done("experiments/get", {"experiment_id": victim.experiment}, get=True)["experiment"]["tags"],
        own.done("artifacts/list", {"run_id": victim.run, "path": "notes"}, get=True),
        own.done(f"logged-models/{victim.model}", {}, get=True),
        own.done("registered-models/get", {"name": "net"}, get=True),
        own.done("model-versions/get", {"name": "net", "version": "1"}, get=True),
    ]
    trace = own.ask("GET", f"/api/3.0/mlflow/traces/{victim.trace}").json()
    return [*gets, trace, own.ask("GET", f"{ARTIFACTS}{victim.root}/notes/secret.txt").data]


def test_the_secret_is_everywhere_for_the_team_itself(own: Door, victim: Records) -> None:
    """Else the tests below could not fail."""
    assert json.dumps(state(own, victim)[:-1]).count(SECRET) >= 7
    assert state(own, victim)[-1] == SECRET.encode()
    mate = Door(own.site, "other-1")  # another run of the same team
    user = as_user(own, TOKEN, "studies")
    for ask in (as_run(own), as_run(mate), user, as_user(own, VIEWER, "studies")):
        seen = [reply.code for reply in (ask(*one) for one in requests(victim)) if SECRET.encode() in reply.data]
        assert len(seen) >= 10, seen
        if ask is not user:
            break  # these would delete what the next ones look for


@pytest.mark.parametrize("who", ["run", "user", "stranger", "nobody", "another run's token"])
def test_another_team_sees_and_changes_nothing(own: Door, other: Door, victim: Records, who: str) -> None:
    before = state(own, victim)
    other.experiment()
    forged = Door(other.site, "own-1")
    forged.token = other.token
    ask = {
        "run": as_run(other),
        "user": as_user(own, STRANGER, OTHER),  # with its own namespace's door, and headers that claim the other
        "stranger": as_user(own, STRANGER, "studies"),
        "nobody": as_user(own, "", "studies"),
        "another run's token": as_run(forged),
    }[who]
    for method, path, body in requests(victim):
        reply = ask(method, path, body)
        assert SECRET.encode() not in reply.data, (method, path, reply.data)
        if who in ("stranger", "nobody", "another run's token"):
            assert reply.code in (403, 404), (method, path, reply.code)
        elif mlflow_paths.allowed_path(path) is None:
            assert reply.code == 404, (method, path, reply.code)
    assert state(own, victim) == before


def test_viewers_see_all_and_change_nothing(own: Door, victim: Records) -> None:
    before = state(own, victim)
    ask = as_user(own, VIEWER, "studies")
    seen = 0
    for method, path, body in requests(victim):
        reply = ask(method, path, body)
        seen += SECRET.encode() in reply.data
        if mlflow_paths.allowed_path(path) is None:
            assert reply.code == 404, (method, path, reply.code)
    assert seen >= 10
    assert state(own, victim) == before


def test_a_trace_leads_nobody_to_others_files(own: Door, other: Door, victim: Records) -> None:
    """MLflow reads a trace from wherever a tag of it says, which its own team may set."""
    trace, experiment = "tr-" + "e" * 32, other.experiment()
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    described = {"trace_id": trace, "trace_location": place, "request_time": "2026-01-01T00:00:00Z", "state": "OK"}
    described |= {"execution_duration": "0.1s", "tags": {}, "trace_metadata": {}}
    assert other.ask("POST", "/api/3.0/mlflow/traces", {"trace": {"trace_info": described}}).code == 200
    tag = {"key": "mlflow.artifactLocation", "value": f"mlflow-artifacts:{victim.root}"}
    assert other.ask("PATCH", f"/api/3.0/mlflow/traces/{trace}/tags", tag).code == 200
    for version in ("2.0", "3.0"):
        assert other.ask("GET", f"/ajax-api/{version}/mlflow/get-trace-artifact?request_id={trace}").code == 404
    for path in (f"traces/get?trace_id={trace}", f"traces/batchGet?trace_ids={trace}", f"traces/{trace}"):
        assert SECRET.encode() not in other.ask("GET", f"/api/3.0/mlflow/{path}").data


@pytest.mark.parametrize(
    "source",
    ["s3://bucket/workspaces/studies/1", "file:///etc", "http://127.0.0.1/", "mlflow-artifacts://host/workspaces/studies"],
)
def test_a_registered_model_is_no_way_to_others_files(other: Door, source: str) -> None:
    assert other.call("registered-models/create", {"name": "net"}).code in (200, 400)
    reply = other.call("model-versions/create", {"name": "net", "source": source})
    assert (reply.code, reply.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_a_registered_model_of_anothers_run_is_refused(other: Door, victim: Records) -> None:
    assert other.call("registered-models/create", {"name": "net"}).code in (200, 400)
    for source in (f"mlflow-artifacts:{victim.root}", f"runs:/{victim.run}/notes", f"models:/{victim.model}"):
        for run in ({}, {"run_id": victim.run}):
            reply = other.call("model-versions/create", {"name": "net", "source": source, **run})
            assert reply.code >= 400, (source, reply.data)


def test_experiments_are_named_after_jobs_in_each_workspace(own: Door, other: Door) -> None:
    found = {}
    for door in (own, other):
        experiment = door.experiment()
        listed = door.call("experiments/search", {"max_results": 100}).json()["experiments"]
        found[door.run] = experiment
        assert "toy" in {one["name"] for one in listed}
        assert not [one for one in listed if "/" in one["name"]]
    assert found["own-1"] != found["other-1"]
