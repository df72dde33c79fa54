"""No process forks once CUDA or a thread is alive in it.

Rule: a job's own workers start by spawn, and the warm template is forked only while it is clean.
Why: "Cannot re-initialize CUDA in forked subprocess" is the kind outcome; a lock held by a thread that the child does
not have is the unkind one: a hang.
Enforced where: `apply()` makes spawn the start method of multiprocessing in every trial; the template asks
`reasons_not_to_fork()` before each fork and starts the trial by spawn when there is one.
Test: tests/policies/test_policies.py, tests/runtime/test_template.py.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

from trialplane import errors

START_METHOD = "TRIALPLANE_START_METHOD"
ENV = {
    START_METHOD: "spawn",
    # Lets an import ask torch.cuda.is_available() without starting the driver, which no fork survives.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def apply() -> None:
    """Makes spawn the start method of multiprocessing, unless the job has already chosen one."""
    for name, value in ENV.items():
        os.environ.setdefault(name, value)
    if multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method(os.environ[START_METHOD])


def check() -> None:
    """Raises PolicyError when workers of this process would be forked."""
    method = multiprocessing.get_start_method(allow_none=True)
    if method not in ("spawn", "forkserver"):
        raise errors.PolicyError(
            f"multiprocessing starts workers by {method or 'fork (the default)'}: they break once CUDA or a thread is "
            'alive here; call multiprocessing.set_start_method("spawn"), or start through trialplane'
        )


def reasons_not_to_fork() -> list[str]:
    """Why a fork of this process could break its child; empty when it is clean."""
    reasons = []
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        reasons.append("CUDA is initialized")
    elif any(target.startswith("/dev/nvidia") for target in _open_files()):
        reasons.append("a CUDA device is open")
    threads = _other_threads()
    if threads:
        reasons.append(f"{len(threads)} thread(s) are alive: {', '.join(sorted(set(threads)))}")
    return reasons


def _open_files() -> list[str]:
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(descriptor.readlink()))
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return targets


def _other_threads() -> list[str]:
    """Names of all threads but the main one, Python's and native libraries' alike."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != os.getpid():
            try:
                names.append((task / "comm").read_text().strip())
            except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
                continue
    return names
