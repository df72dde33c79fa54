"""MLflow's server. Only the gateway can reach it, and it authorizes each request by RBAC."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import yarl
from starlette.requests import ClientDisconnect

from trialplane import errors
from trialplane.wire import mlflow

MAX_ARTIFACT = 512 << 20  # default limit of an artifact, in bytes
ANSWER_SECONDS = 120.0  # time limit for MLflow to begin its response, which is also the timeout of MLflow's client
UNAVAILABLE = "TEMPORARILY_UNAVAILABLE"  # error code after which MLflow's client repeats the request
_CONNECT_SECONDS = 5.0
_CHECK_SECONDS = 60.0  # time for which a check that MLflow's server authorizes requests is valid
_PROBE = "/api/2.0/mlflow/experiments/search?max_results=1"


class MlflowRefusal(Exception):
    """Error for a request that MLflow does not get.

    Args:
        status: HTTP status of the response.
        code: Error code of MLflow's protocol.
        text: Message for people.
    """

    def __init__(self, status: int, code: str, text: str) -> None:
        self.status, self.code = status, code
        super().__init__(text)


class Upstream:
    """Client of MLflow's server.

    Args:
        url: URL of the server.
        authorization: Value of the header `Authorization`; see `mlflow.authorization`.
        max_artifact: Limit of an artifact, in bytes.

    Attributes:
        max_artifact: See above.
    """

    def __init__(self, url: str, authorization: str = "", max_artifact: int = MAX_ARTIFACT) -> None:
        self.max_artifact = max_artifact
        self._base = url.rstrip("/")
        self._headers = {"Authorization": authorization} if authorization else {}
        self._session: aiohttp.ClientSession | None = None  # created in the event loop
        self._authorizes_until = 0.0  # on the monotonic clock

    @contextlib.asynccontextmanager
    async def response(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        content: Any = b"",
        patience: float = ANSWER_SECONDS,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield MLflow's response. Its body has not been read, unless the status is 404; see `body`.

        Args:
            method: HTTP method.
            target: Path and query, which are sent unchanged.
            headers: Headers, including those of `mlflow.caller_headers`.
            content: Body: bytes, or an asynchronous iterator of bytes.
            patience: Time limit for the response to begin, in seconds.

        Raises:
            MlflowRefusal: MLflow does not answer, does not authorize requests, or does not have the workspace.
        """
        await self._check_authorizes()
        async with self._send(method, target, headers, content, patience) as response:
            if response.status == HTTPStatus.NOT_FOUND:
                _raise_if_workspace_missing(await response.read(), headers.get(mlflow.WORKSPACE, ""))
            yield response

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def check(self, namespace: str) -> None:
        """Check that MLflow can answer a request that needs its database and the API server.

        Args:
            namespace: Namespace for whose workspace the request is.

        Raises:
            MlflowRefusal: It cannot.
        """
        async with self.response("GET", _PROBE, mlflow.caller_headers(namespace, "", "health")) as response:
            if response.status != HTTPStatus.OK:
                beginning = (await response.read())[:200].decode(errors="replace")
                text = f"MLflow answers {response.status}: {beginning}; the log of its pod says more"
                raise MlflowRefusal(503, UNAVAILABLE, text)

    async def _check_authorizes(self) -> None:
        """Check that MLflow refuses a request without a caller, as it does with Kubeflow's plugin.

        Without the plugin, MLflow would accept every request of every caller.

        Raises:
            MlflowRefusal: It accepts such a request, or does not answer.
        """
        if time.monotonic() < self._authorizes_until:
            return
        async with self._send("GET", _PROBE, {}, b"", ANSWER_SECONDS) as response:
            await response.read()
        if response.status != HTTPStatus.UNAUTHORIZED:
            text = f"MLflow answers a request without a caller with {response.status}, not with 401"
            remedy = "it must run with mlflow-kubernetes-plugins, see `platform docs security`"
            raise MlflowRefusal(503, UNAVAILABLE, f"{text}: {remedy}")
        self._authorizes_until = time.monotonic() + _CHECK_SECONDS

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, target: str, headers: Mapping[str, str], content: Any, patience: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the response. See `response`, which also checks that MLflow authorizes requests."""
        if self._session is None:
            self._session = self._new_session()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=patience)
        url = yarl.URL(self._base + target, encoded=True)
        data = content
        if isinstance(content, bytes):
            # aiohttp sends a file in pieces, but bytes at once, which would hold up the event loop if they are many.
            data = io.BytesIO(content) if content else None
        try:
            async with asyncio.timeout(patience):  # aiohttp's own timeouts do not limit the time to send the body
                response = await self._session.request(
                    method, url, headers=headers, data=data, timeout=timeout, allow_redirects=False
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            # aiohttp wraps an error of the body's iterator: the client did not send the body, and MLflow is not the cause.
            if isinstance(error.__cause__, MlflowRefusal | ClientDisconnect):
                raise error.__cause__ from None
            text = f"MLflow does not answer the gateway: {errors.first_line(error)}"
            raise MlflowRefusal(503, UNAVAILABLE, text) from error
        async with response:
            yield response

    def _new_session(self) -> aiohttp.ClientSession:
        """Return a client that sends and returns everything unchanged."""
        # A connection for each request: after an error of its own, MLflow closes the connection without announcing it. The
        # next request on it would be lost, and many requests cannot be repeated safely.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=ssl.create_default_context())
        return aiohttp.ClientSession(
            connector=connector,
            headers={**self._headers, "Accept-Encoding": "identity"},
            skip_auto_headers=("Accept", "Content-Type", "User-Agent"),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )


async def body(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the body of a response in pieces. `Upstream.response` has read the body already if the status is 404."""
    if response.status == HTTPStatus.NOT_FOUND:
        yield await response.read()
    else:
        async for piece in response.content.iter_any():
            yield piece


def _raise_if_workspace_missing(error: bytes, workspace: str) -> None:
    """Raise MlflowRefusal if the body of a 404 says that MLflow does not have the workspace of the request.

    To MLflow this error is final, but the workspace may appear: MLflow follows the namespaces of the cluster. All data would
    be lost that is written until then. So such a request is answered as if MLflow were down, after which clients repeat it.
    """
    if f"Workspace '{workspace}' not found".encode() in error:
        text = f"MLflow does not have the namespace {workspace} as a workspace, and requests are repeated until it does"
        raise MlflowRefusal(503, UNAVAILABLE, f"{text}: `kubectl get namespace {workspace}` shows whether it exists")
