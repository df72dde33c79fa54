"""Verbs on a cluster, on the doubles of tests/client: which place they mean, what is printed, and what Ctrl-C does.

Not checked here: the messages of a cluster's own refusals (tests/client/test_cluster.py), MLflow's pages.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
import yaml
from tests.client.conftest import complete

from trialplane.client import places
from trialplane.client.forward import Forward
from trialplane.client.target import Place
from trialplane.wire import env
from trialplane.wire.records import TrialRow
from trialplane.wire.states import RunState, TrialState

SUBMIT = ("submit", "hpo", "demo", "--name", "x")


def test_a_dry_run_prints_what_kubectl_takes(platform, namespace, home):
    result = platform(*SUBMIT, "--dry-run")
    assert result.exit_code == 0, result.stderr
    things = list(yaml.safe_load_all(result.stdout))
    assert [(one["kind"], one["metadata"]["name"]) for one in things] == [
        ("Run", "x"),
        ("ConfigMap", "x-code"),
    ]
    as_json = json.loads(platform(*SUBMIT, "--dry-run", "-o", "json").stdout)
    as_json["items"][0]["spec"]["submission"] = things[0]["spec"]["submission"]  # at another time, by another command
    assert as_json["items"] == things
    assert not home.exists()
    assert "PATCH" not in {verb for verb, _ in namespace.cluster.requests}


def test_the_other_verbs_look_where_the_last_submission_went(platform, namespace):
    result = platform(*SUBMIT, "--detach")
    assert result.exit_code == 0, result.stderr
    assert "x runs on the cluster" in result.stderr
    assert places.recall() == places.Memory(Place(context="lab", namespace="team"), ("x",))
    assert json.loads(platform("status", "-o", "json").stdout)["state"] == "RUNNING"
    assert [line.split()[0] for line in platform("list").stdout.splitlines()] == ["run", "x"]
    assert platform("logs").stdout == "the controller is here\n"
    namespace.tell("x", [TrialRow(0, TrialState.COMPLETE, 1, 0, values=(0.5,), params={"lr": 0.5}, metrics={"loss": 0.5})])
    assert platform("logs", "0").stdout == "trial 0\n"
    assert platform("results").stdout.splitlines()[1].split()[:3] == ["0", "COMPLETE", "0.5"]
    assert yaml.safe_load(platform("best").stdout) == {"lr": 0.5}


def test_a_status_asks_for_everything_once(platform, namespace):
    assert platform(*SUBMIT, "--detach").exit_code == 0
    platform("status")  # the controller is there from now on
    namespace.cluster.requests.clear()
    assert platform("status", "x").stdout.split()[:2] == ["run", "x"]
    assert sorted(path.rpartition("/team/")[2] for _, path in namespace.cluster.requests) == [
        "configmaps/trialplane",
        "runs/x",
        "services/http:trialplane-gateway:8080/proxy/runs/x/status",
    ]


def test_a_run_that_is_replaced_is_named(platform, namespace):
    namespace.held = True
    assert "x is starting\n" in platform(*SUBMIT, "--detach").stderr
    namespace.end("x", RunState.FAILED, "its code does not import")
    assert "it replaces an earlier run x, which ended before its first trial" in platform(*SUBMIT, "--detach").stderr


def test_a_run_in_another_place_is_named(platform, namespace, runs):
    runs.make("here", tell=complete)
    assert platform(*SUBMIT, "--detach").exit_code == 0
    missing = platform("status", "here")
    assert missing.exit_code == 2
    assert "There is a run here in another place: add --local" in missing.stderr
    assert platform("status", "here", "--local").exit_code == 0
    missing = platform("status", "x", "--local")
    assert "add --context lab --namespace team" in missing.stderr


def test_the_environment_chooses(platform, namespace, monkeypatch):
    monkeypatch.setenv("TRIALPLANE_NAMESPACE", "team")
    assert platform(*SUBMIT, "--detach").exit_code == 0
    assert "x" in platform("list", "--context", "lab").stdout
    assert "no runs yet" in platform("list", "--local").stderr


def test_two_places_are_refused(platform, namespace):
    result = platform("status", "--local", "-n", "team")
    assert result.exit_code == 2
    assert "name two places" in result.stderr


def test_the_foreground_shows_it_until_its_end(platform, namespace, monkeypatch):
    begin = namespace._begin

    def whole(run, ray_cluster):
        begin(run, ray_cluster)
        namespace.tell(run, [TrialRow(0, TrialState.COMPLETE, 1, 0, values=(0.5,), params={"lr": 0.5})])
        namespace.end(run, RunState.SUCCEEDED)

    monkeypatch.setattr(namespace, "_begin", whole)
    result = platform(*SUBMIT)
    assert result.exit_code == 0, result.stderr
    assert "x SUCCEEDED" in result.stdout
    assert "platform submit hpo demo --params best.yaml`" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_run_on_the_cluster_alone(platform, namespace, monkeypatch, number):
    begin = namespace._begin

    def interrupted(run, ray_cluster):
        begin(run, ray_cluster)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(namespace, "_begin", interrupted)
    result = platform(*SUBMIT)
    assert result.exit_code == 130
    assert "x continues in namespace team of lab" in result.stdout
    assert "platform pause x" in result.stdout
    assert namespace.studies["x"].alive


def test_pause_resume_cancel(platform, namespace):
    platform(*SUBMIT, "--detach")
    result = platform("pause", "x")
    assert (result.exit_code, "x PAUSED" in result.stderr) == (0, True)
    assert namespace.cluster.objects["rayclusters"] == {}
    assert platform("resume", "x", "--trials", "9", "--detach").exit_code == 0
    assert json.loads(platform("status", "x", "-o", "json").stdout)["trials"] == 9
    result = platform("cancel", "x", "--yes")
    assert (result.exit_code, "x CANCELLED" in result.stderr) == (0, True)


def test_scale(platform, namespace):
    platform(*SUBMIT, "--detach", "--parallel", "2")
    result = platform("scale", "x", "--parallel", "4")
    assert result.exit_code == 0, result.stderr
    assert "up to 4 trials" in result.stderr
    assert json.loads(platform("status", "-o", "json").stdout)["parallel"] == 4
    assert platform("scale", "x").exit_code == 2


def test_delete_asks(platform, namespace):
    platform(*SUBMIT, "--detach")
    result = platform("delete", "x")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    result = platform("delete", "x", "--yes")
    assert (result.exit_code, "x is deleted" in result.stderr) == (0, True)
    assert namespace.studies == {}
    assert platform("delete", "x", "--yes").exit_code == 2


def test_delete_on_this_machine(platform, runs):
    runs.make("a", tell=complete)
    assert platform("delete", "a", "--yes").exit_code == 0
    assert platform("status", "a").exit_code == 2


def test_a_cluster_that_refuses_is_told_with_the_other_issues(platform, namespace):
    result = platform("submit", "hpo", "demo", "--context", "labb", "--trials", "0")
    assert result.exit_code == 2
    for text in ("2 problems", "did you mean lab?", "--trials"):
        assert text in result.stderr


def test_completion_asks_no_cluster(platform, namespace):
    platform(*SUBMIT, "--detach")
    before = len(namespace.cluster.requests)
    script = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('kubernetes' in sys.modules, 'pydantic' in sys.modules, file=sys.stderr))\n"
        "from trialplane.cli import main; main.main()"
    )
    environ = {"_PLATFORM_COMPLETE": "bash_complete", "COMP_WORDS": "platform status ", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **environ}, check=False
    )
    assert done.stdout.splitlines() == ["plain,x"]
    assert done.stderr.split() == ["False", "False"]
    assert len(namespace.cluster.requests) == before


@pytest.mark.parametrize("line", ["status ", "submit hpo "])
def test_completion_offers_nothing_where_it_finds_no_folder(tmp_path, line):
    (tmp_path / "gone").mkdir()
    words = {"COMP_WORDS": f"platform {line}", "COMP_CWORD": str(len(line.split()) + 1)}
    environ = {"_PLATFORM_COMPLETE": "bash_complete", env.HOME: "~nosuchuser/x", **words}
    script = "import os; os.rmdir(os.getcwd()); from trialplane.cli import main; main.main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "gone",
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


# The way to MLflow


@pytest.fixture
def service(namespace, target, monkeypatch):
    """A service whose one pod sends back what it gets; the stream to it stands for the API server's."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    box = {"name": "server", "ports": [{"name": "http", "containerPort": 5000}]}
    cluster = namespace.cluster
    cluster.put(
        "pods", {"metadata": {"name": "m-1", "labels": {"app": "m"}}, "spec": {"containers": [box]}, "status": ready}
    )
    spec = {"selector": {"app": "m"}, "ports": [{"port": 80, "targetPort": "http"}]}
    cluster.put("services", {"metadata": {"name": "m"}, "spec": spec})
    asked = []

    def stream(pod, port):
        asked.append((pod, port))
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(b"hello")
        return ours

    monkeypatch.setattr(target.cluster, "forward", stream)
    return asked


