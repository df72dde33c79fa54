"""Completion in real shells: what a user types, a tab, and the line that the shell makes of it; a missing shell is skipped.

Not checked here: what is offered (tests/cli/test_start_up.py), and that nothing of a cluster is asked (test_cluster_verbs).
"""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.conftest import complete

from trialplane.wire.states import RunState

PATIENCE = 300.0  # seconds
LINES = [("platform stat", "status"), ("platform status nights", "nightshift"), ("platform submit hpo dem", "demo")]
INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "bind 'set enable-bracketed-paste off'"),
    "zsh": (["zsh", "-f", "-i"], "bindkey -e; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D"),
}


@pytest.fixture
def environ(runs, tmp_path: Path) -> dict[str, str]:
    """For a shell that finds `platform`, in the workplace, which has a run and a job."""
    runs.say(runs.make("nightshift", tell=complete), RunState.SUCCEEDED)
    scripts = sysconfig.get_path("scripts")
    return {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb", "HISTFILE": ""}


def needed(shell: str) -> str:
    """The program of a shell."""
    return shutil.which(shell) or pytest.skip(f"there is no {shell}")


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_a_tab_completes_verbs_runs_and_jobs(environ: dict[str, str], shell: str) -> None:
    needed(shell)
    command, setup = INTERACTIVE[shell]
    with _Terminal(command, environ) as terminal:
        terminal.type(f'{setup}; eval "$(platform completion {shell})"; echo is-"ready"\n')
        terminal.await_text("is-ready")
        for typed, completed in LINES:
            terminal.type(f"{typed}\t")
            # At the beginning of the line, so that the shell prints what it has made of it.
            terminal.type("\x01echo made-of-it: \n")
            terminal.await_text(f"made-of-it: {typed.rpartition(' ')[0]} {completed}")


def test_fish_offers_verbs_runs_and_jobs(environ: dict[str, str]) -> None:
    fish = needed("fish")
    for typed, completed in LINES:
        script = f"platform completion fish | source; complete --do-complete '{typed}'"
        done = subprocess.run([fish, "--no-config", "-c", script], env=environ, capture_output=True, text=True, check=True)
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [completed]


class _Terminal:
    """A shell on a terminal of its own.

    Args:
        command: that starts it.
        environ: its environment.
    """

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        self._output = ""

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._ours, text.encode())

    def await_text(self, text: str) -> None:
        """Wait until the shell has printed a text; what came before it is dropped."""
        self._await(lambda: text in self._output, text)
        self._output = self._output.partition(text)[2]

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"no {what!r} in {self._output!r}"
            if select.select([self._ours], [], [], 1.0)[0]:
                self._output += os.read(self._ours, 65536).decode(errors="replace")
