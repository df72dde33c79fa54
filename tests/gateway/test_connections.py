"""What one peer, or one team, can hold of the gateway's connections and threads: others are answered meanwhile. With real
sockets.

Sizes, times, and what stands behind a run's token are in tests/contracts/test_ledger_gateway.py and test_ledger_limits.py.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace

import pytest
from starlette.responses import Response
from tests.contracts.conftest import wait_until
from tests.gateway.gateway_site import Http

from trialplane.gateway import server as servers
from trialplane.gateway.limits import CountRequest, Limit
from trialplane.gateway.route import Route
from trialplane.wire import cluster

ASK = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
OK, CROWDED = b"HTTP/1.1 200", b"HTTP/1.1 429"
Connect = Callable[[str], socket.socket]


class Laptops:
    """Answers laptops; a token is the name of its namespace. What is asked about the run "slow" waits."""

    def __init__(self) -> None:
        self.waiting = threading.Semaphore(0)
        self.go = threading.Event()

    def answer(
        self, asked: Route, names: Mapping[str, str], options: Mapping[str, str], token: str, count_request: CountRequest
    ) -> Response:
        if not count_request(token):
            return Response(status_code=429)
        if names.get("run") == "slow":
            self.waiting.release()
            assert self.go.wait(60)
        return Response(b"x" * (64 << 20) if names.get("run") == "large" else b"{}")


@pytest.fixture
def laptops() -> Laptops:
    return Laptops()


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch, laptops: Laptops) -> Iterator[Http]:
    """For four connections from one address, and four of one namespace, which may have two threads."""
    monkeypatch.setattr(servers, "MAX_UNKNOWN", 4)
    monkeypatch.setattr(servers, "MAX_PER_NAMESPACE", 4)
    monkeypatch.setattr(servers, "SHARE", 2)
    monkeypatch.setattr(servers, "UNKNOWN_SECONDS", 600.0)
    made = Http(servers.server(laptops, SimpleNamespace(max_runs=1), None))  # type: ignore[arg-type]  # no ledgers, no MLflow
    yield made
    laptops.go.set()
    made.close()


@pytest.fixture
def connect(http: Http) -> Iterator[Connect]:
    """Connections from any of this machine's own addresses."""
    with contextlib.ExitStack() as stack:
        yield lambda address: stack.enter_context(http.connect(address))


@pytest.mark.parametrize("begin", [b"", b"Transfer-Encoding: chunked\r\n\r\n0\r\n"], ids=["head", "trailers"])
def test_a_head_without_an_end_closes_its_connection(connect: Connect, begin: bytes) -> None:
    connection = connect("127.0.0.1")
    connection.sendall(b"POST /namespaces/ours/runs/toy/ledger HTTP/1.1\r\nHost: x\r\n" + begin)
    with pytest.raises(ConnectionError):
        for number in range(1 << 16):
            connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        raise AssertionError("the gateway took a head of 64 MiB")


def answered(connection: socket.socket, request: bytes) -> bytes:
    """The head of the answer; the connection stays open if the gateway leaves it so."""
    connection.sendall(request)
    found = b""
    while not found.endswith((b"{}", b'"ok"}', b"content-length: 0\r\n\r\n")) and (piece := connection.recv(1 << 16)):
        found += piece
    return found


def of_team(connection: socket.socket, team: str, run: str = "toy") -> bytes:
    """The first bytes of the answer to a request of a team."""
    request = f"GET /namespaces/{team}/runs/{run}/job HTTP/1.1\r\nHost: x\r\n{cluster.TOKEN_HEADER}: {team}\r\n\r\n"
    return answered(connection, request.encode())[:12]


