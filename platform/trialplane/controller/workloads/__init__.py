"""The workloads of the kinds of jobs. `start` creates the workload of a run and starts its slots."""

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
    """Return whether a run of this job needs Ray on a laptop too: to move results between slots, or to assign GPUs."""
    return isinstance(job, kinds.Collection) or any(role.resources.gpus for role in job.roles())


def start(ledger: Ledger, configs: Mapping[str, SlotConfig], parallel: int | None, *, in_cluster: bool) -> Workload:
    """Create the workload of a run, and start its slots.

    Args:
        ledger: Ledger of the run.
        configs: Configuration that the slots of a role share, by role.
        parallel: Desired number of trials or workers at a time; None for the number in the job.
        in_cluster: Whether slots are pods, which may take long to start.

    Returns:
        The workload, whose slots are starting.
    """
    job, roles = ledger.job, ledger.job.roles()
    host: SlotHost
    if in_cluster or needs_ray(job):
        from trialplane.controller.ray_slots import RayHost  # seconds of imports, which most runs of a laptop can save

        host = RayHost()
    else:
        host = ProcessHost()
    patience = slots.START_PATIENCE if in_cluster else 0.0
    # If an attempt has run, the job's code can be imported, and a slot that fails to do so must not end the run.
    has_begun = bool(ledger.newest)
    if isinstance(job, kinds.Collection):
        from trialplane.controller import ray_session  # also imports Ray
        from trialplane.controller.exchange import Exchange
        from trialplane.controller.workloads.collection import CollectionWorkload, ObjectStores

        learner = SlotPool(host, configs["learner"], size=1, patience=patience, has_begun=has_begun)
        size = job.width if parallel is None else parallel
        # An attempt at an iteration may have failed before any worker started. A complete iteration had workers.
        has_had_workers = ledger.counts.complete > 0
        workers = SlotPool(host, configs["worker"], size=size, patience=patience, has_begun=has_had_workers)
        stores = ObjectStores(functools.partial(ray_session.store_bytes, roles), ray_session.spilled_bytes)
        return CollectionWorkload(ledger, learner, workers, Exchange(learner, workers), stores)
    (role,) = roles
    size = role.replicas if parallel is None else max(1, min(parallel, ledger.startable))
    config = configs[role.name]
    pool: Pool = SlotPool(host, config, size=size * role.nodes, patience=patience, has_begun=has_begun)
    if role.nodes > 1:
        pool = GangPool(pool, config)
    return TrainingWorkload(ledger, pool) if isinstance(job, kinds.Training) else StudyWorkload(ledger, pool)
