"""Verbs of a laptop that need no local run, on a system without prctl, pidfd, /proc and the calls that only Linux has.

Each runs in a process in which these are gone, and so do the processes that it starts. Not checked here: `--local`, which
needs them, and what the verbs print.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.browser import Browser
from tests.cli.conftest import write
from tests.cli.test_mcp import served
from tests.cli.test_ui import DOUBLE, write_database
from tests.client.conftest import complete
from tests.client.test_doctor import cluster
from tests.client.test_images import Machine
from tests.ports import free_port

from trialplane.wire.records import TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

__all__ = ["cluster"]

# As on macOS: attributes are missing, files are not there. It is the sitecustomize of each process.
OTHER_SYSTEM = """
import ctypes, errno, os, select, signal, socket, sys

class Library:
    def __init__(self, *_, **__): ...
    def __getattr__(self, name):
        raise AttributeError(f'dlsym: symbol not found: {name}')

def hidden(event, arguments):
    if event in ('open', 'os.listdir', 'os.scandir') and str(arguments[0]).startswith('/proc'):
        raise FileNotFoundError(errno.ENOENT, 'No such file or directory', arguments[0])
    if event in ('socket.bind', 'socket.connect') and arguments[0].family == socket.AF_UNIX and len(arguments[1]) > 103:
        raise OSError('AF_UNIX path too long')

def without(call):
    def replaced(path, *arguments, **options):
        if str(path).startswith('/proc'):
            raise FileNotFoundError(errno.ENOENT, 'No such file or directory', path)
        return call(path, *arguments, **options)
    return replaced

ctypes.CDLL = Library
sys.addaudithook(hidden)
for name in ('stat', 'lstat', 'readlink'):
    setattr(os, name, without(getattr(os, name)))
for module, names in (
    (os, ('pidfd_open', 'sched_getaffinity', 'sched_setaffinity', 'memfd_create', 'eventfd', 'O_PATH', 'splice')),
    (signal, ('pidfd_send_signal',)),
    (select, ('epoll',)),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""
# Types one command after another, and prints a mark if this is still Linux.
PROGRAM = """
import ctypes, json, os, sys
from trialplane.cli import main
attempts = (lambda: ctypes.CDLL(None).prctl, lambda: os.pidfd_open, lambda: open('/proc/stat'), lambda: os.stat('/proc'))
for attempt in attempts:
    try:
        attempt()
    except (AttributeError, FileNotFoundError):
        continue
    sys.exit('this is still Linux')
for words in json.loads(sys.argv[1]):
    try:
        main.main(words)
    except SystemExit as end:
        if end.code:
            print(*words, file=sys.stderr)
            raise
"""


@pytest.fixture
def environ(tmp_path) -> Callable[[], dict[str, str]]:
    """Gives the environment of a process on that system, whose temporary files have paths that are too long for sockets."""
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "sitecustomize.py").write_text(OTHER_SYSTEM)
    temporary = tmp_path / ("a-long-name-" * 10)
    temporary.mkdir()

    def environ_() -> dict[str, str]:
        paths = os.pathsep.join(filter(None, (str(tmp_path / "system"), os.environ.get("PYTHONPATH"))))
        return {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": paths, "TMPDIR": str(temporary)}

    return environ_


@pytest.fixture
def typed(environ) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Types commands one after another in a process; gives what has ended."""

    def type_(*commands: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
        return subprocess.run(command, capture_output=True, text=True, env=environ(), check=False)

    return type_


@pytest.fixture(autouse=True)
def two_runs(runs) -> None:
    for name in ("a", "b"):
        run = runs.make(name, tell=complete, seed=len(name))
        runs.say(run, RunState.SUCCEEDED, complete=6)
        run.controller_log.write_text("hello\n")


def test_the_verbs_do_without_what_only_linux_has(typed):
    write(Path(), HYDRA)
    done = typed(
        ("--help",),
        ("init", "mine"),
        ("validate", "demo"),
        ("schema",),
        ("docs", "studies"),
        ("explain", "trials"),
        ("examples", "study"),
        ("completion", "zsh"),
        ("import", "hydra", "conf/config.yaml"),
        ("list",),
        ("status", "a"),
        ("logs", "a"),
        ("results", "a", "--output", "csv"),
        ("best", "a"),
        ("report", "a"),
        ("compare", "a", "b"),
        ("compare", "a:0", "a:1"),
        ("export", "a", "sqlite:///a.db"),
        ("delete", "b", "--yes"),
    )
    assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr


HYDRA = {
    "conf/config.yaml": "hydra: {mode: MULTIRUN, sweeper: {params: {lr: 'choice(0.1, 0.2)'}}}\nlr: 0.1\n",
    "fit.py": "import hydra\n@hydra.main(None, 'conf', 'config')\ndef main(config): return config.lr\n",
}
SUBMIT = ("submit", "hpo", "demo", "--context", "lab", "--detach", "--name")


def test_the_verbs_of_a_run_on_a_cluster_do_without_it(typed, namespace):
    done = typed(
        (*SUBMIT, "x", "--dry-run"),
        (*SUBMIT, "x"),
        *((verb, "x") for verb in ("status", "logs", "results", "report")),
        ("list",),
        ("diff", "demo", "x"),
        ("scale", "x", "--parallel", "1"),
        ("edit", "x", "--set", "trials=9", "--detach"),
        ("pause", "x"),
        ("resume", "x", "--detach"),
        ("cancel", "x", "--yes"),
        ("delete", "x", "--yes"),
    )
    assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr


def test_a_training_and_a_collection_are_submitted_without_it(typed, namespace):
    write(Path("jobs"), JOBS)
    done = typed(
        ("submit", "train", "fit", "--context", "lab", "--detach", "--name", "f"),
        ("submit", "collect", "play", "--context", "lab", "--detach", "--name", "p"),
        *((verb, name) for name in ("f", "p") for verb in ("status", "logs", "results", "report")),
        ("cancel", "f", "--yes"),
        ("cancel", "p", "--yes"),
    )
    assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr


JOBS = {
    "fit/job.yaml": "kind: train\n",
    "fit/train.py": "def run(ctx): return {}\n",
    "play/job.yaml": "kind: collect\ncollect: {units: 4, workers: 1, learner: train:learn}\nentrypoint: train:play\n",
    "play/train.py": "def play(ctx): ...\ndef learn(ctx, results): ...\n",
}


def test_the_verbs_that_continue_or_repeat_a_run_on_a_cluster_do_without_it(typed, namespace):
    assert typed((*SUBMIT, "x")).returncode == 0
    ended = [
        TrialRow(0, TrialState.COMPLETE, 1, 0, (0.5,), {"lr": 0.5, "name": "on"}, {"loss": 0.5}),
        TrialRow(1, TrialState.FAILED, 1, 1, params={"lr": 0.1, "name": "on"}, failure=FailureClass.ERROR),
    ]
    namespace.tell("x", ended)
    namespace.end("x", RunState.SUCCEEDED)
    done = typed(
        ("best", "x"),
        ("compare", "x:0", "x:1"),
        ("export", "x", "sqlite:///x.db"),
        ("refit", "x", "--name", "y", "--detach"),
        ("submit", "hpo", "--from", "x:0", "--name", "z", "--context", "lab", "--detach"),
        ("retry", "x", "--failed", "--detach"),
    )
    assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr


@contextlib.contextmanager
def shown(environ: Mapping[str, str], *words: str) -> Iterator[Browser]:
    """`platform ui` in a process; gives a browser that has opened its page."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([["ui", "--port", str(free_port()), *words]])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stderr is not None
        try:
            yield Browser(child.stderr.readline().strip())
        finally:
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=300)
    assert child.returncode == 0, said


