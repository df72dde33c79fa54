"""`python -m tests`: all checks that a change must pass before it lands, cheapest first. The first that fails ends it.

`--quick` leaves out the tests that need Ray, MLflow, PostgreSQL or a cluster. Other arguments go to pytest:
`python -m tests -k ledger`, `python -m tests -n 0` for one test at a time. Benchmarks: `python -m tests.benchmarks`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import psutil

from tests.scratch import scratch

ROOT = Path(__file__).resolve().parent.parent

SCRIPTS = Path(sysconfig.get_path("scripts"))
# Five processes for two cores, as most tests wait. Each begins with a part of the tests in their order, so that the tests
# of a file share its fixtures; a process that has nothing left to do takes tests from another.
# Without --quick, the quick tests run first, alone and without Ray and MLflow, and then the others.
TESTS = ["python", "-m", "pytest", "-n", "5", "--dist", "worksteal"]
STEPS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "import contracts": ["lint-imports"],
    "quick tests": [*TESTS, "-p", "tests.quick"],
    "other tests": [*TESTS, "-p", "tests.rest"],
}
NO_TESTS = 5  # pytest's exit code if its arguments select no test, perhaps only in one of the two steps


def temporary_folder() -> str:
    """Return the folder of the tests' files: TMPDIR if it is set, else one in memory if there is enough of it.

    Most tests wait for databases, which wait for a disk at each commit: with files in memory they take half the time. The
    folder in memory is removed at the end, also with the files of failed tests.
    """
    has_memory = psutil.virtual_memory().available > 10 << 30
    return str(scratch()) if has_memory and "TMPDIR" not in os.environ else tempfile.gettempdir()


def main() -> int:
    """Run the steps in order, and return the exit code of the first that fails; 0 if all pass."""
    pytest_arguments = [argument for argument in sys.argv[1:] if argument != "--quick"]
    steps = {name: [*step, *pytest_arguments] if name.endswith("tests") else step for name, step in STEPS.items()}
    if "--quick" in sys.argv:
        del steps["other tests"]
    # Tests of Ray set the first one themselves; a test that forgets it must not write a token into the home folder.
    # The second lets Python store bytecode, even if the shell forbids it: hundreds of processes import this project.
    environ = {"RAY_AUTH_MODE": "disabled", **os.environ, "PYTHONDONTWRITEBYTECODE": "", "TMPDIR": temporary_folder()}
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
