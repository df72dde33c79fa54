"""What another account of this machine gets from `platform ui`, and what may be done with its secret, with the real MLflow.

The other account is a process with another uid where the tests run as root; elsewhere it is the same account without the
secret, and who may connect to MLflow's own socket is not checked. Not here: optuna-dashboard (test_ui.py), and
a cluster's pages (test_cluster_verbs.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Browser
from tests.client.conftest import JOB, TRAIN, Runs, complete

from trialplane.wire import env, paths
from trialplane.wire.states import RunState

pytestmark = [pytest.mark.services, pytest.mark.slow]

API = "/api/2.0/mlflow"
LOG = "/-/report/log?trial=0&attempt=1"
PRINTED = "what the trial printed\n"
# Records one run with a metric and an artifact: tracking URI, place of artifacts → id of the run.
RECORD = """
import sys, mlflow
client = mlflow.MlflowClient(sys.argv[1])
experiment = client.create_experiment("mine", artifact_location=sys.argv[2])
run = client.create_run(experiment).info.run_id
client.log_metric(run, "loss", 0.5)
client.log_text(run, "what the user keeps", "note.txt")
client.set_terminated(run)
print(run)
"""
# What `platform ui` or a server of its own would import from the folder where it is started.
TRAPS = ("mlflow", "uvicorn", "ray", "json")
# Another account: sends requests to a port, and connects to sockets → what came of each.
OTHER = """
import encodings.idna, http.client, json, os, socket, sys
port, asked, sockets, folder = json.load(sys.stdin)
if os.geteuid() == 0 and "stay" not in sys.argv:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
replies = []
for method, path, body, cookie in asked:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, {"Content-Type": "application/json", "Cookie": cookie})
    reply = connection.getresponse()
    replies.append([reply.status, reply.read().decode(errors="replace")])
    connection.close()
connects = []
for path in sockets:
    with socket.socket(socket.AF_UNIX) as tried:
        try:
            tried.connect(path)
            connects.append("connected")
        except OSError as error:
            connects.append(type(error).__name__)
