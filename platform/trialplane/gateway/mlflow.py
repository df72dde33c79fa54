"""The proxy of MLflow: passes requests of runs and users on to MLflow's server, which only the gateway can reach.

A run sends the token that is derived from its own (`wire.mlflow`), a user that of a service account. The gateway sets
headers with the caller and the namespace (`wire.mlflow.caller_headers`), which no caller can set, and MLflow checks by RBAC what
that caller may do in the workspace of the namespace. Only requests that workspaces are known to keep apart pass
(`mlflow_paths`). Artifacts pass in pieces; nothing is held in memory whose size has not been checked.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import AsyncIterator, Callable

import anyio
import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Send

from trialplane import errors
from trialplane.gateway import mlflow_paths
from trialplane.gateway.callers import User
from trialplane.gateway.limits import Admit, Limit, crowded
from trialplane.gateway.upstream import ANSWER_SECONDS, AWAY, Refused, Upstream
from trialplane.ledger import archive, budget
from trialplane.ledger.archive import Archive
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import cluster, escapes, mlflow
from trialplane.wire.ledger import Address
from trialplane.wire.mlflow import Destination

# Errors as MLflow's client knows them.
DENIED = "PERMISSION_DENIED"
INVALID = "INVALID_PARAMETER_VALUE"
NO_ENDPOINT = "ENDPOINT_NOT_FOUND"
FULL = "RESOURCE_LIMIT_EXCEEDED"  # which the exporter tries again
BUSY = "REQUEST_LIMIT_EXCEEDED"

MAX_CALL = 4 << 20  # bytes of a call's body; MLflow takes 1 MB of metrics, parameters and tags at once
REQUESTS = 128  # of one run, or of one namespace's users, at a time
THREADS = 256  # for tokens and budgets, which ask the database or the API server
RECEIVE_SECONDS = 30.0  # for each piece of a body to arrive
STORE_SECONDS = 1800.0  # for MLflow to store an artifact that it has received
_PIECE = 1 << 18  # bytes of a response in memory
_LARGE = 64 << 10  # bytes of a call's body from which on few are in memory at a time, or on their way there:
_LARGE_CALLS = 32
_LARGE_CALLS_OF_ONE = 8  # of one run
_BEARER = "Bearer "
_logger = logging.getLogger(__name__)
_SENT = ("content-type", "range", "if-none-match", "if-modified-since")  # of a caller's headers
_RECEIVED = (
    "content-type", "content-disposition", "content-length", "content-range", "cache-control", "etag", "last-modified",
    "x-content-type-options",
)  # fmt: skip


class MlflowProxy:
    """Passes requests on to MLflow.

    Args:
        upstream: MLflow's server; None where there is none.
        all_runs: by namespace.
        user: returns the user of a token in a namespace, or the response that refuses it.
    """

    def __init__(self, upstream: Upstream | None, all_runs: Ledgers, user: Callable[[str, str], User | Response]) -> None:
        self._upstream = upstream
        self._all_runs = all_runs
        self._user = user
        self._requests = Limit()  # by address; of users without a run's name
        self._large = Limit()  # by address
        self._threads = anyio.CapacityLimiter(THREADS)

    async def answer(
        self, destination: Destination, request: Request, send: Send, admit: Admit = lambda namespace: True
    ) -> None:
        """Answer one request, whatever it is.

        Args:
            destination: whose door it came to, and what is behind it.
            request: its body not read yet.
            send: takes the messages of the response.
            admit: is told the namespace whose token it shows.

        Raises:
            httpx.HTTPError: the response ends early.
            ClientDisconnect: the request does.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                response = await self._response(stack, destination, request, admit)
            except Refused as refused:
                response = refusal(refused.status, refused.code, str(refused))
            except errors.LedgerFull as error:
                response = refusal(507, FULL, str(error))
            except archive.DATABASE_ERRORS as error:
                line = archive.reason(error)
                response = refusal(503, AWAY, f"the ledger's database, which has this run's token, does not answer: {line}")
            except errors.TrialplaneError as error:
                response = refusal(403, DENIED, str(error))
            except ClientDisconnect:
                raise
            except Exception as error:  # unexpected
                _logger.exception("%s %s", request.method, escapes.escape_controls(destination.target[:200]))
                response = refusal(502, "INTERNAL_ERROR", f"the gateway could not handle this: {type(error).__name__}")
            if isinstance(response, Response):
                await response(request.scope, request.receive, send)
                return
            head = [
                (name.encode(), response.headers[name].encode("latin-1")) for name in _RECEIVED if name in response.headers
            ]
            await send({"type": "http.response.start", "status": response.status_code, "headers": head})
            async for piece in response.aiter_raw(_PIECE):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})

    async def close(self) -> None:
        """Close the connections to MLflow."""
        if self._upstream is not None:
            await self._upstream.close()

    async def _response(
        self, stack: contextlib.AsyncExitStack, destination: Destination, request: Request, admit: Admit
    ) -> httpx.Response | Response:
        if self._upstream is None:
            raise Refused(503, AWAY, "this gateway has no MLflow: set mlflow in the chart's values")
        namespace = destination.namespace
        runs = self._all_runs.of(namespace)
        if runs is None:
            text = f"{namespace:.63} is not among the gateway's namespaces"
            if destination.run:  # its team was added after the start, or removed: the run waits, as for its ledger
                raise Refused(503, AWAY, f"{text}; what {destination.run} logs waits until it is")
            raise Refused(404, NO_ENDPOINT, text)
        if not destination.run and (request.method, destination.target) == ("GET", "/health"):  # for anybody
            await self._upstream.check(namespace)
            return Response(json.dumps({"mlflow": "answers"}), media_type="application/json")
        if destination.run:
            authorization = request.headers.get("Authorization", "")
            await anyio.to_thread.run_sync(_check_token, runs, destination.run, authorization, limiter=self._threads)
            caller = mlflow.caller_headers(namespace, mlflow.RUNS, destination.run)
        else:
            token = request.headers.get(cluster.TOKEN_HEADER, "")
            user = await anyio.to_thread.run_sync(self._user, namespace, token, limiter=self._threads)
            if isinstance(user, Response):
                return user
            role, name = (mlflow.VIEWERS, cluster.VIEWER) if user.views else (mlflow.USERS, cluster.USER)
            caller = mlflow.caller_headers(namespace, role, name)
        if not admit(namespace):
            raise Refused(429, BUSY, crowded(namespace))
        return await self._passed_on(stack, Address(namespace, destination.run), runs, destination.target, request, caller)

    async def _passed_on(
        self,
        stack: contextlib.AsyncExitStack,
        address: Address,
        runs: Archive,
        target: str,
        request: Request,
        caller: dict[str, str],
    ) -> httpx.Response:
        """MLflow's response to an admitted request, whose bytes count for the budget of its namespace."""
        assert self._upstream is not None  # checked before
        path = mlflow_paths.passing(target)
        if path is None:
            text = "the gateway passes on only what MLflow keeps apart by workspaces"
            raise Refused(404, NO_ENDPOINT, f"{text}, and {request.method} {target:.120} is not part of that")
        if not self._requests.enter(address, REQUESTS):
            text = f"{address.run or address.namespace} has {REQUESTS} requests to MLflow under way already"
            raise Refused(429, BUSY, text)
        stack.callback(self._requests.leave, address)
        method = request.method
        is_artifact = method == "PUT" and mlflow_paths.is_artifact(path)
        size = await _length(request, self._upstream.max_artifact if is_artifact else MAX_CALL)
        headers = {name: request.headers[name] for name in _SENT if name in request.headers} | caller
        category: budget.Category = budget.ARTIFACTS if is_artifact else budget.MLFLOW
        content: bytes | AsyncIterator[bytes]
        if is_artifact:
            cost, content, patience = size, _pieces(request, size), STORE_SECONDS
        else:
            if size > _LARGE:
                if not self._large.enter(address, _LARGE_CALLS_OF_ONE, _LARGE_CALLS):
                    text = (
                        f"{_LARGE_CALLS} large requests to MLflow are under way already, or {_LARGE_CALLS_OF_ONE} of one run"
                    )
                    raise Refused(503, AWAY, text)
                stack.callback(self._large.leave, address)
            content = b"".join([piece async for piece in _pieces(request, size)])
            # Beside its body, MLflow keeps a row for each entry, which is an object in JSON.
            cost = len(content) + budget.ROW * (1 + content.count(b"{")) if mlflow_paths.adds(method, path) else 0
            patience = ANSWER_SECONDS
        if size or method != "GET":
            headers["Content-Length"] = str(size)
        if cost:
            # A new run needs room; what goes on may take a tenth more.
            spend = functools.partial(runs.spend, category, cost, spare=not path.endswith("/create"))
            await anyio.to_thread.run_sync(spend, limiter=self._threads)
        is_stored = False
        try:
            response = await stack.enter_async_context(self._upstream.sent(method, target, headers, content, patience))
            is_stored = response.status_code < 400
        finally:
            if cost and not is_stored:
                await anyio.to_thread.run_sync(runs.refund, category, cost, limiter=self._threads)
        return response


