"""`python -m trialplane.reconciler`: watches Runs and what they are made of, and reconciles those where something happens.

kopf watches; its handlers only put names into a queue. They are all handlers of events: kopf's others would write
annotations and a finalizer into each Run, to know what they have done, and the reconciler needs to know no such thing. Every
replica watches, and the one that holds the Lease works.
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

WORKERS = 4  # Runs at the same time; as many as the ledger has connections
SWEEP = 2.0  # seconds between looks for deleted runs
AGAIN = 60.0  # seconds between looks for the site of a namespace that had none, and between tries to watch one
BACKOFFS = (1.0, 2.0, 5.0, 10.0, 30.0, *[AGAIN] * 60)  # seconds between tries of kopf's, which then begin anew
SOON = 1.0  # seconds in which events of a run's pods, which come in crowds, are one
DEEPEST = 25_000  # Python's recursion limit: the API server takes objects of 10,000 levels, each of two calls of `_Deep`
STACK = 32 << 20  # bytes of a thread's, for as many calls
PORT = 8081  # of the liveness probe
_KOPFS = (HTTPStatus.GONE, HTTPStatus.TOO_MANY_REQUESTS)  # kopf begins with a new list, or waits as long as it is told
_logger = logging.getLogger("trialplane.reconciler")


class RestartNeeded(Exception):
    """This process is to end, and the next one to begin with what is there now."""


class Name(NamedTuple):
    """Name of a Run."""

    namespace: str
    run: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.run}"


def handlers(queue: WorkQueue[Name]) -> kopf.OperatorRegistry:
    """Kopf's handlers: whatever happens to a Run, its RayCluster or its pods brings its name into the queue.

    ConfigMaps are not watched: a watch begins with all there are, each with up to 1 MiB of some run's code.
    """
    registry = kopf.OperatorRegistry()
    labelled: dict[str, Any] = {"labels": {names.RUN: kopf.PRESENT}, "registry": registry}

    @kopf.on.login(registry=registry)
    async def login(**settings: Any) -> kopf.AiohttpSession | None:
        credentials = _credentials(**settings)
        return _session(credentials, lambda: _credentials(**settings)) if credentials else None

    @kopf.on.event("trialplane.io", "v1alpha1", "runs", registry=registry)
    async def of_run(namespace: str | None, name: str, **_: Any) -> None:
        queue.add(Name(namespace or "", name))

    @kopf.on.event("ray.io", "v1", "rayclusters", **labelled)
    async def of_object(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        queue.add(Name(namespace or "", labels[names.RUN]))

    @kopf.on.event("", "v1", "pods", **labelled)
    async def of_pod(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        queue.add_after(Name(namespace or "", labels[names.RUN]), SOON)

    @kopf.on.event("", "v1", "pods", labels={names.REMOVES: kopf.PRESENT}, registry=registry)
    async def of_removal(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        queue.add(Name(namespace or "", labels[names.REMOVES]))

    return registry


class _NoDiffs(kopf.DiffBaseStorage):
    """Keep nothing of objects. kopf would copy each at each event, for handlers that do not exist here.

    A copy takes three calls for each level that the object is nested, and Python refuses those of a deep Run.
    """

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return


def _credentials(**settings: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**settings) or kopf.login_with_kubeconfig(**settings)


def _session(credentials: kopf.ConnectionInfo, read: Callable[[], kopf.ConnectionInfo | None]) -> kopf.AiohttpSession:
    """The connections of kopf's watches, for as long as it runs.

    kopf logs in again at a 401, and closes its session for that. Requests of other watches break off, at some points with an
    error that ends kopf. So it sees no 401, and its credentials do not expire.
    """
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=credentials.as_ssl_context()),
        proxy=credentials.proxy_url,
        trust_env=credentials.trust_env,
        middlewares=[_keep_watching, _Authorization(credentials, read)],
    )
    return kopf.AiohttpSession(
        server=credentials.server,
        default_namespace=credentials.default_namespace,
        priority=credentials.priority,
        aiohttp_session=session,
    )


class _Authorization:
    """Sends each request with the newest credentials, and again with others when they are refused."""

    def __init__(self, credentials: kopf.ConnectionInfo, read: Callable[[], kopf.ConnectionInfo | None]) -> None:
        self._credentials = credentials
        self._read = read
        self._renewing = asyncio.Lock()

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        while True:
            used = self._credentials
            request.headers.update(used.as_http_headers())
            answer = await send(request)
            if answer.status != HTTPStatus.UNAUTHORIZED:
                return answer
            answer.release()
            async with self._renewing:
                if self._credentials is used:  # else another request has renewed them
                    await self._renew()

    async def _renew(self) -> None:
        renewed = self._read()
        if renewed is None or renewed == self._credentials:
            _logger.error(
                "%s refuses the operator's credentials (401). No changes are seen until it takes them, or there are others: "
                "of a pod's token, see that its ServiceAccount is there; it is tried again in %.0f s",
                self._credentials.server,
                AGAIN,
            )
            await asyncio.sleep(AGAIN)
            renewed = self._read()
        self._credentials = renewed or dataclasses.replace(self._credentials)


async def _keep_watching(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request; one that is refused for a namespace fails as if its connection had broken.

    Then kopf tries again for ever. At any other error, as where a RoleBinding or the whole namespace was deleted, it would
    end, and with it the watches of all namespaces.
    """
    try:
        answer = await send(request)
    except aiohttp.ClientOSError as error:
        if "APPLICATION_DATA_AFTER_CLOSE_NOTIFY" in str(error):  # for which kopf too would close its session
            raise aiohttp.ClientConnectionError("the API server closed a TLS connection") from error
        raise
    _, _, below = request.url.path.partition("/namespaces/")
    if not below or answer.status < HTTPStatus.BAD_REQUEST or answer.status in _KOPFS:
        return answer
    namespace, _, kind = below.partition("/")
    try:
        reason = json.loads(await answer.text())["message"]
    except (ValueError, TypeError, KeyError):  # a proxy's
        reason = answer.reason or ""
    advice = ""
    if answer.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        advice = (
            ". `helm upgrade` makes again what was deleted of the chart's objects; a namespace that is gone for good is "
        )
        advice += "to be taken out of the chart's `teams`"
    _logger.error(
        "the %s of namespace %s cannot be watched: %d %s. Their changes go unseen until that is mended; it is tried again "
        "within %.0f s, and other namespaces are served%s",
        kind,
        namespace,
        answer.status,
        reason,
        AGAIN,
        advice,
    )
    raise aiohttp.ClientConnectionError(f"the API server answered {answer.status} for namespace {namespace}")


