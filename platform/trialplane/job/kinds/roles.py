"""Roles: groups of equal processes of a run, and the resources of their pods.

A study and a training have one role, their trials. A collection has two, the workers and the learner. Each process of a role
runs in a slot; on a cluster, a slot is a pod.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trialplane import errors
from trialplane.job.cluster import Cluster
from trialplane.job.program import Program
from trialplane.job.resources import Resources


@dataclasses.dataclass(frozen=True)
class Role:
    """A group of equal processes of a run.

    Attributes:
        name: "trial", "worker" or "learner".
        title: One replica in a message: "a trial", "the learner".
        replicas: Number of replicas at the same time.
        entrypoint: Function that they run; "" for a function of the platform.
        resources: Resources of each node.
        cluster: Image, node selector and tolerations of its pods.
        nodes: Number of machines (pods) of one replica.
        ranks: Number of processes of a replica on each node.
        shm_bytes: Bytes of /dev/shm for these processes on each node; None for the default.
        in_flight_bytes: Bytes of unread results in the object store of each node; 0 if there are none.
        gang: Whether a replica needs all of its pods before it starts, so that they are not autoscaled.
        field: Path of the section with its resources.
        program: Script or command that they run instead of the entrypoint, or None.
        write: Settings of a learner that writes files; see `collection.Write`.
    """

    name: str
    title: str
    replicas: int
    entrypoint: str
    resources: Resources
    cluster: Cluster
    nodes: int = 1
    ranks: int = 1
    shm_bytes: int | None = None
    in_flight_bytes: int = 0
    gang: bool = False
    field: str = "resources"
    program: Program | None = None
    write: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def pods(self) -> int:
        """Number of pods, and so slots, of all replicas."""
        return self.replicas * self.nodes

    @property
    def count_text(self) -> str:
        """All replicas in a message: "3 trials", "the learner"."""
        return self.title if self.replicas == 1 else errors.counted(self.replicas, self.name)
