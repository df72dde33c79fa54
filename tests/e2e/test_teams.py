"""Two teams beside each other: what is of one is out of the other's reach, at the API server, at the gateway, between pods.

A user is who the chart's values name, impersonated; so this is what his Roles let him do. Not checked here: what a run can
do to another run of its own team (test_attacks.py), and who reaches whom by the policies' text (tests/charts).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import CONTEXT, CONTROL, OTHER, RELEASE, SPEC, TEAM, USERS, Cluster
from tests.e2e.recorded import mlflow_runs

from trialplane.kube import cluster as clusters
from trialplane.wire import cluster as names
from trialplane.wire import ledger, mlflow

TOKEN = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "TokenRequest",
    "spec": {"audiences": [names.AUDIENCE], "expirationSeconds": 600},
}


def test_runs_of_one_name_end_beside_each_other_and_go_alone(cluster: Cluster, other: Cluster, tmp_path: Path) -> None:
    folder = cluster.job(tmp_path / "jobs" / "toy")
    for team, trials in ((cluster, "6"), (other, "4")):
        team.platform("submit", "hpo", folder, "--name", "twin", "--trials", trials, "--parallel", "1", "--detach")
    for team in (cluster, other):
        team.until("end", lambda team=team: team.status("twin")["state"] == "SUCCEEDED")
    rows = cluster.check_exact("twin", 6)
    other.check_exact("twin", 4)
    cluster.platform("delete", "twin", "--yes")
    assert "twin" not in cluster.platform("list")
    other.check_exact("twin", 4)
    assert "all 4 trials ended" in other.platform("logs", "twin")
    assert len(rows) == 6
    other.platform("delete", "twin", "--yes")


@pytest.fixture(scope="module")
def both(cluster: Cluster, other: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a run that goes on in each team's namespace."""
    spec = SPEC.replace("pause: 0.3", "pause: 100").replace("trials: 6", "trials: 2")
    folder = cluster.job(tmp_path_factory.mktemp("both") / "toy", spec=spec)
    for team in (cluster, other):
        team.platform("submit", "hpo", folder, "--name", "same", "--parallel", "1", "--detach")
    for team in (cluster, other):
        team.until("trial", lambda team=team: team.status("same")["running"] == 1)
    yield "same"
    for team in (cluster, other):
        team.platform("cancel", "same", "--now", "--yes")
        team.platform("delete", "same", "--yes")


def may(user: str, namespace: str, *what: str) -> bool:
    """Whether the API server would let a user do something."""
    place = Cluster(namespace, Path())
    asked = ("auth", "can-i", *what, "--as", user, "--as-group", "system:authenticated", "--quiet")
    try:
        place.kubectl(*asked)
        return True
    except AssertionError:
        return False


@pytest.mark.parametrize(
    "what",
    [
        ("list", "runs.trialplane.io"),
        ("create", "runs.trialplane.io"),
        ("patch", "runs.trialplane.io/same"),
        ("delete", "runs.trialplane.io/same"),
        ("create", "configmaps"),
        ("get", "configmaps/trialplane"),
        ("get", "pods", "--subresource=log"),
        ("create", "serviceaccounts/trialplane-user", "--subresource=token"),
    ],
)
def test_a_user_may_do_in_his_namespace_what_he_may_not_in_another(cluster: Cluster, what: tuple[str, ...]) -> None:
    for namespace, user in USERS.items():
        assert may(user, namespace, *what)
        for elsewhere in {TEAM, OTHER, CONTROL} - {namespace}:
            assert not may(user, elsewhere, *what), (user, elsewhere)


def test_a_user_reaches_one_service_of_the_platforms_own_namespace(cluster: Cluster) -> None:
    for service, allowed in (("gateway:8080", True), ("mlflow:5000", False), ("postgresql:5432", False)):
        name = f"services/http:{RELEASE}-{service}"
        assert may(USERS[TEAM], CONTROL, "get", name, "--subresource=proxy") is allowed, service
    for what in (("get", "secrets"), ("list", "pods"), ("get", "pods", "--subresource=log"), ("create", "pods")):
        assert not may(USERS[TEAM], CONTROL, *what), what


