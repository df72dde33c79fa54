"""Resources of this machine, and whether a job fits it."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
from pathlib import Path

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job.kinds import Job, Role
from trialplane.plan import sizes
from trialplane.wire import env

ENOUGH_SPACE = 200 * 2**20  # Ray's logs, the ledger and a few trials' logs; checkpoints are the job's own
_SHM = Path("/dev/shm")
_NEEDED = ("ray", "optuna", "mlflow", "sqlalchemy")


@dataclasses.dataclass(frozen=True)
class Machine:
    """The properties of a machine that matter for starting a run.

    Attributes:
        cores: CPU cores this process may use.
        gpus: NVIDIA GPUs this process may use.
        memory: bytes, or None if unknown.
        missing: libraries of the `local` extra that are not installed.
        obstacle: why nothing can be written below home, or "".
        free: bytes left on home's disk.
        shm: bytes left in /dev/shm, or None where there is none.
    """

    cores: int
    gpus: int
    memory: int | None
    missing: tuple[str, ...]
    obstacle: str
    free: int
    shm: int | None = None

    @classmethod
    def here(cls, home: Path) -> Machine:
        """This machine, inspected without writing anything."""
        base, unseen = _base(home)
        return cls(
            cores=cores(),
            gpus=gpus(),
            memory=_memory(),
            missing=tuple(name for name in _NEEDED if importlib.util.find_spec(name) is None),
            obstacle=unseen or _obstacle(home, base),
            free=shutil.disk_usage(base).free,
            shm=shutil.disk_usage(_SHM).free if _SHM.is_dir() else None,
        )

    def check(self, home: Path, job: Job | None) -> tuple[list[Issue], list[str]]:
        """Issues that prevent a run, and warnings; the job is None if it is invalid itself."""
        issues: list[Issue] = []
        if not hasattr(os, "pidfd_open"):
            message = (
                "a run on this machine needs Linux, whose process descriptors watch its trials; use a cluster: --context"
            )
            issues.append(Issue(("--local",), message))
        if self.missing:
            message = f"{', '.join(self.missing)} cannot be found; pip install 'trialplane[local]'"
            issues.append(Issue(("--local",), message))
        if self.obstacle:
            issues.append(Issue((env.HOME,), f"{self.obstacle}; set {env.HOME} to a folder you may write to", str(home)))
        elif self.free < ENOUGH_SPACE:
            message = (
                f"{self.free // 2**20} MiB are left on the disk and {ENOUGH_SPACE // 2**20} are needed; "
                f"make room, or set {env.HOME} to a folder on another disk"
            )
            issues.append(Issue((env.HOME,), message, str(home)))
        if job is None:
            return issues, []
        return [*issues, *self._gpus_lacking(job)], self._warnings(job)

    def _gpus_lacking(self, job: Job) -> list[Issue]:
        """The first issue about GPUs that this machine lacks."""
        for role in job.roles():
            if role.resources.gpus > self.gpus:
                has = f"has {self.gpus}" if self.gpus else "has none"
                advice = job.gpu_advice(role.field, self.gpus)
                message = f"{role.title} requests {role.resources.gpus}, and this machine {has}; {advice}"
                return [Issue((role.field, "gpus"), message)]
        first, *others = job.roles()
        each = first.resources.gpus * first.nodes
        if each > self.gpus:
            message = (
                f"{first.nodes} nodes with {errors.counted(first.resources.gpus, 'GPU')} each do not fit this machine, "
                f"which has {self.gpus} and would be all of them; --set nodes={self.gpus // first.resources.gpus}"
            )
            return [Issue(("nodes",), message)]
        free_gpus = self.gpus - sum(role.pods * role.resources.gpus for role in others)
        if each * first.replicas <= free_gpus:
            return []
        possible = free_gpus // each if each else 0
        required = " and ".join(_with(role, errors.counted(role.resources.gpus, "GPU")) for role in job.roles())
        advice = f"{job.width_option} {possible}" if possible > 0 else job.gpu_advice(first.field, 0)
        beside = f" beside {' and '.join(role.title for role in others)}" if others else " at a time"
        message = (
            f"{required} do not fit this machine, which has {self.gpus}, enough for {max(possible, 0)}{beside}; {advice}"
        )
        return [Issue((job.width_field,), message)]

    def _warnings(self, job: Job) -> list[str]:
        roles, warnings = job.roles(), []
        warnings += self._crowded(job)
        if job.is_for_gpus and self.gpus and not any(role.resources.gpus for role in roles):
            gpus = "GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
            warnings.append(f"the training runs on CPUs and does not use this machine's {gpus}; --gpus {self.gpus} does")
        if sum(role.resources.cpus * role.pods for role in roles) > self.cores:
            required = " and ".join(_with(role, role.resources.cores) for role in roles)
            warnings.append(f"{required}: this machine has {errors.counted(self.cores, 'core')}, so they will be slower")
        if self.memory is not None and sum(role.resources.memory_bytes * role.pods for role in roles) > self.memory:
            required = " and ".join(_with(role, role.resources.memory) for role in roles)
            warnings.append(f"{required}: that is more than this machine's {self.memory / 2**30:.0f} GiB")
        return warnings

    def _crowded(self, job: Job) -> list[str]:
        """A warning if Ray's object store, half of the free /dev/shm, cannot hold `in_flight`."""
        needed = max(role.in_flight_bytes for role in job.roles())
        if not needed or self.shm is None:
            return []
        if sizes.local_object_store(job, self.shm) >= max(map(sizes.object_store, job.roles())):
            return []
        fits = int((self.shm // 2 - sizes.OBJECT_STORE) / sizes.STORE_FACTOR) // sizes.MIB
        return [
            f"collect.in_flight is {needed // sizes.MIB} MiB, and /dev/shm has {self.shm // sizes.MIB} MiB left, half of it "
            f"for results: workers wait earlier for the learner; --in-flight {max(1, fits)}Mi fits"
        ]


def _with(role: Role, amount: str) -> str:
    """Return a request of a role in words: "3 trials with 2 cores each", "the learner with 1 GPU"."""
    each = f" on each of {role.nodes} nodes" if role.nodes > 1 else " each" if role.replicas > 1 else ""
    return f"{role.many} with {amount}{each}"


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> int:
    """NVIDIA's device files, without loading the driver; `CUDA_VISIBLE_DEVICES` may hide some."""
    devices = Path("/dev")
    count = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in devices.glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([index for index in visible.split(",") if index.strip() and index.strip() != "-1"]))


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _base(home: Path) -> tuple[Path, str]:
    """The nearest folder that exists, and why its content cannot be read, or ""."""
    unseen = ""
    for folder in (home, *home.parents):
        try:
            if folder.exists():
                return folder, unseen
        except PermissionError:
            unseen = f"cannot be checked: you may not read {folder.parent}"
    return Path("/"), unseen


def _obstacle(home: Path, base: Path) -> str:
    if not base.is_dir():
        return f"{base} is not a folder"
    if not os.access(base, os.W_OK | os.X_OK):
        return "cannot be written" if base == home else f"cannot be made: {base} cannot be written"
    return ""
