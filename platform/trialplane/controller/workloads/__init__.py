"""The work that the slots of a run do, by the kind of its job; `start` chooses it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from trialplane.controller import ray_session, slots
from trialplane.controller.exchange import Exchange
from trialplane.controller.gangs import GangPool
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import Pool
from trialplane.controller.slots import SlotPool
from trialplane.controller.workloads.collection import CollectionWorkload, ObjectStores
from trialplane.controller.workloads.study import StudyWorkload
from trialplane.controller.workloads.training import TrainingWorkload
from trialplane.controller.workloads.workload import Workload
from trialplane.job import kinds
from trialplane.wire.records import SlotConfig


def start(ledger: Ledger, configs: Mapping[str, SlotConfig], parallel: int | None, *, in_cluster: bool) -> Workload:
    """Starts the slots of a run.

    Args:
        ledger: of the run.
        configs: role → what its slots have in common.
        parallel: the desired number; None for the job's.
        in_cluster: whether slots are pods, which may take long to start.
    """
    job, roles = ledger.job, ledger.job.roles()
    patience = slots.START_PATIENCE if in_cluster else 0.0
    has_begun = bool(ledger.newest)  # otherwise one bad slot would end the run after a lost head
    if isinstance(job, kinds.Collection):
        learner = SlotPool(configs["learner"], 1, patience, has_begun=has_begun)
        size = job.width if parallel is None else parallel
        workers = SlotPool(configs["worker"], size, patience, has_begun=ledger.counts.complete > 0)
        stores = ObjectStores(functools.partial(ray_session.store_bytes, roles), ray_session.spilled_bytes)
        return CollectionWorkload(ledger, learner, workers, Exchange(learner, workers), stores)
    (role,) = roles
    size = role.replicas if parallel is None else max(1, min(parallel, ledger.unstarted))
    config = configs[role.name]
    pool: Pool = SlotPool(config, size * role.nodes, patience, has_begun=has_begun)
    if role.nodes > 1:
        pool = GangPool(pool, config)
    return TrainingWorkload(ledger, pool) if isinstance(job, kinds.Training) else StudyWorkload(ledger, pool)
