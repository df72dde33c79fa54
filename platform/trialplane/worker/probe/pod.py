"""What a trial's pod allows its process: user, privileges, root file system, token, memory and folders to write in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trialplane.wire import findings
from trialplane.wire.findings import Finding

PROC_STATUS = Path("/proc/self/status")
TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MIB = 2**20
_MANIFEST = "submit with this version of `platform`, and look for a webhook of the cluster that changes pods"


def user(uid: int) -> Finding:
    """Not root."""
    if uid == 0:
        return findings.failed("user", "the process is root", _MANIFEST)
    return findings.passed("user", f"uid {uid}, not root")


def confined(status: str) -> Finding:
    """No capabilities, no way to new privileges, and a seccomp profile.

    Args:
        status: text of /proc/self/status.
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    wrong = []
    if int(fields["CapEff"], 16):
        wrong.append(f"has capabilities ({fields['CapEff'].strip()})")
    if fields.get("NoNewPrivs", "").strip() != "1":
        wrong.append("may gain privileges")
    if fields.get("Seccomp", "").strip() != "2":
        wrong.append("has no seccomp profile")
    if wrong:
        return findings.failed("privileges", f"the process {', '.join(wrong)}", _MANIFEST)
    return findings.passed("privileges", "no capabilities, no new privileges, seccomp")


def read_only_root(flags: int) -> Finding:
    """The root file system cannot be written.

    Args:
        flags: `f_flag` of statvfs("/").
    """
    if not flags & os.ST_RDONLY:
        return findings.failed("root file system", "it can be written", _MANIFEST)
    return findings.passed("root file system", "read-only")


def no_token(there: bool) -> Finding:
    """No service account's token."""
    if there:
        return findings.failed("token", f"the pod has a token of its service account: {TOKEN}", _MANIFEST)
    return findings.passed("token", "none")


def why_not_writable(folder: str) -> str:
    """Why nothing can be written in a folder, or ""."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"probe")
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


def writable(folders: Sequence[str], obstacles: Sequence[str]) -> Finding:
    """The folders that trials write in."""
    if obstacles:
        return findings.failed("folders", f"cannot be written: {'; '.join(obstacles)}", _MANIFEST)
    return findings.passed("folders", f"{' and '.join(folders)} can be written")


def shared_memory(size: int, wanted: int) -> Finding:
    """/dev/shm.

    Args:
        size: bytes it has.
        wanted: bytes that the pod asked for, 0 when it did not.
    """
    if size < wanted:
        message = f"{size // _MIB} MiB, and the pod asked for {wanted // _MIB}"
        return findings.failed("/dev/shm", message, _MANIFEST)
    if size <= 64 * _MIB:
        message = f"{size // _MIB} MiB, too little for data loaders with workers"
        return findings.warned("/dev/shm", message, "set resources.shm in job.yaml, for example 1Gi")
    return findings.passed("/dev/shm", f"{size // _MIB} MiB")


def data_volume(folder: str) -> Finding:
    """The volume with data for trials."""
    try:
        count = sum(1 for _ in Path(folder).iterdir())
    except OSError as error:
        cure = "let uid or group 1000 read the volume"
        return findings.failed("data volume", f"{folder} cannot be read: {error.strerror}", cure)
    if not count:
        return findings.warned("data volume", f"{folder} is empty", "copy your data into the volume")
    return findings.passed("data volume", f"{folder} has {count} entries")
