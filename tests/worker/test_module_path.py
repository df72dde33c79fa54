"""Folders with a trial's modules come before those of a PYTHONPATH that its command sets."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from trialplane.worker import module_path

PRINT = f"{shlex.quote(sys.executable)} -c 'import own, other; print(own.VALUE, other.VALUE)'"


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The variables of a trial whose modules are in a folder with a space; other ones are in `src`."""
    monkeypatch.chdir(tmp_path)
    for file, value in (("a trial's/own.py", 1), ("src/own.py", 2), ("src/other.py", 3)):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(f"VALUE = {value}\n")
    (tmp_path / "bin").mkdir()
    return {**os.environ, **module_path.import_variables(str(tmp_path / "a trial's"), {"PYTHONPATH": "elsewhere"})}


@pytest.mark.parametrize(
    "text",
    [
        "PYTHONPATH=src {print}",
        "PYTHONPATH='src' A='b c' {print}",
        "true && A='b c' PYTHONPATH=src:$PYTHONPATH {print}",
        "if PYTHONPATH=src {print}; then true; fi",
        "(export A=1 PYTHONPATH=src; {print})",
        "env -u B -C bin A=1 PYTHONPATH=../src {print}",
        'bash -c "cd bin; PYTHONPATH=../src {print}" && true',
        "true; sh -c 'PYTHONPATH=src python -c \"import own, other; print(own.VALUE, other.VALUE)\"'",
    ],
)
@pytest.mark.parametrize("shell", [["bash", "-c"], ["env", "A=1", "bash", "-ec"]])
def test_a_shell_passes_them_on(variables: Mapping[str, str], text: str, shell: list[str]) -> None:
    command = module_path.with_import_folders([*shell, text.format(print=PRINT)], variables)
    output = subprocess.run(command, env=dict(variables), capture_output=True, text=True)
    assert output.stdout == "1 3\n", f"{command}\n{output.stderr}"


@pytest.mark.parametrize(
    "words", [["PYTHONPATH=src"], ["-u", "B", "A=1", "PYTHONPATH=src"], ["-C", "bin", "PYTHONPATH=../src"]]
)
def test_env_passes_them_on(variables: Mapping[str, str], words: list[str]) -> None:
    command = module_path.with_import_folders(["/usr/bin/env", *words, *shlex.split(PRINT)], variables)
    output = subprocess.run(command, env=dict(variables), capture_output=True, text=True)
    assert output.stdout == "1 3\n", f"{command}\n{output.stderr}"


@pytest.mark.parametrize(
    "command",
    [
        ["python", "fit.py", "--arg", "PYTHONPATH=x"],
        ["env", "A=1", "python", "fit.py", "PYTHONPATH=x"],
        ["bash", "-c", "python fit.py --arg PYTHONPATH=x"],
        ["bash", "-c", "env A=1 python fit.py PYTHONPATH=x; MY_PYTHONPATH=x true"],
        ["bash", "run.sh", "PYTHONPATH=x"],
    ],
)
def test_arguments_of_a_program_stay(variables: Mapping[str, str], command: list[str]) -> None:
    assert module_path.with_import_folders(command, variables) == command


def test_without_folders_a_command_stays() -> None:
    command = ["env", "PYTHONPATH=src", "python", "fit.py"]
    assert module_path.with_import_folders(command, {"PYTHONPATH": "x"}) == command
