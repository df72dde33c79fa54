"""A team's records in MLflow are out of reach of all others, by every endpoint that MLflow's own server lists, and viewers
change none; with a real server and Kubeflow's plugin, by the chart's roles.

All callers send the same requests, with headers that claim to be a user of the team. Those of the team see and change its
records by these requests. For the others, whatever MLflow has stored is compared before and after. A run of the same team
may write its records: the boundary is the team's. Not checked here: the API server's own RBAC and the network (tests/e2e).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import subprocess
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.controller.conftest import Server
from tests.gateway import mlflow_records
from tests.gateway.gateway_site import STRANGER, TOKEN, VIEWER, Reply
from tests.gateway.mlflow_site import OTHER, Door, other, own, plugin_python, postgres, server, site, tenants

from trialplane.gateway import mlflow_paths
from trialplane.wire import ledger
from trialplane.wire import mlflow as wire

__all__ = ["other", "own", "postgres", "server", "site", "tenants"]  # fixtures
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
# Headers that only the gateway may set, as a caller would forge them.
FORGED = {wire.WORKSPACE: "studies", "X-Remote-User": "trialplane-user", "X-Remote-Groups": "trialplane:users:studies"}
# What the requests change when they are allowed.
CHANGED = {
    "runs", "tags", "params", "metrics", "experiment_tags", "files", "lists", "entity_associations",
    "logged_models", "logged_model_tags", "evaluation_datasets", "evaluation_dataset_tags", "trace_info", "trace_tags",
    "registered_models", "registered_model_tags", "registered_model_aliases", "model_versions", "model_version_tags",
}  # fmt: skip
PROMPT = "tags.`mlflow.prompt.is_prompt` = 'true'"  # a filter: without it MLflow's lists leave prompts out


@dataclasses.dataclass(frozen=True)
class Records:
    """What a run of a team has in MLflow, and how requests name it."""

    run: str
    experiment: str
    logged_model: str
    model: str  # a registered one
    prompt: str
    trace: str
    dataset: str
    root: str  # of its artifacts, as a path

    @property
    def names(self) -> dict[str, Any]:
        """By the names of fields and of parameters in paths."""
        return {
            **dict.fromkeys(("run_id", "run_uuid", "source_run_id"), self.run),
            **dict.fromkeys(("trace_id", "request_id"), self.trace),
            "run_ids": [self.run],
            "experiment_id": self.experiment,
            "experiment_ids": [self.experiment],
            "model_id": self.logged_model,
            "trace_ids": [self.trace],
            "request_ids": [self.trace],
            "dataset_id": self.dataset,
            "dataset_ids": [self.dataset],
            "experiment_name": self.model,
            "locations": [_location(self.experiment)],
            "name": self.model,
            "version": "1",
            "key": "mark",
            "tag_key": "mark",
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
            "stage": "Archived",
            "stages": ["None"],
            "description": "theirs",
            "workspace_name": "studies",
            "trace": {"trace_info": _trace_info("tr-" + uuid.uuid4().hex, self.experiment)},
            "assessment": {
                "assessment_name": "theirs",
                "trace_id": self.trace,
                "source": {"source_type": "HUMAN", "source_id": "theirs"},
                "feedback": {"value": "theirs"},
            },
            "update_mask": "assessmentName",
            "records": json.dumps([{"inputs": {"theirs": 1}}]),
            "models": [{"model_id": self.logged_model, "step": 1}],
            "model_json": json.dumps({"run_id": self.run, "artifact_path": "theirs", "utc_time_created": "2026-01-01"}),
            "prompt_versions": [{"name": self.prompt, "version": "1"}],
            "filter_string1": "status = 'OK'",
            "filter_string2": "status = 'OK'",
        }

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        """Fields whose names mean something else at some endpoints, by the end of the path."""
        theirs, tags = f"theirs-{self.run}", json.dumps({"mark": "theirs"})
        count = {"view_type": "TRACES", "metric_name": "trace_count", "aggregations": [{"aggregation_type": "COUNT"}]}
        return {
            "/runs/log-metric": {"value": 9.0, "timestamp": 1},
            "/datasets/create": {"name": theirs, "tags": tags},
            "/<dataset_id>/tags": {"tags": tags},
            "/traces/metrics": count,
            "/experiments/create": {"name": theirs},
            "/experiments/update": {"new_name": f"{theirs}-now"},
            "/registered-models/create": {"name": theirs},
            "/registered-models/rename": {"new_name": f"{theirs}-now"},
            "/model-versions/create": {"source": "mlflow-artifacts:/workspaces/studies/theirs"},
        }


def _location(experiment: str) -> dict[str, Any]:
    return {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}


def _trace_info(trace: str, experiment: str, **tags: str) -> dict[str, Any]:
    info = {"trace_id": trace, "trace_location": _location(experiment), "request_time": "2026-01-01T00:00:00Z"}
    return {**info, "state": "OK", "execution_duration": "0.1s", "tags": tags, "trace_metadata": {}}


@pytest.fixture
def victim(own: Door) -> Records:
    """A team's run with all kinds of records, each with the secret."""
    unique = uuid.uuid4().hex[:8]  # other tests may have deleted or renamed theirs
    model, prompt = f"net-{unique}", f"prompt-{unique}"
    info = own.new_run(model, mark=SECRET)
    run, experiment, root = info["run_id"], info["experiment_id"], info["artifact_uri"].removeprefix("mlflow-artifacts:")
    own.done("experiments/set-experiment-tag", {"experiment_id": experiment, "key": "mark", "value": SECRET})
    own.done("runs/log-batch", {"run_id": run, "params": [{"key": "secret", "value": SECRET}]})
    own.done("runs/log-batch", {"run_id": run, "metrics": [{"key": "loss", "value": 0.5, "timestamp": 1, "step": 1}]})
    assert own.ask("PUT", f"{ARTIFACTS}{root}/notes/secret.txt", SECRET.encode()).code == 200
    assert own.ask("PUT", f"{ARTIFACTS}{root}/traces.json", json.dumps({"spans": [SECRET]}).encode()).code == 200
    tags = [{"key": "mark", "value": SECRET}]
    logged = own.done("logged-models", {"experiment_id": experiment, "source_run_id": run, "name": "net", "tags": tags})
    own.done("registered-models/create", {"name": model, "description": SECRET, "tags": tags})
    body = {"run_id": run, "source": f"mlflow-artifacts:{root}", "description": SECRET}
    own.done("model-versions/create", {"name": model, **body})
    own.done("registered-models/alias", {"name": model, "alias": "best", "version": "1"})
    is_prompt = {"key": "mlflow.prompt.is_prompt", "value": "true"}
    own.done("registered-models/create", {"name": prompt, "description": SECRET, "tags": [*tags, is_prompt]})
    text = [is_prompt, {"key": "mlflow.prompt.text", "value": SECRET}]
    own.done("model-versions/create", {"name": prompt, "source": "prompt-template", "tags": text})
    own.done("registered-models/alias", {"name": prompt, "alias": "best", "version": "1"})
    trace = "tr-" + run
    reply = own.ask("POST", "/api/3.0/mlflow/traces", {"trace": {"trace_info": _trace_info(trace, experiment, mark=SECRET)}})
    assert reply.code == 200, reply.data
    dataset = {"name": f"d-{unique}", "experiment_ids": [experiment], "tags": json.dumps({"mark": SECRET})}
    reply = own.ask("POST", "/api/3.0/mlflow/datasets/create", dataset)
    assert reply.code == 200, reply.data
    dataset_id = reply.json()["dataset"]["dataset_id"]
    return Records(run, experiment, logged["model"]["info"]["model_id"], model, prompt, trace, dataset_id, root)


