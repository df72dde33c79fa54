"""What code in a pod of a run can do with all that the pod has: the attacks that the READMEs say fail, made for real.

An attacker here is a trial's own code: `kubectl exec` only stands in for a job that somebody submitted. Not checked here:
what policies refuse (test_isolation.py), what a user may do by Role (tests/charts).
"""

from __future__ import annotations

import base64
import concurrent.futures
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.conftest import CONTROL, REACHES, RELEASE, SPEC, Cluster, install
from tests.e2e.recorded import mlflow_runs
from tests.e2e.test_overreach import refused

from trialplane.wire import cluster as names
from trialplane.wire import ledger, mlflow

# A program started on Ray's head with the token that every container of Ray has; prints what it found there.
TAKE_HEAD = """
import os, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(address="auto", log_to_driver=False, configure_logging=False)
head = next(node for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
def look():
    import contextlib, io
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(%r, {})
    return said.getvalue()
there = NodeAffinitySchedulingStrategy(node_id=head["NodeID"], soft=False)
print(ray.get(ray.remote(look).options(num_cpus=0, scheduling_strategy=there).remote()))
"""
LOOK = (
    REACHES
    + """
import glob, json, os, urllib.error, urllib.request
def reads(path):
    try:
        return len(open(path, "rb").read(1))
    except OSError as error:
        return type(error).__name__
environments, others = {}, 0
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        for pair in open(path).read().split(chr(0)):
            name, _, value = pair.partition("=")
            environments[name] = value
    except OSError:
        others += 1
print("FOUND" + json.dumps({
    "uid": os.getuid(),
    "values": sorted(set(environments.values())),
    "others": others > 0,
    "run token": reads(%r),
    "account token": reads("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "postgresql": reaches(%r, 5432),
}))
"""
)
# With a run's own token, as its controller has it, and with the one that trials get: what is another run's.
CROSS = """
import json, os, urllib.error, urllib.request
from trialplane.wire import mlflow
token = open(os.environ["TRIALPLANE_TOKEN_FILE"]).read().strip()
tokens = {"OWN": token, "DERIVED": mlflow.token(token)}
def status(path, given, method):
    given = tokens.get(given, given)
    url, body = os.environ["TRIALPLANE_LEDGER"] + path, b"{}" if method == "POST" else None
    request = urllib.request.Request(url, body, method=method)
    request.add_header(%r, given)
    request.add_header("Authorization", "Bearer " + given)
    try:
        return urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([status(*one) for one in json.loads(%r)]))
"""
HERE = ""  # the address that a controller has of the gateway is that of its namespace there
ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture(scope="module")
def two(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two runs that go on while the tests attack one from the other."""
    spec = SPEC.replace("pause: 0.3", "pause: 1000").replace("trials: 6", "trials: 2")
    for name in ("thief", "victim"):
        folder = cluster.job(tmp_path_factory.mktemp(name) / "toy", spec=spec)
        cluster.platform("submit", "hpo", folder, "--name", name, "--parallel", "1", "--detach")
    for name in ("thief", "victim"):
        cluster.until("trial", lambda name=name: cluster.status(name)["running"] == 1)
    yield "thief", "victim"
    for name in ("thief", "victim"):
        cluster.platform("cancel", name, "--now", "--yes")
        cluster.platform("delete", name, "--yes")


def inside(cluster: Cluster, run: str, role: str, container: str, code: str, timeout: float = 180) -> str:
    (pod,) = cluster.objects("pods", run=run, role=role)
    return cluster.kubectl("exec", pod["metadata"]["name"], "-c", container, "--", "python", "-c", code, timeout=timeout)


def secrets(cluster: Cluster) -> list[str]:
    """Every value of every Secret of the team's namespace and the chart's, as a program would have it."""
    places = (cluster, cluster.control)
    found = [one for place in places for one in json.loads(place.kubectl("get", "secrets", "-o", "json"))["items"]]
    return [base64.b64decode(value).decode(errors="replace") for one in found for value in (one.get("data") or {}).values()]


def test_a_program_on_the_head_finds_nothing_that_opens_more_than_its_ray(cluster: Cluster, two: tuple[str, str]) -> None:
    """A trial has Ray's token of its run, and with it starts programs in the head's container."""
    thief, _ = two
    look = LOOK % (f"{names.TOKEN_MOUNT}/{names.TOKEN_KEY}", f"{RELEASE}-postgresql.{CONTROL}.svc")
    said = inside(cluster, thief, names.TRIAL, "ray-worker", TAKE_HEAD % look)
    (line,) = [line for line in said.splitlines() if line.startswith("FOUND")]
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND"))
    values = found.pop("values")
    assert found == {
        "uid": 1001,
        "others": True,  # the controller's environment is there, and cannot be read
        "run token": "FileNotFoundError",
        "account token": "FileNotFoundError",
        "postgresql": False,
    }
    ray = json.loads(inside(cluster, thief, names.TRIAL, "ray-worker", ENVIRONMENT))["RAY_AUTH_TOKEN"]
    known = [secret for secret in secrets(cluster) if secret and any(secret in value for value in values)]
    assert known == [ray], "of all Secrets it knows the one that it came with"


def test_a_runs_token_opens_its_own_ledger_alone(cluster: Cluster, two: tuple[str, str]) -> None:
    """Nor what users read at the gateway: the code, the logs and the results of other runs."""
    thief, victim = two
    tries = [
        (ledger.path(HERE, thief), "OWN", "POST"),
        (ledger.path(HERE, victim), "OWN", "POST"),
        (ledger.path(HERE, "nobody"), "OWN", "POST"),
        (ledger.path(HERE, thief), "guessed", "POST"),
        (f"/runs/{victim}", "OWN", "DELETE"),
        (f"/runs/{victim}/code", "OWN", "GET"),
        (f"/runs/{victim}/log?trial=0", "OWN", "GET"),
        ("/runs", "", "GET"),
    ]
    found = answers(cluster, thief, tries)
    assert found[0] == 400, "let in, and {} is not a request"
    assert set(found[1:]) <= {401, 403}, found
    status = cluster.status(victim)
    assert status["state"] == "RUNNING", status


def test_a_trials_token_opens_its_teams_records_in_mlflow_by_its_own_door(cluster: Cluster, two: tuple[str, str]) -> None:
    """Made as the controller makes it; the run's own token, which opens the ledger, does not open MLflow's door.

    What is another team's, is in test_teams.py. Experiments are deleted by users, and no trial asks MLflow to act for it.
    """
    thief, victim = two
    own, other = f"{mlflow.path(HERE, thief)}/api/2.0/mlflow/", f"{mlflow.path(HERE, victim)}/api/2.0/mlflow/"
    (theirs, *_) = [run["id"] for run in mlflow_runs(cluster, victim, "toy")]
    tries = [
        (f"{own}runs/get?run_id={theirs}", "DERIVED", "GET"),
        (f"{other}runs/get?run_id={theirs}", "DERIVED", "GET"),
        (f"{own}runs/get?run_id={theirs}", "OWN", "GET"),
        (f"{own}experiments/delete", "DERIVED", "POST"),
        (f"{own}users/create", "DERIVED", "POST"),
        (f"{own}webhooks", "DERIVED", "POST"),
        (f"{own}gateway/secrets/create", "DERIVED", "POST"),
        (f"{own}../../../../runs/{victim}/code", "DERIVED", "GET"),
    ]
    found = answers(cluster, thief, tries)
    assert found[0] == 200, "the boundary in MLflow is the team's"
    assert set(found[1:]) <= {403, 404}, found


# A trial's own flood of records in MLflow, until something refuses them: how many bytes went in, the status, the answer.
FLOOD = """
import json, os, urllib.error, urllib.request
from trialplane.wire import mlflow
token = mlflow.token(open(os.environ["TRIALPLANE_TOKEN_FILE"]).read().strip())
def call(name, body):
    url = os.environ["TRIALPLANE_LEDGER"] + %r + "/api/2.0/mlflow/" + name
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": "Bearer " + token})
    request.add_header("Content-Type", "application/json")
    return json.load(urllib.request.urlopen(request, timeout=60))
sent, status, said = 0, 200, ""
try:
    while sent < 64 << 20:
        call("runs/log-batch", {"run_id": %r, "tags": [{"key": f"tag-{sent}-{n}", "value": "x" * 5000} for n in range(90)]})
        sent += 90 * 5000
except urllib.error.HTTPError as error:
    status, said = error.code, error.read().decode()
print(json.dumps([sent, status, said]))
"""


@pytest.mark.slow
def test_a_team_cannot_fill_the_database_of_all(cluster: Cluster, two: tuple[str, str]) -> None:
    """Of a small budget MLflow's records get a part; the other run goes on, and the budget is one that values raise."""
    thief, victim = two
    try:
        install("--set", "budget.database=16Mi")
        (own, *_) = [run["id"] for run in mlflow_runs(cluster, thief, "toy")]
        code = FLOOD % (mlflow.path(HERE, thief), own)
        sent, status, said = json.loads(inside(cluster, thief, names.CONTROLLER, names.CONTROLLER, code))
        assert (status, sent < 18 << 20) == (507, True), said
        assert f"the runs in {cluster.namespace} use" in said and "budget.database" in said
        assert cluster.status(victim)["state"] == "RUNNING"
    finally:
        install()


def platform_restarts(cluster: Cluster) -> dict[str, int]:
    """Restarts of each container of the platform's own pods; without pods that are being replaced."""
    pods = json.loads(cluster.control.kubectl("get", "pods", "-o", "json"))["items"]
    return {
        f"{pod['metadata']['name']}/{container['name']}": container["restartCount"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        for container in pod["status"].get("containerStatuses", [])
    }


def user_token(cluster: Cluster) -> str:
    """What opens the gateway for a user of the team, for ten minutes."""
    return cluster.kubectl("create", "token", names.USER, "--audience", names.AUDIENCE, "--duration", "10m").strip()


# Opens connections to the gateway and shows a token at each, and holds them until a file is there: how many are answered.
CONNECTIONS = """
import os, pathlib, resource, socket, time, urllib.parse
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
address = urllib.parse.urlsplit(os.environ["TRIALPLANE_LEDGER"])
held = []
for number in range(min(3000, most - 100)):
    head = %r if number %% 10 else ""
    try:
        one = socket.create_connection((address.hostname, address.port or 80), timeout=5)
        one.sendall(f"GET {address.path}/runs HTTP/1.1\\r\\nHost: x\\r\\n{head}".encode() + (b"\\r\\n" if head else b"x"))
    except OSError:
        continue
    held.append(one)
print(len(held), flush=True)
end = time.monotonic() + 600
while time.monotonic() < end and not pathlib.Path("/tmp/enough").exists():
    time.sleep(0.2)
"""


@pytest.mark.slow
def test_a_team_that_floods_connections_and_bad_runs_holds_up_no_other(
    cluster: Cluster, other: Cluster, two: tuple[str, str], tmp_path: Path
) -> None:
    """Thousands of connections, and Runs that are looked at again and again: another team's study ends meanwhile."""
    thief, _ = two
    before = platform_restarts(cluster)
    spec = SPEC.replace("trials: 6", "trials: 2")
    bad = cluster.platform("submit", "hpo", cluster.job(tmp_path / "bad" / "toy", spec=spec), "--name", "bad", "--dry-run")
    flood = []
    for number in range(30):
        named = re.sub(r"\bbad\b", f"bad-{number}", bad)  # its objects must have the name of the run
        objects = [thing for thing in yaml.safe_load_all(named) if thing]
        for run in (thing for thing in objects if thing["kind"] == "Run"):
            run["spec"]["job"]["cluster"] |= {"priority_class": "system-node-critical"}
        flood += objects
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(flood))
    head = f"{names.TOKEN_HEADER}: {user_token(cluster)}\r\n"
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            held = pool.submit(inside, cluster, thief, names.CONTROLLER, names.CONTROLLER, CONNECTIONS % head, 650)
            calm = other.job(tmp_path / "calm" / "toy", spec=spec)
            other.platform("submit", "hpo", calm, "--name", "calm", "--detach")
            other.until("its trials", lambda: other.status("calm")["state"] == "SUCCEEDED")
            inside(cluster, thief, names.CONTROLLER, names.CONTROLLER, "open('/tmp/enough', 'w').close()")
            assert int(held.result().split()[0]) > 100, "the connections were there"
        other.check_exact("calm", 2)
        for run in ("bad-0", "bad-29"):
            assert refused(cluster, run)
        assert platform_restarts(cluster) == before
    finally:
        cluster.kubectl("delete", "runs", *(f"bad-{number}" for number in range(30)), "--wait=false")
        other.platform("delete", "calm", "--yes")


def test_a_run_that_has_ended_has_no_token(cluster: Cluster, two: tuple[str, str]) -> None:
    thief, victim = two
    code = "import os; print(open(os.environ['TRIALPLANE_TOKEN_FILE']).read().strip())"
    old = inside(cluster, victim, names.CONTROLLER, names.CONTROLLER, code).strip()
    tries = [(ledger.path(HERE, victim), old, "POST")]
    assert answers(cluster, thief, tries) == [400]
    cluster.platform("pause", victim, "--now")
    cluster.until("pause", lambda: cluster.status(victim)["state"] == "PAUSED", patience=120)
    cluster.until("its token's end", lambda: answers(cluster, thief, tries) == [403], patience=60)
    cluster.platform("resume", victim, "--detach")
    cluster.until("a trial again", lambda: cluster.status(victim)["running"] == 1)
    assert answers(cluster, thief, tries) == [403], "the token of the former start"


def answers(cluster: Cluster, run: str, tries: list[tuple[str, str, str]]) -> list[int]:
    """The status that the gateway answers to each path, token and method, asked from where the controller of a run is."""
    code = CROSS % (names.TOKEN_HEADER, json.dumps(tries))
    found: list[int] = json.loads(inside(cluster, run, names.CONTROLLER, names.CONTROLLER, code).splitlines()[-1])
    return found


@pytest.fixture
def bob(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """Somebody else who may use the namespace, as options of kubectl."""
    cluster.kubectl("create", "rolebinding", "bob", "--role=trialplane-user", "--user=bob")
    yield "--as", "bob"
    cluster.kubectl("delete", "rolebinding", "bob")


def test_a_user_has_his_own_runs_and_nothing_of_the_platform(
    cluster: Cluster, two: tuple[str, str], bob: tuple[str, ...]
) -> None:
    """What others run he sees, and cannot change or delete, neither as an object nor at the gateway."""
    _, victim = two
    for verb, *what in (
        ("create", "pods"),
        ("create", "pods", "--subresource=exec"),
        ("create", "rayclusters.ray.io"),
        ("create", "networkpolicies"),
        ("list", "secrets"),
        ("get", f"secrets/{names.token_secret(victim)}"),
        ("patch", "runs", "--subresource=status"),
    ):
        assert cluster.kubectl("auth", "can-i", verb, *what, *bob, code=1).startswith("no"), (verb, what)
    stop = ("patch", "run", victim, "--type", "merge", "-p", '{"spec": {"state": "Cancelled"}}')
    claim = ("annotate", "--overwrite", "run", victim, f"{names.OWNER}=bob")
    for words in (stop, claim, ("delete", "run", victim)):
        assert "denied request" in cluster.kubectl(*words, *bob, code=1), words
    token = ("create", "token", names.USER, "--audience", names.AUDIENCE, *bob)
    short, long = (cluster.kubectl(*token, "--duration", span).strip() for span in ("10m", "24h"))
    thief, _ = two
    tries = [(f"/runs/{victim}/status", short, "GET"), (f"/runs/{victim}/status", long, "GET"), ("/runs", "", "GET")]
    assert answers(cluster, thief, tries) == [200, 401, 403]
    assert answers(cluster, thief, [(f"/runs/{victim}", short, "DELETE")]) == [409], "a controller works on it"
    status = cluster.status(victim)
    assert status["state"] == "RUNNING", status
