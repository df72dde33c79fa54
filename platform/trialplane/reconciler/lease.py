"""Which of several operators works: the one that holds a Lease, as Kubernetes' own controllers have it.

A Lease is a lock in the API server: taking it over is one patch that fails if anybody changed it since it was read. (kopf's
peering is none: peers announce themselves and pause, for a while both of them, and it needs a CRD of its own.) Clocks are
not compared: a Lease has run out when it did not change for its time on the clock of whoever waits.
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

DURATION = 15  # seconds after which a Lease that is not renewed may be taken over
RENEWAL = 10.0  # seconds after which a holder that could not renew it stops; less than that, so that two never work
PAUSE = 2.0  # seconds between tries
_logger = logging.getLogger(__name__)


class Lease:
    """One Lease as one of its candidates sees it.

    Args:
        cluster: its namespace.
        name: of the Lease.
        holder: name of this candidate, unlike any other's.
        clock: seconds, monotonic.
    """

    def __init__(self, cluster: Cluster, name: str, holder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster = cluster
        self._name = name
        self._holder = holder
        self._clock = clock
        self._version = ""  # its version when it was seen to change last, and when that was
        self._changed = 0.0

    def hold(self) -> bool:
        """Take or renew it; False while another one has it.

        Raises:
            TargetError: the API server could not be reached, or another one was quicker.
        """
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._holder, "leaseDurationSeconds": DURATION, "renewTime": now}
        lease = self.cluster.read(kinds.LEASE, self._name)
        if lease is None:
            thing = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            self.cluster.create(kinds.LEASE, {**thing, "spec": {**spec, "acquireTime": now}})
            return True
        version, holder = lease["metadata"]["resourceVersion"], (lease.get("spec") or {}).get("holderIdentity")
        if version != self._version:
            self._version, self._changed = version, self._clock()
        if holder and holder != self._holder and self._clock() - self._changed < DURATION:
            return False
        if holder != self._holder:
            spec["acquireTime"] = now
        self.cluster.patch(kinds.LEASE, self._name, {"metadata": {"resourceVersion": version}, "spec": spec})
        return True

    def release(self) -> None:
        """Give it up at once, if it is held."""
        lease = self.cluster.read(kinds.LEASE, self._name)
        if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._holder:
            version = lease["metadata"]["resourceVersion"]
            self.cluster.patch(
                kinds.LEASE, self._name, {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}}
            )


async def led(
    lease: Lease,
    leads: asyncio.Event,
    tasks: Sequence[Coroutine[Any, Any, None]],
    threads: Executor,
    pause: float | None = None,
) -> None:
    """Run tasks, of which the first that ends ends all, and hold the Lease until their threads have ended too.

    Raises:
        LeaseLost: it was held and is no more; threads may still work, and must be stopped at once.
        Exception: a task's.
    """
    holder = asyncio.ensure_future(lead(lease, leads, PAUSE if pause is None else pause))
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        ended, _ = await asyncio.wait([holder, *running], return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        # Futures, and no tasks: when kopf is cancelled, it cancels the tasks that were begun after it.
        closed: asyncio.Future[Any] = asyncio.gather(*running, return_exceptions=True)
        await _unless_lost(holder, closed)
        # A cancelled task leaves its thread at work.
        await _unless_lost(holder, asyncio.get_running_loop().run_in_executor(None, threads.shutdown))
        for task in ended:
            task.result()
    finally:
        holder.cancel()


async def _unless_lost(holder: asyncio.Task[None], future: asyncio.Future[Any]) -> None:
    """Wait for a future while the Lease is held. Raises LeaseLost."""
    if not holder.done():
        await asyncio.wait([holder, future], return_when=asyncio.FIRST_COMPLETED)
    if holder.done():
        holder.result()


async def lead(lease: Lease, leads: asyncio.Event, pause: float = PAUSE, renewal: float = RENEWAL) -> None:
    """Set `leads` when the Lease is held, and renew it for ever.

    Raises:
        LeaseLost: it was held and is no more; whoever works must stop at once.
    """
    loop = asyncio.get_running_loop()
    clock = loop.time
    renewed = clock()
    while True:
        begun = clock()
        try:
            # A future, and no task: when kopf ends, it cancels the tasks that were begun after it.
            held = await asyncio.wait_for(loop.run_in_executor(None, lease.hold), renewal)
        except (TrialplaneError, TimeoutError) as error:
            _logger.warning("the Lease could not be %s: %s", "renewed" if leads.is_set() else "taken", error)
        else:
            if held:
                renewed = begun
                if not leads.is_set():
                    _logger.info("this operator leads")
                    leads.set()
            elif leads.is_set():
                raise LeaseLost("another operator holds the Lease")
        if leads.is_set() and clock() - renewed >= renewal:
            raise LeaseLost(f"the Lease was not renewed for {renewal:.0f} s")
        await asyncio.sleep(pause)