@functools.cache
def listed() -> list[tuple[str, str]]:
    """All endpoints, those last that take away what the others name."""
    ended = subprocess.run([plugin_python(), "-c", LISTED], capture_output=True, text=True, check=True)
    endpoints = [(method, path) for method, path in json.loads(ended.stdout.splitlines()[-1]) if method in _METHODS]
    return sorted(
        endpoints, key=lambda endpoint: endpoint[0] == "DELETE" or "delete" in endpoint[1] or "rename" in endpoint[1]
    )


def _filled(template: str, names: dict[str, Any]) -> str:
    """A path with values for its parameters."""
    return re.sub(r"[<{](?:path:)?(\w+)(?::path)?[>}]", lambda match: str(names.get(match[1], names["run_id"])), template)


def requests(victim: Records) -> list[tuple[str, str, Any]]:
    """One for each endpoint, which names all that the victim has wherever something can be named."""
    sent: list[tuple[str, str, Any]] = []
    for method, template in listed():
        is_registry = "/registered-models/" in template or "/model-versions/" in template
        for changes in ({"name": victim.prompt, "filter": PROMPT}, {}) if is_registry else ({},):
            names = {**victim.names, **changes}
            names |= next((fields for end, fields in victim.fields.items() if template.endswith(end)), {})
            path = _filled(template, names)
            if method == "GET":
                plain = {name: value for name, value in names.items() if name not in ("locations", "metrics", "tags")}
                path += "?" + urllib.parse.urlencode(plain, doseq=True)
            sent.append((method, path, None if method == "GET" else names))
    root = victim.root.strip("/")
    climbing = ("../../{}", "%2e%2e/%2e%2e/{}", "%252e%252e/{}", "workspaces%2Fother/../../{}", "./{}", "//{}", "..%5c{}")
    for method in ("GET", "PUT", "DELETE"):
        sent += [(method, f"{ARTIFACTS}/{step.format(root)}/notes/secret.txt", None) for step in climbing]
    sent += [("GET", f"{ARTIFACTS}?path={step}", None) for step in (root, "workspaces/studies", "../studies", "")]
    sent.append(("POST", "/graphql", {"query": GRAPHQL, "variables": {"data": {"runId": victim.run}}}))
    sent.append(("POST", "/graphql", {"query": "{ mlflowSearchRuns(input: {}) { runs { data { tags { value } } } } }"}))
    return sent


