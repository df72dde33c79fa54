"""Roles: what the processes of a run are, and what the pods of each get."""

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
    """Processes of a run that are alike, and what each of them gets.

    Attributes:
        name: trial, worker or learner.
        title: one replica in a sentence: "a trial", "the learner".
        replicas: how many there are at the same time.
        entrypoint: the function that they run; "" for one of the platform's own.
        resources: of each node.
        cluster: image, node selector and tolerations of its pods.
        nodes: machines (pods) that make one replica together.
        ranks: processes of a replica on each of its nodes.
        shm_bytes: of /dev/shm for these processes on each node; None for the system's own.
        in_flight_bytes: of results on their way through the object store of each node; 0 where none pass.
        gang: whether its pods are of use only when all are there, so that none come and go.
        field: path of the section with its resources.
        program: the script or command that they run instead, or None.
        write: for the learner that writes files: how and where, as `collection.Write` says.
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
        """How many pods, and so slots, its replicas fill."""
        return self.replicas * self.nodes

    @property
    def many(self) -> str:
        """All replicas in a sentence: "3 trials", "the learner"."""
        return self.title if self.replicas == 1 else errors.counted(self.replicas, self.name)
