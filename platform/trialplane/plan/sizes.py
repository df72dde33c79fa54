"""Sizes of a run's pods: CPU, memory, /dev/shm and Ray's object store."""

from __future__ import annotations

import math

from trialplane.job import values
from trialplane.job.kinds import Job, Role
from trialplane.plan.site import Site

MIB = 2**20
# Memory that Ray needs in a worker pod: `ray start` 200 MiB resident, dashboard agent 141, slot actor 125, runtime-env
# agent 83, log monitor 79, raylet 29 (Ray 2.60), and a sixth for growth. The template is not included, because its pages are
# shared with the trial and count towards the trial's limit.
RAY_MEMORY = 768 * MIB
# Ray's object store in a trial pod. Packed arrays of trials are sent to the controller through it. If they do not fit, Ray
# writes them to disk.
OBJECT_STORE = 128 * MIB
# Ratio of the object store to the results in flight. They may fill 0.7 of it, and the rest is for weights. From 0.8 on, Ray
# writes objects to disk.
STORE_FACTOR = 1.5
_LEAST_LOCAL, _MOST_LOCAL = 80 * MIB, 1024 * MIB  # object store on a laptop: minimum, and maximum unless the job needs more
LEAST_OBJECT_STORE = 96 * MIB  # minimum of the head pod's object store; Ray's own minimum is 75 MiB
# Share of the head pod's memory for Ray's container: GCS, raylet and agents take 730 MiB of 2 GiB (Ray 2.60), and the object
# store an eighth.
HEAD_SHARE = 9 / 16
DEFAULT_SHM = 64 * MIB  # size of /dev/shm that a container has by default
SHM_MARGIN = 16 * MIB  # room that the object store leaves in /dev/shm, because Ray would otherwise use a slow folder instead


def head(job: Job, site: Site) -> dict[str, dict[str, str]]:
    """Return requests and limits of Ray's container in the head pod."""
    return _head_share(job, site, share=HEAD_SHARE)


def controller(job: Job, site: Site) -> dict[str, dict[str, str]]:
    """Return requests and limits of the controller's container in the head pod."""
    return _head_share(job, site, share=1 - HEAD_SHARE)


def _head_share(job: Job, site: Site, share: float) -> dict[str, dict[str, str]]:
    """Return requests and limits of one of the two containers in the head pod.

    Each container requests half of the cores, and may use all. `share` is the container's share of the pod's memory.
    """
    cpus = job.cluster.controller.cpus or site.controller.cpus
    memory = mib(int(values.bytes_of(_head_memory(job, site)) * share))
    container_resources = resources(cpus=cpus / 2, memory=memory, overcommit=site.overcommit)
    container_resources["limits"]["cpu"] = cpu(cpus)
    return container_resources


def _head_memory(job: Job, site: Site) -> str:
    """Return the memory of the head pod, as a Kubernetes quantity."""
    return job.cluster.controller.memory or site.controller.memory


def controller_object_store(job: Job, site: Site) -> int:
    """Return the bytes of Ray's object store in the head pod, which count as its memory.

    It is an eighth of this memory, for the arrays of trials that end at the same time.
    """
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
        free: Number of free bytes in /dev/shm. At most half of them are used, because other programs need some too.
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
    """Return requests and limits of a container. They are equal unless the site overcommits its CPUs.

    Args:
        cpus: Limit of cores.
        memory: Memory, as a Kubernetes quantity.
        overcommit: Factor between the limit and the request of cores.
    """
    requested = cpu(cpus) if overcommit == 1 else f"{max(1, math.ceil(cpus * 1000 / overcommit))}m"
    return {"requests": {"cpu": requested, "memory": memory}, "limits": {"cpu": cpu(cpus), "memory": memory}}


def cpu(cores: float) -> str:
    """Return a number of cores in the notation of Kubernetes: 2, 500m."""
    return f"{cores:.0f}" if cores == int(cores) else f"{cores * 1000:.0f}m"


def mib(size: int) -> str:
    """Return a number of bytes in the notation of Kubernetes, rounded up to MiB: 512Mi."""
    return f"{math.ceil(size / MIB)}Mi"
