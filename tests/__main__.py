"""`python -m tests`: everything that must hold before a change lands, cheapest first; stops at the first that fails.

Arguments go to pytest: `python -m tests -k ledger`, `python -m tests -n 0` for one test at a time. Benchmarks are not in it:
`python -m tests.benchmarks`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SCRIPTS = Path(sysconfig.get_path("scripts"))
STEPS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "import contracts": ["lint-imports"],
    # A third process for two cores, as many tests wait. Each begins with a part of the tests in their order, so those of a
    # file share what it sets up; one that has nothing left to do takes over from another.
    "tests": ["pytest", "-n", "3", "--dist", "worksteal", *sys.argv[1:]],
}


def main() -> int:
    """Runs the steps in order and returns the first exit code that is not 0."""
    # Tests of Ray set this themselves; one that forgets must not write a token into the home folder.
    # Hundreds of processes import this project, and three of pytest's its tests: compiled once, whatever the shell prefers.
    environ = {"RAY_AUTH_MODE": "disabled", **os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for name, (script, *arguments) in STEPS.items():
        print(f"── {name}: {script} {' '.join(arguments)}", flush=True)  # noqa: T201
        began = time.monotonic()
        code = subprocess.run([SCRIPTS / script, *arguments], cwd=ROOT, env=environ, check=False).returncode
        print(f"── {name}: {'passed' if code == 0 else 'failed'} in {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
