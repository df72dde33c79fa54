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
        resource: Name of the resource.
        number: Requested number of the resource.
        share: Entry of the chart for a share of a GPU. None for whole GPUs.
    """

    resource: str
    number: int
    share: GpuShare | None = None

    @classmethod
    def of(cls, role: Role, site: Site) -> GpuRequest | None:
        """Return the request of a role's pods. For a share of a GPU, it is the smallest share of the site that suffices.

        None if the role needs no GPU, or if the site does not offer such a share.
        """
        resources, gpu_resource = role.resources, role.cluster.gpu_resource
        needs_whole_gpus = resources.gpu_share == 1
        if needs_whole_gpus:
            return cls(gpu_resource, resources.gpu_count) if resources.gpu_count else None
        sufficient = [  # a job with another resource than the default wants a share of this resource
            share
            for share in site.gpu_shares
            if share.gpus >= resources.gpu_share and gpu_resource in (_DEFAULT, share.resource)
        ]
        smallest = min(sufficient, key=lambda share: share.gpus, default=None)
        return None if smallest is None else cls(smallest.resource, number=1, share=smallest)

    @property
    def memory(self) -> float | None:
        """Share of the visible memory that a trial must limit itself to, such as 0.5. None for whole GPUs."""
        if self.share is None:
            return None
        is_limited_by_device = self.share.sharing != "timeSlicing"  # MPS and MIG show a trial only the memory of its share
        return 1.0 if is_limited_by_device else self.share.gpus

    @property
    def uses_mps(self) -> bool:
        """Whether the pod is a client of MPS, whose daemon provides /dev/shm."""
        return self.share is not None and self.share.sharing == "mps"
