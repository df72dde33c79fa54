"""MLflow's door over a real server of MLflow with Kubeflow's plugin: what logging needs, and who is told to MLflow.

Not checked here: that a team's records are out of others' reach (test_workspaces.py), and the network that keeps pods from
MLflow's server (tests/charts).
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.conftest import Postgres
from tests.gateway.gateway_site import NAMESPACE, PLACE, TOKEN, VIEWER, Site
from tests.gateway.mlflow_site import MOST, Door, other, own, postgres, server, site, tenants

from trialplane.gateway import mlflow as door_module
from trialplane.gateway import mlflow_paths
from trialplane.gateway.upstream import Upstream
from trialplane.wire import cluster, env, labels
from trialplane.wire import mlflow as wire
from trialplane.wire.ledger import Address

__all__ = ["other", "own", "postgres", "server", "site", "tenants"]  # fixtures

# What jobs do by MLflow's fluent interface and its client, and what final_model does.
PROGRAM = """
import json, os, sys, tempfile
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression

from trialplane.training import mlflow_runs
mlflow_runs.enter(os.environ)

client = mlflow.MlflowClient()
with mlflow.start_run() as run:
    mlflow.log_metric("x", 1.0)
    mlflow.log_metric("worst", float("nan"))
    mlflow.log_metrics({"y": 2.0, "z": 3.0}, step=4)
    mlflow.log_param("p", 1)
    mlflow.log_params({"q": 2, "r": 3})
    mlflow.set_tag("colour", "red")
    mlflow.set_tags({"a": "1", "gone": "2"})
    mlflow.delete_tag("gone")
    mlflow.log_text("text", "notes/a b+50%.txt")
    mlflow.log_text("", "empty.txt")
    mlflow.log_dict({"k": 1}, "d.json")
    mlflow.log_table({"a": [1]}, "t.json")
    mlflow.log_image(np.zeros((4, 4, 3), dtype=np.uint8), key="image", step=1)
    mlflow.log_input(mlflow.data.from_pandas(pd.DataFrame({"a": [1]})), context="train")
    fitted = LinearRegression().fit([[1.0]], [1.0])
    # Without requirements MLflow would load the model in another process, to see what it imports.
    options = {"registered_model_name": "registered-line", "pip_requirements": ["scikit-learn"]}
    logged = mlflow.sklearn.log_model(fitted, name="line", **options)
    with mlflow.start_run(nested=True) as child:
        mlflow.log_metric("below", 1.0)
mlflow.pyfunc.load_model(logged.model_uri).predict([[2.0]])
files = {item.path for item in client.list_artifacts(run.info.run_id)} | {
    item.path for item in client.list_artifacts(run.info.run_id, "notes")
}
text = Path(client.download_artifacts(run.info.run_id, "notes/a b+50%.txt")).read_text()
empty = Path(client.download_artifacts(run.info.run_id, "empty.txt")).read_bytes()
history = [point.value for point in client.get_metric_history(run.info.run_id, "x")]
from trialplane.training import final_model
folder = Path(tempfile.mkdtemp())
(folder / "weights").write_bytes(b"w" * 100_000)
exported = final_model.export_model(folder, register="net", tags={"from": "test"})
again = final_model.export_model(folder, register="net")
client.register_prompt("greeting", "Hello {{name}}")
prompt = client.load_prompt("prompts:/greeting/1").template
found = [one.info.run_id for one in client.search_runs([run.info.experiment_id], "metrics.x = 1")]
print(json.dumps({
    "files": sorted(files), "text": text, "empty": len(empty), "history": history, "found": found,
    "child": child.info.run_id, "versions": [exported.version, again.version], "uri": exported.uri, "prompt": prompt,
}))
"""


class Listening:
    """A server in MLflow's place that notes what it is sent; without a caller it answers as the plugin does."""

    def __init__(self, without_caller: int = 401) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        seen = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                has_caller = "X-Remote-User" in self.headers
                if has_caller:
                    seen.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
                self.send_response(200 if has_caller else without_caller)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_POST = do_PUT = do_GET

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.uri = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def before(listening: Listening, postgres: Postgres, home: Path, authorization: str = "") -> Iterator[Door]:
    """The door of a run, with that server behind it."""
    made = Site(postgres, home, upstream=Upstream(listening.uri, authorization))
    try:
        with made.ledger("own-1"):
            made.archive.set_token("own-1", "the token of own-1")
        yield Door(made, "own-1")
    finally:
        made.close()
        listening.close()


