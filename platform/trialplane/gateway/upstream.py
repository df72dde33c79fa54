"""MLflow's server. Only the gateway can reach it, and it authorizes each request by RBAC."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

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
        self._base = httpx.URL(url.rstrip("/"))
        # Each request has its own connection. After an internal error MLflow closes the connection without notice, and the
        # next request on it, which must not be repeated, would be lost.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            headers={"Authorization": authorization} if authorization else None,
            limits=limits,
            trust_env=False,
            verify=ssl.create_default_context(),
        )
        self._authorizes_until = 0.0  # on the monotonic clock

    @contextlib.asynccontextmanager
    async def response(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        content: Any = b"",
        patience: float = ANSWER_SECONDS,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request, and yield MLflow's response. The body of the response has not been read.

        Args:
            method: HTTP method.
            target: Path and query, which are sent unchanged.
            headers: Headers, including those of `mlflow.caller_headers`.
            content: Body: bytes, or an asynchronous iterator of bytes.
            patience: Time limit for the response to begin, in seconds.

        Raises:
            MlflowRefusal: MLflow does not answer, or does not authorize requests.
        """
        await self._check_authorizes()
        async with self._send(method, target, headers, content, patience) as response:
            yield response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def check(self, namespace: str) -> None:
        """Check that MLflow can answer a request that needs its database and the API server.

        Args:
            namespace: Namespace for whose workspace the request is.

        Raises:
            MlflowRefusal: It cannot.
        """
        async with self.response("GET", _PROBE, mlflow.caller_headers(namespace, "", "health")) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread())[:200].decode(errors="replace")
                text = f"MLflow answers {response.status_code}: {text}; the log of its pod says more"
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
            await response.aread()
        if response.status_code != httpx.codes.UNAUTHORIZED:
            text = f"MLflow answers a request of nobody with {response.status_code}, not with 401"
            remedy = "it must run with mlflow-kubernetes-plugins, see `platform docs security`"
            raise MlflowRefusal(503, UNAVAILABLE, f"{text}: {remedy}")
        self._authorizes_until = time.monotonic() + _CHECK_SECONDS

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, target: str, headers: Mapping[str, str], content: Any, patience: float
    ) -> AsyncIterator[httpx.Response]:
        """Send a request without the check, and yield the response; see `response`."""
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=_CONNECT_SECONDS, read=patience)
        url = self._base.copy_with(raw_path=self._base.raw_path.rstrip(b"/") + target.encode())
        request_headers = {**headers, "Accept-Encoding": "identity"}  # the body is forwarded unchanged
        request = self._client.build_request(method, url, headers=request_headers, content=content, timeout=timeout)
        try:
            response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            text = f"MLflow does not answer the gateway: {errors.first_line(error)}"
            raise MlflowRefusal(503, UNAVAILABLE, text) from error
        try:
            yield response
        finally:
            await response.aclose()
