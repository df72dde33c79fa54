"""Leader election: of several operators, the one that holds a Lease works, as with Kubernetes' own controllers.

A Lease is a lock in the API server. It is taken over by a patch that fails if another operator has changed it since it was
read. Clocks are not compared: a Lease has expired if it has not changed for its duration on the clock of the waiting
operator. (kopf's peering is not used, because it is not a lock: two peers may work, or pause, at the same time. It also
needs its own CRD.)
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any

from trialplane.errors import LeaseLost, TrialplaneError
from trialplane.kube import kinds
from trialplane.kube.cluster import Cluster

DURATION = 15  # seconds without a renewal after which another operator may take over a Lease
LOST_AFTER = 10.0  # seconds without a renewal after which the holder stops; below DURATION, so that two never work
PAUSE = 2.0  # seconds between attempts to renew or to take it
_logger = logging.getLogger(__name__)


class Lease:
    """A Lease, for one of the operators that compete for it.

    Args:
        cluster: Client of the cluster for the namespace of the Lease.
        name: Name of the Lease.
        holder: Unique name of this operator.
        clock: Monotonic clock, in seconds.

    Attributes:
        cluster: See above.
    """

    def __init__(self, cluster: Cluster, name: str, holder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster = cluster
        self._name = name
        self._holder = holder
        self._clock = clock
        self._version = ""  # last observed version of the object
        self._changed_at = 0.0  # time at which this version was first observed

    def hold(self) -> bool:
        """Take or renew the Lease, unless another operator holds it.

        Returns:
            Whether this operator holds it now.

        Raises:
            TargetError: The API server cannot be reached, or another operator has changed the Lease in the meantime.
        """
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._holder, "leaseDurationSeconds": DURATION, "renewTime": now}
        lease = self.cluster.read(kinds.LEASE, self._name)
        if lease is None:  # no operator has held it yet
            identity = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            self.cluster.create(kinds.LEASE, {**identity, "spec": {**spec, "acquireTime": now}})
            return True
        version = lease["metadata"]["resourceVersion"]
        holder = (lease.get("spec") or {}).get("holderIdentity")
        if version != self._version:  # its holder has renewed it since the last attempt
            self._version, self._changed_at = version, self._clock()
        has_expired = self._clock() - self._changed_at >= DURATION
        if holder and holder != self._holder and not has_expired:
            return False
        if holder != self._holder:
            spec["acquireTime"] = now
        # With the version, the API server refuses the patch if another operator was faster.
        self.cluster.patch(kinds.LEASE, self._name, {"metadata": {"resourceVersion": version}, "spec": spec})
        return True

    def release(self) -> None:
        """Give up the Lease if this operator holds it, so that another one can take it at once."""
        lease = self.cluster.read(kinds.LEASE, self._name)
        if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._holder:
            version = lease["metadata"]["resourceVersion"]
            self.cluster.patch(
                kinds.LEASE, self._name, {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}}
            )


async def run_with_lease(
    lease: Lease,
    lease_held: asyncio.Event,
    tasks: Sequence[Coroutine[Any, Any, None]],
    threads: Executor,
) -> None:
    """Run tasks until one of them ends, cancel the others, and hold the Lease until the threads of all have ended.

    Args:
        lease: Lease, which is taken and renewed.
        lease_held: Event that is set when the Lease is held. Tasks that must not work without the Lease wait for it.
        tasks: Coroutines of the tasks.
        threads: Executor whose threads the tasks use. It is shut down at the end.

    Raises:
        LeaseLost: The Lease was held and then lost. Threads may still work, so the process must end at once.
        Exception: Error of the task that ended.
    """
    holding = asyncio.ensure_future(hold_lease(lease, lease_held, PAUSE))
    running_tasks = [asyncio.ensure_future(task) for task in tasks]
    try:
        ended_tasks, _ = await asyncio.wait([holding, *running_tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in running_tasks:
            task.cancel()
        # Futures instead of tasks: when kopf is cancelled, it cancels all tasks that were created after its start.
        cancellation: asyncio.Future[Any] = asyncio.gather(*running_tasks, return_exceptions=True)
        await _wait_with_lease(holding, cancellation)
        # A thread continues after its task was cancelled, and nobody else may work until it has ended.
        await _wait_with_lease(holding, asyncio.get_running_loop().run_in_executor(None, threads.shutdown))
        for task in ended_tasks:
            task.result()  # raises the error of the task, if any
    finally:
        holding.cancel()


async def _wait_with_lease(holding: asyncio.Task[None], future: asyncio.Future[Any]) -> None:
    """Wait for a future while the Lease is held.

    Args:
        holding: Task of `hold_lease`, which ends only with an error.
        future: Future.

    Raises:
        LeaseLost: The Lease was lost before the future was done.
    """
    if not holding.done():
        await asyncio.wait([holding, future], return_when=asyncio.FIRST_COMPLETED)
    if holding.done():
        holding.result()  # raises its error


async def hold_lease(lease: Lease, lease_held: asyncio.Event, pause: float, lost_after: float = LOST_AFTER) -> None:
    """Take the Lease, set `lease_held`, and renew the Lease forever.

    Args:
        lease: Lease.
        lease_held: Event that is set when the Lease is held.
        pause: Pause between attempts, in seconds.
        lost_after: Seconds without a renewal after which the Lease counts as lost; also the time limit of one attempt.

    Raises:
        LeaseLost: The Lease was held and then lost. The operator must stop at once.
    """
    loop = asyncio.get_running_loop()
    clock = loop.time
    renewed_at = clock()
    while True:
        attempted_at = clock()
        try:
            # A future instead of a task: when kopf ends, it cancels all tasks that were created after its start.
            is_held = await asyncio.wait_for(loop.run_in_executor(None, lease.hold), lost_after)
        except (TrialplaneError, TimeoutError) as error:
            _logger.warning("the Lease could not be %s: %s", "renewed" if lease_held.is_set() else "taken", error)
        else:
            if is_held:
                renewed_at = attempted_at  # the earliest time at which the Lease can have been renewed
                if not lease_held.is_set():
                    _logger.info("this operator holds the Lease, and reconciles Runs")
                    lease_held.set()
            elif lease_held.is_set():
                raise LeaseLost("another operator holds the Lease")
        if lease_held.is_set() and clock() - renewed_at >= lost_after:
            raise LeaseLost(f"the Lease was not renewed for {lost_after:.0f} s")
        await asyncio.sleep(pause)
