"""`platform submit hpo ./train.py` of a script that refuses the parameters as arguments: the command that may work.

Not checked here: that the status of a real run has these words (tests/worker/test_programs.py).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trialplane import errors
from trialplane.cli import submit


@pytest.mark.parametrize("reason", [f"no trial can start: train.py {errors.ARGUMENTS_REFUSED}: error", "out of memory"])
def test_the_command_for_a_settings_file_is_shown(platform, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    def fail(*arguments: Any, on_start: Any, **options: Any) -> int:
        on_start(SimpleNamespace(status=lambda: SimpleNamespace(reason=reason)))
        return errors.EXIT_RUN_FAILED

    monkeypatch.setattr(submit, "_submit", fail)
    words = ["--param", "config=conf/small file.ini", "--space", "lr=1e-4..1e-1:log", "--objective", "mae:min", "--local"]
    result = platform("submit", "hpo", "./train.py", *words)
    assert result.exit_code == errors.EXIT_RUN_FAILED
    command = "platform init --from 'python train.py --config '\"'\"'conf/small file.ini'\"'\"'' --space lr=1e-4..1e-1:log"
    assert (f"`{command} --objective mae:min` makes a job" in result.stderr) == (errors.ARGUMENTS_REFUSED in reason)
