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


def trial_shm(job: Job) -> int:
    """Bytes of /dev/shm in a trial pod: the job's own, and Ray's object store."""
    own = DEFAULT_SHM if job.shm_bytes is None else job.shm_bytes
    return own + OBJECT_STORE + SHM_MARGIN


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
