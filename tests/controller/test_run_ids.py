"""How many MLflow runs the recorder asks its writer for. The writer is a double that makes as many at once.

Not checked here: the writer, and what it does with ids that no trial gets (test_recorder).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.controller.conftest import DEADLINE

from trialplane.controller import recorder as recording
from trialplane.controller.recorder import Recorder
from trialplane.wire.paths import RunPaths

WRITER = """
import json, sys
made = 0
for line in sys.stdin.buffer:
    if line == b"end\\n":
        break
    for made in range(made + 1, made + 1 + int(line)):
        print(json.dumps({"id": f"run-{made}"}), flush=True)
"""


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The recorder of two slots."""

    def start(_: Recorder) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    monkeypatch.setattr(Recorder, "_start_writer", start)
    made = Recorder(RunPaths(tmp_path), "sqlite:////nowhere/mlflow.db", 4)
    yield made
    made.close(DEADLINE)
    for pipe in (made._writer.stdin, made._writer.stdout):
        assert pipe is not None
        pipe.close()


@pytest.mark.parametrize("fresh", [0.0, 1e9], ids=["long trials", "short ones"])
def test_as_many_runs_are_made_as_trials_start(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, fresh: float) -> None:
    """A run that no trial gets is deleted, and stays in MLflow's trash."""
    monkeypatch.setattr(recording, "FRESH", fresh)
    given = {recorder.run_id(DEADLINE, left=12 - number) for number in range(12)}
    assert given == {f"run-{number}" for number in range(1, 13)}


def test_while_trials_are_short_their_runs_are_made_ahead(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "FRESH", 1e9)
    for _ in range(3):
        recorder.run_id(DEADLINE)
    assert recorder._requested + len(recorder._ids) == 2


def test_none_is_asked_for_that_would_come_too_late(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that cannot wait starts without, and the writer makes its run when it sees the start."""
    monkeypatch.setattr(recording, "FRESH", 0.0)
    assert recorder.run_id(recording.WORTHWHILE / 2) is None
    assert recorder.run_id(DEADLINE) == "run-1"
