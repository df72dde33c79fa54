"""Deletes files of this Python that no pod loads: tests of libraries, headers, and Ray's Java workers.

It must run in the layer that installed them. The libraries are listed, because others import from their folders `tests`.
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
