"""`python -m trialplane.reconciler`: the operator. It watches Runs and their objects, and reconciles Runs that may need it.

kopf watches the objects, and its handlers only put names of Runs into a queue. They are all event handlers: kopf's other
handlers would record their progress in annotations and a finalizer of each Run, which the reconciler does not need. Every
replica of the operator watches, and the one that holds the Lease reconciles.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, NamedTuple, cast

import aiohttp
import kopf

from trialplane import errors
from trialplane.kube.cluster import Cluster
from trialplane.kube.objects import Objects
from trialplane.ledger.namespaces import Ledgers
from trialplane.plan.site import Site
from trialplane.reconciler import lease as leases
from trialplane.reconciler import workqueue
from trialplane.reconciler.lease import Lease
from trialplane.reconciler.reconciler import Reconciler
from trialplane.reconciler.workqueue import WorkQueue
from trialplane.wire import cluster as names
from trialplane.wire import env

WORKERS = 4  # limit of Runs that are reconciled at the same time: the number of connections to the ledger
SWEEP = 2.0  # seconds between searches for deleted runs
RETRY_INTERVAL = 60.0  # seconds between checks of a namespace without a site, and between attempts to watch a namespace
BACKOFFS = (1.0, 2.0, 5.0, 10.0, 30.0, *[RETRY_INTERVAL] * 60)  # pauses between kopf's attempts to watch, in seconds
POD_DELAY = 1.0  # seconds in which the frequent events of a run's pods are combined
# Python's recursion limit. The API server accepts objects of 10,000 levels, and `_DeepDecoder` needs two calls for each.
RECURSION_LIMIT = 25_000
STACK = 32 << 20  # stack of a thread in bytes, for as many calls
PORT = 8081  # port of the liveness probe
_HANDLED_BY_KOPF = (HTTPStatus.GONE, HTTPStatus.TOO_MANY_REQUESTS)  # kopf lists the objects again, or waits
_logger = logging.getLogger("trialplane.reconciler")


class RestartNeeded(Exception):
    """The operator must restart, to serve other namespaces."""


class Name(NamedTuple):
    """Name of a Run, with its namespace."""

    namespace: str
    run: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.run}"


def handlers(queue: WorkQueue[Name]) -> kopf.OperatorRegistry:
    """Return kopf's handlers, which queue the name of a Run after each event of the Run, its RayCluster or its pods.

    ConfigMaps are not watched, because a watch begins with a list of them, and each may contain 1 MiB of code.
    """
    registry = kopf.OperatorRegistry()
    run_label: dict[str, Any] = {"labels": {names.RUN: kopf.PRESENT}, "registry": registry}

    @kopf.on.login(registry=registry)
    async def login(**settings: Any) -> kopf.AiohttpSession | None:
        credentials = _credentials(**settings)
        return _session(credentials, lambda: _credentials(**settings)) if credentials else None

    @kopf.on.event("trialplane.io", "v1alpha1", "runs", registry=registry)
    async def queue_run(namespace: str | None, name: str, **_: Any) -> None:
        queue.add(Name(namespace or "", name))

    @kopf.on.event("ray.io", "v1", "rayclusters", **run_label)
    async def queue_run_of_cluster(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        queue.add(Name(namespace or "", labels[names.RUN]))

    @kopf.on.event("", "v1", "pods", **run_label)
    async def queue_run_of_pod(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        queue.add_after(Name(namespace or "", labels[names.RUN]), POD_DELAY)

    @kopf.on.event("", "v1", "pods", labels={names.REMOVES: kopf.PRESENT}, registry=registry)
    async def queue_removed_run(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        queue.add(Name(namespace or "", labels[names.REMOVES]))

    return registry


class _EmptyDiffStorage(kopf.DiffBaseStorage):
    """Storage of kopf's for the last state of objects that stores nothing, because no handler needs differences.

    kopf's own storage copies an object at each event. A copy needs three nested calls for each level of the object, which
    exceeds Python's recursion limit for a deeply nested Run.
    """

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        """Return an empty state."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        """Return no state."""
        return

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing."""
        return


