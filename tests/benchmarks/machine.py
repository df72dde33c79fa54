"""What the figures were measured on: processor, memory, load, and the versions of the libraries that matter."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

LIBRARIES = ("trialplane", "ray", "optuna", "SQLAlchemy", "mlflow", "torch", "transformers", "click", "pydantic")


def facts() -> dict[str, Any]:
    """The machine's facts as plain JSON values."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def line(known: dict[str, Any]) -> str:
    """The facts in short."""
    libraries = ", ".join(f"{name} {version}" for name, version in known["libraries"].items() if version)
    return (
        f"{known['cpu']}, {known['cores']} cores, {known['memory_gib']} GiB, load {known['load'][0]}, "
        f"Python {known['python']}, {libraries}"
    )


def _cpu() -> str:
    for entry in Path("/proc/cpuinfo").read_text().splitlines():
        if entry.startswith("model name"):
            return entry.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
