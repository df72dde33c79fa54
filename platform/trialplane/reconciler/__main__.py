"""`python -m trialplane.reconciler`: watches Runs and what they are made of, and reconciles those where something happens.

kopf watches; its handlers only put names into a queue. They are all handlers of events: kopf's others would write
annotations and a finalizer into each Run, to know what they have done, and the reconciler needs to know no such thing. Every
replica watches, and the one that holds the Lease works.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import kopf

from trialplane import errors
from trialplane.client.cluster import Cluster
from trialplane.client.objects import Objects
from trialplane.controller.store.archive import Archive
from trialplane.reconciler import lease as leases
from trialplane.reconciler import workqueue
from trialplane.reconciler.lease import Lease
from trialplane.reconciler.reconciler import Reconciler
from trialplane.reconciler.workqueue import WorkQueue
from trialplane.wire import cluster as names
from trialplane.wire import env

WORKERS = 4  # Runs at the same time; as many as the ledger has connections
SOON = 1.0  # seconds in which events of a run's pods, which come in crowds, are one
PORT = 8081  # of the liveness probe
_logger = logging.getLogger("trialplane.reconciler")


def handlers(queue: WorkQueue) -> kopf.OperatorRegistry:
    """Kopf's handlers: whatever happens to a Run, its RayCluster or its pods brings its name into the queue.

    ConfigMaps are not watched: a watch begins with all there are, each with up to 1 MiB of some run's code.
    """
    registry = kopf.OperatorRegistry()
    labelled: dict[str, Any] = {"labels": {names.RUN: kopf.PRESENT}, "registry": registry}

    @kopf.on.login(registry=registry)
    def login(**given: Any) -> Any:
        return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)

    @kopf.on.event("trialplane.io", "v1alpha1", "runs", registry=registry)
    async def of_run(name: str, **_: Any) -> None:
        queue.add(name)

    @kopf.on.event("ray.io", "v1", "rayclusters", **labelled)
    async def of_object(labels: Mapping[str, str], **_: Any) -> None:
        queue.add(labels[names.RUN])

    @kopf.on.event("", "v1", "pods", **labelled)
    async def of_pod(labels: Mapping[str, str], **_: Any) -> None:
        queue.add_after(labels[names.RUN], SOON)

    return registry


async def operate(cluster: Cluster, reconciler: Reconciler, lease: Lease) -> None:
    """Watches and works until SIGTERM.

    Raises:
        LeaseLost: another operator may work now.
    """
    queue, leads = WorkQueue(), asyncio.Event()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # which would need rights in the whole cluster
    watching = kopf.operator(
        registry=handlers(queue),
        settings=settings,
        standalone=True,
        namespaces=[cluster.namespace],
        liveness_endpoint=f"http://0.0.0.0:{PORT}/healthz",
    )

    async def work() -> None:
        await leads.wait()
        await workqueue.work(queue, reconciler.reconcile)

    tasks = [asyncio.ensure_future(one) for one in (watching, leases.lead(lease, leads), *(work() for _ in range(WORKERS)))]
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> int:
    """Works as the operator of the namespace that the pod is in, or that the kubeconfig names."""
    parser = argparse.ArgumentParser(prog="python -m trialplane.reconciler", description=__doc__)
    parser.add_argument("--lease", default="trialplane-operator", help="the Lease that the operator which works holds")
    given = parser.parse_args()
    kopf.configure()
    for name in ("aiohttp.access", "kopf.objects"):  # each probe, each event
        logging.getLogger(name).setLevel(logging.WARNING)
    url = os.environ.get(env.LEDGER, "")
    if not url:
        _logger.error("%s must be the URL of the database", env.LEDGER)
        return errors.EXIT_BAD_INPUT
    try:
        cluster = Cluster()
        site = Objects(cluster).site
    except errors.TrialplaneError as error:
        _logger.error("%s", error)
        return error.exit_code
    archive = Archive(url)
    lease = Lease(cluster, given.lease, f"{socket.gethostname()}-{os.getpid()}")
    try:
        asyncio.run(operate(cluster, Reconciler(cluster, archive, site), lease))
    except errors.LeaseLost as error:
        _logger.error("%s; this operator ends, and its successor waits", error)
        logging.shutdown()
        os._exit(errors.EXIT_PLATFORM)  # a thread may be at work, and must not go on
    with contextlib.suppress(errors.TrialplaneError):
        lease.release()
    archive.close()
    return errors.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