def _credentials(**settings: Any) -> kopf.ConnectionInfo | None:
    """Return the credentials of the pod's service account, or else those of the kubeconfig. None without either."""
    return kopf.login_with_service_account(**settings) or kopf.login_with_kubeconfig(**settings)


def _session(
    credentials: kopf.ConnectionInfo, read_credentials: Callable[[], kopf.ConnectionInfo | None]
) -> kopf.AiohttpSession:
    """Return the session of kopf's requests, which lasts as long as kopf runs.

    After a response with status 401, kopf would log in again and close the session. That interrupts its other watches, and
    can raise an error that ends kopf. So the session renews the credentials itself, and kopf never gets a 401.

    `read_credentials` returns the current credentials, or None without any.
    """
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=credentials.as_ssl_context()),
        proxy=credentials.proxy_url,
        trust_env=credentials.trust_env,
        middlewares=[_keep_watching, _Authorization(credentials, read_credentials)],
    )
    return kopf.AiohttpSession(
        server=credentials.server,
        default_namespace=credentials.default_namespace,
        priority=credentials.priority,
        aiohttp_session=session,
    )


class _Authorization:
    """Middleware that adds the credentials to a request, and repeats it with new ones while they are refused.

    Args:
        credentials: Credentials at the start.
        read_credentials: Function that returns the current credentials, or None without any.
    """

    def __init__(self, credentials: kopf.ConnectionInfo, read_credentials: Callable[[], kopf.ConnectionInfo | None]) -> None:
        self._credentials = credentials
        self._read_credentials = read_credentials
        self._renewal_lock = asyncio.Lock()

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request until its response has another status than 401, and return this response."""
        while True:
            credentials = self._credentials
            request.headers.update(credentials.as_http_headers())
            response = await send(request)
            if response.status != HTTPStatus.UNAUTHORIZED:
                return response
            response.release()
            async with self._renewal_lock:
                if self._credentials is credentials:  # no other request renewed them while this one waited for the lock
                    await self._renew()

    async def _renew(self) -> None:
        """Replace the refused credentials by the current ones. If these are the same, log an error, wait, and read again."""
        renewed = self._read_credentials()
        if renewed is None or renewed == self._credentials:
            _logger.error(
                "%s refuses the operator's credentials (401), so the operator misses all changes. Check that the "
                "ServiceAccount of its pod exists, or the credentials in its kubeconfig; it tries again in %.0f s",
                self._credentials.server,
                RETRY_INTERVAL,
            )
            await asyncio.sleep(RETRY_INTERVAL)
            renewed = self._read_credentials()
        # Always a new object, even with the same credentials: its identity tells waiting requests that a renewal was tried.
        self._credentials = renewed or dataclasses.replace(self._credentials)  # `replace` without changes is a copy


async def _keep_watching(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Middleware that sends a request and returns its response, and replaces errors that would end kopf.

    If the API server refuses a request for a namespace, for example after its RoleBinding was deleted, kopf would end, and
    with it the watches of all namespaces. So the error is logged and replaced by a connection error, after which kopf
    repeats the request forever.

    Raises:
        ClientConnectionError: The API server refused the request, or closed the connection.
    """
    try:
        response = await send(request)
    except aiohttp.ClientOSError as error:
        # kopf would close its session after this error, and so end all watches.
        if "APPLICATION_DATA_AFTER_CLOSE_NOTIFY" in str(error):
            raise aiohttp.ClientConnectionError("the API server closed a TLS connection") from error
        raise
    _, _, namespaced_path = request.url.path.partition("/namespaces/")  # NAMESPACE/KIND
    if not namespaced_path or response.status < HTTPStatus.BAD_REQUEST or response.status in _HANDLED_BY_KOPF:
        return response
    namespace, _, kind = namespaced_path.partition("/")
    try:
        reason = json.loads(await response.text())["message"]
    except (ValueError, TypeError, KeyError):  # not the API server's JSON, but for example a proxy's error page
        reason = response.reason or ""
    advice = ""
    if response.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        advice = (
            ". `helm upgrade` creates deleted objects of the chart again; if the namespace is gone for good, remove it from "
            "the chart's `teams`"
        )
    _logger.error(
        "the %s of namespace %s cannot be watched: %d %s. The operator misses their changes until this is fixed. It tries "
        "again within %.0f s, and still serves other namespaces%s",
        kind,
        namespace,
        response.status,
        reason,
        RETRY_INTERVAL,
        advice,
    )
    raise aiohttp.ClientConnectionError(f"the API server answered {response.status} for namespace {namespace}")