def asked(user: str, token: str, method: str, path: str) -> tuple[int, str]:
    """What the gateway answers to a user's request."""
    place = clusters.Cluster(CONTEXT, CONTROL)
    headers = {"Impersonate-User": user, names.TOKEN_HEADER: token}
    answer = place.service(f"{RELEASE}-gateway", names.GATEWAY_PORT, method, path, headers=headers)
    return answer.status, answer.data.decode(errors="replace")


def token(user: str, namespace: str) -> tuple[int, str]:
    """What a user gets who asks for a token of a namespace."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{names.USER}/token"
    place = clusters.Cluster(CONTEXT, namespace)
    answer = place.call("POST", path, body=TOKEN, headers={"Impersonate-User": user})
    return answer.status, answer.json()["status"]["token"] if answer.ok else ""


def test_the_gateway_shows_each_user_the_runs_of_his_team_alone(cluster: Cluster, both: str) -> None:
    for namespace, user in USERS.items():
        (elsewhere,) = USERS.keys() - {namespace}
        assert token(user, elsewhere) == (403, "")
        code, own = token(user, namespace)
        assert code == 201
        here, there = ledger.namespace_path(namespace), ledger.namespace_path(elsewhere)
        code, said = asked(user, own, "GET", f"{here}/runs")
        assert (code, both in [run["run"] for run in json.loads(said)]) == (200, True)
        code, said = asked(user, own, "GET", f"{there}/runs")
        assert code == 403 and "are for its users" in said
        for what in ("status", "attempts", "whole?after=0", "curves?after=0", "code", "log?trial=0", "job"):
            assert asked(user, own, "GET", f"{there}/runs/{both}/{what}")[0] == 404, what
        assert asked(user, own, "DELETE", f"{there}/runs/{both}")[0] == 404
        pages = f"{there}{mlflow.UI}/api/2.0/mlflow/experiments/search?max_results=1"
        assert asked(user, own, "GET", pages)[0] in (401, 403, 404)


def test_pods_of_one_team_reach_none_of_the_other(cluster: Cluster, other: Cluster, both: str) -> None:
    """Ray's head, the controller's status, and Ray's agent in a trial's pod; the first is the run's own head."""
    for mine, theirs in ((cluster, other), (other, cluster)):
        (pod,) = mine.objects("pods", run=both, role=names.TRIAL)
        (trial,) = theirs.objects("pods", run=both, role=names.TRIAL)
        (head,) = theirs.objects("pods", run=both, role=names.CONTROLLER)
        head_ip, trial_ip = head["status"]["podIP"], trial["status"]["podIP"]
        own = f"{names.head_service(both)}.{mine.namespace}.svc"
        tries = [(own, names.GCS_PORT), (head_ip, names.GCS_PORT), (head_ip, names.STATUS_PORT), (trial_ip, 52365)]
        assert mine.connects(pod, tries) == [True, False, False, False], mine.namespace


def test_a_runs_token_opens_nothing_of_the_other_teams_run_of_its_name(cluster: Cluster, both: str) -> None:
    code = """
import json, os, urllib.error, urllib.request
token = open(os.environ["TRIALPLANE_TOKEN_FILE"]).read().strip()
def status(path):
    request = urllib.request.Request(os.environ["GATEWAY"] + path, b"{}", {os.environ["HEADER"]: token})
    try:
        return urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([status(path) for path in json.loads(os.environ["PATHS"])]))
"""
    (pod,) = cluster.objects("pods", run=both, role=names.CONTROLLER)
    paths = json.dumps([ledger.path(ledger.namespace_path(namespace), both) for namespace in (TEAM, OTHER)])
    environ = [
        f"HEADER={names.TOKEN_HEADER}",
        f"GATEWAY=http://{RELEASE}-gateway.{CONTROL}.svc:{names.GATEWAY_PORT}",
        f"PATHS={paths}",
    ]
    words = ("exec", pod["metadata"]["name"], "-c", names.CONTROLLER, "--", "env", *environ, "python", "-c", code)
    own, theirs = json.loads(cluster.kubectl(*words).splitlines()[-1])
    assert own == 400, "let in, and {} is not a request"
    assert theirs in (401, 403)


