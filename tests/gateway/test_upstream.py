"""Requests of the gateway to MLflow that end early: a server that does not read, and a client that does not send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from starlette.requests import ClientDisconnect

from trialplane.gateway.upstream import MlflowRefusal, Upstream

_UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


async def _put(content: bytes | AsyncIterator[bytes], patience: float) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Refuse a request without a caller, as MLflow does with the plugin, and read no body of another one."""
        writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            if head.startswith(b"GET"):
                writer.write(_UNAUTHORIZED)
                await writer.drain()
            else:
                writer.transport.pause_reading()  # type: ignore[attr-defined]

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            async with upstream.response("PUT", "/artifact", {"Content-Length": str(1 << 26)}, content, patience):
                raise AssertionError("there is a response")
        finally:
            await upstream.close()
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(0)  # the event loop closes the sockets


def test_a_request_that_mlflow_does_not_read_is_refused_in_time() -> None:
    with pytest.raises(MlflowRefusal, match="MLflow does not answer the gateway"):
        asyncio.run(asyncio.wait_for(_put(bytes(1 << 26), patience=0.2), 60))


@pytest.mark.parametrize("error", [MlflowRefusal(408, "LATE", "the body did not arrive"), ClientDisconnect()])
def test_an_error_of_the_clients_body_is_not_blamed_on_mlflow(error: Exception) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        raise error

    with pytest.raises(type(error)) as raised:
        asyncio.run(asyncio.wait_for(_put(pieces(), patience=60), 120))
    assert raised.value is error