def test_a_job_logs_all_that_it_would_log_into_mlflow_itself(own: Door, tmp_path: Path) -> None:
    run = own.new_run()["run_id"]
    given = {env.MLFLOW_TRACKING_URI: own.uri, env.MLFLOW_TOKEN: own.token, env.MLFLOW_RUN_ID: run}
    given |= {env.MLFLOW_EXPERIMENT_NAME: "toy", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "PYTHONPATH": "platform"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"notes", "notes/a b+50%.txt", "empty.txt", "d.json", "t.json"} <= set(found["files"])
    assert (found["text"], found["empty"], found["history"], found["found"]) == ("text", 0, [1.0], [run])
    assert found["versions"] == ["1", "2"]
    assert found["prompt"] == "Hello {{name}}"
    assert found["uri"].endswith(f"/{run}/artifacts/model")
    assert own.tags(found["child"])[labels.PARENT] == run
    assert "gone" not in own.tags(run)


def test_mlflow_is_told_who_asks_and_nobody_else_can_tell_it(postgres: Postgres, tmp_path: Path) -> None:
    forged = {
        "X-Remote-User": "admin",
        "x-remote-user": "admin",
        "X-Remote-Groups": "trialplane:users:other|system:masters",
        "X-MLFLOW-WORKSPACE": "other",
        "X_Remote_User": "admin",
        "X-Forwarded-User": "admin",
        "X-Forwarded-Access-Token": "admin",
        "X-HTTP-Method-Override": "DELETE",
        "X-Forwarded-Prefix": "/mlflow",
        "Forwarded": "for=admin",
        "Cookie": "session=admin",
    }
    asked = "/api/2.0/mlflow/experiments/get?experiment_id=1"
    listening = Listening()
    with before(listening, postgres, tmp_path) as own:
        assert own.ask("GET", asked, **forged).code == 200
        for token in (TOKEN, VIEWER):
            assert own.site.ask("GET", wire.UI + asked, token=token, **forged).code == 200
    callers = []
    for _, path, headers in listening.requests:
        assert path == asked
        callers.append((headers.pop("x-remote-user"), headers.pop("x-remote-groups"), headers.pop("x-mlflow-workspace")))
        assert headers.keys() <= {"host", "accept", "accept-encoding", "connection", "user-agent"}
    assert callers == [
        ("own-1", f"trialplane:runs:{NAMESPACE}", NAMESPACE),
        (cluster.USER, f"trialplane:users:{NAMESPACE}", NAMESPACE),
        (cluster.VIEWER, f"trialplane:viewers:{NAMESPACE}", NAMESPACE),
    ]


@pytest.mark.parametrize(
    ("login", "header"),
    [
        ({env.MLFLOW_TOKEN: "t"}, "Bearer t"),
        ({env.MLFLOW_USERNAME: "u", env.MLFLOW_PASSWORD: "p"}, "Basic dTpw"),
        ({}, None),
    ],
)
def test_the_gateway_shows_its_own_login_to_an_mlflow_that_asks_for_one(
    postgres: Postgres, tmp_path: Path, login: dict[str, str], header: str | None
) -> None:
    listening = Listening()
    with before(listening, postgres, tmp_path, wire.authorization(login)) as own:  # which comes with its own token
        assert own.ask("GET", "/api/2.0/mlflow/experiments/get?experiment_id=1").code == 200
    assert [headers.get("authorization") for _, _, headers in listening.requests] == [header]