def test_a_forwarded_port_leads_to_a_ready_pod_each_time(target, service):
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    with Forward(target.cluster, "m", 80, listener, print):
        for _ in range(2):
            with socket.create_connection(address, timeout=60) as client:
                assert client.makefile("rb").read() == b"hello"
    assert service == [("m-1", 5000)] * 2


def test_a_service_without_a_ready_pod_says_so(target, namespace, service):
    namespace.cluster.objects["pods"]["m-1"]["status"] = {}
    said: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    with (
        Forward(target.cluster, "m", 80, listener, said.append),
        socket.create_connection(address, timeout=60) as client,
    ):
        assert client.recv(1) == b""
    assert "no pod of m in namespace team of lab is ready" in said[0]


@pytest.fixture
def elsewhere(namespace):
    """Address of an MLflow that is not in the namespace."""
    url = "http://mlflow.test"
    site = namespace.cluster.objects["configmaps"]["trialplane"]["data"]
    site["site.json"] = json.dumps({**json.loads(site["site.json"]), "mlflow": {"url": url}})
    return url


def test_ui_without_a_service_of_the_chart_names_the_address(platform, elsewhere):
    result = platform("ui", "-n", "team")
    assert result.exit_code == 0
    assert f"it is at {elsewhere}" in result.stderr


def test_ui_reaches_such_an_mlflow_through_the_proxy_of_the_environment(platform, elsewhere, monkeypatch):
    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"experiment": {"experiment_id": "7"}}).encode())

        def log_message(self, *_): ...

    platform(*SUBMIT, "--detach")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        result = platform("ui", "x", "-n", "team")
        server.shutdown()
    assert f"it is at {elsewhere}/#/experiments/7/runs?" in result.stderr
