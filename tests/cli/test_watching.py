"""`platform submit hpo … --watch-code`: a run now and after each change; errors wait for the next change."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trialplane import errors
from trialplane.cli import watching
from trialplane.client.sdk import Platform
from trialplane.wire import paths


class Handle:
    """A run that can be deleted."""

    is_deleted = False

    def delete(self) -> None:
        self.is_deleted = True


def test_each_change_starts_a_run_which_replaces_the_one_before(tmp_path: Path) -> None:
    runs: list[Handle] = []

    def smoke(started):
        runs.append(Handle())
        started(runs[-1])
        if len(runs) == 1:
            (tmp_path / "train.py").write_text("changed while it ran")
        elif len(runs) == 2:  # changed while it is waited for
            threading.Timer(0.5, (tmp_path / "train.py").write_text, ["changed again"]).start()
        return errors.EXIT_INTERRUPTED if len(runs) == 3 else 0

    assert watching.watch(tmp_path, smoke) == errors.EXIT_INTERRUPTED
    assert [run.is_deleted for run in runs] == [True, True, False]


def test_an_error_is_shown_and_the_next_change_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def smoke(started):
        calls.append(started)
        (tmp_path / "job.yaml").write_text("x" * len(calls))
        if len(calls) == 1:
            raise errors.InputError("job.yaml is wrong")
        return errors.EXIT_INTERRUPTED

    watching.watch(tmp_path, smoke)
    assert len(calls) == 2
    assert "platform: job.yaml is wrong" in capsys.readouterr().err


def test_caches_and_hidden_files_are_no_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    before = watching.files(tmp_path)
    for path in (".git/index", "__pycache__/train.pyc", ".train.py.swp"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    assert watching.files(tmp_path) == before
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "more.py").touch()
    assert watching.files(tmp_path) != before


@pytest.mark.parametrize("words", [("--name", "x", "--local"), ("--trials", "3", "--local"), ("--detach", "--local"), ()])
def test_what_it_cannot_be_used_with_is_refused(platform, words) -> None:
    done = platform("submit", "hpo", "demo", "--watch-code", *words)
    assert (done.exit_code, "--watch-code needs --local" in done.stderr) == (2, True)


@pytest.mark.services
def test_a_changed_trial_runs_again_on_this_machine_until_ctrl_c(workplace: Path, home: Path, mlflow_tables: Path) -> None:
    home.mkdir()
    shutil.copy(mlflow_tables, paths.mlflow_db(home))
    words = ["submit", "hpo", "demo", "--local", "--watch-code", "--param", "lr=0.5"]
    # A shell starts background processes, perhaps this one, with SIGINT ignored.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heed}; from trialplane.cli import main; main.main({words!r})"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        said = ""

        def results() -> list[tuple[str, list[float]]]:
            """The runs and their metrics when the command waits for the next change."""
            nonlocal said
            for line in child.stderr or ():
                said += line
                if "waiting for a change" in line:
                    break
            return [(run.name, [trial.metrics["loss"] for trial in run.rows()]) for run in Platform().list()]

        try:
            first = results()
            assert [losses for _, losses in first] == [[0.5]], said
            (workplace / "jobs" / "demo" / "train.py").write_text("def run(ctx):\n    return {'loss': 7.0}\n")
            second = results()
            assert [losses for _, losses in second] == [[7.0]], said
            assert first[0][0] != second[0][0], "the first run is deleted"
            child.send_signal(signal.SIGINT)
            said += child.communicate(timeout=300)[1]
        finally:
            child.kill()
    assert child.returncode == errors.EXIT_INTERRUPTED, said
    assert "Traceback" not in said
