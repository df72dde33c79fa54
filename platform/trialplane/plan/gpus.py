"""GPUs of a pod: whole ones, or a share of one, as a resource of Kubernetes. Pure.

A device plugin offers shares as whole numbers of a resource of their own: time slices and MPS clients of a GPU, or MIG
devices. The chart lists them in `studies.gpuShares`.
"""

from __future__ import annotations

import dataclasses

from trialplane.job.cluster import Cluster
from trialplane.job.kinds import Role
from trialplane.plan.site import GpuShare, Site

_DEFAULT = Cluster.model_fields["gpu_resource"].default


@dataclasses.dataclass(frozen=True)
class GpuRequest:
    """GPUs that a pod requests.

    Attributes:
        resource: name of the resource.
        number: number of it.
        share: entry of the chart for a share of a GPU; None for whole ones.
    """

    resource: str
    number: int
    share: GpuShare | None = None

    @classmethod
    def of(cls, role: Role, site: Site) -> GpuRequest | None:
        """Return the request of a role; None without GPUs, and for a share that the site does not offer."""
        resources, named = role.resources, role.cluster.gpu_resource
        if resources.gpu_share == 1:
            return cls(named, resources.gpu_count) if resources.gpu_count else None
        large_enough = [
            share for share in site.gpu_shares if share.gpus >= resources.gpu_share and named in (_DEFAULT, share.resource)
        ]
        smallest = min(large_enough, key=lambda share: share.gpus, default=None)
        return None if smallest is None else cls(smallest.resource, 1, smallest)

    @property
    def memory(self) -> float | None:
        """Share of the memory of its device that a trial may use: 1 if the device limits it. None for whole GPUs."""
        if self.share is None:
            return None
        return self.share.gpus if self.share.sharing == "timeSlicing" else 1.0

    @property
    def uses_mps(self) -> bool:
        """Whether the pod is a client of MPS, whose daemon provides /dev/shm."""
        return self.share is not None and self.share.sharing == "mps"