print(json.dumps([replies, connects, os.listdir(folder)]))
"""


class Site:
    """`platform ui` on a home with a study and another run in MLflow.

    Its temporary folder is where every account can look.
    """

    def __init__(self, home: Path, scratch: Path) -> None:
        home.mkdir()
        job = home / "jobs" / "demo"
        job.mkdir(parents=True)
        (job / "job.yaml").write_text(JOB)
        (job / "train.py").write_text(TRAIN)
        runs = Runs(home, job.parent)
        study = runs.make("study", tell=complete, asks=1)
        runs.say(study, RunState.SUCCEEDED, complete=1)
        log = study.trial_log(0, 1)
        log.parent.mkdir(parents=True)
        log.write_text(PRINTED)
        self.home, self.scratch = home, scratch
        self.environ = {**os.environ, env.HOME: str(home), "TMPDIR": str(scratch), "KUBECONFIG": str(home / "none")}
        arguments = (paths.mlflow_uri(home), str(paths.mlflow_artifacts(home)))
        done = subprocess.run(
            [sys.executable, "-c", RECORD, *arguments], capture_output=True, text=True, check=True, cwd=home
        )
        self.run_id = done.stdout.split()[-1]
        for trap in TRAPS:
            (home / f"{trap}.py").write_text(f"open({str(home / f'{trap}-ran')!r}, 'w').close()\n")
        command = [sys.executable, "-P", "-c", "from trialplane.cli import main; main.main(['ui'])"]  # as the installed one
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=self.environ, cwd=home)
        assert self.process.stderr is not None
        address = self.process.stderr.readline().strip()
        assert address.startswith("http"), address
        self.browser = Browser(address)
        self.port = int(address.split(":")[2].split("/")[0])

    def other(
        self, *asked: tuple[str, str, Any], sockets: tuple[str, ...] = (), cookie: str = "", stay: bool = False
    ) -> Any:
        """What another account gets: the replies, what came of its connections, what it sees in the temporary folder."""
        requests = [(method, path, None if body is None else json.dumps(body), cookie) for method, path, body in asked]
        order = json.dumps([self.port, requests, sockets, str(self.scratch)])
        words = [sys.executable, "-c", OTHER, *(["stay"] if stay else [])]
        done = subprocess.run(words, input=order, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:  # pytest's own folder is closed to other accounts
        Path(scratch).chmod(0o755)
        made = Site(tmp_path_factory.mktemp("attacks") / "home", Path(scratch))
        yield made
        made.process.terminate()
        _, said = made.process.communicate(timeout=300)
        assert made.process.returncode == 0, said
        assert not list(Path(scratch).iterdir())


def reads(run_id: str) -> list[tuple[str, str, Any]]:
    return [
        ("GET", "/", None),
        ("GET", "/version", None),
        ("GET", "/static-files/index.html", None),
        ("GET", f"{API}/experiments/search?max_results=10", None),
        ("GET", f"{API}/runs/get?run_id={run_id}", None),
        ("GET", f"/get-artifact?run_id={run_id}&path=note.txt", None),
        ("GET", "/-/report", None),
        ("GET", "/-/report/data?after=0", None),
        ("GET", LOG, None),
        ("POST", "/graphql", {"query": "query { mlflowSearchRuns { runs { info { runId } } } }"}),
    ]


def writes(run_id: str, location: str = "") -> list[tuple[str, str, Any]]:
    return [
        ("POST", f"{API}/experiments/create", {"name": "theirs", "artifact_location": location}),
        ("POST", f"{API}/runs/create", {"experiment_id": "1"}),
        ("POST", f"{API}/runs/delete", {"run_id": run_id}),
        ("POST", f"{API}/runs/update", {"run_id": run_id, "status": "FAILED"}),
        ("POST", f"{API}/runs/log-metric", {"run_id": run_id, "key": "loss", "value": 0.0, "timestamp": 1, "step": 9}),
        ("POST", f"{API}/runs/set-tag", {"run_id": run_id, "key": "a", "value": "b"}),
        ("POST", f"{API}/registered-models/create", {"name": "theirs"}),
        ("POST", f"{API}/model-versions/create", {"name": "theirs", "source": "/etc"}),
        ("POST", f"{API}/upload-artifact?run_id={run_id}&path=a.txt", {}),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/a.txt", {}),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts/a.txt", None),
        ("POST", "/ajax-api/2.0/mlflow/webhooks", {"name": "a", "url": "http://127.0.0.1:1"}),
        ("POST", "/ajax-api/2.0/mlflow/gateway-proxy", {"gateway_path": "/"}),
        ("POST", "/ajax-api/3.0/jobs", {}),
        ("GET", "/ajax-api/3.0/mlflow/assistant/config", None),
        ("POST", "/ajax-api/3.0/mlflow/assistant/message", {"message": "read my files"}),
        ("POST", "/graphql", {"query": "mutation { mlflowDeleteRun { id } }"}),
    ]


def test_another_account_gets_nothing_without_the_secret(site: Site) -> None:
    guess = site.browser.cookie.partition("=")[0] + "=" + "0" * 32
    tokens: list[tuple[str, str, Any]] = [("GET", "/?token=", None), ("GET", f"/?token={'0' * 32}", None)]
    for cookie in ("", guess, site.browser.cookie[:-1]):
        replies, _, _ = site.other(*reads(site.run_id), *writes(site.run_id), *tokens, cookie=cookie)
        assert {status for status, _ in replies} == {403}
        assert {text for _, text in replies} == {"open the address that `platform ui` has printed; each start has a new one"}
    asked = reads(site.run_id)[:-1]
    replies, _, _ = site.other(*asked, cookie=site.browser.cookie)
    assert {status for status, _ in replies} == {200}, "the requests themselves are right"
    texts = {path: text for (_, path, _), (_, text) in zip(asked, replies, strict=True)}
    assert "<title>study</title>" in texts["/-/report"]
    assert [run["run"] for run in json.loads(texts["/-/report/data?after=0"])["runs"]] == ["study"]
    assert texts[LOG] == PRINTED


def test_no_module_of_the_folder_where_it_is_started_runs(site: Site) -> None:
    assert site.browser.get(f"{API}/experiments/search?max_results=10")["experiments"], "the server has started"
    assert [file.name for file in site.home.iterdir() if file.name.endswith("-ran")] == []


def test_another_account_cannot_connect_to_mlflow_itself(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another account")
    (folder,) = site.scratch.glob("trialplane-*")
    socket = str(folder / "server")
    _, connects, listed = site.other(sockets=(socket,))
    assert (connects, listed) == (["PermissionError"], [folder.name])
    assert site.other(sockets=(socket,), stay=True)[1] == ["connected"], "it is that socket"
    assert listening(site.process.pid), "the browser's port"
    for pid in descendants(site.process.pid):
        assert not listening(pid), Path(f"/proc/{pid}/cmdline").read_bytes()


def test_an_artifact_location_and_a_symlink_read_no_private_file(site: Site, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("what only the user may read")
    private.chmod(0o600)
    theirs = site.scratch / "theirs"
    theirs.mkdir()
    (theirs / "key").symlink_to(private)
    steps: list[tuple[str, str, Any]] = [
        *writes(site.run_id, str(theirs)),
        ("GET", f"/get-artifact?run_id={site.run_id}&path=key", None),
        ("GET", f"/get-artifact?run_id={site.run_id}&path=../../../theirs/key", None),
        ("GET", f"/get-artifact?run_id={site.run_id}&path=%2F..%2F..{theirs}/key", None),
    ]
    for cookie in ("", site.browser.cookie):  # the second is what a page in the user's browser could at most send
        replies, _, _ = site.other(*steps, cookie=cookie)
        assert all(status >= 400 for status, _ in replies)
        assert "what only the user may read" not in json.dumps(replies)
    (theirs / "key").unlink()
    theirs.rmdir()


def test_nothing_can_be_changed_even_with_the_secret(site: Site) -> None:
    for method, path, body in writes(site.run_id, "/tmp"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            site.browser.get(path, body, method)
        with refused.value as reply:
            assert (reply.code, "read-only" in reply.read().decode()) == (403, True), path
    found = site.browser.get(f"{API}/experiments/search?max_results=10")["experiments"]
    assert {one["name"] for one in found} == {"Default", "mine"}
    run = site.browser.get(f"{API}/runs/get?run_id={site.run_id}")["run"]
    assert run["info"]["status"] == "FINISHED"
    assert [(one["key"], one["value"]) for one in run["data"]["metrics"]] == [("loss", 0.5)]


def descendants(pid: int) -> list[int]:
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [one for child in children for one in descendants(child)]


def listening(pid: int) -> list[str]:
    """The sockets of a process that listen at a port."""
    held = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in held:
                found.append(words[1])
    return found