def as_run(door: Door) -> Callable[[str, str, Any], Reply]:
    return lambda method, path, body: door.ask(
        method, path, body if method != "PUT" else json.dumps(body).encode(), **FORGED
    )


def as_user(door: Door, token: str, namespace: str) -> Callable[[str, str, Any], Reply]:
    def ask(method: str, path: str, body: Any) -> Reply:
        sent = b"" if body is None else json.dumps(body).encode()
        target = f"{ledger.namespace_path(namespace)}{wire.UI}{path}"
        return door.site.ask(method, target, sent, token=token, **{"Content-Type": "application/json"}, **FORGED)

    return ask


def state(server: Server, own: Door, victim: Records) -> dict[str, Any]:
    """What MLflow has stored for the team and for nobody in particular, and what its lists show to the team."""
    lists = [
        own.ask(method, path, body).data
        for method, path, body in requests(victim)
        if "search" in path.partition("?")[0] and mlflow_paths.allowed_path(path)
    ]
    return {**mlflow_records.outside(OTHER, server.store, server.artifacts), "lists": lists}


@pytest.mark.parametrize("who", ["run", "another run", "user"])
def test_the_requests_show_and_change_everything_for_the_team_itself(
    own: Door, victim: Records, server: Server, who: str
) -> None:
    """Else the tests below could not fail."""
    before = state(server, own, victim)
    mate = Door(own.site, "other-1")  # another run of the same team
    ask = {"run": as_run(own), "another run": as_run(mate), "user": as_user(own, TOKEN, "studies")}[who]
    replies = [(path.partition("?")[0], ask(method, path, body)) for method, path, body in requests(victim)]
    assert len({path for path, reply in replies if SECRET.encode() in reply.data}) >= 30
    after = state(server, own, victim)
    assert {table for table in before if after[table] != before[table]} >= CHANGED


