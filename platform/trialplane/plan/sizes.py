"""Sizes of a run's pods: CPU, memory, /dev/shm and Ray's object store."""

from __future__ import annotations

import math

from trialplane.job import values
from trialplane.job.kinds import Job, Role
from trialplane.plan.site import Site

MIB = 2**20
# Memory of a worker pod beside its trial: `ray start` 200 MiB resident, dashboard agent 141, slot actor 125, runtime-env
# agent 83, log monitor 79, raylet 29 (Ray 2.60), and a sixth for growth. Without the template: the trial shares its pages
# until one of them writes, and they count towards the trial's limit.
RAY_MEMORY = 768 * MIB
# Packed arrays of trials are sent to the controller through it. Ray spills arrays that do not fit to disk.
OBJECT_STORE = 128 * MIB
STORE_FACTOR = 1.5  # Ray spills at 0.8 of a store; results may fill 0.7, and the rest is for weights
_LEAST_LOCAL, _MOST_LOCAL = 80 * MIB, 1024 * MIB  # on a laptop: minimum, and maximum unless the job requests more
# Ray's minimum is 75 MiB. The controller's store takes an eighth of its pod, for arrays of trials that end together.
LEAST_OBJECT_STORE = 96 * MIB
# Ray's share of the head pod's memory: GCS, raylet and agents take 730 MiB of 2 GiB (Ray 2.60), the object store an eighth.
HEAD_SHARE = 9 / 16
DEFAULT_SHM = 64 * MIB  # default of a container
SHM_MARGIN = 16 * MIB  # if its object store fills /dev/shm completely, Ray uses a slow folder instead


def head(job: Job, site: Site) -> dict[str, dict[str, str]]:
    """Return requests and limits of Ray's container in the head pod."""
    return _head_share(job, site, HEAD_SHARE)


def controller(job: Job, site: Site) -> dict[str, dict[str, str]]:
    """Return requests and limits of the controller's container in the head pod."""
    return _head_share(job, site, 1 - HEAD_SHARE)


def _head_share(job: Job, site: Site, share: float) -> dict[str, dict[str, str]]:
    """Return a container's share of the head pod. It requests half of the cores and may use all."""
    cpus = job.cluster.controller.cpus or site.controller.cpus
    memory = mib(int(values.bytes_of(_head_memory(job, site)) * share))
    share_resources = resources(cpus / 2, memory, site.overcommit)
    share_resources["limits"]["cpu"] = cpu(cpus)
    return share_resources


def _head_memory(job: Job, site: Site) -> str:
    """Return the memory of the head pod, as a Kubernetes quantity."""
    return job.cluster.controller.memory or site.controller.memory


def controller_object_store(job: Job, site: Site) -> int:
    """Return the bytes of Ray's object store in the head pod, which count as its memory."""
    return max(LEAST_OBJECT_STORE, values.bytes_of(_head_memory(job, site)) // 8)


def object_store(role: Role) -> int:
    """Return the bytes of Ray's object store in a pod of a role.

    In a collection, the store must hold all results in flight, and the weights. With `resources.shm`, it is at least as
    large as the processes' own part of /dev/shm.
    """
    if not role.in_flight_bytes:
        return OBJECT_STORE
    return max(OBJECT_STORE + int(role.in_flight_bytes * STORE_FACTOR), role.resources.shm_bytes or 0)


def local_object_store(job: Job, free: int) -> int:
    """Return the bytes of the object store of a run on a laptop.

    Args:
        job: The resolved job.
        free: Number of free bytes in /dev/shm.
    """
    return max(_LEAST_LOCAL, min(free // 2, max(_MOST_LOCAL, *map(object_store, job.roles()))))


def trial_shm(role: Role) -> int:
    """Return the bytes of /dev/shm in a pod of a role: for its processes, and for Ray's object store."""
    process_bytes = DEFAULT_SHM if role.shm_bytes is None else role.shm_bytes
    return process_bytes + object_store(role) + SHM_MARGIN


def trial_memory(role: Role) -> int:
    """Return the bytes of memory of a pod of a role: for its processes, /dev/shm, and Ray."""
    return role.resources.memory_bytes + trial_shm(role) + RAY_MEMORY


def resources(cpus: float, memory: str, overcommit: float) -> dict[str, dict[str, str]]:
    """Return requests and limits. They are equal unless the site overcommits its CPUs."""
    requested = cpu(cpus) if overcommit == 1 else f"{max(1, math.ceil(cpus * 1000 / overcommit))}m"
    return {"requests": {"cpu": requested, "memory": memory}, "limits": {"cpu": cpu(cpus), "memory": memory}}


def cpu(cores: float) -> str:
    """Return a number of cores in the notation of Kubernetes: 2, 500m."""
    return f"{cores:.0f}" if cores == int(cores) else f"{cores * 1000:.0f}m"


def mib(size: int) -> str:
    """Return a number of bytes in the notation of Kubernetes."""
    return f"{math.ceil(size / MIB)}Mi"
