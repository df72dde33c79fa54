"""The HTTP server of the gateway, with Starlette and uvicorn. `routes.ROUTES` has the routes.

A connection counts for its client's address, with tight limits of number and time, until a request has a valid token. Then
it counts for the namespace of the token, because all laptops connect from the API server's address. A ledger that is opened
on a connection is closed when the connection ends, which releases the run's lock. While a ledger is open, the connection may
be idle without limit.

Blocking calls run in threads: one for each connection with a ledger, because each has its own connection to the database; a
few that open ledgers; and others for laptops. A namespace may use half of those at a time.
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

import aiohttp
import anyio
import uvicorn
from starlette import routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trialplane.gateway import ledgers as services
from trialplane.gateway import limits, routes
from trialplane.gateway.answers import error_response
from trialplane.gateway.ledgers import LedgerService
from trialplane.gateway.limits import CountRequest, Limit
from trialplane.gateway.mlflow import RECEIVE_SECONDS, MlflowProxy
from trialplane.gateway.route import ANY, Authority, Route
from trialplane.gateway.routes import Dispatcher
from trialplane.gateway.tls import Certificate
from trialplane.ledger import locking
from trialplane.wire import cluster, ledger, mlflow

IDLE_SECONDS = 60  # time after which an idle connection is closed, unless a ledger is open on it
MAX_PER_NAMESPACE = 1024  # limit of a namespace's connections
MAX_UNKNOWN = 64  # limit of an address's connections without a valid token yet
UNKNOWN_SECONDS = 10.0  # time limit for the first request of a connection to arrive
REQUEST_SECONDS = RECEIVE_SECONDS  # time limit to receive a controller's request, and to send each piece of a response
MAX_HEAD = 512 << 10  # bytes of a request without its body, which httptools does not limit; asyncio reads 256 KiB at once
STOP_SECONDS = 20  # time limit of current requests when the gateway stops
THREADS = 512  # threads for laptops
SHARE = 256  # limit of a namespace's concurrent requests of laptops and for MLflow
ADMISSIONS = 32  # threads that check controllers' tokens


@dataclasses.dataclass(frozen=True)
class _Namespace:
    """A namespace for which connections are counted, in contrast to an address, which is a text."""

    name: str


class Peer(HttpToolsProtocol):
    """A connection of a client.

    Args:
        service: State that all connections of controllers share.
        counts: Counts of connections, by the text of an address or by `_Namespace`.
        options: Arguments of uvicorn's protocol.

    Attributes:
        ledger: Connection of a controller to its ledger.
        uses_ledger: Whether a request for a ledger has arrived, so that the ledger must be closed with the connection.
        ledger_lock: Lock that is held during a request for the ledger, so that the ledger is closed only after it.
    """

    def __init__(self, service: LedgerService, counts: Limit, **options: Any) -> None:
        super().__init__(**options)
        self.app_state = {"peer": self}
        self.ledger = services.Connection(service)
        self._counts = counts
        self._holder: str | _Namespace | None = None  # the address or namespace for which it is counted
        self._holder_lock = threading.Lock()
        self.ledger_lock = asyncio.Lock()
        self.uses_ledger = False
        self._head_size = 0  # bytes of a request without its body

    @property
    def is_authenticated(self) -> bool:
        """Whether a request had a valid token, so that the connection counts for a namespace."""
        return isinstance(self._holder, _Namespace)

    @property
    def _is_responding(self) -> bool:
        """Whether the head of a request has arrived, and the response is not complete yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Count a new connection for its address, or close it at the limit. See `asyncio.BaseProtocol`."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        locking.keep_alive(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it for some listeners only
        address = self.client[0] if self.client else ""
        if not self._counts.enter(address, MAX_UNKNOWN):
            transport.abort()
            return
        self._holder = address
        self._schedule_token_check()
        self._start_idle_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection, and close its ledger. See `asyncio.BaseProtocol`."""
        super().connection_lost(exc)
        with self._holder_lock:
            holder, self._holder = self._holder, None
        if holder is not None:
            self._counts.leave(holder)
        if not self.uses_ledger:
            return
        closing = self.loop.create_task(self._close_ledger())
        self.tasks.add(closing)  # uvicorn waits for these when it stops
        closing.add_done_callback(self.tasks.discard)

    def on_message_begin(self) -> None:
        """Start counting the bytes of the head of a request; `data_received` counts them. See httptools."""
        super().on_message_begin()
        self._head_size = 0

    def on_body(self, body: bytes) -> None:
        """Do not count the bytes of a body, which has limits of its own. See httptools."""
        super().on_body(body)
        self._head_size -= len(body)  # `data_received` has counted them before

    def data_received(self, data: bytes) -> None:
        """Process received data, and limit the size of a request's head and the time for the rest of a request.

        The size also includes trailers, which are headers after the body. uvicorn has neither limit: it stops the idle timer
        at the first byte.
        """
        self._head_size += len(data)
        super().data_received(data)
        if self._head_size > MAX_HEAD:
            self.transport.abort()
        elif self.timeout_keep_alive_task is None and not self._is_responding:
            self._start_idle_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless a ledger is open on it and its client has read the last response.

        uvicorn calls this at the end of the idle time.
        """
        has_unread_response = self.transport.get_write_buffer_size() > 0  # bytes that the client does not read
        if has_unread_response:
            self.transport.abort()
        elif not self.ledger.is_open:
            super().timeout_keep_alive_handler()

    def count_for(self, namespace: str) -> bool:
        """Count the connection for a namespace instead of its address, if it is not yet. Safe for several threads.

        Returns:
            Whether requests may go on. False if the namespace has as many connections as it may.
        """
        holder = _Namespace(namespace)
        with self._holder_lock:
            if self._holder is not None and self._holder != holder:  # a closed connection has no holder
                if not self._counts.enter(holder, MAX_PER_NAMESPACE):
                    return False
                self._counts.leave(self._holder)
                self._holder = holder
        return True

    async def _close_ledger(self) -> None:
        """Close the ledger after the current request for it."""
        async with self.ledger_lock:
            await asyncio.to_thread(self.ledger.close)

    def _start_idle_timer(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _schedule_token_check(self) -> None:
        self.loop.call_later(UNKNOWN_SECONDS, self._check_token_in_time)

    def _check_token_in_time(self) -> None:
        """Close the connection if no request with a valid token has arrived in time. Check later if one is in progress."""
        if self.is_authenticated or self.transport.is_closing():
            return
        if self._is_responding:  # the token of the request is being checked
            self._schedule_token_check()
        else:
            self.transport.abort()


class _ResponseMiddleware:
    """ASGI middleware that logs each response, limits the time to send it, and closes connections without a valid token."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, which sends its response with `send_response`. See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer: Peer = scope["state"]["peer"]

        async def send_response(message: Message) -> None:
            """Send a message of the response, and log the first one. Abort the connection if this takes too long."""
            if message["type"] == "http.response.start":
                _log(scope, message["status"])
                # A connection with an unread body stays open: a close would reset it, and the client would lose the
                # response.
                if not peer.is_authenticated and not peer.cycle.more_body:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await send(message)
            except TimeoutError:
                peer.transport.abort()

        await self._app(scope, receive, send_response)


class _Endpoints:
    """Starlette's endpoints for all routes.

    Args:
        dispatcher: Dispatcher of the requests of laptops.
        service: State that all connections of controllers share.
        proxy: Proxy of MLflow.
    """

    def __init__(self, dispatcher: Dispatcher, service: LedgerService, proxy: MlflowProxy) -> None:
        self._dispatcher = dispatcher
        self._proxy = proxy
        self._laptop_threads = anyio.CapacityLimiter(THREADS)
        self._admission_threads = anyio.CapacityLimiter(ADMISSIONS)
        self._ledger_threads = anyio.CapacityLimiter(service.max_runs * services.CONNECTIONS)
        self._requests = Limit()  # by namespace

    def starlette_route(self, route: Route) -> routing.Route:
        """Return Starlette's form of a route, with its endpoint."""
        if route.authority is Authority.CONTROLLER:
            endpoint: Callable[[Request], Any] = self._answer_controller
        elif route.answer is None:
            endpoint = self._mlflow_application
        elif route.authority is Authority.ANYONE:
            endpoint = functools.partial(self._answer_anyone, route)
        else:
            endpoint = functools.partial(self._answer_laptop, route)
        path = f"{route.path}/{{target:path}}" if route.method == ANY else route.path
        return routing.Route(path, endpoint, methods=route.methods)

    async def _answer_anyone(self, route: Route, _request: Request) -> Response:
        """Return the response to a request that needs no token."""
        assert route.answer is not None
        return route.answer()

    async def _answer_laptop(self, route: Route, request: Request) -> Response:
        """Return the response to a laptop, from a thread."""

        def answer() -> Response:
            with self._request_counter(request.state.peer) as count_request:
                token = request.headers.get(cluster.TOKEN_HEADER, "")
                return self._dispatcher.answer(route, request.path_params, dict(request.query_params), token, count_request)

        return await anyio.to_thread.run_sync(answer, limiter=self._laptop_threads)

    async def _answer_controller(self, request: Request) -> Response:
        """Return the response to a controller. The body of its request is read only after the token is checked."""
        peer, token = request.state.peer, request.headers.get(cluster.TOKEN_HEADER, "")
        address = ledger.Address(**request.path_params)
        if not ledger.is_run_name(address.run):
            return error_response(404, f"{address.run!r:.80} is not the name of a run")
        try:
            async with peer.ledger_lock:
                if peer.transport.is_closing():
                    raise ClientDisconnect
                if not peer.ledger.is_admitted(address, token):
                    peer.uses_ledger = True
                    await anyio.to_thread.run_sync(peer.ledger.admit, address, token, limiter=self._admission_threads)
                if not peer.count_for(address.namespace):
                    raise services.Failure(ledger.BUSY, limits.limit_message(address.namespace))
                body = await _body(request)
                data = await anyio.to_thread.run_sync(peer.ledger.answer, body, limiter=self._ledger_threads)
                return Response(data, media_type="application/json")
        except services.Failure as failure:
            return error_response(ledger.STATUSES[failure.code], str(failure), failure.code)
        except ClientDisconnect:
            return Response(status_code=400)  # Starlette needs a response, although the client is gone

    async def _mlflow_application(self, _request: Request) -> ASGIApp:
        """Return the ASGI application that answers a request for MLflow. Starlette calls it as it would call a response."""
        return self._forward_to_mlflow

    async def _forward_to_mlflow(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to MLflow, and its response to the client. This is an ASGI application."""
        query = scope["query_string"]
        target = (scope["raw_path"] + (b"?" + query if query else b"")).decode("ascii")
        destination = mlflow.destination(target)
        if destination is None:
            await error_response(404, f"there is no {scope['method']} {target:.200}")(scope, receive, send)
            return
        request = Request(scope, receive)
        peer: Peer = request.state.peer
        with self._request_counter(peer) as count_request:
            try:
                await self._proxy.answer(destination, request, send, count_request)
            except (aiohttp.ClientError, TimeoutError, ClientDisconnect):
                peer.transport.abort()  # the client then notices that the body is incomplete

    @contextlib.contextmanager
    def _request_counter(self, peer: Peer) -> Iterator[CountRequest]:
        """Yield a function that counts a request for the namespace of its token. The count ends with the block."""
        counted_namespaces: list[str] = []

        def count_request(namespace: str) -> bool:
            """Count the connection and the request for a namespace; see `CountRequest`."""
            if not peer.count_for(namespace) or not self._requests.enter(namespace, SHARE):
                return False
            counted_namespaces.append(namespace)
            return True

        try:
            yield count_request
        finally:
            for namespace in counted_namespaces:
                self._requests.leave(namespace)


def server(
    dispatcher: Dispatcher,
    service: LedgerService,
    proxy: MlflowProxy,
    port: int = 0,
    certificate: Certificate | None = None,
) -> uvicorn.Server:
    """Return the server, which does not run yet.

    Args:
        dispatcher: Dispatcher of the requests of laptops.
        service: State that all connections of controllers share.
        proxy: Proxy of MLflow.
        port: Port to listen on, unless the server is run with existing sockets.
        certificate: Certificate for HTTPS. None for plain HTTP.
    """
    endpoints = _Endpoints(dispatcher, service, proxy)
    app = Starlette(
        routes=[endpoints.starlette_route(route) for route in routes.ROUTES],
        exception_handlers={HTTPException: _answer_unrouted},
        lifespan=functools.partial(_lifespan, proxy, certificate),
    )
    app.router.redirect_slashes = False
    config = uvicorn.Config(
        _ResponseMiddleware(app),
        host="0.0.0.0",
        port=port,
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
        ssl_context_factory=None if certificate is None else lambda _config, _default: certificate.context,
    )
    return uvicorn.Server(config)


@contextlib.asynccontextmanager
async def _lifespan(proxy: MlflowProxy, certificate: Certificate | None, _app: Starlette) -> AsyncIterator[None]:
    """Renew the certificate while the server runs, and close the proxy when it stops. See Starlette's `lifespan`."""
    renewal = None if certificate is None else asyncio.create_task(certificate.keep_current())
    yield
    if renewal is not None:
        renewal.cancel()
    await proxy.close()


async def _body(request: Request) -> bytes:
    """Return the body of a controller's request.

    Raises:
        Failure: The body is too large, or does not arrive in time.
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


async def _answer_unrouted(request: Request, error: Exception) -> Response:
    """Return the response to a request whose path or method is not that of a route."""
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, f"there is no {request.method} {request.url.path}")


def _log(scope: Scope, status: int) -> None:
    """Log a response, except responses to health checks and successful ones to runs, which are frequent."""
    target = (scope["raw_path"] + b"?" + scope["query_string"]).decode("ascii", "replace").removesuffix("?")
    destination = mlflow.destination(target)
    is_for_ledger = ledger.address(scope["path"]) is not None
    is_for_mlflow_of_run = destination is not None and destination.run != ""
    is_frequent = scope["path"] == "/health" or (status == 200 and (is_for_ledger or is_for_mlflow_of_run))
    if not is_frequent:
        address = scope["client"][0] if scope["client"] else "-"
        sys.stderr.write(f'{address} "{scope["method"]} {target}" {status}\n')
