"""`platform report` and `platform compare`: what they write and print, and what they refuse.

Not checked here: the page in a browser (tests/pages/test_page.py).
"""

from __future__ import annotations

import csv
import dataclasses
import http.server
import io
import json
import re
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import complete, failed

from trialplane.errors import TargetError
from trialplane.wire import paths
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState


@pytest.fixture
def run(runs):
    """A run of six trials, that can be found and is complete."""
    return runs.say(runs.make("a", tell=complete), RunState.SUCCEEDED, complete=6)


def test_a_report_is_one_file_named_after_the_run(platform, run):
    done = platform("report", "a")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "wrote a.html" in done.stderr
    text = Path("a.html").read_text()
    assert "<title>a</title>" in text
    assert "platform best a --local" in text
    assert '"trials":6' in text


def test_many_pages_of_a_process_read_plotly_once(platform, run, monkeypatch):
    read, names = Path.read_text, []

    def counted(file, *args, **options):
        names.append(file.name)
        return read(file, *args, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    for out in ("x.html", "y.html"):
        assert platform("report", "a", "--out", out).exit_code == 0
    assert names.count("plotly.min.js") <= 1


def test_it_is_written_where_it_is_asked_to(platform, run, tmp_path):
    assert platform("report", "--out", str(tmp_path / "x.html"), "--cpu-price", "2").exit_code == 0
    assert '"cost":0.' in (tmp_path / "x.html").read_text()
    missing = tmp_path / "no" / "x.html"
    done = platform("report", "--out", str(missing))
    assert (done.exit_code, f"there is no folder {missing.parent} for x.html" in done.stderr) == (2, True)
    assert not missing.parent.exists()
    done = platform("report", "--out", str(tmp_path))
    assert (done.exit_code, "is a folder" in done.stderr) == (2, True)


@pytest.fixture
def mlflow(monkeypatch):
    """An MLflow that knows the experiment of each run. `asked` are the logins that it gets."""
    stored, asked = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Authorization"])
            is_known = self.path.startswith("/api/2.0/mlflow/experiments/get-by-name?experiment_name=")
            data = json.dumps({"experiment": {"experiment_id": "7"}} if is_known else {}).encode()
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ann:secret@127.0.0.1:{server.server_port}")
    monkeypatch.setattr("trialplane.client.exporting.export_to_mlflow", lambda *arguments: stored.append(arguments))
    yield server.server_port, stored, asked
    server.shutdown()
    server.server_close()


def test_it_links_to_the_run_in_the_mlflow_that_stores_it(platform, run, mlflow):
    port, stored, asked = mlflow
    done = platform("report", "a", "--mlflow")
    assert (done.exit_code, f"in http://ann:***@127.0.0.1:{port}" in done.stderr) == (0, True)
    text = Path("a.html").read_text()
    assert f'"mlflow":"http://127.0.0.1:{port}/#/experiments/7/runs?' in text and "secret" not in text
    assert [arguments[1:] for arguments in stored] == [("a", f"http://ann:secret@127.0.0.1:{port}", text)]
    assert asked == ["Basic YW5uOnNlY3JldA=="]


def test_a_login_is_not_sent_to_another_server(platform, run, mlflow, monkeypatch):
    port, _, asked = mlflow

    class Redirects(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{port}{self.path}")
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ann:secret@127.0.0.1:{server.server_port}")
        assert platform("report", "a", "--mlflow").exit_code == 0
        server.shutdown()
    assert not asked
    assert f'"mlflow":"http://127.0.0.1:{server.server_port}"' in Path("a.html").read_text()


def test_without_an_answer_of_mlflow_it_links_to_the_server(platform, run, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9/")

    def export(*arguments):
        raise TargetError("MLflow does not answer")

    monkeypatch.setattr("trialplane.client.exporting.export_to_mlflow", export)
    done = platform("report", "a", "--mlflow")
    assert (done.exit_code, "MLflow does not answer" in done.stderr) == (3, True)
    assert '"mlflow":"http://127.0.0.1:9"' in Path("a.html").read_text(), "the page is written first"


def test_it_is_opened_in_a_browser(platform, run, monkeypatch):
    opened = []
    monkeypatch.setenv("BROWSER", "true")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert platform("report", "a", "--open").exit_code == 0
    assert opened[0].startswith("file:///") and opened[0].endswith("/a.html")
    assert not Path("a.html").exists()


def test_a_run_without_trials_has_a_report_too(platform, runs):
    runs.make("none")
    assert platform("report", "none").exit_code == 0


def every_third_fails(request: TrialRequest) -> TrialOutcome:
    outcome = dataclasses.replace(complete(request), metrics={"loss": request.params.get("lr", 0.5), "size": 1.0})
    return failed(request) if request.trial % 3 == 1 else outcome


def segment(request: TrialRequest) -> TrialOutcome:
    state = TrialState.PAUSED if request.segment and request.segment.rung else TrialState.COMPLETE
    return dataclasses.replace(complete(request), state=state, step=request.segment.rung or 12)


def saved(request: TrialRequest) -> TrialOutcome:
    metrics = {"loss": 0.5, "units": 2.0}
    return TrialOutcome(request.number, TrialState.COMPLETE, metrics=metrics, started=10.0, ended=12.0, saved=True)


def not_saved(request: TrialRequest) -> TrialOutcome:
    return dataclasses.replace(saved(request), saved=False)


def saved_only_at_first(request: TrialRequest) -> TrialOutcome:
    return (
        not_saved(request) if request.attempt > 1 else dataclasses.replace(failed(request, FailureClass.CRASHED), saved=True)
    )


LOSS, SIZE = ({"metric": name, "direction": "minimize"} for name in ("loss", "size"))
STEPPED = {"space.lr": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.5}}  # 9 points
POPULATION = {"population": {"interval": 4, "steps": 12}, "trials": 4, "pruner": "none"}
PROMOTION = {"pruner": {"name": "asha", "promote": True, "max_resource": 12}}
CODE = "def space(trial): return {'lr': trial.suggest_float('lr', 0, 1, step=0.1)}\n"
CONTINUES = "def restored(ctx): return ctx.restored\n"
BEST = ("submit hpo --from", "refit")


@pytest.mark.parametrize(
    ("fields", "changes", "verbs"),
    [
        ({}, {}, {*BEST, "retry", "resume --trials 12"}),
        ({}, {"tell": complete, "failed": 0}, {*BEST, "resume --trials 12"}),
        ({}, {"tell": failed, "complete": 0, "failed": 6}, {"retry", "resume --trials 12"}),
        ({}, {"asks": 4, "state": RunState.PAUSED, "complete": 3, "failed": 1}, {*BEST, "retry", "resume"}),
        ({"budget.time": "10s"}, {"asks": 4, "complete": 3, "worked": 11.0}, {*BEST, "resume --set budget.time=20"}),
        ({"budget.target": 1.0}, {"asks": 4, "complete": 3}, {*BEST, "resume --set budget.target=null"}),
        (PROMOTION | {"budget.steps": 99}, {"asks": 4, "complete": 3}, {*BEST, "retry", "resume --set budget.steps=198"}),
        (STEPPED | {"sampler": "grid"}, {}, {*BEST, "retry", "resume --trials 9"}),
        (STEPPED | {"sampler": "bruteforce", "trials": 9}, {"complete": 6, "failed": 3}, {*BEST, "retry"}),
        ({"sampler": {"name": "cmaes", "x0": {"lr": 0.5}}}, {}, {*BEST, "retry", "resume --trials 12"}),
        ({"space": "train:space", "sampler": "bruteforce"}, {}, {*BEST, "retry", "resume --trials 12"}),
        ({"objectives": [LOSS, SIZE]}, {}, {"submit hpo --from", "retry", "resume --trials 12"}),
        (POPULATION, {"tell": segment, "complete": 4, "failed": 0}, {"best --schedule"}),
        (POPULATION, {"asks": 4, "tell": segment, "state": RunState.PAUSED, "complete": 0, "failed": 0}, {"resume"}),
    ],
)
def test_the_next_steps_on_the_page_are_commands_that_run(platform, runs, double, monkeypatch, fields, changes, verbs):
    monkeypatch.delitem(sys.modules, "train", raising=False)  # another test's, as this process is the controller too
    train = runs.jobs / "demo" / "train.py"
    train.write_text(f"{train.read_text()}{CODE}{CONTINUES}")
    changes = {"tell": every_third_fails, "asks": None, "state": RunState.SUCCEEDED, "complete": 4, "failed": 2} | changes
    tell, asks, state = (changes.pop(name) for name in ("tell", "asks", "state"))
    for number, verb in enumerate(sorted(verbs)):
        name = f"run-{number}"
        run = runs.make(name, tell=tell, asks=asks, **fields)
        runs.say(run, state, best=next(iter(best_rows(runs, name)), None), **changes)
        assert platform("report", name).exit_code == 0
        commands = {verb_of(text, name): text for text in next_steps(Path(f"{name}.html"))}
        assert {*commands} == verbs
        words = shlex.split(commands[verb])[1:]
        words += {"best": [], "retry": ["--detach"], "resume": ["--detach"]}.get(
            words[0], ["--detach", "--name", f"{name}-again"]
        )
        done = platform(*words)
        assert done.exit_code == 0, done.stderr


TRAINING = "kind: train\nresources: {memory: 1Mi}\n"
COLLECTION = "kind: collect\ncollect: {units: 2, iterations: 3, learner: 'train:learn'}\nresources: {memory: 1Mi}\n"


@pytest.mark.parametrize(
    ("job", "tell", "state", "verbs"),
    [
        (TRAINING, saved, RunState.SUCCEEDED, {"submit train demo --resume"}),
        (TRAINING, not_saved, RunState.SUCCEEDED, set()),
        (TRAINING, saved_only_at_first, RunState.SUCCEEDED, set()),
        (TRAINING, failed, RunState.FAILED, {"resume"}),
        (COLLECTION, saved, RunState.SUCCEEDED, {"resume --iterations 6"}),
    ],
)
def test_the_next_step_of_a_training_and_a_collection_is_a_command_that_runs(
    platform, runs, double, job, tell, state, verbs
):
    folder = runs.jobs / "demo"
    (folder / "job.yaml").write_text(job)
    (folder / "train.py").write_text("def play(ctx): ...\ndef learn(ctx, results): ...\ndef run(ctx): ...\n")
    run = runs.make("a", tell=tell)
    runs.say(run, state)
    if tell is saved:
        checkpoints = Path(paths.trial_checkpoints(str(run.checkpoints), "a", 0))
        checkpoints.mkdir(parents=True)
        (checkpoints / "step-1.pt").touch()
    assert platform("report", "a").exit_code == 0
    commands = next_steps(Path("a.html"))
    assert {verb_of(command, "a") for command in commands} == verbs
    for command in commands:
        done = platform(*shlex.split(command)[1:], "--detach")
        assert done.exit_code == 0, done.stderr


def best_rows(runs, name: str) -> list[Any]:
    return sorted((row for row in runs.target.rows(name) if row.values), key=lambda row: row.values)


def next_steps(file: Path) -> list[str]:
    """The commands of a page that start something or print a schedule, without what is redirected to a file."""
    facts = re.search(r'id="facts">(.*?)</script>', file.read_text(), re.DOTALL)
    assert facts is not None
    texts = [text.partition(" >")[0] for _, text in json.loads(facts[1])["runs"][0]["commands"]]
    return [text for text in texts if re.match("platform (submit|refit|retry|resume|best .*--schedule)", text)]


def verb_of(text: str, run: str) -> str:
    """A command without its program, run, target and numbers of trials: `resume --trials 12`."""
    return re.sub(rf"^platform | {run}(:\d+)?| --local| --top 3 --seeds 5| --failed", "", text)


def test_a_population_is_not_refitted(platform, runs):
    train = runs.jobs / "demo" / "train.py"
    train.write_text(f"{train.read_text()}{CONTINUES}")
    runs.say(runs.make("herd", tell=segment, **POPULATION), RunState.SUCCEEDED, complete=4)
    done = platform("refit", "herd", "--local", "--detach")
    assert (done.exit_code, "the members of herd change their parameters" in done.stderr) == (2, True), done.stderr


def test_runs_with_different_objectives_are_refused(platform, runs, run):
    other = {"objectives": [{"metric": "loss", "direction": "maximize"}]}
    runs.say(runs.make("b", tell=complete, **other), RunState.SUCCEEDED)
    for verb in ("report", "compare"):
        done = platform(verb, "a", "b")
        assert done.exit_code == 2
        assert "a and b have different objectives: minimize loss, and maximize loss" in done.stderr
    assert not Path("a.html").exists()


def test_a_damaged_run_is_refused(platform, runs, run):
    for broken in ("job.json", "status.json", "ledger.db"):
        made = runs.make(f"bad-{broken[:3]}", tell=complete)
        runs.say(made, RunState.SUCCEEDED, complete=6)
        (made.root / broken).write_text("{ no")
        done = platform("report", made.root.name)
        assert (done.exit_code, str(made.root) in done.stderr) == (2, True), broken


def test_a_run_whose_ledger_is_gone_is_refused(platform, runs):
    made = runs.make("half", tell=complete)
    runs.say(made, RunState.SUCCEEDED, complete=6)
    for file in made.root.glob("ledger.db*"):
        file.unlink()
    done = platform("report", "half")
    assert (done.exit_code, "the ledger of half is not in" in done.stderr) == (2, True)
    assert platform("report", "nosuch").exit_code == 2


@pytest.fixture
def several(runs):
    """Three repetitions of each of two samplers, and one of another."""
    for sampler, seeds in (("random", (1, 2, 3)), ("tpe", (1, 2, 3)), ("qmc", (1,))):
        for seed in seeds:
            made = runs.make(f"{sampler}-{seed}", tell=complete, seed=seed, sampler=sampler)
            runs.say(made, RunState.SUCCEEDED, complete=6)
    return ["random-1", "random-2", "random-3", "tpe-1", "tpe-2", "tpe-3", "qmc-1"]


def test_runs_are_compared_by_what_differs(platform, several):
    done = platform("compare", *several)
    assert done.exit_code == 0
    refused = platform("compare", *several, "--out", "no/x.html")
    assert (refused.exit_code, "there is no folder no for x.html" in refused.stderr) == (2, True), refused.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split()[:5] == ["run", "state", "ended", "trials", "best"]
    assert {"seed", "sampler.name"} <= set(header.split())
    assert "trials" in header and "objectives" not in header
    assert [line.split()[0] for line in lines[:7]] == several
    assert "cannot be told: repeat each with other seeds" in done.stdout
    assert "may be noise" in done.stdout or "differs" in done.stdout
    alone = platform("compare", "tpe-1", "tpe-2").stdout
    assert "they differ in their seed alone: mean" in alone
    assert "kind" in platform("compare", *several, "--all").stdout.splitlines()[0].split()


def test_a_comparison_is_data_and_a_page(platform, several, tmp_path):
    file = tmp_path / "c.html"
    data = json.loads(platform("compare", *several, "--output", "json", "--value", "2", "--out", str(file)).stdout)
    assert (data["goal"], [run["run"] for run in data["runs"]]) == (2.0, several)
    assert all(run["reached"] is not None for run in data["runs"])
    assert {group["name"] for group in data["groups"]} == {f"sampler.name={name}" for name in ("random", "tpe", "qmc")}
    assert "<title>Comparison</title>" in file.read_text()
    table = list(csv.DictReader(io.StringIO(platform("compare", *several, "--output", "csv").stdout)))
    assert [row["sampler.name"] for row in table] == ["random"] * 3 + ["tpe"] * 3 + ["qmc"]


def test_trials_are_compared_by_the_parameters_that_differ(platform, run, tmp_path):
    file = tmp_path / "c.html"
    done = platform("compare", "a:1", "a:3", "--out", str(file))
    assert done.exit_code == 0, done.stderr
    header, first, second, *_ = done.stdout.splitlines()
    assert header.split()[:4] == ["trial", "state", "attempts", "value"]
    assert "lr" in header.split() and "cannot be told" in done.stdout
    assert (first.split()[0], second.split()[0]) == ("a:1", "a:3")
    assert "<title>Comparison</title>" in file.read_text()
    data = json.loads(platform("compare", "a:1", "a:3", "--output", "json").stdout)
    assert [each["params"]["lr"] == str(each["value"]) for each in data["trials"]] == [True, True]
    assert data["goal"] == max(each["value"] for each in data["trials"])
    assert all(each["reached"] == 2.0 for each in data["trials"])  # each at its end, as none reports


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["a:1"], "needs two different trials; `platform logs a 1` shows one"),
        (["a:1", "a:1"], "needs two different trials"),
        (["a:1", "a"], "not both in one comparison"),
        (["a:1", "a:x"], "a:x is not a trial"),
        (["a:1", "a:99"], "a has no trial 99; its trials are 0 to 5"),
        (["a:1", "nosuch:1"], "nosuch"),
    ],
)
def test_what_are_no_two_trials_is_refused(platform, run, arguments, message):
    done = platform("compare", *arguments)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_one_run_is_no_comparison(platform, run, runs):
    done = platform("compare", "a", "a")
    assert (done.exit_code, "needs two different runs" in done.stderr) == (2, True)
    runs.say(runs.make("b", tell=failed), RunState.FAILED)
    done = platform("compare", "a", "b")  # of which one has no result
    assert done.exit_code == 0
