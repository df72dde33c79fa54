"""Forks of the tests: a started controller runs in the fork of a server, and ends with it.

Not checked here: that it gets the signals of the started process, which tests of `cancel` and Ctrl-C need (tests/cli).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trialplane.client import process
from trialplane.wire.paths import RunPaths

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("forked_controllers")]


def test_a_controller_is_a_fork(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    assert process.start(run).wait() == 1
    log = run.controller_log.read_text()
    assert f"No such file or directory: '{run.job}'" in log
    assert "tests/forked/server.py" in log


def test_it_ends_with_the_started_process(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    os.mkfifo(run.job)
    child = process.start(run)
    writer = os.open(run.job, os.O_WRONLY)
    child.kill()
    child.wait()
    with pytest.raises(BrokenPipeError):
        while True:  # until nobody has the other end
            os.write(writer, b" ")
            time.sleep(0.01)
    os.close(writer)
