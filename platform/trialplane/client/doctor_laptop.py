"""What `platform doctor` sees of this machine: enough to submit, and with `--local` enough to run a study."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import trialplane
from trialplane.client.machine import Machine
from trialplane.wire import findings
from trialplane.wire.findings import Finding

_MIB = 2**20
_LEAST_SHM = 128 * _MIB  # Ray's object store takes 80 MiB at least, and half of what is free
_RAY_LIMIT = 120.0
# Ray in a process of its own: it keeps threads and settings in whoever starts it.
_RAY = """
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False,
         object_store_memory=80 << 20)
assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
print(ray.__version__)
ray.shutdown()
"""


def everywhere() -> Iterator[Finding]:
    """What every use of the command needs; docker and kind are for those who make images."""
    yield python(sys.version_info[:3])
    for program, purpose in (("docker", "builds images"), ("kind", "makes clusters to try things on")):
        yield optional(program, shutil.which(program), purpose)


def alone(home: Path) -> Iterator[Finding]:
    """What a study on this machine needs besides.

    Args:
        home: TRIALPLANE_HOME.
    """
    machine = Machine.here(home)
    yield libraries(machine)
    yield disk(machine, home)
    yield shared_memory(shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None)
    if not machine.missing:
        yield ray(*_start_ray())


def python(version: tuple[int, ...]) -> Finding:
    """The interpreter, and our own version."""
    text = f"Python {'.'.join(map(str, version))}, platform {trialplane.__version__}"
    if version < (3, 11):
        return findings.failed("versions", text, "make a virtual environment with Python 3.11 or newer")
    return findings.passed("versions", text)


def optional(program: str, where: str | None, purpose: str) -> Finding:
    """A program that not everybody needs."""
    return findings.passed(program, where or f"not installed, and not needed: it {purpose}")


def libraries(machine: Machine) -> Finding:
    """The libraries of the `local` extra."""
    if machine.missing:
        cure = "pip install 'trialplane[local]'"
        return findings.failed("libraries", f"{', '.join(machine.missing)} cannot be found", cure)
    return findings.passed("libraries", "those of the `local` extra are installed")


def disk(machine: Machine, home: Path) -> Finding:
    """Room for runs."""
    issues, _ = dataclasses.replace(machine, missing=()).check(home, None)
    if issues:
        return findings.failed("disk", f"{home}: {issues[0].message}", "set TRIALPLANE_HOME to another folder")
    return findings.passed("disk", f"{machine.free / 2**30:.1f} GiB free for {home}")


def shared_memory(free: int | None) -> Finding:
    """/dev/shm for Ray's object store.

    Args:
        free: bytes left, or None where there is no such folder.
    """
    if free is None:
        return findings.warned("/dev/shm", "there is none, so Ray uses the disk", "run on Linux for full speed")
    if free < _LEAST_SHM:
        cure = "mount a larger one; in a container: `docker run --shm-size=1g`"
        return findings.failed("/dev/shm", f"{free // _MIB} MiB free, {_LEAST_SHM // _MIB} needed", cure)
    return findings.passed("/dev/shm", f"{free // _MIB} MiB free")


def ray(version: str, problem: str) -> Finding:
    """Whether Ray starts and runs a task."""
    if problem:
        cure = "look at the newest folder of /tmp/ray, and at limits of memory and of processes (`ulimit -u`)"
        return findings.failed("Ray", f"does not start: {problem}", cure)
    return findings.passed("Ray", f"{version} starts and runs a task")


def _start_ray() -> tuple[str, str]:
    """Ray's version, and why it does not work or ""."""
    # A token of its own: nothing is written to the home folder.
    environ = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RAY], env=environ, capture_output=True, text=True, timeout=_RAY_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"it took longer than {_RAY_LIMIT:.0f} s"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return "", lines[-1].strip() if lines else f"exit code {done.returncode}"
    return done.stdout.split()[-1], ""