@pytest.mark.parametrize("status", [200, 403, 500])
def test_a_server_that_answers_anybody_gets_nothing(postgres: Postgres, tmp_path: Path, status: int) -> None:
    """It does not run with the plugin: what it is told about callers would not count."""
    listening = Listening(without_caller=status)
    with before(listening, postgres, tmp_path) as own:
        reply = own.call("runs/get", {"run_id": "a" * 32}, get=True)
        assert (reply.code, reply.json()["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
        assert "must run with mlflow-kubernetes-plugins" in reply.json()["message"]
        assert own.site.ask("GET", f"{wire.UI}/health").code == 503
    assert listening.requests == []


def test_only_a_runs_own_token_opens_its_door(own: Door, other: Door) -> None:
    asked = f"/api/2.0/mlflow/runs/get?run_id={own.new_run()['run_id']}"
    assert own.ask("GET", asked).code == 200
    for token in (other.token, "the token of own-1", "x"):
        assert own.ask("GET", asked, token=token).code == 403, token
    assert own.site.ask("GET", wire.path(PLACE, own.run) + asked).code == 403
    headers = {cluster.TOKEN_HEADER: own.token}
    assert own.site.ask("POST", f"/runs/{own.run}/ledger", b"{}", **headers).code == 403, "a trial's token opens no ledger"
    own.site.archive.set_token(own.run, "the token of the next start")
    assert own.ask("GET", asked).code == 403
    own.site.archive.revoke_tokens(own.run)
    assert own.ask("GET", asked, token=wire.token("the token of the next start")).code == 403


@pytest.mark.parametrize(
    "target",
    [
        "/api/2.0/mlflow/gateway/secrets/create",
        "/ajax-api/2.0/mlflow/gateway-proxy?gateway_path=x",
        "/gateway/mlflow/v1/chat/completions",
        "/api/2.0/mlflow/webhooks",
        "/ajax-api/3.0/mlflow/assistant/message",
        "/ajax-api/3.0/jobs/search",
        "/ajax-api/3.0/mlflow/scorer/invoke",
        "/ajax-api/3.0/mlflow/demo/generate",
        "/api/3.0/mlflow/mcp-servers",
        "/api/2.0/mlflow/users/create",
        "/api/2.0/mlflow-artifacts/mpu/create/workspaces/studies/1/a/artifacts",
        "/api/2.0/mlflow-artifacts/presigned/a",
        "/api/2.0/mlflow/artifacts/presigned-upload-url",
        "/ajax-api/2.0/mlflow/upload-artifact?run_id=a&path=b",
        "/ajax-api/3.0/mlflow/get-trace-artifact?request_id=a",
        "/metrics",
        "/openapi.json",
        "/static-files/../api/2.0/mlflow/users/list",
        "/static-files/%2e%2e/metrics",
        "/api/2.0/mlflow/runs/%2e%2e/webhooks",
        "/api/2.0/mlflow//runs/get",
        "/api/2.0/mlflow/runs/get%0a",
    ],
)
def test_what_is_off_the_list_does_not_pass(target: str) -> None:
    assert mlflow_paths.allowed_path(target) is None


def test_what_does_not_pass_is_not_there(own: Door) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        reply = own.ask(method, "/api/2.0/mlflow/webhooks", {} if method != "GET" else None)
        assert (reply.code, reply.json()["error_code"]) == (404, "ENDPOINT_NOT_FOUND")
        assert own.site.ask(method, f"{wire.UI}/api/2.0/mlflow/webhooks").code == 404


def test_an_artifact_that_is_too_large_leaves_nothing(own: Door) -> None:
    mine = own.new_run()
    root = f"/api/2.0/mlflow-artifacts/artifacts{mine['artifact_uri'].removeprefix('mlflow-artifacts:')}"
    assert own.ask("PUT", f"{root}/fits", b"x" * MOST).code == 200
    assert len(own.ask("GET", f"{root}/fits").data) == MOST
    assert own.ask("PUT", f"{root}/huge", b"x", **{"Content-Length": str(MOST + 1)}).code == 413
    host = own.site.address.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        headers = {"Authorization": f"Bearer {own.token}", "Transfer-Encoding": "chunked"}
        pieces = iter([b"x" * 1000])
        connection.request("PUT", f"{wire.path(PLACE, own.run)}{root}/growing", pieces, headers, encode_chunked=True)
        assert connection.getresponse().status == 411, "MLflow would store nothing of it, and say that it did"
    with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.putrequest("PUT", f"{wire.path(PLACE, own.run)}{root}/broken")
        for name, value in {"Authorization": f"Bearer {own.token}", "Content-Length": str(1 << 20)}.items():
            connection.putheader(name, value)
        connection.endheaders(b"x" * 100_000)
    listed = own.done("artifacts/list", {"run_id": mine["run_id"]}, get=True)
    assert [file["path"] for file in listed["files"]] == ["fits"]


def test_a_call_that_is_too_large_or_cannot_be_read(own: Door) -> None:
    run = own.new_run()["run_id"]
    assert own.call("runs/set-tag", {"run_id": run, "key": "t", "value": "x" * door_module.MAX_CALL}).code == 413
    for body in (b"{", b"[1]", b"\xff", b"[" * 100_000):
        assert own.ask("POST", "/api/2.0/mlflow/runs/set-tag", body, **{"Content-Type": "application/json"}).code >= 400


def test_without_a_server_the_answer_is_503(postgres: Postgres, tmp_path: Path) -> None:
    made = Site(postgres, tmp_path, upstream=Upstream("http://127.0.0.1:9"))
    try:
        with made.ledger("own-1"):
            made.archive.set_token("own-1", "the token of own-1")
        reply = Door(made, "own-1").call("runs/get", {"run_id": "a" * 32}, get=True)
        assert reply.code == 503
        assert reply.json()["error_code"] == "TEMPORARILY_UNAVAILABLE"
        assert "MLflow does not answer the gateway" in reply.json()["message"]
        assert made.ask("GET", f"{wire.UI}/health").code == 503
    finally:
        made.close()


def test_users_edit_and_viewers_only_read(own: Door) -> None:
    run = own.new_run()
    site = own.site
    assert site.ask("GET", f"{wire.UI}/health", token="").code == 200, "this is for anybody"
    page = site.ask("GET", f"{wire.UI}/")
    assert page.code == 200
    assert b"<title>MLflow</title>" in page.data
    tag = json.dumps({"run_id": run["run_id"], "key": "t", "value": "1"}).encode()
    search = json.dumps({"experiment_ids": [run["experiment_id"]]}).encode()
    kind = {"Content-Type": "application/json"}
    for token, code in ((TOKEN, 200), (VIEWER, 403)):
        found = site.ask("POST", f"{wire.UI}/ajax-api/2.0/mlflow/runs/search", search, token=token, **kind)
        assert run["run_id"] in {one["info"]["run_id"] for one in found.json()["runs"]}
        assert site.ask("POST", f"{wire.UI}/ajax-api/2.0/mlflow/runs/set-tag", tag, token=token, **kind).code == code
    assert site.ask("GET", f"{wire.UI}/", token="x").code == 403


def test_a_run_that_has_all_its_requests_under_way_holds_up_no_other(own: Door, other: Door) -> None:
    limit = own.site.proxy._requests
    for _ in range(door_module.REQUESTS):
        assert limit.enter(Address(NAMESPACE, own.run), door_module.REQUESTS)
    asked = {"experiment_name": "toy"}
    codes = [one.call("experiments/get-by-name", asked, get=True).code for one in (own, other)]
    assert codes[0] == 429 and codes[1] in (200, 404)


@pytest.mark.parametrize("size", [0, 1, MOST])
def test_an_artifact_of_any_size_comes_back_as_it_went(own: Door, size: int) -> None:
    mine = own.new_run()
    path = f"/api/2.0/mlflow-artifacts/artifacts{mine['artifact_uri'].removeprefix('mlflow-artifacts:')}/file"
    data = os.urandom(size)
    assert own.ask("PUT", path, data).code == 200
    assert own.ask("GET", path).data == data
