"""The work that the slots of a run do, by the kind of its job; `start` chooses it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from trialplane.controller import slots
from trialplane.controller.gangs import GangPool
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import Pool
from trialplane.controller.slot_host import SlotHost
from trialplane.controller.slot_processes import ProcessHost
from trialplane.controller.slots import SlotPool
from trialplane.controller.workloads.study import StudyWorkload
from trialplane.controller.workloads.training import TrainingWorkload
from trialplane.controller.workloads.workload import Workload
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.wire.records import SlotConfig


def needs_ray(job: Job) -> bool:
    """Whether a run of this job needs Ray on a laptop too: to move results between slots, or to share out GPUs."""
    return isinstance(job, kinds.Collection) or any(role.resources.gpus for role in job.roles())


def start(ledger: Ledger, configs: Mapping[str, SlotConfig], parallel: int | None, *, in_cluster: bool) -> Workload:
    """Start the slots of a run.

    Args:
        ledger: of the run.
        configs: role → what its slots have in common.
        parallel: the desired number; None for the job's.
        in_cluster: whether slots are pods, which may take long to start.
    """
    job, roles = ledger.job, ledger.job.roles()
    host: SlotHost
    if in_cluster or needs_ray(job):
        from trialplane.controller.ray_slots import RayHost  # seconds of imports, which most runs of a laptop can save

        host = RayHost()
    else:
        host = ProcessHost()
    patience = slots.START_PATIENCE if in_cluster else 0.0
    has_begun = bool(ledger.newest)  # otherwise one bad slot would end the run after a lost head
    if isinstance(job, kinds.Collection):
        from trialplane.controller import ray_session  # as above
        from trialplane.controller.exchange import Exchange
        from trialplane.controller.workloads.collection import CollectionWorkload, ObjectStores

        learner = SlotPool(host, configs["learner"], 1, patience, has_begun=has_begun)
        size = job.width if parallel is None else parallel
        workers = SlotPool(host, configs["worker"], size, patience, has_begun=ledger.counts.complete > 0)
        stores = ObjectStores(functools.partial(ray_session.store_bytes, roles), ray_session.spilled_bytes)
        return CollectionWorkload(ledger, learner, workers, Exchange(learner, workers), stores)
    (role,) = roles
    size = role.replicas if parallel is None else max(1, min(parallel, ledger.unstarted))
    config = configs[role.name]
    pool: Pool = SlotPool(host, config, size * role.nodes, patience, has_begun=has_begun)
    if role.nodes > 1:
        pool = GangPool(pool, config)
    return TrainingWorkload(ledger, pool) if isinstance(job, kinds.Training) else StudyWorkload(ledger, pool)
