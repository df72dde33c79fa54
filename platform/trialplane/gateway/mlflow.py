"""The proxy of MLflow: forwards requests of runs and users to MLflow's server, which only the gateway can reach.

A run sends a token that is derived from its own (`wire.mlflow`), and a user a token of a service account. The gateway sets
the headers with the caller and the namespace (`wire.mlflow.caller_headers`); those that a caller sends are dropped. By RBAC,
MLflow then checks the caller's rights in the workspace of the namespace. Only requests whose data MLflow separates by
workspace are forwarded (`mlflow_paths`). Artifacts are streamed, and a body is read into memory only after its size is
checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import AsyncIterator, Callable

import aiohttp
import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Send

from trialplane import errors
from trialplane.gateway import limits, mlflow_paths, upstream
from trialplane.gateway.callers import User
from trialplane.gateway.limits import CountRequest, Limit
from trialplane.gateway.upstream import ANSWER_SECONDS, UNAVAILABLE, MlflowRefusal, Upstream
from trialplane.ledger import archive, budget
from trialplane.ledger.archive import Archive
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import cluster, escapes, mlflow
from trialplane.wire.ledger import Address
from trialplane.wire.mlflow import Destination

# Error codes of MLflow's protocol.
DENIED = "PERMISSION_DENIED"
INVALID = "INVALID_PARAMETER_VALUE"
NO_ENDPOINT = "ENDPOINT_NOT_FOUND"
FULL = "RESOURCE_LIMIT_EXCEEDED"  # the exporter repeats such a request
BUSY = "REQUEST_LIMIT_EXCEEDED"

MAX_CALL = 4 << 20  # limit of a call's body in bytes; MLflow accepts 1 MB of metrics, parameters and tags at once
REQUESTS = 128  # limit of concurrent requests of one run, or of one namespace's users
THREADS = 256  # threads that check tokens and budgets, with requests to the database or the API server
RECEIVE_SECONDS = 30.0  # time limit for each piece of a body to arrive
STORE_SECONDS = 1800.0  # time limit for MLflow to store an artifact
_LARGE = 64 << 10  # calls with larger bodies, in bytes, are limited, because their bodies are in memory
_LARGE_CALLS = 32  # limit of concurrent large calls
_LARGE_CALLS_PER_RUN = 8  # limit of concurrent large calls of one run
_BEARER = "Bearer "
_logger = logging.getLogger(__name__)
_REQUEST_HEADERS = ("content-type", "range", "if-none-match", "if-modified-since")  # headers that are forwarded
_RESPONSE_HEADERS = (
    "content-type", "content-disposition", "content-length", "content-range", "cache-control", "etag", "last-modified",
    "x-content-type-options",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Caller:
    """The authenticated caller of a request.

    Attributes:
        address: Namespace and run of the request; the run's name is "" for a user.
        runs: Ledgers of the namespace, with its budget.
        headers: Headers that tell MLflow the caller.
    """

    address: Address
    runs: Archive
    headers: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Body:
    """The body of a request to MLflow.

    Attributes:
        size: Size in bytes.
        content: The bytes of a call of MLflow's API; the pieces of an artifact, as they arrive.
        patience: Time for MLflow's response, in seconds.
        category: Category of the budget for the bytes that MLflow stores.
        cost: Number of these bytes.
    """

    size: int
    content: bytes | AsyncIterator[bytes]
    patience: float
    category: budget.Category
    cost: int


class MlflowProxy:
    """Proxy that forwards requests to MLflow.

    Args:
        upstream: MLflow's server. None without one.
        ledgers: Ledgers of all namespaces, with their tokens and budgets.
        user: Function that returns the user of a token in a namespace, or the response that refuses the token.
    """

    def __init__(self, upstream: Upstream | None, ledgers: Ledgers, user: Callable[[str, str], User | Response]) -> None:
        self._upstream = upstream
        self._ledgers = ledgers
        self._user = user
        self._requests = Limit()  # by address; the address of users has no name of a run
        self._large_calls = Limit()  # by address
        self._threads = anyio.CapacityLimiter(THREADS)

    async def answer(
        self, destination: Destination, request: Request, send: Send, count_request: CountRequest = lambda namespace: True
    ) -> None:
        """Answer a request with MLflow's response, or with an error.

        Args:
            destination: Destination of the request.
            request: Request, whose body has not been read.
            send: ASGI function that sends the messages of the response.
            count_request: Function that counts the request for the namespace of its token.

        Raises:
            aiohttp.ClientError, TimeoutError: MLflow's response ended early, after its first part was sent.
            ClientDisconnect: The request ended early.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                response = await self._authenticate_and_forward(stack, destination, request, count_request)
            except ClientDisconnect:
                raise
            except Exception as error:  # noqa: BLE001  an unexpected one is logged
                response = _response_to(error, f"{request.method} {destination.target[:200]}")
            if isinstance(response, Response):
                await response(request.scope, request.receive, send)
            else:
                await _send_response(response, send)

    async def close(self) -> None:
        """Close the connections to MLflow."""
        if self._upstream is not None:
            await self._upstream.close()

    async def _authenticate_and_forward(
        self, stack: contextlib.AsyncExitStack, destination: Destination, request: Request, count_request: CountRequest
    ) -> aiohttp.ClientResponse | Response:
        """Authenticate the caller of a request, and forward it.

        Returns:
            MLflow's response, whose body has not been read, or a response of the gateway.

        Raises:
            MlflowRefusal: The request was not forwarded.
        """
        if self._upstream is None:
            raise MlflowRefusal(503, UNAVAILABLE, "this gateway has no MLflow: set mlflow in the chart's values")
        namespace = destination.namespace
        runs = self._ledgers.of(namespace)
        if runs is None:
            text = f"{namespace:.63} is not among the gateway's namespaces"
            # A team of a run was removed, or was added after the gateway's start. The run repeats the request later.
            if destination.run:
                raise MlflowRefusal(503, UNAVAILABLE, f"{text}; {destination.run} repeats its requests until it is")
            raise MlflowRefusal(404, NO_ENDPOINT, text)
        is_health_check = not destination.run and request.method == "GET" and destination.target == "/health"
        if is_health_check:  # needs no token
            await self._upstream.check(namespace)
            return Response(json.dumps({"mlflow": "answers"}), media_type="application/json")
        caller = await self._authenticate(destination, runs, request)
        if isinstance(caller, Response):
            return caller
        if not count_request(namespace):
            raise MlflowRefusal(429, BUSY, limits.limit_message(namespace))
        return await self._forward(stack, self._upstream, caller, destination.target, request)

    async def _authenticate(self, destination: Destination, runs: Archive, request: Request) -> _Caller | Response:
        """Return the caller of a request, a run or a user, or the response that refuses a user's token.

        Raises:
            MlflowRefusal: The token is not the run's.
        """
        namespace, run = destination.namespace, destination.run
        if run:
            authorization = request.headers.get("Authorization", "")
            await anyio.to_thread.run_sync(_check_token, runs, run, authorization, limiter=self._threads)
            headers = mlflow.caller_headers(namespace, mlflow.RUNS, run)
        else:
            token = request.headers.get(cluster.TOKEN_HEADER, "")
            user = await anyio.to_thread.run_sync(self._user, namespace, token, limiter=self._threads)
            if isinstance(user, Response):
                return user
            role, name = (mlflow.VIEWERS, cluster.VIEWER) if user.is_viewer else (mlflow.USERS, cluster.USER)
            headers = mlflow.caller_headers(namespace, role, name)
        return _Caller(Address(namespace, run), runs, headers)

    async def _forward(
        self, stack: contextlib.AsyncExitStack, server: Upstream, caller: _Caller, target: str, request: Request
    ) -> aiohttp.ClientResponse:
        """Forward an authenticated request, and return MLflow's response.

        The bytes that MLflow stores for the request count toward the namespace's budget, unless MLflow refuses the request.

        `stack` ends the counts of the request and the response when the request is answered.

        Raises:
            MlflowRefusal: The request was not forwarded.
            LedgerFull: The budget of the namespace is used up.
        """
        method, address = request.method, caller.address
        path = _checked_path(address.namespace, method, target)
        if not self._requests.enter(address, REQUESTS):
            text = f"{address.run or address.namespace} has {REQUESTS} unfinished requests to MLflow already"
            raise MlflowRefusal(429, BUSY, text)
        stack.callback(self._requests.leave, address)
        body = await self._read_body(stack, server.max_artifact, address, request, path)
        headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers} | caller.headers
        if body.size or method != "GET":
            headers["Content-Length"] = str(body.size)
        if body.cost:
            # A request that creates an MLflow run or experiment must fit the budget. Others may exceed it by a tenth, so
            # that runs that have begun can end.
            may_exceed = not path.endswith("/create")
            spend = functools.partial(caller.runs.spend, body.category, body.cost, may_exceed=may_exceed)
            await anyio.to_thread.run_sync(spend, limiter=self._threads)
        is_stored = False
        try:
            response = await stack.enter_async_context(server.response(method, target, headers, body.content, body.patience))
            is_stored = response.status < 400
        finally:
            if body.cost and not is_stored:
                await anyio.to_thread.run_sync(caller.runs.refund, body.category, body.cost, limiter=self._threads)
        return response

    async def _read_body(
        self, stack: contextlib.AsyncExitStack, max_artifact: int, address: Address, request: Request, path: str
    ) -> _Body:
        """Return the body of a request; an artifact is not read yet.

        For `stack` see `_forward`. `path` is the decoded path at MLflow's server.

        Raises:
            MlflowRefusal: The body is too large or not complete in time, or there are too many large calls.
        """
        if request.method == "PUT" and mlflow_paths.is_artifact(path):
            size = await _body_size(request, max_artifact)
            pieces = _body_pieces(request, size)
            return _Body(size, pieces, patience=STORE_SECONDS, category=budget.ARTIFACTS, cost=size)
        size = await _body_size(request, MAX_CALL)
        content = await self._read_call(stack, address, request, size)
        cost = _stored_bytes(request.method, path, content)
        return _Body(size, content, patience=ANSWER_SECONDS, category=budget.MLFLOW, cost=cost)

    async def _read_call(self, stack: contextlib.AsyncExitStack, address: Address, request: Request, size: int) -> bytes:
        """Return the body of a call of MLflow's API, and count it until the request is answered if it is large.

        Raises:
            MlflowRefusal: There are too many large calls, or the body is not complete in time.
        """
        if size > _LARGE:
            if not self._large_calls.enter(address, _LARGE_CALLS_PER_RUN, _LARGE_CALLS):
                text = (
                    f"{_LARGE_CALLS} large requests to MLflow are unfinished already, or {_LARGE_CALLS_PER_RUN} of one run"
                )
                raise MlflowRefusal(503, UNAVAILABLE, text)
            stack.callback(self._large_calls.leave, address)
        return b"".join([piece async for piece in _body_pieces(request, size)])


