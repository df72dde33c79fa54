"""Programs run in an interpreter of their own: a policy changes its whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Program = Callable[..., str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Runs a program from a file of its own and gives what it prints; policies' variables are not set beforehand."""

    def run(code: str, *, env: Mapping[str, str] | None = None) -> str:
        file = tmp_path / "program.py"
        file.write_text(code)
        ours = ("TRIALPLANE_", "PROTOCOL_BUFFERS_", "PYTORCH_NVML")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        done = subprocess.run(
            [sys.executable, str(file)], env={**environment, **(env or {})}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