def is_over(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def ended(connection: socket.socket) -> bool:
    """Waits for the end of a connection."""
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""
    return True


def test_an_address_has_a_few_connections_that_have_shown_no_token(http: Http, connect: Connect) -> None:
    held = [connect("127.0.0.2") for _ in range(4)]
    wait_until(lambda: len(http.server.server_state.connections) == 4, "all are counted")
    assert ended(connect("127.0.0.2")), "closed, unread"
    assert answered(connect("127.0.0.3"), ASK).startswith(OK)
    assert answered(held[0], ASK).startswith(OK)
    assert ended(held[0]), "it has shown no token"
    assert answered(connect("127.0.0.2"), ASK).startswith(OK)


def test_connections_count_for_the_namespaces_whose_tokens_they_show(http: Http, connect: Connect) -> None:
    """As those of all laptops, which come from the API server's address."""
    held = []
    for team in ("a", "a", "a", "b", "b", "b"):
        held.append(connect("127.0.0.2"))
        assert of_team(held[-1], team) == OK
    assert of_team(held[0], "b") == OK, "the API server uses a connection again for somebody else"
    assert of_team(connect("127.0.0.2"), "b") == CROWDED
    assert of_team(connect("127.0.0.2"), "a") == OK
    assert not [one for one in held if is_over(one)]
    for one in held[3:]:
        one.close()
    wait_until(lambda: len(http.server.server_state.connections) < 7, "they are over")
    wait_until(lambda: of_team(connect("127.0.0.2"), "b") == OK, "they count no more")


def test_a_namespace_has_its_share_of_the_threads(connect: Connect, laptops: Laptops) -> None:
    slow = [connect("127.0.0.2") for _ in range(2)]
    request = f"GET /namespaces/a/runs/slow/job HTTP/1.1\r\nHost: x\r\n{cluster.TOKEN_HEADER}: a\r\n\r\n".encode()
    for one in slow:
        one.sendall(request)
        assert laptops.waiting.acquire(timeout=60)
    assert of_team(connect("127.0.0.2"), "a") == CROWDED
    assert of_team(connect("127.0.0.2"), "b") == OK
    assert answered(connect("127.0.0.2"), ASK).startswith(OK)
    laptops.go.set()
    assert [answered(one, b"")[:12] for one in slow] == [OK, OK]
    assert of_team(slow[0], "a") == OK


def test_who_shows_no_token_has_little_time(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_known() -> socket.socket | None:
        """On a busy machine even one that shows its token at once may be too late."""
        connection = connect("127.0.0.2")
        with contextlib.suppress(ConnectionError):
            return connection if of_team(connection, "a") == OK else None
        return None

    with monkeypatch.context() as patch:
        patch.setattr(servers, "UNKNOWN_SECONDS", 0.2)
        known = wait_until(is_known, "one shows its token in time")
        for begun in (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nX-Slow: "):
            slow = connect("127.0.0.2")
            slow.sendall(begun)
            assert ended(slow)
    assert of_team(known, "a") == OK, "it has the time of those that are known"


def test_an_answer_that_is_not_taken_is_given_up(http: Http, connect: Connect) -> None:
    slow = connect("127.0.0.2")
    (peer,) = wait_until(lambda: list(http.server.server_state.connections), "it is there")
    peer.timeout_keep_alive = 0.2
    request = f"GET /namespaces/a/runs/large/job HTTP/1.1\r\nHost: x\r\n{cluster.TOKEN_HEADER}: a\r\n\r\n"
    slow.sendall(request.encode())
    wait_until(lambda: not http.server.server_state.connections, "the connection is given up")


@pytest.mark.parametrize(
    "line", [b"junk\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"GET /\x1b[31m HTTP/1.1\r\n\r\n"]
)
def test_a_line_that_is_no_request_is_answered(connect: Connect, line: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    connection = connect("127.0.0.1")
    connection.sendall(line + b"\r\n\r\n")
    assert b" 400 " in connection.recv(1 << 16)
    assert "Traceback" not in capfd.readouterr().err


def test_of_what_all_wait_for_one_takes_its_part_only() -> None:
    limit = Limit()
    assert [limit.enter("a", 2, 3) for _ in range(3)] == [True, True, False]
    assert [limit.enter("b", 2, 3) for _ in range(2)] == [True, False]
    limit.leave("a")
    assert limit.enter("b", 2, 3)
    assert not limit.enter("b", 2, 9)