@pytest.mark.parametrize("who", ["run", "user", "stranger", "nobody", "another run's token"])
def test_another_team_sees_and_changes_nothing(own: Door, other: Door, victim: Records, server: Server, who: str) -> None:
    other.experiment()
    before = state(server, own, victim)
    forged = Door(other.site, "own-1")
    forged.token = other.token
    ask = {
        "run": as_run(other),
        "user": as_user(own, STRANGER, OTHER),  # with its own namespace's door
        "stranger": as_user(own, STRANGER, "studies"),
        "nobody": as_user(own, "", "studies"),
        "another run's token": as_run(forged),
    }[who]
    for method, path, body in requests(victim):
        reply = ask(method, path, body)
        assert SECRET.encode() not in reply.data, (method, path, reply.data)
        if who in ("stranger", "nobody", "another run's token"):
            assert reply.code in (403, 404), (method, path, reply.code)
        elif mlflow_paths.allowed_path(path) is None or "/mlflow/workspaces/studies" in path:
            assert reply.code == 404, (method, path, reply.code)
    assert state(server, own, victim) == before


def test_viewers_see_all_and_change_nothing(own: Door, victim: Records, server: Server) -> None:
    before = state(server, own, victim)
    ask = as_user(own, VIEWER, "studies")
    seen: set[str] = set()
    for method, path, body in requests(victim):
        reply = ask(method, path, body)
        if SECRET.encode() in reply.data:
            seen.add(path.partition("?")[0])
        if mlflow_paths.allowed_path(path) is None:
            assert reply.code == 404, (method, path, reply.code)
    assert len(seen) >= 30
    assert state(server, own, victim) == before


def test_a_trace_leads_nobody_to_others_files(own: Door, other: Door, victim: Records) -> None:
    """MLflow reads a trace from wherever a tag of it says, which its own team may set."""
    trace, experiment = "tr-" + "e" * 32, other.experiment()
    assert other.ask("POST", "/api/3.0/mlflow/traces", {"trace": {"trace_info": _trace_info(trace, experiment)}}).code == 200
    tag = {"key": "mlflow.artifactLocation", "value": f"mlflow-artifacts:{victim.root}"}
    assert other.ask("PATCH", f"/api/3.0/mlflow/traces/{trace}/tags", tag).code == 200
    for version in ("2.0", "3.0"):
        assert other.ask("GET", f"/ajax-api/{version}/mlflow/get-trace-artifact?request_id={trace}").code == 404
    for path in (f"traces/get?trace_id={trace}", f"traces/batchGet?trace_ids={trace}", f"traces/{trace}"):
        assert SECRET.encode() not in other.ask("GET", f"/api/3.0/mlflow/{path}").data


@pytest.mark.parametrize(
    "source",
    [
        "s3://bucket/workspaces/studies/1",
        "file:///etc",
        "http://127.0.0.1/",
        "mlflow-artifacts://host/workspaces/studies",
        "prompt-template",
    ],
)
def test_a_registered_model_is_no_way_to_others_files(other: Door, source: str) -> None:
    assert other.call("registered-models/create", {"name": "net"}).code in (200, 400)
    reply = other.call("model-versions/create", {"name": "net", "source": source})
    assert (reply.code, reply.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_a_registered_model_of_anothers_run_is_refused(other: Door, victim: Records) -> None:
    assert other.call("registered-models/create", {"name": "net"}).code in (200, 400)
    for source in (f"mlflow-artifacts:{victim.root}", f"runs:/{victim.run}/notes", f"models:/{victim.logged_model}"):
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
