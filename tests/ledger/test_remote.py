"""The reader of one run through the gateway: which connection a request is sent on.

The server is a double. Not checked here: the gateway itself, and the lock (tests/contracts/test_ledger_gateway.py).
"""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator

import pytest

from trialplane import errors
from trialplane.ledger.attempts import Reports
from trialplane.ledger.remote import Reader
from trialplane.wire import ledger


class Gateway(http.server.BaseHTTPRequestHandler):
    """A gateway that answers with the statuses in `statuses`, and then always with 200, and keeps connections open."""

    protocol_version = "HTTP/1.1"
    statuses: list[int]
    ports: list[int]  # of the client, by request

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.ports.append(self.client_address[1])
        status = self.statuses.pop(0) if self.statuses else 200
        body = ledger.encode(ledger.ReportsLoaded((), False)) if status == 200 else b"bad gateway"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        return


@pytest.fixture
def gateway() -> Iterator[http.server.ThreadingHTTPServer]:
    Gateway.statuses, Gateway.ports = [], []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def reader(gateway: http.server.ThreadingHTTPServer) -> Iterator[Reader]:
    url = f"http://:token@127.0.0.1:{gateway.server_address[1]}/namespaces/team"
    with contextlib.closing(Reader(url, "toy")) as opened:
        yield opened


def test_requests_share_a_connection(reader: Reader) -> None:
    assert [reader.reports(0), reader.reports(0)] == [Reports([], False)] * 2
    assert len(set(Gateway.ports)) == 1


def test_a_request_that_a_proxy_answered_on_an_open_connection_is_sent_again_on_a_new_one(reader: Reader) -> None:
    reader.reports(0)
    Gateway.statuses = [502]
    assert reader.reports(0) == Reports([], False)
    first, refused, again = Gateway.ports
    assert first == refused != again


def test_a_new_connection_is_not_tried_twice(reader: Reader) -> None:
    Gateway.statuses = [502]
    with pytest.raises(errors.LedgerUnavailable, match="HTTP status 502"):
        reader.reports(0)
    assert len(Gateway.ports) == 1
    assert reader.reports(0) == Reports([], False)
    assert len(set(Gateway.ports)) == 2
