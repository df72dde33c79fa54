"""Packages that travel with a job are imported by its trials, by a script wherever it lies, and by what a command starts.

Not checked: how they come there (tests/plan/test_pack.py), and which are refused (tests/job/test_packages.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench

from trialplane.job.program import MetricSource, Program

READS = (MetricSource("stdout"),)
PRINTS = "import mine.score\nprint('score=%s' % mine.score.VALUE)\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run's code, with the package `mine` beside the job's files; another one of its name is installed."""
    for place, value in (("code", 0.5), ("installed", 0.25)):
        package = tmp_path / place / "mine"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "score.py").write_text(f"VALUE = {value}\n")
    (tmp_path / "code" / "sub").mkdir()
    (tmp_path / "code" / "sub" / "fit.py").write_text(PRINTS)
    return tmp_path


def score(root: Path, program: Program | None, train: str = PRINTS, **config: Any) -> float:
    with Bench(root, {"train": train}, program=program, **config) as slot:
        outcome = slot.outcome("")
        assert outcome.metrics, f"{outcome.message}\n{slot.log(outcome)}"
        return outcome.metrics["score"]


@pytest.mark.parametrize("preload", [(), ("mine.score",)])
def test_a_function_imports_it(root: Path, monkeypatch: pytest.MonkeyPatch, preload: tuple[str, ...]) -> None:
    monkeypatch.setenv("PYTHONPATH", str(root / "installed"))
    text = "import mine.score\ndef run(ctx):\n    return {'score': mine.score.VALUE}\n"
    assert score(root, None, text, preload=preload) == 0.5


@pytest.mark.parametrize("cwd", ["code", "workdir"])
@pytest.mark.parametrize("script", ["train.py", "sub/fit.py"])
def test_a_script_imports_it_before_an_installed_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, script: str, cwd: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(root / "installed"))
    assert score(root, Program(script=script, cwd=cwd, metrics=READS, names=("score",), packages=True)) == 0.5


@pytest.mark.parametrize("cwd", ["code", "workdir"])
@pytest.mark.parametrize("words", [(), ("env", "PYTHONPATH=elsewhere")])
def test_a_command_finds_it(root: Path, cwd: str, words: tuple[str, ...]) -> None:
    command = (*words, "python", "-c", PRINTS.replace("\n", ";"))
    assert score(root, Program(command=command, cwd=cwd, metrics=READS, names=("score",), packages=True)) == 0.5