def _error_response(status: int, code: str, text: str) -> Response:
    """Return an error in the form of MLflow's protocol."""
    return Response(json.dumps({"error_code": code, "message": text}), status, media_type="application/json")


def _response_to(error: Exception, request_text: str) -> Response:
    """Return the response to a request that an error has ended; log an unexpected error."""
    if isinstance(error, MlflowRefusal):
        return _error_response(error.status, error.code, str(error))
    if isinstance(error, errors.LedgerFull):
        return _error_response(507, FULL, str(error))
    if isinstance(error, archive.DATABASE_ERRORS):
        text = f"the ledger's database, which must check the token, does not answer: {archive.reason(error)}"
        return _error_response(503, UNAVAILABLE, text)
    if isinstance(error, errors.TrialplaneError):
        return _error_response(403, DENIED, str(error))
    _logger.error("%s", escapes.escape_controls(request_text), exc_info=error)
    return _error_response(502, "INTERNAL_ERROR", f"the gateway could not handle this: {type(error).__name__}")


async def _send_response(response: aiohttp.ClientResponse, send: Send) -> None:
    """Send MLflow's response, with the headers that are forwarded, to the client."""
    headers = response.headers
    head = [(name.encode(), headers[name].encode("latin-1")) for name in _RESPONSE_HEADERS if name in headers]
    await send({"type": "http.response.start", "status": response.status, "headers": head})
    async for piece in upstream.body(response):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