async def watch(queue: WorkQueue[Name], namespaces: Sequence[str], liveness: str | None = None) -> None:
    """Bring the names of Runs of these namespaces into the queue until SIGTERM.

    Args:
        queue: for the names.
        namespaces: each is watched on its own; one that cannot be is tried again, and told of in the log.
        liveness: URL at which a liveness probe is answered.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # which would need rights in the whole cluster
    settings.networking.error_backoffs = BACKOFFS
    settings.persistence.diffbase_storage = _NoDiffs()
    await kopf.operator(
        registry=handlers(queue), settings=settings, standalone=True, namespaces=namespaces, liveness_endpoint=liveness
    )


async def operate(
    reconcilers: Mapping[str, Reconciler], lease: Lease, also: Sequence[Coroutine[Any, Any, None]] = ()
) -> None:
    """Watch and works until SIGTERM. Ends the process where it stands when the Lease is lost: another one may work now.

    Args:
        reconcilers: by the namespace of their Runs.
        lease: whoever holds it works.
        also: what is done beside that; the end of one ends all.
    """
    queue: WorkQueue[Name] = WorkQueue(lambda name: name.namespace)
    leads = asyncio.Event()

    async def work() -> None:
        await leads.wait()
        await workqueue.work(queue, lambda name: reconcilers[name.namespace].reconcile(name.run), threads)

    async def sweep(namespace: str, reconciler: Reconciler) -> None:
        """Queue runs without events: deleted ones, and those whose Run was missed."""
        await leads.wait()
        await workqueue.sweep(queue, lambda: [Name(namespace, run) for run in reconciler.admitted()], threads)
        while True:
            await workqueue.sweep(queue, lambda: [Name(namespace, run) for run in reconciler.forgotten()], threads)
            await asyncio.sleep(SWEEP)

    threads = ThreadPoolExecutor(WORKERS, "reconciler")
    watching = watch(queue, list(reconcilers), f"http://0.0.0.0:{PORT}/healthz")
    sweeping = [sweep(namespace, reconciler) for namespace, reconciler in reconcilers.items()]
    try:
        await leases.led(lease, leads, [watching, *sweeping, *also, *(work() for _ in range(WORKERS))], threads)
    except errors.LeaseLost as error:
        _logger.error("%s; this operator ends, and its successor waits", error)
        logging.shutdown()
        os._exit(errors.EXIT_PLATFORM)  # here: a thread may be at work, and whatever waits for it gives it time


def reconcilers(ledgers: Ledgers) -> dict[str, Reconciler]:
    """Those of the namespaces with a site; what the others lack holds up nobody else."""
    by_namespace: dict[str, Reconciler] = {}
    for namespace in ledgers.namespaces:
        cluster, archive = Cluster(namespace=namespace), ledgers.of(namespace)
        if archive is not None and (site := _site(cluster)) is not None:
            by_namespace[namespace] = Reconciler(cluster, archive, site)
    return by_namespace


def _site(cluster: Cluster) -> Site | None:
    """Return the chart's installation in a namespace. None, and a line in the log, if it cannot be read."""
    try:
        return Objects(cluster).site
    except errors.TrialplaneError as error:
        _logger.error("%s\nRuns in namespace %s wait; it is looked at again in %.0f s", error, cluster.namespace, AGAIN)
        return None