async def watch(queue: WorkQueue[Name], namespaces: Sequence[str], liveness: str | None = None) -> None:
    """Watch namespaces, and queue the names of their Runs, until SIGTERM.

    Args:
        queue: Queue for the names.
        namespaces: Namespaces. If one cannot be watched, the error is logged, and the attempt is repeated.
        liveness: URL at which kopf answers the liveness probe. None for no probe.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # a scan needs rights in the whole cluster
    settings.networking.error_backoffs = BACKOFFS
    settings.persistence.diffbase_storage = _EmptyDiffStorage()
    await kopf.operator(
        registry=handlers(queue), settings=settings, standalone=True, namespaces=namespaces, liveness_endpoint=liveness
    )


async def operate(
    reconcilers: Mapping[str, Reconciler], lease: Lease, extra_tasks: Sequence[Coroutine[Any, Any, None]] = ()
) -> None:
    """Watch and reconcile Runs until SIGTERM. If the Lease is lost, end the process at once.

    Args:
        reconcilers: Reconcilers, by namespace.
        lease: Lease, which is needed to reconcile.
        extra_tasks: Further tasks. When one of them ends, the operator ends.
    """
    queue: WorkQueue[Name] = WorkQueue(lambda name: name.namespace)
    threads = ThreadPoolExecutor(WORKERS, "reconciler")
    lease_held = asyncio.Event()

    async def work() -> None:
        """Reconcile queued Runs, once the Lease is held."""
        await lease_held.wait()
        await workqueue.work(queue, lambda name: reconcilers[name.namespace].reconcile(name.run), threads)

    async def sweep(namespace: str, reconciler: Reconciler) -> None:
        """Queue the runs that need work although no event names them, once the Lease is held.

        At the start, these are the runs whose Run may have been deleted while no operator worked. Later, again and again,
        they are the runs whose files a user wants removed.
        """
        await lease_held.wait()
        await workqueue.sweep(queue, lambda: [Name(namespace, run) for run in reconciler.admitted()], threads)
        while True:
            await workqueue.sweep(queue, lambda: [Name(namespace, run) for run in reconciler.runs_to_remove()], threads)
            await asyncio.sleep(SWEEP)

    watching = watch(queue, list(reconcilers), f"http://0.0.0.0:{PORT}/healthz")
    sweeping = [sweep(namespace, reconciler) for namespace, reconciler in reconcilers.items()]
    try:
        tasks = [watching, *sweeping, *extra_tasks, *(work() for _ in range(WORKERS))]
        await leases.run_with_lease(lease, lease_held, tasks, threads)
    except errors.LeaseLost as error:
        _logger.error("%s; this operator ends, and its successor waits", error)
        logging.shutdown()
        os._exit(errors.EXIT_PLATFORM)  # an ordinary exit would wait for threads, and another operator may work now


def reconcilers(ledgers: Ledgers) -> dict[str, Reconciler]:
    """Return the reconcilers by namespace. Namespaces without a readable site are left out."""
    by_namespace: dict[str, Reconciler] = {}
    for namespace in ledgers.namespaces:
        archive = ledgers.of(namespace)
        assert archive is not None  # because the namespace is one of the ledgers' own
        cluster = Cluster(namespace=namespace)
        site = _site(cluster)
        if site is not None:
            by_namespace[namespace] = Reconciler(cluster, archive, site)
    return by_namespace


def _site(cluster: Cluster) -> Site | None:
    """Return the description of the chart's installation in a namespace. If it cannot be read, log it and return None."""
    try:
        return Objects(cluster).site
    except errors.TrialplaneError as error:
        _logger.error(
            "%s\nRuns in namespace %s wait; it is checked again in %.0f s", error, cluster.namespace, RETRY_INTERVAL
        )
        return None


