"""Deletes from this Python what no pod ever loads: tests that come with libraries, headers, and Ray's Java workers.

Run in the layer that installed them. Named one by one: other packages import from folders that are called tests.
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

_TESTED = ("matplotlib", "networkx", "numpy", "pandas", "pyarrow", "scipy", "sklearn", "sympy")
_UNUSED = ("pyarrow/include", "ray/jars")

if __name__ == "__main__":
    packages = Path(sysconfig.get_path("purelib"))
    tests = [path for name in _TESTED for path in (packages / name).rglob("tests")]
    for path in [*tests, *(packages / name for name in _UNUSED)]:
        shutil.rmtree(path, ignore_errors=True)
