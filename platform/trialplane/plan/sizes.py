"""How large the pods of a run are: CPU, memory, /dev/shm and Ray's object store."""

from __future__ import annotations

import math

from trialplane.job import values
from trialplane.job.kinds import Job, Role
from trialplane.plan.site import Site

MIB = 2**20
# What a worker pod holds beside its trial: `ray start` 200 MiB resident, dashboard agent 141, slot actor 125, runtime-env
# agent 83, log monitor 79, raylet 29 (Ray 2.60), and a sixth for growth. The template is not in it: its pages are the
# trial's own until one of them writes, and the trial's limit counts them.
RAY_MEMORY = 768 * MIB
# A trial's packed arrays pass through it on their way to the controller; what does not fit, Ray puts on disk.
OBJECT_STORE = 128 * MIB
STORE_FACTOR = 1.5  # Ray begins to spill at 0.8 of a store, results may fill 0.7 of it, and the rest is for weights
_LEAST_LOCAL, _LOCAL = 80 * MIB, 1024 * MIB  # of a laptop's: at least, and at most unless the job requests more
# Ray's own smallest is 75 MiB. The controller's takes an eighth of its pod: the arrays of trials that end together.
LEAST_OBJECT_STORE = 96 * MIB
# Of the head pod's memory, Ray's part: GCS, raylet and agents hold 730 MiB of 2 GiB (Ray 2.60), the object store an eighth.
HEAD_SHARE = 9 / 16
DEFAULT_SHM = 64 * MIB  # what every container has
SHM_MARGIN = 16 * MIB  # Ray leaves /dev/shm for a slow folder when its object store fills it to the last page


def head(job: Job, site: Site) -> dict[str, dict[str, str]]:
    """Requests and limits of Ray's container in the head pod."""
    return _of_head(job, site, HEAD_SHARE)


def controller(job: Job, site: Site) -> dict[str, dict[str, str]]:
    """Requests and limits of the controller's container in the head pod."""
    return _of_head(job, site, 1 - HEAD_SHARE)


def _of_head(job: Job, site: Site, share: float) -> dict[str, dict[str, str]]:
    """A container's share of what the head pod gets; of the cores each requests a half and may use all."""
    cpus = job.cluster.controller.cpus or site.controller.cpus
    memory = mib(int(values.bytes_of(_head_memory(job, site)) * share))
    made = resources(cpus / 2, memory, site.overcommit)
    made["limits"]["cpu"] = cpu(cpus)
    return made


def _head_memory(job: Job, site: Site) -> str:
    """Memory of the head pod."""
    return job.cluster.controller.memory or site.controller.memory


def controller_object_store(job: Job, site: Site) -> int:
    """Bytes of Ray's object store in the head pod; they count as its memory."""
    return max(LEAST_OBJECT_STORE, values.bytes_of(_head_memory(job, site)) // 8)


def object_store(role: Role) -> int:
    """Bytes of Ray's object store in a pod of a role.

    One worker's may hold all that a collection has in flight, as the learner's must, and it has room for weights.
    `resources.shm` then makes it as large as what the processes have of /dev/shm beside it.
    """
    if not role.in_flight_bytes:
        return OBJECT_STORE
    return max(OBJECT_STORE + int(role.in_flight_bytes * STORE_FACTOR), role.resources.shm_bytes or 0)


def local_object_store(job: Job, free: int) -> int:
    """Bytes of the one object store of a run on a laptop.

    Args:
        job: the resolved job.
        free: bytes left in /dev/shm.
    """
    return max(_LEAST_LOCAL, min(free // 2, max(_LOCAL, *map(object_store, job.roles()))))


def trial_shm(role: Role) -> int:
    """Bytes of /dev/shm in a pod of a role: its processes' own, and Ray's object store."""
    own = DEFAULT_SHM if role.shm_bytes is None else role.shm_bytes
    return own + object_store(role) + SHM_MARGIN


def trial_memory(role: Role) -> int:
    """Bytes of a pod of a role: its processes, /dev/shm, and Ray."""
    return role.resources.memory_bytes + trial_shm(role) + RAY_MEMORY


def resources(cpus: float, memory: str, overcommit: float) -> dict[str, dict[str, str]]:
    """Requests and limits; they are equal unless the site overcommits its CPUs."""
    requested = cpu(cpus) if overcommit == 1 else f"{max(1, math.ceil(cpus * 1000 / overcommit))}m"
    return {"requests": {"cpu": requested, "memory": memory}, "limits": {"cpu": cpu(cpus), "memory": memory}}


def cpu(cores: float) -> str:
    """Cores as Kubernetes writes them: 2, 500m."""
    return f"{cores:.0f}" if cores == int(cores) else f"{cores * 1000:.0f}m"


def mib(size: int) -> str:
    """Bytes as Kubernetes writes them."""
    return f"{math.ceil(size / MIB)}Mi"