def test_the_dashboard_of_a_run_is_shown_without_it(environ):
    with shown(environ(), "a", "--local", "--dashboard") as browser:
        assert [study["study_name"] for study in browser.get("/api/studies")["study_summaries"]] == ["a"]
        assert browser.get("/-/report/data?after=0")


def test_mlflow_and_the_page_are_shown_without_it(environ, home, tmp_path, monkeypatch):
    write_database(home)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mlflow.py").write_text(DOUBLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    with shown(environ(), "a", "--local") as browser:
        assert "/#/experiments/7/runs?" in browser.page


def test_the_pages_of_a_cluster_are_shown_without_it(typed, environ, namespace):
    assert typed((*SUBMIT, "x")).returncode == 0
    proxy, experiment = namespace.cluster.proxy, json.dumps({"experiment": {"experiment_id": "7"}}).encode()

    def answer(method, path, *request):
        return (200, {}, experiment) if "/mlflow/" in path else proxy(method, path, *request)

    namespace.cluster.proxy = answer
    with shown(environ(), "x") as browser:
        assert "/#/experiments/7/runs?" in browser.page


def test_an_assistant_reads_the_runs_without_it(environ, monkeypatch):
    for name, value in environ().items():
        monkeypatch.setenv(name, value)

    async def talk(client):
        calls = [("list", {}), ("status", {"run": "a"}), ("results", {"run": "a"}), ("logs", {"run": "a"})]
        return [await client.call_tool(tool, arguments) for tool, arguments in calls]

    answers = served(talk)
    assert not any(answer.is_error for answer in answers), [answer.content for answer in answers]
    assert "hello" in answers[-1].structured_content["text"]


def test_images_are_built_without_it(typed, tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch)  # docker and kind are doubles
    done = typed(
        ("image", "build", "--device", "cpu"),
        ("image", "push", "--registry", "registry.example.com/team"),
        ("image", "load", "--cluster", "lab"),
    )
    assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr
    assert [words[2] for words in machine.ran] == ["build", "build", *("tag", "push") * 2, "docker-image"]


def test_doctor_checks_a_cluster_without_it(typed, cluster):
    done = typed(("doctor", "--context", "lab", "--wait", "1"))
    assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stdout + done.stderr
    assert " 0 failed" in done.stderr
    assert "trial pod" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "hpo", "demo", "--local", "--name", "x"),
        ("submit", "hpo", "--from", "a:1", "--local", "--name", "x"),
        ("refit", "a", "--local", "--name", "x"),
        ("edit", "a", "--local", "--set", "trials=9"),
        ("resume", "a", "--local", "--trials", "9"),
    ],
    ids=" ".join,
)
def test_a_local_run_is_refused_in_words(typed, words):
    done = typed(words)
    assert done.returncode == 2, done.stderr
    assert "--local: a run on this machine needs Linux" in done.stderr


@pytest.mark.services
def test_doctor_says_that_there_are_no_local_runs(typed):
    done = typed(("doctor", "--local"))
    assert "a run on this machine needs Linux" in done.stdout, done.stderr
    assert done.returncode == 3
