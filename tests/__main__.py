"""`python -m tests`: everything that must hold before a change lands, cheapest first; stops at the first that fails.

`--quick` leaves out the tests that need Ray, MLflow, PostgreSQL or a cluster. Other arguments go to pytest:
`python -m tests -k ledger`, `python -m tests -n 0` for one test at a time. Benchmarks: `python -m tests.benchmarks`.
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
# A third process for two cores, as many tests wait. Each begins with a part of the tests in their order, so those of a
# file share what it sets up; one that has nothing left to do takes over from another.
# Without --quick all tests run as well, in two parts, so that those of --quick are always run without Ray and MLflow.
TESTS = ["python", "-m", "pytest", "-n", "3", "--dist", "worksteal"]
STEPS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "import contracts": ["lint-imports"],
    "quick tests": [*TESTS, "-p", "tests.quick"],
    "other tests": [*TESTS, "-p", "tests.rest"],
}
NO_TESTS = 5  # pytest's code where its arguments select nothing, as of one of the two parts


def main() -> int:
    """Runs the steps in order and returns the first exit code that is not 0."""
    pytest_arguments = [argument for argument in sys.argv[1:] if argument != "--quick"]
    steps = {name: [*step, *pytest_arguments] if name.endswith("tests") else step for name, step in STEPS.items()}
    if "--quick" in sys.argv:
        del steps["other tests"]
    # Tests of Ray set this themselves; one that forgets must not write a token into the home folder.
    # Hundreds of processes import this project, and three of pytest's its tests: compiled once, whatever the shell prefers.
    environ = {"RAY_AUTH_MODE": "disabled", **os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for name, (script, *arguments) in steps.items():
        print(f"── {name}: {script} {' '.join(arguments)}", flush=True)  # noqa: T201
        began = time.monotonic()
        code = subprocess.run([SCRIPTS / script, *arguments], cwd=ROOT, env=environ, check=False).returncode
        is_passed = code in (0, NO_TESTS)
        print(f"── {name}: {'passed' if is_passed else 'failed'} in {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
        if not is_passed:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
