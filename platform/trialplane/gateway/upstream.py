"""MLflow's server, which the gateway alone reaches and has the password of."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.client
import ssl
import urllib.parse
from collections.abc import Iterable, Iterator

from trialplane import errors
from trialplane.gateway.mlflow_calls import Refused

MAX_ARTIFACT = 512 << 20  # bytes of an artifact, where the chart does not say
ANSWER_SECONDS = 120.0  # for MLflow to begin its answer: as long as its client waits for it
AWAY = "TEMPORARILY_UNAVAILABLE"  # as MLflow's client knows it
_CONNECT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Upstream:
    """MLflow's server.

    Attributes:
        url: as pods reach it.
        user, password: of its basic authentication; "" for none.
        max_artifact: bytes of one that it gets.
    """

    url: str
    user: str = ""
    password: str = ""
    max_artifact: int = MAX_ARTIFACT

    @contextlib.contextmanager
    def sent(
        self,
        method: str,
        target: str,
        kind: str,
        pieces: Iterable[bytes],
        length: int,
        patience: float = ANSWER_SECONDS,
    ) -> Iterator[http.client.HTTPResponse]:
        """MLflow's response to a request."""
        connection, base = _connection(self.url)
        with contextlib.closing(connection):
            try:
                connection.connect()
                connection.sock.settimeout(ANSWER_SECONDS)
                connection.putrequest(method, base + target, skip_accept_encoding=True)
                for name, value in _headers(self, method, kind, length).items():
                    connection.putheader(name, value)
                connection.endheaders()
            except (OSError, http.client.HTTPException) as error:
                raise Refused(503, AWAY, f"MLflow does not answer the gateway: {errors.first_line(error)}") from error
            for piece in pieces if method != "GET" else ():
                try:
                    connection.send(piece)
                except OSError:
                    break  # it may have answered before it had everything
            try:
                connection.sock.settimeout(patience)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise Refused(503, AWAY, f"MLflow gave the gateway no answer: {errors.first_line(error)}") from error
            yield response


def _connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    """A connection to a server, not yet open, and the path that its URL ends with."""
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":
        made: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=_CONNECT_SECONDS, context=ssl.create_default_context()
        )
    else:
        made = http.client.HTTPConnection(host, port, timeout=_CONNECT_SECONDS)
    return made, parts.path.rstrip("/")


def _headers(upstream: Upstream, method: str, kind: str, length: int) -> dict[str, str]:
    """What MLflow is sent beside the body; nothing of it is the client's but the type of an artifact."""
    found = {}
    if upstream.user:
        pair = base64.b64encode(f"{upstream.user}:{upstream.password}".encode()).decode()
        found["Authorization"] = f"Basic {pair}"
    if method != "GET":
        found["Content-Type"] = kind
        found["Content-Length"] = str(length)
    return found