def test_a_teams_records_in_mlflow_are_out_of_the_others_reach(cluster: Cluster, other: Cluster, both: str) -> None:
    """Of its runs and of its users, whatever headers they send; and nobody reaches MLflow's own server."""
    (theirs, *_) = [run["id"] for run in mlflow_runs(other, both, "toy")]
    get = f"/api/2.0/mlflow/runs/get?run_id={theirs}"
    artifacts = f"/api/2.0/mlflow-artifacts/artifacts?path=workspaces/{OTHER}"
    own_door, their_door = (mlflow.path(ledger.namespace_path(namespace), both) for namespace in (TEAM, OTHER))
    found = records(cluster, both, [own_door + get, their_door + get, own_door + artifacts])
    assert found[0] == 404 and found[1] == 403 and found[2] in (400, 403), found
    assert records(other, both, [their_door + get]) == [200], "the request itself is right"
    _, own = token(USERS[TEAM], TEAM)
    here, there = (f"{ledger.namespace_path(namespace)}{mlflow.UI}" for namespace in (TEAM, OTHER))
    assert asked(USERS[TEAM], own, "GET", f"{here}{get}")[0] == 404
    assert asked(USERS[TEAM], own, "GET", f"{there}{get}")[0] == 403
    (pod,) = cluster.objects("pods", run=both, role=names.TRIAL)
    assert cluster.connects(pod, [(f"{RELEASE}-mlflow.{CONTROL}.svc", 5000)]) == [False]


def records(team: Cluster, run: str, paths: list[str]) -> list[int]:
    """What the gateway answers to a run that asks MLflow for these, and says that it is somebody else."""
    code = """
import json, os, urllib.error, urllib.request
from trialplane.wire import mlflow
token = mlflow.token(open(os.environ["TRIALPLANE_TOKEN_FILE"]).read().strip())
forged = mlflow.caller_headers(os.environ["OTHER"], mlflow.USERS, "trialplane-user")
def status(path):
    request = urllib.request.Request(os.environ["GATEWAY"] + path, headers={**forged, "Authorization": "Bearer " + token})
    try:
        return urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([status(path) for path in json.loads(os.environ["PATHS"])]))
"""
    (pod,) = team.objects("pods", run=run, role=names.CONTROLLER)
    environ = [
        f"OTHER={OTHER}",
        f"GATEWAY=http://{RELEASE}-gateway.{CONTROL}.svc:{names.GATEWAY_PORT}",
        f"PATHS={json.dumps(paths)}",
    ]
    words = ("exec", pod["metadata"]["name"], "-c", names.CONTROLLER, "--", "env", *environ, "python", "-c", code)
    found: list[int] = json.loads(team.kubectl(*words).splitlines()[-1])
    return found


@pytest.mark.slow
def test_the_readmes_study_ends_in_both(cluster: Cluster, other: Cluster) -> None:
    for team in (cluster, other):
        team.platform("submit", "hpo", "criteria", "--trials", "24", "--parallel", "1", "--name", "readme", "--detach")
    for team in (cluster, other):
        team.until("end", lambda team=team: team.status("readme")["state"] == "SUCCEEDED", patience=900)
        team.check_exact("readme", 24)
        bad = [line for line in team.said("doctor") if line["verdict"] == "fail"]
        assert not bad, bad
        team.platform("delete", "readme", "--yes")


def test_a_namespace_that_is_no_teams_is_told_with_those_that_are(cluster: Cluster) -> None:
    said = cluster.at("default").platform("status", "some", code=3)
    assert "namespace default" in said
    assert "is not that of a team" in said
    assert f"--namespace ({OTHER}, {TEAM})" in said
    assert "Without it" not in said, "the gateway is not away"