def _check_token(runs: Archive, run: str, authorization: str) -> None:
    """Raise MlflowRefusal unless the header `Authorization` has the run's token for MLflow."""
    if not authorization.startswith(_BEARER) or not runs.is_mlflow_token_valid(run, authorization.removeprefix(_BEARER)):
        text = "the token does not open MLflow for this run: each start has its own, which is gone when the run has ended"
        raise MlflowRefusal(403, DENIED, text)


def _checked_path(namespace: str, method: str, target: str) -> str:
    """Return the decoded path of a request. Raise MlflowRefusal if the request must not be forwarded."""
    path = mlflow_paths.allowed_path(target)
    if path is None or mlflow_paths.is_other_workspace(path, namespace):
        text = "the gateway forwards only requests whose data MLflow separates by workspace"
        raise MlflowRefusal(404, NO_ENDPOINT, f"{text}, and {method} {target:.120} is not one of them")
    return path


def _stored_bytes(method: str, path: str, content: bytes) -> int:
    """Return the number of bytes that MLflow may store for a call of its API. 0 if the call stores no data."""
    if not mlflow_paths.stores_data(method, path):
        return 0
    # In addition to the body, MLflow stores a row for each entry, which is an object in JSON.
    return len(content) + budget.ROW * (1 + content.count(b"{"))


async def _body_size(request: Request, limit: int) -> int:
    """Return the size of a request's body in bytes, from its header, after a check against the limit.

    MLflow's client sends an empty file as a chunked body. Other chunked bodies are refused, because MLflow's server would
    store nothing of them and report success.

    Raises:
        MlflowRefusal: The body is larger than the limit, or it is chunked and not empty.
    """
    if "transfer-encoding" in request.headers:
        async for piece in _body_pieces(request, limit):
            if piece:
                raise MlflowRefusal(411, INVALID, "a request must state its length")
        return 0
    size = int(request.headers.get("content-length") or 0)
    if size > limit:
        raise MlflowRefusal(413, INVALID, f"the body has {size:,} bytes, and {limit:,} is the most that may be sent here")
    return size


async def _body_pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body of a request in pieces, as they arrive.

    Raises:
        MlflowRefusal: The body is larger than the limit, or a piece does not arrive in time.
        ClientDisconnect: The body ends early.
    """
    remaining = limit
    has_more = remaining > 0
    while has_more:
        try:
            with anyio.fail_after(RECEIVE_SECONDS):
                message = await request.receive()
        except TimeoutError as error:
            raise MlflowRefusal(408, INVALID, "the body of the request did not arrive in time") from error
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece, has_more = message.get("body", b""), message.get("more_body", False)
        remaining -= len(piece)
        if remaining < 0:
            raise MlflowRefusal(413, INVALID, "the body has more bytes than may be sent here")
        if piece:  # uvicorn may also deliver empty pieces
            yield piece
