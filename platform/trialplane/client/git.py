"""Output of git for a folder: its commit, and whether files have changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

_TIMEOUT = 30.0  # seconds


def output(folder: Path, *arguments: str) -> str:
    """Return the output of git in a folder; "" without git, a repository or a commit."""
    try:
        process = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()
