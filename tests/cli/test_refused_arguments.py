"""`platform submit hpo ./train.py` of a script that lacks arguments or a module: the command that may work.

Not checked here: that the status of a real run has these words (tests/worker/test_programs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trialplane import errors
from trialplane.cli import submit


def failing(reason: str) -> Callable[..., int]:
    """Return a double of `_submit` whose run fails."""

    def fail(*arguments: Any, on_start: Any, **options: Any) -> int:
        on_start(SimpleNamespace(status=lambda: SimpleNamespace(reason=reason)))
        return errors.EXIT_RUN_FAILED

    return fail


REFUSED = f"no trial can start: train.py {errors.ARGUMENTS_REFUSED}: error"
VALUE_REFUSED = f"{REFUSED}: argument --lr: invalid int value: '0.1'"


@pytest.mark.parametrize("reason", [REFUSED, VALUE_REFUSED, "out of memory"])
def test_the_command_for_a_settings_file_is_shown(platform, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    Path("train.py").touch()
    monkeypatch.setattr(submit, "_submit", failing(reason))
    words = ["--param", "config=conf/small file.ini", "--space", "lr=1e-4..1e-1:log", "--objective", "mae:min", "--local"]
    result = platform("submit", "hpo", "./train.py", *words)
    assert result.exit_code == errors.EXIT_RUN_FAILED
    command = "platform init --from 'python train.py --config '\"'\"'conf/small file.ini'\"'\"'' --space lr=1e-4..1e-1:log"
    assert (f"`{command} --objective mae:min` makes a job" in result.stderr) == (reason == REFUSED)


@pytest.mark.parametrize("module", ["nets", "torch"])
def test_the_command_for_a_module_of_a_folder_above_is_shown(
    platform, monkeypatch: pytest.MonkeyPatch, workplace: Path, module: str
) -> None:
    (workplace / "nets.py").touch()
    (workplace / "exp").mkdir()
    (workplace / "exp" / "train.py").write_text("import nets, torch\n")
    monkeypatch.setattr(submit, "_submit", failing(f"trial 0 failed: ModuleNotFoundError: No module named '{module}'"))
    words = ["--space", "lr=1e-4..1e-1:log", "--objective", "mae:min", "--local"]
    result = platform("submit", "hpo", "./exp/train.py", *words)
    command = "platform init --from exp/train.py --space lr=1e-4..1e-1:log --objective mae:min"
    assert (f"nets is in {workplace}: `{command}` makes a job" in result.stderr) == (module == "nets"), result.stderr


@pytest.mark.parametrize("folder", [".", "lib"])
def test_the_command_for_a_module_that_the_script_alone_does_not_show_has_its_folder(
    platform, monkeypatch: pytest.MonkeyPatch, workplace: Path, folder: str
) -> None:
    for name in ("exp", "lib"):
        (workplace / name).mkdir()
    (workplace / folder / "nets.py").write_text("LOSS = 1\n")
    (workplace / "exp" / "steps.py").write_text("from nets import LOSS\n")
    (workplace / "exp" / "train.py").write_text("import sys, steps\nlr = 0.1\nprint('mae:', steps.LOSS)\n")
    monkeypatch.setenv("PYTHONPATH", folder)
    monkeypatch.setattr(submit, "_submit", failing("trial 0 failed: ModuleNotFoundError: No module named 'nets'"))
    words = ["--space", "lr=0.1..0.2", "--objective", "mae:min"]
    result = platform("submit", "hpo", "./exp/train.py", *words, "--local")
    command = f"platform init --from 'PYTHONPATH={folder} python exp/train.py' --space lr=0.1..0.2 --objective mae:min"
    assert f"nets is in {(workplace / folder).resolve()}: `{command}` makes a job" in result.stderr, result.stderr
    monkeypatch.delenv("PYTHONPATH")
    result = platform("init", "--from", f"PYTHONPATH={folder} python exp/train.py", *words)
    assert result.exit_code == 0 and "its metrics: mae" in result.stderr, result.output


def test_a_folder_outside_of_the_working_directory_has_no_command(
    platform, monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    (workplace / "nets.py").touch()
    (workplace / "exp").mkdir()
    (workplace / "exp" / "steps.py").write_text("import nets\n")
    (workplace / "exp" / "train.py").write_text("import steps\n")
    monkeypatch.chdir(workplace / "exp")
    monkeypatch.setattr(submit, "_submit", failing("trial 0 failed: ModuleNotFoundError: No module named 'nets'"))
    result = platform("submit", "hpo", "./train.py", "--space", "lr=0.1..0.2", "--objective", "mae:min", "--local")
    assert result.exit_code == errors.EXIT_RUN_FAILED and "makes a job" not in result.stderr, result.stderr
