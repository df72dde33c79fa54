"""What this machine has, and whether a job fits it."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
from pathlib import Path

from trialplane import errors
from trialplane.errors import Complaint
from trialplane.plan import sizes
from trialplane.spec.job import Job
from trialplane.wire import env

ENOUGH_SPACE = 200 * 2**20  # Ray's logs, the ledger and a few trials' logs; checkpoints are the job's own
_SHM = Path("/dev/shm")
_NEEDED = ("ray", "optuna", "mlflow", "sqlalchemy")


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine as far as starting a run on it goes.

    Attributes:
        cores: CPU cores this process may use.
        gpus: NVIDIA GPUs this process may use.
        memory: bytes, or None where the system does not say.
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
        """This machine, looked at without writing anything."""
        base, unseen = _base(home)
        return cls(
            cores=_cores(),
            gpus=_gpus(),
            memory=_memory(),
            missing=tuple(name for name in _NEEDED if importlib.util.find_spec(name) is None),
            obstacle=unseen or _obstacle(home, base),
            free=shutil.disk_usage(base).free,
            shm=shutil.disk_usage(_SHM).free if _SHM.is_dir() else None,
        )

    def check(self, home: Path, job: Job | None) -> tuple[list[Complaint], list[str]]:
        """What stands in the way of a run, and warnings; the job may be None when it is wrong itself."""
        found: list[Complaint] = []
        if self.missing:
            message = f"{', '.join(self.missing)} cannot be found; pip install 'trialplane[local]'"
            found.append(Complaint("--local", message))
        if self.obstacle:
            found.append(Complaint(env.HOME, f"{self.obstacle}; set {env.HOME} to a folder you may write", str(home)))
        elif self.free < ENOUGH_SPACE:
            message = (
                f"{self.free // 2**20} MiB are left on the disk and {ENOUGH_SPACE // 2**20} are needed; "
                f"make room, or set {env.HOME} to a folder on another disk"
            )
            found.append(Complaint(env.HOME, message, str(home)))
        if job is None:
            return found, []
        if job.resources.gpus > self.gpus:
            found.append(Complaint("resources.gpus", self._too_many_gpus(job)))
        elif job.nodes * job.resources.gpus > self.gpus:
            message = (
                f"{job.nodes} nodes with {errors.counted(job.resources.gpus, 'GPU')} each do not fit this machine, which "
                f"has {self.gpus} and would be all of them; --set nodes={self.gpus // job.resources.gpus}"
            )
            found.append(Complaint("nodes", message))
        elif job.collect is not None and job.slots * job.resources.gpus > self.gpus:
            fit = self.gpus // job.resources.gpus - 1
            cure = f"--workers {fit}" if fit > 0 else "--set resources.gpus=0"
            message = (
                f"{errors.counted(job.collect.workers, 'worker')} and the consumer with "
                f"{errors.counted(job.resources.gpus, 'GPU')} each do not fit this machine, which has {self.gpus}; {cure}"
            )
            found.append(Complaint("collect.workers", message))
        elif job.slots * job.resources.gpus > self.gpus:
            each = job.nodes * job.resources.gpus
            fit = self.gpus // each
            message = (
                f"{job.parallel} trials with {errors.counted(each, 'GPU')} each do not fit this machine, "
                f"which has {self.gpus}, enough for {fit} at a time; --parallel {fit}"
            )
            found.append(Complaint("parallel", message))
        return found, self._warnings(job)

    def _too_many_gpus(self, job: Job) -> str:
        has = f"has {self.gpus}" if self.gpus else "has none"
        if not job.is_training:
            who = "each worker" if job.is_collection else "a trial"
            return f"{who} asks for {job.resources.gpus}, and this machine {has}; --set resources.gpus={self.gpus}"
        here = f"--gpus {self.gpus} trains on those, " if self.gpus else ""
        return (
            f"the training asks for {job.resources.gpus}, and this machine {has}; {here}"
            f"--gpus 0 --ranks {job.ranks_per_node} on its cores, and without --local a cluster is asked"
        )

    def _warnings(self, job: Job) -> list[str]:
        need, wide = job.resources, job.parallel * job.nodes
        who = errors.counted(wide, "node") if job.is_training else f"{errors.counted(job.parallel, 'trial')} at a time"
        each = "each" if job.is_training or job.nodes == 1 else f"on each of {job.nodes} nodes"
        found, slower = [], "ranks" if job.is_training else "trials"
        if job.collect is not None:
            wide, slower = job.slots, "they"
            who = f"{errors.counted(job.collect.workers, 'worker')} and the consumer"
            found += self._crowded(job)
        if job.is_training and not need.gpus and self.gpus:
            here = "GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
            found.append(
                f"the training runs on cores, and none of its ranks sees this machine's {here}; --gpus {self.gpus} does"
            )
        if need.cpus * wide > self.cores:
            found.append(
                f"{who} with {errors.counted(need.cpus, 'core')} {each}: this machine has "
                f"{errors.counted(self.cores, 'core')}, so {slower} get slower"
            )
        if self.memory is not None and need.memory_bytes * wide > self.memory:
            whole = f"{self.memory / 2**30:.0f} GiB"
            found.append(f"{who} may use {need.memory} {each}, more than this machine's {whole}")
        return found

    def _crowded(self, job: Job) -> list[str]:
        """Says so where Ray's object store, for which half of /dev/shm is taken, cannot hold what is to be in flight."""
        assert job.collect is not None
        if self.shm is None or sizes.local_object_store(job, self.shm) >= sizes.object_store(job):
            return []
        fits = int((self.shm // 2 - sizes.OBJECT_STORE) / sizes.STORE_FACTOR) // sizes.MIB
        return [
            f"collect.in_flight is {job.collect.in_flight}, and /dev/shm has {self.shm // sizes.MIB} MiB left, half of it "
            f"for results: workers wait earlier for the consumer; --in-flight {max(1, fits)}Mi is what fits"
        ]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> int:
    """NVIDIA's device files, without loading the driver; `CUDA_VISIBLE_DEVICES` may hide some."""
    devices = Path("/dev")
    there = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in devices.glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    return min(there, len([one for one in visible.split(",") if one.strip() and one.strip() != "-1"]))


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _base(home: Path) -> tuple[Path, str]:
    """The nearest folder that exists, and why what is below it cannot be seen, or ""."""
    unseen = ""
    for folder in (home, *home.parents):
        try:
            if folder.exists():
                return folder, unseen
        except PermissionError:
            unseen = f"cannot be looked at: {folder.parent} is closed to you"
    return Path("/"), unseen


def _obstacle(home: Path, base: Path) -> str:
    if not base.is_dir():
        return f"{base} is not a folder"
    if not os.access(base, os.W_OK | os.X_OK):
        return "cannot be written" if base == home else f"cannot be made: {base} cannot be written"
    return ""
