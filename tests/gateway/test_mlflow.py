"""MLflow's door over a real server of MLflow: a run does what logging needs with its own records, and nothing with others'.

Not checked here: what each request is made of (test_mlflow_calls), and the network that keeps pods from MLflow's server
(tests/charts).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.conftest import Postgres
from tests.controller.conftest import Server
from tests.gateway.gateway_site import PLACE, TOKEN, Site
from tests.gateway.mlflow_site import MOST, Door, other, own, postgres, server, site

from trialplane.gateway import mlflow as door_module
from trialplane.gateway.mlflow import Upstream
from trialplane.wire import cluster, env, labels
from trialplane.wire import mlflow as wire

__all__ = ["other", "own", "postgres", "server", "site"]  # fixtures

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
    logged = mlflow.sklearn.log_model(fitted, name="line", registered_model_name="registered-line")
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
found = [one.info.run_id for one in client.search_runs([run.info.experiment_id], "metrics.x = 1")]
print(json.dumps({
    "files": sorted(files), "text": text, "empty": len(empty), "history": history, "found": found,
    "child": child.info.run_id, "versions": [exported.version, again.version], "uri": exported.uri,
}))
"""


def foreign(theirs: dict[str, Any], model: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every endpoint by which a run or a logged model can be named: method, endpoint, and fields."""
    run = theirs["run_id"]
    root = f"mlflow-artifacts:/{theirs['experiment_id']}/{run}/artifacts"
    return [
        ("POST", "runs/create", {"experiment_id": theirs["experiment_id"], "tags": [{"key": labels.PARENT, "value": run}]}),
        ("POST", "runs/update", {"run_id": run, "status": "FAILED"}),
        ("POST", "runs/update", {"run_uuid": run, "status": "FAILED"}),
        ("POST", "runs/delete", {"run_id": run}),
        ("GET", "runs/get", {"run_id": run}),
        ("GET", "runs/get", {"run_uuid": run}),
        ("POST", "runs/log-metric", {"run_id": run, "key": "x", "value": 0, "timestamp": 1}),
        ("POST", "runs/log-parameter", {"run_id": run, "key": "p", "value": "0"}),
        ("POST", "runs/log-batch", {"run_id": run, "tags": [{"key": "t", "value": "0"}]}),
        ("POST", "runs/log-inputs", {"run_id": run, "datasets": []}),
        ("POST", "runs/outputs", {"run_id": run, "models": []}),
        ("POST", "runs/log-model", {"run_id": run, "model_json": "{}"}),
        ("POST", "runs/set-tag", {"run_id": run, "key": "t", "value": "0"}),
        ("POST", "runs/delete-tag", {"run_id": run, "key": "t"}),
        ("GET", "artifacts/list", {"run_id": run}),
        ("GET", "metrics/get-history", {"run_id": run, "metric_key": "x"}),
        ("POST", "logged-models", {"experiment_id": theirs["experiment_id"], "source_run_id": run}),
        ("GET", f"logged-models/{model}", {}),
        ("PATCH", f"logged-models/{model}", {"status": "LOGGED_MODEL_READY"}),
        ("POST", f"logged-models/{model}/params", {"params": []}),
        ("PATCH", f"logged-models/{model}/tags", {"tags": []}),
        ("POST", "model-versions/create", {"name": "net", "run_id": run, "source": f"{root}/model"}),
    ]


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
    assert found["uri"].endswith(f"/{run}/artifacts/model")
    tags = own.tags(found["child"])
    assert (tags[labels.RUN], tags[labels.PARENT]) == (own.run, run)
    assert "gone" not in own.tags(run)


def test_another_runs_records_are_out_of_reach_by_every_endpoint(own: Door, other: Door) -> None:
    theirs, model = other.new_run(t="1"), other.new_model()
    for method, endpoint, fields in foreign(theirs, model["model_id"]):
        if method == "GET":
            reply = own.call(endpoint, fields, get=True)
        else:
            reply = own.ask(method, f"/api/2.0/mlflow/{endpoint}", fields)
        assert reply.code == 403, (endpoint, fields, reply.data)
    mine = own.new_run()["run_id"]
    for fields in (
        {"run_id": mine, "run_uuid": theirs["run_id"], "key": "x", "value": 0, "timestamp": 1},
        {"run_id": mine, "model_id": model["model_id"], "key": "x", "value": 0, "timestamp": 1},
    ):
        assert own.call("runs/log-metric", fields).code == 403, fields
    metrics = [{"key": "x", "value": 0, "timestamp": 1, "model_id": model["model_id"]}]
    assert own.call("runs/log-batch", {"run_id": mine, "metrics": metrics}).code == 403
    assert own.call("runs/outputs", {"run_id": mine, "models": [{"model_id": model["model_id"]}]}).code == 403
    assert other.tags(theirs["run_id"])["t"] == "1"
    unknown = own.call("runs/get", {"run_id": "f" * 32}, get=True)
    assert unknown.code == 403, "who asks cannot tell what is not there from what is another's"


def test_a_search_finds_what_is_the_runs_own(own: Door, other: Door) -> None:
    mine, theirs = own.new_run(a="1"), other.new_run(a="1")
    experiment = [theirs["experiment_id"]]

    def found(query: str) -> set[str]:
        reply = own.call("runs/search", {"experiment_ids": experiment, "filter": query})
        return {one["info"]["run_id"] for one in reply.json().get("runs", [])} if reply.code == 200 else set()

    assert mine["run_id"] in found("")
    for query in (
        "",
        "tags.a = '1'",
        "tags.a = '1' -- ",
        "tags.a = '1' or tags.a = '1'",
        f"tags.`{labels.RUN}` = 'other-1'",
    ):
        assert theirs["run_id"] not in found(query), query
    models = {"experiment_ids": experiment, "filter": f"source_run_id = '{other.new_model()['source_run_id']}'"}
    reply = own.call("logged-models/search", models)
    assert not reply.json().get("models"), reply.data


def test_whose_a_run_is_cannot_be_changed(own: Door) -> None:
    run = own.new_run(colour="red")["run_id"]
    assert own.tags(run)[labels.RUN] == "own-1"
    for tag in (labels.RUN, labels.RECORD):
        entry = {"key": tag, "value": "other-1"}
        assert own.call("runs/create", {"experiment_id": own.experiment(), "tags": [entry]}).code == 403
        assert own.call("runs/set-tag", {"run_id": run, **entry}).code == 403
        assert own.call("runs/delete-tag", {"run_id": run, "key": tag}).code == 403
        assert own.call("runs/log-batch", {"run_id": run, "tags": [entry]}).code == 403
    assert own.call("runs/set-tag", {"run_id": run, "key": labels.RUN, "value": "own-1"}).code == 200
    assert own.tags(run)[labels.RUN] == "own-1"


def test_a_new_run_of_a_deleted_ones_name_has_none_of_its_records(own: Door) -> None:
    """Also where its user says that it was submitted when that was."""
    run = own.new_run()["run_id"]
    own.site.archive.delete(own.run)
    with own.site.ledger(own.run, uid="of another Run"):
        own.site.archive.admit(own.run, "the next one's")
    again = Door(own.site, own.run)
    again.token = wire.token("the next one's")
    assert again.call("runs/get", {"run_id": run}, get=True).code == 403
    assert again.call("runs/set-tag", {"run_id": run, "key": "best", "value": "mine"}).code == 403
    found = again.call("runs/search", {"experiment_ids": [again.experiment()], "filter": ""}).json().get("runs", [])
    assert run not in [one["info"]["run_id"] for one in found]
    assert again.call("runs/get", {"run_id": again.new_run()["run_id"]}, get=True).code == 200


def test_the_experiment_is_that_of_the_job(own: Door, server: Server) -> None:
    experiment = own.experiment()
    assert own.call("experiments/get", {"experiment_id": experiment}, get=True).code == 200
    assert own.call("experiments/create", {"name": "another"}).code == 403
    assert own.call("experiments/create", {"name": "toy", "artifact_location": "file:///tmp"}).code == 400
    assert own.call("experiments/get-by-name", {"experiment_name": "Default"}, get=True).code == 403
    assert own.call("experiments/get", {"experiment_id": "0"}, get=True).code == 403
    assert own.call("runs/create", {"experiment_id": "0"}).code == 403
    assert own.call("runs/search", {"experiment_ids": ["0"]}).code == 403
    for endpoint in ("experiments/delete", "experiments/update", "experiments/set-experiment-tag", "runs/restore"):
        assert own.call(endpoint, {"experiment_id": experiment}).code == 404


def test_only_a_runs_own_token_opens_its_door(own: Door, other: Door) -> None:
    asked = f"/api/2.0/mlflow/runs/get?run_id={own.new_run()['run_id']}"
    assert own.ask("GET", asked).code == 200
    for token in (other.token, "the token of own-1", "x"):
        assert own.ask("GET", asked, token=token).code == 403, token
    assert own.site.ask("GET", wire.path(PLACE, own.run) + asked).code == 403
    headers = {cluster.TOKEN_HEADER: own.token}
    assert own.site.ask("POST", f"/runs/{own.run}/ledger", b"{}", **headers).code == 403, "a trial's token opens no ledger"
    own.site.archive.admit(own.run, "the token of the next start")
    assert own.ask("GET", asked).code == 403
    own.site.archive.revoke(own.run)
    assert own.ask("GET", asked, token=wire.token("the token of the next start")).code == 403


def test_artifacts_lie_below_the_runs_own(own: Door, other: Door) -> None:
    mine, theirs = own.new_run(), other.new_run()
    base = "/api/2.0/mlflow-artifacts/artifacts"
    root = f"{base}/{mine['experiment_id']}/{mine['run_id']}/artifacts"
    assert own.ask("PUT", f"{root}/a/b%20c.txt", b"abc").code == 200
    assert own.ask("GET", f"{root}/a/b%20c.txt").data == b"abc"
    their_root = f"{theirs['experiment_id']}/{theirs['run_id']}/artifacts"
    assert other.ask("PUT", f"{base}/{their_root}/secret", b"theirs").code == 200
    steps = ("../../{}/artifacts/secret", "%2e%2e/../{}/artifacts/secret", "..%2f..%2f{}%2fartifacts/secret")
    more = ("%252e%252e/%252e%252e/{}/artifacts/secret", "..\\..\\{}\\artifacts\\secret", "a//../../{}/artifacts/secret")
    for step in steps + more:
        path = f"{root}/{step.format(theirs['run_id'])}"
        for method, body in (("GET", None), ("PUT", b"mine")):
            assert own.ask(method, path, body).code in (400, 403), path
    for path in (
        f"{base}/{their_root}/secret",
        f"{base}/{mine['experiment_id']}/models/{other.new_model()['model_id']}/artifacts/secret",
        f"{base}/99/{mine['run_id']}/artifacts/secret",  # the run's id, below another folder
        f"{base}/{theirs['run_id']}/{mine['run_id']}/artifacts/secret",
        f"{base}/secret",
    ):
        for method, body in (("GET", None), ("PUT", b"mine")):
            assert own.ask(method, path, body).code == 403, path
        assert own.ask("DELETE", path).code == 404
    assert own.ask("GET", f"{base}?path={their_root}").code == 403
    assert own.ask("GET", f"{base}?path={mine['experiment_id']}").code == 403
    assert own.ask("GET", f"{base}?path=").code == 403
    assert other.ask("GET", f"{base}/{their_root}/secret").data == b"theirs"


def test_an_artifact_that_is_too_large_leaves_nothing(own: Door) -> None:
    mine = own.new_run()
    root = f"/api/2.0/mlflow-artifacts/artifacts/{mine['experiment_id']}/{mine['run_id']}/artifacts"
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
    path = "/api/2.0/mlflow/runs/set-tag"
    for body in (b"{", b"[1]", b'"text"', b"\xff", b"[" * 100_000):
        assert own.ask("POST", path, body).code == 400, body[:20]
    assert own.call("runs/set-tag", {"runId": run, "key": "t", "value": "x"}).code == 400, "a field's other spelling"
    assert own.call("runs/set-tag", {"key": "t", "value": "x"}).code == 400


def test_an_endpoint_off_the_list_is_not_there(own: Door) -> None:
    for method, path in (
        ("POST", "/api/2.0/mlflow/runs/restore"),
        ("POST", "/api/2.0/mlflow/users/create"),
        ("PATCH", "/api/2.0/mlflow/registered-models/update"),
        ("POST", "/api/2.0/mlflow/registered-models/alias"),
        ("POST", "/api/2.0/mlflow-artifacts/mpu/create/1/x/artifacts/a"),
        ("GET", "/api/3.0/mlflow/server-info"),
        ("GET", "/ajax-api/2.0/mlflow/experiments/search"),
        ("GET", "/api/2.0/mlflow/experiments/search?max_results=1"),
        ("POST", "/graphql"),
        ("GET", "/"),
        ("GET", "/api/2.0/mlflow/../mlflow/runs/get"),
    ):
        assert own.ask(method, path, {} if method != "GET" else None).code == 404, path


def test_without_a_server_the_answer_is_503(postgres: Postgres, tmp_path: Path) -> None:
    made = Site(postgres, tmp_path, upstream=Upstream("http://127.0.0.1:9"))
    try:
        with made.ledger("own-1"):
            made.archive.admit("own-1", "the token of own-1")
        reply = Door(made, "own-1").call("runs/get", {"run_id": "a" * 32}, get=True)
        assert reply.code == 503
        assert reply.json()["error_code"] == "TEMPORARILY_UNAVAILABLE"
        assert "MLflow does not answer the gateway" in reply.json()["message"]
        assert made.ask("GET", f"{wire.UI}/health").code == 503
    finally:
        made.close()


def test_users_read_and_change_nothing(own: Door) -> None:
    run = own.new_run()
    assert own.site.ask("GET", f"{wire.UI}/health").code == 200, "this is for anybody"
    site, token = own.site, {cluster.TOKEN_HEADER: TOKEN}
    page = site.ask("GET", f"{wire.UI}/", **token)
    assert page.code == 200
    assert b"<title>MLflow</title>" in page.data
    body = json.dumps({"experiment_ids": [run["experiment_id"]]}).encode()
    found = site.ask("POST", f"{wire.UI}/ajax-api/2.0/mlflow/runs/search", body, **token)
    assert run["run_id"] in {one["info"]["run_id"] for one in found.json()["runs"]}
    assert site.ask("GET", f"{wire.UI}/ajax-api/2.0/mlflow/runs/get?run_id={run['run_id']}", **token).code == 200
    for method, path in (
        ("POST", "/ajax-api/2.0/mlflow/runs/delete"),
        ("POST", "/api/2.0/mlflow/runs/set-tag"),
        ("DELETE", "/ajax-api/2.0/mlflow/logged-models/m-1"),
        ("PATCH", "/ajax-api/2.0/mlflow/registered-models/update"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/a/artifacts/b"),
        ("GET", "/api/2.0/mlflow/users/get?username=admin"),
        ("GET", "/ajax-api/2.0/mlflow/gateway-proxy?gateway_path=x"),
        ("GET", "/static-files/../api/2.0/mlflow/users/list"),
        ("GET", "/static-files/%2e%2e/api/2.0/mlflow/users/list"),
    ):
        sent = json.dumps({"run_id": run["run_id"]}).encode() if method != "GET" else b""
        reply = site.ask(method, wire.UI + path, sent, **token)
        assert reply.code == 403, (method, path)
        assert "only reads" in reply.json()["message"]
    assert site.ask("GET", f"{wire.UI}/", **{cluster.TOKEN_HEADER: "x"}).code == 403
    assert own.call("runs/get", {"run_id": run["run_id"]}, get=True).code == 200


@pytest.mark.parametrize("size", [0, 1, MOST])
def test_an_artifact_of_any_size_comes_back_as_it_went(own: Door, size: int) -> None:
    mine = own.new_run()
    path = f"/api/2.0/mlflow-artifacts/artifacts/{mine['experiment_id']}/{mine['run_id']}/artifacts/file"
    data = os.urandom(size)
    assert own.ask("PUT", path, data).code == 200
    assert own.ask("GET", path).data == data