def refusal(status: int, code: str, text: str) -> Response:
    """An error as MLflow's client understands it."""
    return Response(json.dumps({"error_code": code, "message": text}), status, media_type="application/json")


def _check_token(runs: Archive, run: str, authorization: str) -> None:
    if not authorization.startswith(_BEARER) or not runs.opens_mlflow(run, authorization.removeprefix(_BEARER)):
        text = "the token does not open MLflow for this run: each start has its own, which is gone when the run has ended"
        raise Refused(403, DENIED, text)


async def _length(request: Request, most: int) -> int:
    """Bytes of a body, as its header says.

    A client sends an empty file in chunks. Other chunked bodies are refused: MLflow's server would store nothing of them,
    and report success.

    Raises:
        Refused: they are too many, or the header is missing.
    """
    if "transfer-encoding" in request.headers:
        async for piece in _pieces(request, most):
            if piece:
                raise Refused(411, INVALID, "a request must state its length")
        return 0
    size = int(request.headers.get("content-length") or 0)
    if size > most:
        raise Refused(413, INVALID, f"the body has {size:,} bytes, and {most:,} is the most that may be sent here")
    return size


async def _pieces(request: Request, most: int) -> AsyncIterator[bytes]:
    """A body, in the pieces that arrive.

    Raises:
        Refused: it is larger, or does not come in time.
        ClientDisconnect: it ends early.
    """
    has_more = most > 0
    while has_more:
        try:
            with anyio.fail_after(RECEIVE_SECONDS):
                message = await request.receive()
        except TimeoutError as error:
            raise Refused(408, INVALID, "the body of the request did not arrive in time") from error
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece, has_more = message.get("body", b""), message.get("more_body", False)
        most -= len(piece)
        if most < 0:
            raise Refused(413, INVALID, "the body has more bytes than may be sent here")
        if piece:  # uvicorn gives an empty one between two that it has waited for
            yield piece