async def await_sites(namespaces: Sequence[str], pause: float = RETRY_INTERVAL) -> None:
    """Wait until one of the namespaces without a site gets one. Ends only with `RestartNeeded`.

    Args:
        namespaces: Namespaces without a site.
        pause: Pause between checks, in seconds.

    Raises:
        RestartNeeded: A namespace has a site now. The watched namespaces are chosen when the operator starts.
    """
    while True:
        await asyncio.sleep(pause)
        for namespace in namespaces:
            if await asyncio.to_thread(_site, Cluster(namespace=namespace)) is not None:
                raise RestartNeeded(
                    f"namespace {namespace} can be served now; this operator ends, so that its restart includes it"
                )


class _DeepDecoder(json.JSONDecoder):
    """JSON decoder that reads deeply nested values, too.

    Python's usual decoder is written in C, which since Python 3.12 has a limit of its own for nested calls. Beyond it, this
    decoder uses the same functions written in Python.
    """

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        """Return the value at a position of a text, and the position after it; see `json.JSONDecoder`."""
        try:
            return super().raw_decode(s, idx)
        except RecursionError:
            decoder: Any = json.JSONDecoder()  # is changed to call the functions written in Python
            implementation: Any = json.decoder  # without declared types: these functions are undocumented
            decoder.parse_object, decoder.parse_array = implementation.JSONObject, implementation.JSONArray
            decoder.scan_once = implementation.scanner.py_make_scanner(decoder)
            return cast("tuple[Any, int]", decoder.raw_decode(s, idx))


def allow_deep_objects() -> None:
    """Allow this process to parse objects that are nested as deeply as the API server allows.

    `plan.run.read` refuses such Runs. But an error while parsing one would end the watch, which would then start again with
    the same Run, forever.
    """
    cast("Any", json)._default_decoder = _DeepDecoder()  # kopf, aiohttp and trialplane use it
    sys.setrecursionlimit(RECURSION_LIMIT)
    threading.stack_size(STACK)


def main() -> int:
    """Run the operator until SIGTERM, and return its exit code.

    Its Lease is in the namespace of the pod or of the kubeconfig.
    """
    parser = argparse.ArgumentParser(prog="python -m trialplane.reconciler", description=__doc__)
    parser.add_argument("--lease", default="trialplane-operator", help="name of the Lease that the working operator holds")
    parser.add_argument(
        "--namespaces", default="", help="namespaces of Runs, separated by commas; default: the operator's own"
    )
    arguments = parser.parse_args()
    kopf.configure()
    allow_deep_objects()
    for name in ("aiohttp.access", "kopf.objects"):  # they log each probe and each event
        logging.getLogger(name).setLevel(logging.WARNING)
    url = os.environ.get(env.LEDGER, "")
    if not url:
        _logger.error("%s must be the URL of the database", env.LEDGER)
        return errors.EXIT_BAD_INPUT
    try:
        cluster = Cluster()
        namespaces = (arguments.namespaces or cluster.namespace).split(",")
        ledgers = Ledgers(url=url, control=cluster.namespace, namespaces=namespaces, budgets=os.environ.get(env.BUDGETS, ""))
    except errors.TrialplaneError as error:
        _logger.error("%s", error)
        return error.exit_code
    by_namespace = reconcilers(ledgers)
    if not by_namespace:  # `_site` has logged the reasons
        return errors.EXIT_PLATFORM
    unserved_namespaces = [namespace for namespace in ledgers.namespaces if namespace not in by_namespace]
    lease = Lease(cluster, name=arguments.lease, holder=f"{socket.gethostname()}-{os.getpid()}")
    code = errors.EXIT_OK
    try:
        asyncio.run(operate(by_namespace, lease, [await_sites(unserved_namespaces)] if unserved_namespaces else []))
    except RestartNeeded as error:
        _logger.error("%s", error)
        code = errors.EXIT_PLATFORM
    with contextlib.suppress(errors.TrialplaneError):
        lease.release()
    ledgers.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
