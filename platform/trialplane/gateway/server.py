"""The gateway's HTTP: Starlette matches the route of `routes.ROUTES`, uvicorn serves it.

uvicorn's connection is extended by three things. It counts for its peer's address until a request has shown a token, within
a tight limit of time and number, and then for the token's namespace: all laptops connect from the API server's address. The
ledger that is opened on it is closed with it, which releases the run's lock. And while a ledger is open, the connection may
be idle without limit.

Blocking calls run in threads: one for each connection with a ledger, as that has its own to the database, a few in which
ledgers are opened, and others for laptops, of which a namespace may use half at a time. Requests for MLflow take none.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import httpx
import uvicorn
from starlette import routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trialplane.gateway import ledgers as services
from trialplane.gateway import routes
from trialplane.gateway.answers import failed
from trialplane.gateway.ledgers import LedgerService
from trialplane.gateway.limits import Admit, Limit, crowded
from trialplane.gateway.mlflow import RECEIVE_SECONDS, MlflowProxy
from trialplane.gateway.route import ANY, Authority, Route
from trialplane.gateway.routes import Namespaces
from trialplane.ledger import locking
from trialplane.wire import cluster, ledger, mlflow

IDLE_SECONDS = 60  # after which a quiet connection is closed, unless a ledger is open on it
MAX_PER_NAMESPACE = 1024  # connections
MAX_UNKNOWN = 64  # connections of one address that have shown no token yet
UNKNOWN_SECONDS = 10.0  # for the first request of a connection to arrive
REQUEST_SECONDS = RECEIVE_SECONDS  # for a controller's request to arrive, and for each piece of an answer to be taken
STOP_SECONDS = 20  # for requests that are under way when the gateway stops
THREADS = 512  # for laptops
SHARE = 256  # requests of laptops, or for MLflow, that one namespace may have under way
ADMISSIONS = 32  # threads for controllers that open a ledger, whatever the others do


@dataclasses.dataclass(frozen=True)
class _Namespace:
    """The holder of a connection whose request has shown a token."""

    name: str


class Peer(H11Protocol):
    """A connection.

    Args:
        service: opens ledgers.
        holders: counts connections by address, as text, or by namespace.
        given: uvicorn's.

    Attributes:
        ledger: the one that a controller at the other end has open.
        uses_ledger: whether a request has asked for one.
        on_ledger: is held while a request for that is answered, at whose end it may be closed.
    """

    def __init__(self, service: LedgerService, holders: Limit, **options: Any) -> None:
        super().__init__(**options)
        self.app_state = {"peer": self}
        self.ledger = services.Connection(service)
        self._holders = holders
        self._holder: str | _Namespace | None = None
        self._changing = threading.Lock()
        self.on_ledger = asyncio.Lock()
        self.uses_ledger = False

    @property
    def is_known(self) -> bool:
        """Whether a request has shown a token."""
        return isinstance(self._holder, _Namespace)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Count the connection for its address, or refuse it."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        locking.keep_alive(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does so for some listeners only
        address = self.client[0] if self.client else ""
        if not self._holders.enter(address, MAX_UNKNOWN):
            transport.abort()
            return
        self._holder = address
        self._expect_token()
        self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the count and the ledger."""
        super().connection_lost(exc)
        with self._changing:
            holder, self._holder = self._holder, None
        if holder is not None:
            self._holders.leave(holder)
        if not self.uses_ledger:
            return
        closing = self.loop.create_task(self._close_ledger())
        self.tasks.add(closing)  # uvicorn waits for these when it stops
        closing.add_done_callback(self.tasks.discard)

    def data_received(self, data: bytes) -> None:
        """Bound the wait for the rest of a request's head, too."""
        super().data_received(data)
        if self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_more()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection when it was idle, or has not taken the last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        elif not self.ledger.is_open:
            super().timeout_keep_alive_handler()

    def admit(self, namespace: str) -> bool:
        """Count the connection for a namespace from now on; False when that has as many as it may. From any thread."""
        holder = _Namespace(namespace)
        with self._changing:
            if self._holder is not None and self._holder != holder:
                if not self._holders.enter(holder, MAX_PER_NAMESPACE):
                    return False
                self._holders.leave(self._holder)
                self._holder = holder
        return True

    async def _close_ledger(self) -> None:
        async with self.on_ledger:
            await asyncio.to_thread(self.ledger.close)

    def _expect_more(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _expect_token(self) -> None:
        self.loop.call_later(UNKNOWN_SECONDS, self._end_unknown)

    def _end_unknown(self) -> None:
        if self.is_known or self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:  # the token is being checked
            self._expect_token()


class _Answering:
    """Every request and its answer: a line in the log, the end of a connection that has shown no token, bounded sending."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer: Peer = scope["state"]["peer"]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                _log(scope, message["status"])
                if not peer.is_known and not peer.cycle.more_body:  # else the rest of the request's body comes first
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await send(message)
            except TimeoutError:
                peer.transport.abort()

        await self._app(scope, receive, answer)


class _Requests:
    """Answers the requests to all routes."""

    def __init__(self, laptops: Namespaces, service: LedgerService, proxy: MlflowProxy) -> None:
        self._laptops = laptops
        self._proxy = proxy
        self._threads = anyio.CapacityLimiter(THREADS)
        self._admissions = anyio.CapacityLimiter(ADMISSIONS)
        self._ledger_threads = anyio.CapacityLimiter(service.most_runs * services.CONNECTIONS)
        self._shares = Limit()  # by namespace

    def route(self, route: Route) -> routing.Route:
        """Return Starlette's route."""
        if route.authority is Authority.CONTROLLER:
            answer: Callable[[Request], Any] = self._ledger
        elif route.answer is None:
            answer = self._mlflow
        else:
            answer = functools.partial(self._anyone if route.authority is Authority.ANYONE else self._laptop, route)
        path = f"{route.path}/{{target:path}}" if route.method == ANY else route.path
        return routing.Route(path, answer, methods=route.methods)

    async def _anyone(self, route: Route, _request: Request) -> Response:
        assert route.answer is not None
        return route.answer()

    async def _laptop(self, route: Route, request: Request) -> Response:
        def answer() -> Response:
            with self._admitting(request.state.peer) as admit:
                token = request.headers.get(cluster.TOKEN_HEADER, "")
                return self._laptops.answer(route, request.path_params, dict(request.query_params), token, admit)

        return await anyio.to_thread.run_sync(answer, limiter=self._threads)

    async def _ledger(self, request: Request) -> Response:
        """The answer to a controller; the request's body is read once its token is checked."""
        peer, token = request.state.peer, request.headers.get(cluster.TOKEN_HEADER, "")
        address = ledger.Address(**request.path_params)
        if not ledger.is_name(address.run):
            return failed(404, f"{address.run!r:.80} is not the name of a run")
        try:
            async with peer.on_ledger:
                if peer.transport.is_closing():
                    raise ClientDisconnect
                if not peer.ledger.is_of(address, token):
                    peer.uses_ledger = True
                    await anyio.to_thread.run_sync(peer.ledger.admit, address, token, limiter=self._admissions)
                if not peer.admit(address.namespace):
                    raise services.Failure(ledger.BUSY, crowded(address.namespace))
                body = await _body(request)
                data = await anyio.to_thread.run_sync(peer.ledger.answer, body, limiter=self._ledger_threads)
                return Response(data, media_type="application/json")
        except services.Failure as failure:
            return failed(ledger.STATUSES[failure.code], str(failure), failure.code)
        except ClientDisconnect:
            return Response(status_code=400)  # to nobody

    async def _mlflow(self, _request: Request) -> ASGIApp:
        return self._pass_on

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to MLflow, and its response back; an ASGI application."""
        query = scope["query_string"]
        target = (scope["raw_path"] + (b"?" + query if query else b"")).decode("ascii")
        destination = mlflow.destination(target)
        if destination is None:
            await failed(404, f"there is no {scope['method']} {target:.200}")(scope, receive, send)
            return
        request = Request(scope, receive)
        peer: Peer = request.state.peer
        with self._admitting(peer) as admit:
            try:
                await self._proxy.answer(destination, request, send, admit)
            except (httpx.HTTPError, ClientDisconnect):
                peer.transport.abort()  # without the end of the body, by which the client notices

    @contextlib.contextmanager
    def _admitting(self, peer: Peer) -> Iterator[Admit]:
        """Yield a function that counts a request for its namespace, until the request is answered."""
        entered: list[str] = []

        def admit(namespace: str) -> bool:
            if not peer.admit(namespace) or not self._shares.enter(namespace, SHARE):
                return False
            entered.append(namespace)
            return True

        try:
            yield admit
        finally:
            for namespace in entered:
                self._shares.leave(namespace)


def server(
    laptops: Namespaces, service: LedgerService, proxy: MlflowProxy, host: str = "", port: int = 0, **options: Any
) -> uvicorn.Server:
    """The server, not yet running.

    Args:
        laptops: answers laptops.
        service: answers controllers.
        proxy: answers requests for MLflow.
        host: to bind to, unless the server runs on sockets that exist; "" for all addresses.
        port: to bind to.
        options: further options of uvicorn.
    """
    requests = _Requests(laptops, service, proxy)
    app = Starlette(
        routes=[requests.route(route) for route in routes.ROUTES],
        exception_handlers={HTTPException: _unrouted},
        lifespan=functools.partial(_closing, proxy),
    )
    app.router.redirect_slashes = False
    config = uvicorn.Config(
        _Answering(app),
        host or "0.0.0.0",
        port,
        http=functools.partial(Peer, service, Limit()),  # type: ignore[arg-type]  # called as the class would be
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        backlog=128,
        **options,
    )
    return uvicorn.Server(config)


@contextlib.asynccontextmanager
async def _closing(proxy: MlflowProxy, _app: Starlette) -> AsyncIterator[None]:
    yield
    await proxy.close()


async def _body(request: Request) -> bytes:
    """The body of a controller's request.

    Raises:
        Failure: it is too large, or does not arrive in time.
    """
    too_large = services.Failure(ledger.TOO_LARGE, f"a request's body may have {ledger.MAX_BYTES} bytes")
    if int(request.headers.get("Content-Length", "0")) > ledger.MAX_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > ledger.MAX_BYTES:
                    raise too_large
    except TimeoutError as error:
        raise services.Failure(ledger.SLOW, f"the request did not arrive in {REQUEST_SECONDS:g} s") from error
    return bytes(body)


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answer a request to an address or with a method without a route."""
    assert isinstance(error, HTTPException)
    return failed(error.status_code, f"there is no {request.method} {request.url.path}")


def _log(scope: Scope, status: int) -> None:
    target = (scope["raw_path"] + b"?" + scope["query_string"]).decode("ascii", "replace").removesuffix("?")
    destination = mlflow.destination(target)
    of_a_run = ledger.address(scope["path"]) is not None or (destination is not None and destination.run)
    if scope["path"] != "/health" and not (status == 200 and of_a_run):  # not each transaction of each run
        address = scope["client"][0] if scope["client"] else "-"
        sys.stderr.write(f'{address} "{scope["method"]} {target}" {status}\n')
