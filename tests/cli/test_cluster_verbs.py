"""Verbs on a cluster, on the doubles of tests/client: which place they mean, what is printed, and what Ctrl-C does.

Not checked here: the messages of a cluster's own refusals (tests/kube/test_cluster.py), MLflow's pages.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.parse

import pytest
import yaml
from tests.browser import Browser
from tests.client.conftest import complete
from tests.kube.cluster_double import Problem

from trialplane.cli import output, ui
from trialplane.client import study_page, target_choice
from trialplane.client.target import TargetName
from trialplane.ledger.attempts import Attempt
from trialplane.wire import cluster as names
from trialplane.wire import env
from trialplane.wire.records import Change, TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

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
    assert things[0]["metadata"]["annotations"] == {"trialplane.io/owner": "ada"}
    assert not result.stdout.startswith("#")
    assert not home.exists()
    assert "PATCH" not in {verb for verb, _ in namespace.cluster.requests}


def test_a_plain_url_of_a_notification_is_refused_before_anything_is_created(platform, namespace):
    result = platform(*SUBMIT, "--set", "notify=[{url: 'json://bob:hidden@example.org'}]")
    assert result.exit_code == 2, result.output
    assert "notify.0.url: must be secret:NAME on a cluster" in result.stderr
    assert "nothing was started" in result.stderr
    assert "hidden" not in result.output
    assert not namespace.cluster.objects.get("runs")
    assert {verb for verb, _ in namespace.cluster.requests} <= {"GET"}


def test_the_other_verbs_look_where_the_last_submission_went(platform, namespace):
    result = platform(*SUBMIT, "--detach")
    assert result.exit_code == 0, result.stderr
    assert "x runs on the cluster" in result.stderr
    assert target_choice.recall() == target_choice.Memory(TargetName(context="lab", namespace="team"), ("x",))
    assert json.loads(platform("status", "-o", "json").stdout)["state"] == "RUNNING"
    assert [line.split()[0] for line in platform("list").stdout.splitlines()] == ["run", "x"]
    assert [line.split()[-1] for line in platform("list").stdout.splitlines()] == ["owner", "ada"]
    assert ["owner", "ada"] in [line.split() for line in platform("status").stdout.splitlines()]
    assert platform("logs").stdout == "the controller is here\n"
    namespace.tell("x", [TrialRow(0, TrialState.COMPLETE, 1, 0, values=(0.5,), params={"lr": 0.5}, metrics={"loss": 0.5})])
    assert platform("logs", "0").stdout == "trial 0\n"
    assert platform("results").stdout.splitlines()[1].split()[:3] == ["0", "COMPLETE", "0.5"]
    assert yaml.safe_load(platform("best").stdout) == {"lr": 0.5}


def test_the_digests_of_a_runs_images_are_shown_also_when_its_run_is_gone(platform, namespace):
    assert platform(*SUBMIT, "--detach").exit_code == 0
    assert "images" not in platform("status").stdout
    digest = f"sha256:{'a' * 64}"
    namespace.studies["x"].images["ada/trainer:2"] = (digest,)
    thing = namespace.cluster.objects["runs"]["x"]
    thing["status"]["images"] = [{"image": "trialplane/trial:1", "digest": digest}]
    both = {"ada/trainer:2": [digest], "trialplane/trial:1": [digest]}
    assert json.loads(platform("status", "-o", "json").stdout)["images"] == both
    assert f"ada/trainer:2 (sha256:{'a' * 12}), trialplane/trial:1" in platform("status").stdout
    assert "warning" not in platform("status").stdout
    namespace.studies["x"].images["trialplane/trial:1"] = (f"sha256:{'b' * 64}",)
    said = platform("status").stdout
    assert "its pods have run 2 digests of trialplane/trial:1: the tag was pushed again" in " ".join(said.split())
    namespace.studies["x"].images["trialplane/trial:1"] = (digest,)
    namespace.end("x", RunState.SUCCEEDED)
    namespace.cluster.remove("runs", "x")
    assert json.loads(platform("status", "-o", "json").stdout)["images"] == both, "the operator kept them in the ledger"


def test_the_events_of_a_run_are_in_the_order_of_time_with_who_made_a_change(platform, namespace):
    assert platform(*SUBMIT, "--detach").exit_code == 0
    platform("status")
    at = namespace.studies["x"].changes[0].at
    requests = [TrialRequest("x", number, 1, number, {"lr": 0.5}, 1, ("loss",)) for number in range(3)]
    ended = TrialOutcome(0, TrialState.COMPLETE, metrics={"loss": 0.25}, started=at + 1, ended=at + 61)
    crashed = TrialOutcome(
        1, TrialState.FAILED, failure=FailureClass.ERROR, message="ValueError: no\x1b[2J", started=at + 2, ended=at + 90
    )
    namespace.studies["x"].whole = [
        Attempt(requests[2]),
        Attempt(requests[1], crashed, 2),
        Attempt(requests[0], ended, 1),
    ]
    change = Change(at + 75, "lead", "parallel: 2 → 4", "u", 9, {})
    namespace.studies["x"].changes.append(change)
    result = platform("logs", "x", "--events")
    assert result.exit_code == 0, result.stderr
    lines = [line[21:] for line in result.stdout.splitlines()]
    assert lines == [
        "ada   submitted",
        "      trial 0 started",
        "      trial 1 started",
        "      trial 0 complete loss=0.25",
        "lead  parallel: 2 → 4",
        "      trial 1 failed (error): ValueError: no\\u001b[2J",
        "      trial 2 runs",
    ]
    assert result.stdout.splitlines()[0].startswith("20")
    assert result.stdout.splitlines()[-1].startswith("now ")
    for words in (("0",), ("--follow",), ("--controller",), ("--attempt", "1")):
        assert "--events is about a whole run" in platform("logs", "x", *words, "--events").stderr


def test_a_status_asks_for_everything_once(platform, namespace):
    assert platform(*SUBMIT, "--detach").exit_code == 0
    platform("status")  # the controller is there from now on
    namespace.cluster.requests.clear()
    assert platform("status", "x").stdout.split()[:2] == ["run", "x"]
    assert sorted(path.split("/team/", 1)[1] for _, path in namespace.cluster.requests) == [
        "configmaps/trialplane",
        "runs/x",
        "serviceaccounts/trialplane-user/token",
        "services/http:trialplane-gateway:8080/proxy/namespaces/team/runs/x/status",
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
    assert "Another target has a run here: add --local" in missing.stderr
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
    assert "name two targets" in result.stderr


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
    assert "platform submit hpo demo --params best.yaml --trials 1`" in result.stdout


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


def test_a_log_of_the_cluster_does_nothing_to_the_terminal(platform, namespace):
    platform(*SUBMIT, "--detach")
    namespace.studies["x"].logs[None, None] = b"\x1b]0;owned\x07 \x9b2J \x1b[2Jgone\n"
    result = platform("logs", "x", "--controller")
    assert result.stdout == "\\u001b]0;owned\\u0007 \N{REPLACEMENT CHARACTER}2J \\u001b[2Jgone\n"


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
        [sys.executable, "-P", "-c", script],  # -P: as for the installed command, whose path has no current folder
        cwd=tmp_path / "gone",
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


# The way to MLflow


def test_ui_shows_mlflows_pages_through_the_gateway_to_this_machine_alone(platform, namespace, monkeypatch):
    platform(*SUBMIT, "--detach")
    proxy, asked = namespace.cluster.proxy, []

    def answer(method, path, query, headers, body):
        if "/mlflow/" not in path:
            return proxy(method, path, query, headers, body)
        asked.append((method, path.partition("/mlflow")[2], headers.get(names.TOKEN_HEADER.lower()), body))
        if path.endswith("get-by-name"):
            return 200, {}, json.dumps({"experiment": {"experiment_id": "7"}}).encode()
        return 200, {"content-type": "text/html", "set-cookie": "a=b"}, b"<html>" * 50_000

    namespace.cluster.proxy = answer
    got = []

    def look():
        listening = threading.enumerate()
        assert any(thread.name == "web pages" for thread in listening)
        address = next(text for text in notes if text.startswith("http"))  # that of the report is below it
        browser = Browser(address)
        assert "/#/experiments/7/runs?" in browser.page
        port, cookie = urllib.parse.urlsplit(address).port, browser.cookie
        for host, origin, sent in (
            (f"127.0.0.1:{port}", None, cookie),
            ("localhost:1", "http://localhost:1", cookie),  # a port that is forwarded
            ("evil.test", None, cookie),
            (f"localhost:{port}", "http://evil.test", cookie),
            (f"localhost:{port}", "http://localhost:1", cookie),
            (f"localhost:{port}", None, ""),
            (f"localhost:{port}", None, cookie[:-1]),
        ):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                headers = {"Host": host, "Cookie": f"a=b; {sent}", **({"Origin": origin} if origin else {})}
                connection.request("POST", "/ajax-api/2.0/mlflow/runs/search?a=b", b'{"x": 1}', headers)
                reply = connection.getresponse()
                got.append((reply.status, reply.getheader("Set-Cookie"), len(reply.read())))

    notes = []
    note = output.note
    monkeypatch.setattr(output, "note", lambda text: (notes.append(text), note(text)))
    monkeypatch.setattr(ui, "_wait_for_signal", look)
    result = platform("ui", "x", "-n", "team")
    assert result.exit_code == 0, result.stderr
    assert "Showing the results in namespace team" in result.stderr
    assert [reply[0] for reply in got] == [200, 200, 403, 403, 403, 403, 403]
    assert got[0] == (200, None, 300_000)
    assert asked[0][:2] == ("GET", "/health")
    method, path, token, body = asked[-1]
    assert (method, path, body) == ("POST", "/ajax-api/2.0/mlflow/runs/search", b'{"x": 1}')
    assert token in namespace.cluster.tokens
    assert len(asked) == 5, "MLflow has heard of none of the others"


@pytest.fixture
def shown(platform, namespace, monkeypatch):
    """Returns the result of `platform ui x -n team`, and the address of its live page and what `look` saw there, if any."""
    proxy, seen = namespace.cluster.proxy, []

    def answer(method, path, *request):
        return (200, {}, b"{}") if "/mlflow/" in path else proxy(method, path, *request)

    def show(look):
        monkeypatch.setattr(ui, "_wait_for_signal", lambda: seen.append(look(Browser(seen[0]))))
        monkeypatch.setattr(ui, "_print_addresses", lambda pages, _: seen.append(pages.page("/-/report")))
        return platform("ui", "x", "-n", "team"), seen

    platform(*SUBMIT, "--detach")
    namespace.cluster.proxy = answer
    return show


def test_ui_shows_the_live_page_of_a_run_through_the_gateway(shown, namespace, monkeypatch):
    monkeypatch.setattr(study_page, "MIN_PAUSE", 0.0)
    monkeypatch.setattr(study_page, "MAX_SHARE", 1.0)

    def look(browser):
        with browser.open("/-/report") as reply:
            html = reply.read().decode()
        before = browser.get("/-/report/data?after=0")["runs"][0]
        unchanged = browser.get(f"/-/report/data?after={before['version']}")
        outcome = TrialOutcome(0, TrialState.COMPLETE, metrics={"loss": 0.5}, started=1.0, ended=2.0)
        namespace.studies["x"].whole = [Attempt(TrialRequest("x", 0, 1, 0, {"lr": 0.5}, 1, ("loss",)), outcome, 1)]
        after = browser.get(f"/-/report/data?after={before['version']}")["runs"][0]
        return html, before, unchanged, after

    result, seen = shown(look)
    assert result.exit_code == 0, result.stderr
    html, before, unchanged, after = seen[1]
    assert "<title>" in html
    assert (before["run"], before["state"], unchanged) == ("x", "RUNNING", None)
    assert after["version"] > before["version"]
    sizes = [next(one["length"] for one in facts["columns"] if one["name"] == "trial") for facts in (before, after)]
    assert sizes == [0, 1]


def refuse_tokens(verb, plural, name):
    """Refuse what a user of another team may not create."""
    if plural == "serviceaccounts/token":
        raise Problem(403, f'serviceaccounts "{name}" is forbidden: User "bob" cannot create it in namespace "team"')


def test_ui_shows_another_teams_user_no_page(shown, namespace):
    namespace.cluster.refuse = refuse_tokens
    result, seen = shown(lambda browser: browser)
    assert (result.exit_code, seen) == (3, [])
    assert "may not create serviceaccounts/token" in result.stderr


def test_a_live_page_ends_with_its_users_rights(shown, namespace, monkeypatch):
    """Its user has left the team while the page was open."""
    monkeypatch.setattr(study_page, "MIN_PAUSE", 0.0)
    monkeypatch.setattr(study_page, "MAX_SHARE", 1.0)

    def look(browser):
        assert browser.get("/-/report/data?after=0")
        namespace.expired.update(namespace.cluster.tokens)
        namespace.cluster.refuse = refuse_tokens
        answers = []
        for path in ("/-/report", "/-/report/data?after=0"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                browser.open(path)
            with refused.value as reply:
                answers.append((reply.code, reply.read().decode()))
        return answers

    result, seen = shown(look)
    assert result.exit_code == 0, result.stderr
    assert [(code, "may not create serviceaccounts/token" in said) for code, said in seen[1]] == [(502, True)] * 2


def test_ui_says_at_once_that_mlflow_does_not_answer(platform, namespace):
    problem = {"error_code": "TEMPORARILY_UNAVAILABLE", "message": "MLflow does not answer the gateway: refused"}
    namespace.cluster.proxy = lambda *_: (503, {}, json.dumps(problem).encode())
    result = platform("ui", "-n", "team")
    assert result.exit_code != 0
    assert "reports: MLflow does not answer the gateway: refused" in result.stderr


@pytest.mark.services
@pytest.mark.parametrize("may_write", [True, False])
def test_the_winner_of_a_refit_is_registered_with_the_users_rights(platform, namespace, monkeypatch, may_write):
    """MLflow's client asks by the gateway. Its answers here are those that it needs; a real one is in tests/gateway."""
    description = "refit of mine: trials 4, 2"
    assert platform(*SUBMIT, "--set", f'description="{description}"', "--set", "trials=6", "--detach").exit_code == 0
    losses = [number % 2 + number / 100 for number in range(6)]  # of trials 4 and 2 in turn
    namespace.tell("x", [TrialRow(n, TrialState.COMPLETE, 1, n, values=(loss,)) for n, loss in enumerate(losses)])
    namespace.end("x", RunState.SUCCEEDED)
    proxy, asked = namespace.cluster.proxy, []
    version = {"name": "winner", "version": "3", "status": "READY"}
    info = {
        "run_id": "a" * 32,
        "artifact_uri": "mlflow-artifacts:/0/a/artifacts",
        "experiment_id": "7",
        "status": "FINISHED",
    }

    def answer(method, path, query, headers, body):
        if "/mlflow/" not in path:
            return proxy(method, path, query, headers, body)
        call = path.rpartition("/mlflow/")[2]
        order = json.loads(body) if body else {}
        asked.append((method, call, order, headers.get(names.TOKEN_HEADER.lower())))
        number = str(order.get("filter", "")).rpartition("= ")[2].strip("'")
        tags = [{"key": "trialplane.seed", "value": number}, {"key": "trialplane.number", "value": number}]
        refusal = {"error_code": "PERMISSION_DENIED", "message": "viewers only read"}
        replies = {
            "health": {},
            "experiments/search": {"experiments": [{"experiment_id": "7", "name": "demo"}]},
            "runs/search": {"runs": [{"info": info, "data": {"tags": tags}}]},
            "runs/get": {"run": {"info": info, "data": {"tags": tags}}},
            "api/2.0/mlflow-artifacts/artifacts": {"files": [{"path": "kept_files", "is_dir": True}]},
            "registered-models/create": {"registered_model": {"name": "winner"}} if may_write else refusal,
            **{key: {"model_version": version} for key in ("model-versions/create", "model-versions/get")},
        }
        is_refused = call == "registered-models/create" and not may_write
        status = 404 if call not in replies else 403 if is_refused else 200
        return status, {"content-type": "application/json"}, json.dumps(replies.get(call, {})).encode()

    namespace.cluster.proxy = answer
    result = platform("refit", "x", "--show", "--register", "winner")
    if not may_write:
        assert (result.exit_code, "viewers only read" in result.stderr) == (3, True), result.stderr
        assert "nothing was registered" in result.stderr
        return
    assert result.exit_code == 0, result.stderr
    assert "trial 4 is version 3 of winner in the MLflow of namespace team" in result.stderr
    assert all(token for *_, token in asked), "each request has the user's token"
    searched = [order["filter"] for _, call, order, _ in asked if call == "runs/search"]
    assert len(searched) == 3 and all("tags.`trialplane.run` = 'x'" in text for text in searched)
    (order,) = [order for _, call, order, _ in asked if call == "model-versions/create"]
    assert (order["name"], order["source"]) == ("winner", f"{info['artifact_uri']}/kept_files")
    assert order["description"].endswith("Winner of the refit x of trial 4 of mine.")
