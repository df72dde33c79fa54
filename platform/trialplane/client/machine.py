"""Resources of this machine, and whether a job fits it."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
from pathlib import Path

from trialplane import errors
from trialplane.errors import CheckResult, Issue
from trialplane.job.kinds import Job, Role
from trialplane.plan import sizes
from trialplane.wire import env
from trialplane.wire.costs import Demand, Prices

ENOUGH_SPACE = 200 * 2**20  # for the logs of Ray and of a few trials, and the ledger, without checkpoints
_SHM = Path("/dev/shm")
_LIBRARIES = ("ray", "optuna", "mlflow", "sqlalchemy")


@dataclasses.dataclass(frozen=True)
class Machine:
    """The properties of a machine that matter for starting a run.

    Attributes:
        cores: Number of CPU cores that this process may use.
        gpus: Number of NVIDIA GPUs that this process may use.
        memory: Size of the memory in bytes; None if unknown.
        missing: Libraries of the `local` extra that are not installed.
        obstacle: Reason why nothing can be written below the home folder; "" if it can be written.
        free: Free space on the disk of the home folder, in bytes.
        shm: Free space in /dev/shm, in bytes; None without /dev/shm.
    """

    cores: int
    gpus: int
    memory: int | None
    missing: tuple[str, ...]
    obstacle: str
    free: int
    shm: int | None = None

    @classmethod
    def inspect(cls, home: Path) -> Machine:
        """Return the properties of this machine. Nothing is written to find them."""
        existing_folder, read_problem = _nearest_folder(home)
        return cls(
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            gpus=visible_gpus(),
            memory=_memory_bytes(),
            missing=tuple(name for name in _LIBRARIES if importlib.util.find_spec(name) is None),
            obstacle=read_problem or _write_problem(home, existing_folder),
            free=shutil.disk_usage(existing_folder).free,
            shm=shutil.disk_usage(_SHM).free if _SHM.is_dir() else None,
        )

    def check(self, home: Path, job: Job | None) -> CheckResult:
        """Return issues that prevent a run on this machine, and warnings.

        Args:
            home: Home folder of the platform.
            job: Job of the run; None to check only the requirements of all runs.
        """
        issues = self._platform_issues(home)
        if job is None:
            return CheckResult(issues, warnings=[])
        return CheckResult([*issues, *self._gpu_issues(job), *_price_issues(job)], self._warnings(job))

    def _platform_issues(self, home: Path) -> list[Issue]:
        """Return issues that prevent any run on this machine; `home` is the home folder of the platform."""
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
        return issues

    def _gpu_issues(self, job: Job) -> list[Issue]:
        """Return at most one issue, about GPUs that the job requests and this machine lacks.

        The checks go from one pod to the whole job: a pod needs too many, the nodes of one trial together do, or all trials
        and other roles that run at the same time do.
        """
        issue = self._pod_gpu_issue(job) or self._node_gpu_issue(job) or self._total_gpu_issue(job)
        return [] if issue is None else [issue]

    def _pod_gpu_issue(self, job: Job) -> Issue | None:
        """Return an issue if one pod of a role needs more GPUs than this machine has."""
        for role in job.roles():
            if role.resources.gpu_count > self.gpus:
                own_gpus = f"has {self.gpus}" if self.gpus else "has none"
                advice = job.gpu_advice(role.field, self.gpus)
                message = f"{role.title} requests {role.resources.gpus}, and this machine {own_gpus}; {advice}"
                return Issue((role.field, "gpus"), message)
        return None

    def _node_gpu_issue(self, job: Job) -> Issue | None:
        """Return an issue if all nodes of one trial together need more GPUs than this machine has."""
        first = job.roles()[0]
        if first.resources.gpu_count * first.nodes <= self.gpus:
            return None
        message = (
            f"{first.nodes} nodes with {errors.counted(first.resources.gpus, 'GPU')} each do not fit this machine, "
            f"which has {self.gpus} and would run all nodes; --set nodes={self.gpus // first.resources.gpus}"
        )
        return Issue(("nodes",), message)

    def _total_gpu_issue(self, job: Job) -> Issue | None:
        """Return an issue if all pods that run at the same time need more GPUs than this machine has."""
        first, *others = job.roles()  # trials, or the workers of a collection beside its learner
        free_gpus = self.gpus - sum(role.resources.gpus_for(role.pods) for role in others)
        if first.resources.gpus_for(first.pods) <= free_gpus:
            return None
        possible_replicas = 0  # trials or workers that the GPUs suffice for
        if first.resources.gpu_count:
            possible_replicas = first.resources.most_trials(max(0, free_gpus)) // first.nodes
        required = " and ".join(_request_text(role, errors.counted(role.resources.gpus, "GPU")) for role in job.roles())
        advice = f"{job.width_option} {possible_replicas}" if possible_replicas else job.gpu_advice(first.field, gpus=0)
        suffix = f" beside {' and '.join(role.title for role in others)}" if others else " at a time"
        message = (
            f"{required} do not fit this machine, which has {self.gpus}, enough for {possible_replicas}{suffix}; {advice}"
        )
        return Issue((job.width_field,), message)

    def _warnings(self, job: Job) -> list[str]:
        """Return warnings about resources that the job requests beyond those of this machine, or does not use."""
        roles = job.roles()
        warnings = self._in_flight_warnings(job)
        if job.is_for_gpus and self.gpus and not any(role.resources.gpus for role in roles):
            gpus = "GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
            warnings.append(f"the training runs on CPUs and does not use this machine's {gpus}; --gpus {self.gpus} does")
        required_cpus = sum(role.resources.cpus * role.pods for role in roles)
        if required_cpus > self.cores:
            required = " and ".join(_request_text(role, role.resources.cores) for role in roles)
            warnings.append(f"{required}: this machine has {errors.counted(self.cores, 'core')}, so they will be slower")
        required_memory = sum(role.resources.memory_bytes * role.pods for role in roles)
        if self.memory is not None and required_memory > self.memory:
            required = " and ".join(_request_text(role, role.resources.memory) for role in roles)
            warnings.append(f"{required}: that is more than this machine's {self.memory / 2**30:.0f} GiB")
        return warnings

    def _in_flight_warnings(self, job: Job) -> list[str]:
        """Return a warning if Ray's object store, which gets half of the free /dev/shm, cannot hold `collect.in_flight`."""
        in_flight = max(role.in_flight_bytes for role in job.roles())
        if not in_flight or self.shm is None:
            return []
        required_store_bytes = max(sizes.object_store(role) for role in job.roles())
        if sizes.local_object_store(job, self.shm) >= required_store_bytes:
            return []
        requested_mib, free_mib = in_flight // sizes.MIB, self.shm // sizes.MIB
        # The inverse of `sizes.object_store`: the `collect.in_flight` for which a store of half of /dev/shm suffices.
        fitting_mib = int((self.shm // 2 - sizes.OBJECT_STORE) / sizes.STORE_FACTOR) // sizes.MIB
        return [
            f"collect.in_flight is {requested_mib} MiB, and /dev/shm has {free_mib} MiB left, half of it "
            f"for results: workers wait earlier for the learner; --in-flight {max(1, fitting_mib)}Mi fits"
        ]


def _price_issues(job: Job) -> list[Issue]:
    """Return an issue if there is a budget of money, and the environment has no price for the job's resources."""
    try:
        prices = Prices.of(os.environ)
    except errors.InputError as error:
        return [Issue(("environment",), str(error))]
    demand = Demand.of(job)
    if job.budget.cost is None or demand.has_price(prices):
        return []
    name = env.GPU_PRICE if demand.gpus else env.CPU_PRICE
    return [Issue(("budget", "cost"), f"needs prices: set {name} to that of an hour, for example 2.5")]


def _request_text(role: Role, amount: str) -> str:
    """Return a request of a role in words.

    Examples: "3 trials with 2 cores each", "the learner with 1 GPU", "the training with 8 GPUs on each of 2 nodes".
    """
    distribution = " each" if role.replicas > 1 else ""
    if role.nodes > 1:
        distribution = f" on each of {role.nodes} nodes"
    return f"{role.count_text} with {amount}{distribution}"


def visible_gpus() -> int:
    """Return the number of NVIDIA's device files that `CUDA_VISIBLE_DEVICES` does not hide. No driver is loaded."""
    file_count = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in Path("/dev").glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # such as "0,3"; "" or "-1" hides all
    if visible is None:
        return file_count
    visible_devices = [device for device in visible.split(",") if device.strip() not in ("", "-1")]
    return min(file_count, len(visible_devices))


def _memory_bytes() -> int | None:
    """Return the size of this machine's memory in bytes; None if the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _nearest_folder(home: Path) -> tuple[Path, str]:
    """Return home or its nearest parent that exists, and the problem if a folder cannot be read, or ""."""
    problem = ""
    for folder in (home, *home.parents):
        try:
            if folder.exists():
                return folder, problem
        except PermissionError:
            problem = f"cannot be checked: you may not read {folder.parent}"
    return Path("/"), problem


def _write_problem(home: Path, existing: Path) -> str:
    """Return why home cannot be created or written, or "". `existing` is home or its nearest parent that exists."""
    if not existing.is_dir():
        return f"{existing} is not a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return "cannot be written" if existing == home else f"cannot be made: {existing} cannot be written"
    return ""
