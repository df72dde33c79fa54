"""MLflow's server, which only the gateway reaches, and which authorizes each request by RBAC."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from trialplane import errors
from trialplane.wire import mlflow

MAX_ARTIFACT = 512 << 20  # bytes of an artifact, where the chart does not say
ANSWER_SECONDS = 120.0  # for MLflow to begin its answer: as long as its client waits for it
AWAY = "TEMPORARILY_UNAVAILABLE"  # as MLflow's client knows it, which tries again
_CONNECT_SECONDS = 5.0
_CHECKED_SECONDS = 60.0  # for which a check that MLflow's server authorizes requests counts
_PROBE = "/api/2.0/mlflow/experiments/search?max_results=1"


class Refused(Exception):
    """A request that does not reach MLflow: a status of HTTP, a code as MLflow's client knows it, and a text."""

    def __init__(self, status: int, code: str, text: str) -> None:
        self.status, self.code = status, code
        super().__init__(text)


class Upstream:
    """MLflow's server.

    Args:
        url: as pods reach it.
        authorization: see `mlflow.authorization`.
        max_artifact: bytes of the largest artifact.

    Attributes:
        max_artifact: see above.
    """

    def __init__(self, url: str, authorization: str = "", max_artifact: int = MAX_ARTIFACT) -> None:
        self.max_artifact = max_artifact
        self._base = httpx.URL(url.rstrip("/"))
        # A connection for each request: MLflow closes one after an error of its own without saying so, and then the next
        # request on it, which may not be repeated, would be lost.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            headers={"Authorization": authorization} if authorization else None,
            limits=limits,
            trust_env=False,
            verify=ssl.create_default_context(),
        )
        self._until = 0.0

    @contextlib.asynccontextmanager
    async def sent(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        content: Any = b"",
        patience: float = ANSWER_SECONDS,
    ) -> AsyncIterator[httpx.Response]:
        """MLflow's response to a request, whose body is not read yet.

        Args:
            method: of HTTP.
            target: path and query, sent as they are.
            headers: with those of `mlflow.caller_headers`.
            content: bytes, or an iterator of them.
            patience: seconds for the response to begin.

        Raises:
            Refused: there is none, or the server does not authorize requests.
        """
        await self._check_authorizes()
        async with self._response(method, target, headers, content, patience) as response:
            yield response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def check(self, namespace: str) -> None:
        """Check that MLflow answers a request that needs its database and the API server.

        Raises:
            Refused: it does not.
        """
        async with self.sent("GET", _PROBE, mlflow.caller_headers(namespace, "", "health")) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread())[:200].decode(errors="replace")
                raise Refused(503, AWAY, f"MLflow answers {response.status_code}: {text}; the log of its pod says more")

    async def _check_authorizes(self) -> None:
        """Check that a request without a caller is refused, as Kubeflow's plugin does.

        Without the plugin MLflow would do whatever it is sent, for anybody.
        """
        if time.monotonic() < self._until:
            return
        async with self._response("GET", _PROBE, {}, b"", ANSWER_SECONDS) as response:
            await response.aread()
        if response.status_code != httpx.codes.UNAUTHORIZED:
            text = f"MLflow answers a request of nobody with {response.status_code}, not with 401"
            raise Refused(503, AWAY, f"{text}: it must run with mlflow-kubernetes-plugins, see `platform docs security`")
        self._until = time.monotonic() + _CHECKED_SECONDS

    @contextlib.asynccontextmanager
    async def _response(
        self, method: str, target: str, headers: Mapping[str, str], content: Any, patience: float
    ) -> AsyncIterator[httpx.Response]:
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=_CONNECT_SECONDS, read=patience)
        url = self._base.copy_with(raw_path=self._base.raw_path.rstrip(b"/") + target.encode())
        request_headers = {**headers, "Accept-Encoding": "identity"}  # it passes through as it is
        request = self._client.build_request(method, url, headers=request_headers, content=content, timeout=timeout)
        try:
            response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise Refused(503, AWAY, f"MLflow does not answer the gateway: {errors.first_line(error)}") from error
        try:
            yield response
        finally:
            await response.aclose()
