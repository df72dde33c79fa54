"""How large the pods of a run are: CPU, memory, /dev/shm and Ray's object store."""

from __future__ import annotations

import math

from trialplane.plan.site import Site
from trialplane.spec import values
from trialplane.spec.job import Job

MIB = 2**20
# What a worker pod holds beside its trial: `ray start` 200 MiB resident, dashboard agent 141, slot actor 125, runtime-env
# agent 83, log monitor 79, raylet 29 (Ray 2.60), and a sixth for growth. The template is not in it: its pages are the
# trial's own until one of them writes, and the trial's limit counts them.
RAY_MEMORY = 768 * MIB
# A trial's packed arrays pass through it on their way to the controller; what does not fit, Ray puts on disk.
OBJECT_STORE = 128 * MIB
STORE_FACTOR = 1.5  # Ray begins to spill at 0.8 of a store, results may fill 0.7 of it, and the rest is for weights
_LEAST_LOCAL, _LOCAL = 80 * MIB, 1024 * MIB  # of a laptop's: at least, and at most where the job does not ask for more
# Ray's own smallest is 75 MiB. The controller's takes an eighth of its pod: the arrays of trials that end together.
LEAST_OBJECT_STORE = 96 * MIB
DEFAULT_SHM = 64 * MIB  # what every container has
SHM_MARGIN = 16 * MIB  # Ray leaves /dev/shm for a slow folder when its object store fills it to the last page


def controller_cpus(job: Job, site: Site) -> str:
    """CPU cores of the head pod."""
    return job.cluster.controller.cpus or site.controller.cpus


def controller_memory(job: Job, site: Site) -> str:
    """Memory of the head pod."""
    return job.cluster.controller.memory or site.controller.memory


def controller_object_store(job: Job, site: Site) -> int:
    """Bytes of Ray's object store in the head pod; they count as its memory."""
    return max(LEAST_OBJECT_STORE, values.bytes_of(controller_memory(job, site)) // 8)


def object_store(job: Job) -> int:
    """Bytes of Ray's object store in a trial pod.

    One producer's may hold all that a collection has in flight, and the consumer's too, for all pods of a run are alike; and
    it has room for weights. `resources.shm` makes it as large as what the job has of /dev/shm beside it.
    """
    if job.collect is None:
        return OBJECT_STORE
    return max(OBJECT_STORE + int(job.collect.in_flight_bytes * STORE_FACTOR), job.resources.shm_bytes or 0)


def local_object_store(job: Job, free: int) -> int:
    """Bytes of the one object store of a run on a laptop.

    Args:
        job: the resolved job.
        free: bytes left in /dev/shm.
    """
    return max(_LEAST_LOCAL, min(free // 2, max(_LOCAL, object_store(job))))


def trial_shm(job: Job) -> int:
    """Bytes of /dev/shm in a trial pod: the job's own, and Ray's object store."""
    own = DEFAULT_SHM if job.shm_bytes is None else job.shm_bytes
    return own + object_store(job) + SHM_MARGIN


def trial_memory(job: Job) -> int:
    """Bytes of a trial pod: the trial, /dev/shm, and Ray."""
    return job.resources.memory_bytes + trial_shm(job) + RAY_MEMORY


def resources(cpus: str, memory: str, overcommit: float) -> dict[str, dict[str, str]]:
    """Requests and limits; they are equal unless the site overcommits its CPUs."""
    millis = float(cpus[:-1]) if cpus.endswith("m") else float(cpus) * 1000
    requested = cpus if overcommit == 1 else f"{max(1, math.ceil(millis / overcommit))}m"
    return {"requests": {"cpu": requested, "memory": memory}, "limits": {"cpu": cpus, "memory": memory}}


def mib(size: int) -> str:
    """Bytes as Kubernetes writes them."""
    return f"{math.ceil(size / MIB)}Mi"