async def serve_more(lacking: Sequence[str], pause: float = AGAIN) -> None:
    """Look for the sites of the namespaces that had none.

    Raises:
        RestartNeeded: one of them has one now; which namespaces are watched is decided at the start.
    """
    while True:
        await asyncio.sleep(pause)
        for namespace in lacking:
            if await asyncio.to_thread(_site, Cluster(namespace=namespace)) is not None:
                raise RestartNeeded(
                    f"namespace {namespace} can be served now; this operator ends, to be started anew with it"
                )


class _Deep(json.JSONDecoder):
    """Reads in Python what is nested too deep for the decoder in C, which has a limit of its own since Python 3.12."""

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            return super().raw_decode(s, idx)
        except RecursionError:
            slow: Any = json.JSONDecoder()
            parts: Any = json.decoder
            slow.parse_object, slow.parse_array = parts.JSONObject, parts.JSONArray
            slow.scan_once = parts.scanner.py_make_scanner(slow)
            return cast("tuple[Any, int]", slow.raw_decode(s, idx))


def read_deep_objects() -> None:
    """Allow this process to read objects as deep as the API server takes them. `plan.run.read` refuses them.

    Reading one must not end the watch, which would begin anew with the same Run for ever.
    """
    cast("Any", json)._default_decoder = _Deep()  # of kopf, of aiohttp and ours
    sys.setrecursionlimit(DEEPEST)
    threading.stack_size(STACK)


def _words(text: str) -> Sequence[str]:
    return [word for word in text.split(",") if word]


def main() -> int:
    """Work as the operator; its Lease is in the namespace that the pod is in, or that the kubeconfig names."""
    parser = argparse.ArgumentParser(prog="python -m trialplane.reconciler", description=__doc__)
    parser.add_argument("--lease", default="trialplane-operator", help="the Lease that the operator which works holds")
    parser.add_argument("--namespaces", type=_words, help="those that Runs are in: a,b; by default the operator's own")
    arguments = parser.parse_args()
    kopf.configure()
    read_deep_objects()
    for name in ("aiohttp.access", "kopf.objects"):  # each probe, each event
        logging.getLogger(name).setLevel(logging.WARNING)
    url = os.environ.get(env.LEDGER, "")
    if not url:
        _logger.error("%s must be the URL of the database", env.LEDGER)
        return errors.EXIT_BAD_INPUT
    try:
        cluster = Cluster()
        ledgers = Ledgers(
            url, cluster.namespace, arguments.namespaces or [cluster.namespace], os.environ.get(env.BUDGETS, "")
        )
    except errors.TrialplaneError as error:
        _logger.error("%s", error)
        return error.exit_code
    by_namespace = reconcilers(ledgers)
    if not by_namespace:
        return errors.EXIT_PLATFORM
    lacking = [namespace for namespace in ledgers.namespaces if namespace not in by_namespace]
    lease = Lease(cluster, arguments.lease, f"{socket.gethostname()}-{os.getpid()}")
    code = errors.EXIT_OK
    try:
        asyncio.run(operate(by_namespace, lease, [serve_more(lacking)] if lacking else []))
    except RestartNeeded as error:
        _logger.error("%s", error)
        code = errors.EXIT_PLATFORM
    with contextlib.suppress(errors.TrialplaneError):
        lease.release()
    ledgers.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
