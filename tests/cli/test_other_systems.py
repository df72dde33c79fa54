"""Verbs of a laptop that need no local run, on a system without prctl, pidfd, /proc and the calls that only Linux has.

Each runs in a process in which these are gone. Not checked here: `--local`, which needs them, and the servers of
`platform ui`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.client.conftest import complete

from trialplane.wire.states import RunState

# As on macOS: attributes are missing, files are not there.
OTHER_SYSTEM = """
import ctypes, errno, json, os, select, signal, sys

class Library:
    def __init__(self, *_, **__): ...
    def __getattr__(self, name):
        raise AttributeError(f'dlsym: symbol not found: {name}')

def hidden(event, arguments):
    if event in ('open', 'os.listdir', 'os.scandir') and str(arguments[0]).startswith('/proc'):
        raise FileNotFoundError(errno.ENOENT, 'No such file or directory', arguments[0])

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

attempts = (lambda: ctypes.CDLL(None).prctl, lambda: os.pidfd_open, lambda: open('/proc/stat'), lambda: os.stat('/proc'))
for attempt in attempts:
    try:
        attempt()
    except (AttributeError, FileNotFoundError):
        continue
    sys.exit('this is still Linux')

from trialplane.cli import main
main.main(json.loads(sys.argv[1]))
"""


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OTHER_SYSTEM, json.dumps(words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        check=False,
    )


@pytest.fixture(autouse=True)
def two_runs(runs):
    for name in ("a", "b"):
        run = runs.make(name, tell=complete, seed=len(name))
        runs.say(run, RunState.SUCCEEDED, complete=6)
        run.controller_log.write_text("hello\n")


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("init", "mine"),
        ("validate", "demo"),
        ("schema",),
        ("docs", "studies"),
        ("explain", "trials"),
        ("examples", "study"),
        ("completion", "zsh"),
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
    ],
    ids=" ".join,
)
def test_a_verb_does_without_what_only_linux_has(words):
    done = typed(*words)
    assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr


def test_a_local_run_is_refused_in_words():
    done = typed("submit", "hpo", "demo", "--local", "--name", "x")
    assert done.returncode == 2
    assert "--local: a run on this machine needs Linux" in done.stderr
