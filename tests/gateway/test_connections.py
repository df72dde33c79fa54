"""What one peer, or one team, can hold of the gateway's connections: others are answered while many slow ones are open. With
real sockets.

Sizes, times, and what stands behind a run's token are in tests/contracts/test_ledger_limits.py.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
from tests.contracts.conftest import wait_until

from trialplane.gateway import ledgers
from trialplane.gateway import server as servers
from trialplane.gateway.bodies import Answer
from trialplane.gateway.limits import Admit, Limit
from trialplane.gateway.server import Server

ASK = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
SLOW = (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nX-Slow: ", b"POST / HTTP/1.1\r\nContent-Length: 4000\r\n\r\nx")
Connect = Callable[[str], socket.socket]


def answer(method: str, target: str, headers: Mapping[str, str], admit: Admit) -> Answer:
    """Who says so is of a namespace."""
    return Answer(200 if "Team" not in headers or admit(headers["Team"]) else 429, b"{}")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """For eight connections, four from one address."""
    monkeypatch.setattr(servers, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(servers, "MAX_UNKNOWN", 4)
    monkeypatch.setattr(servers, "MAX_PER_NAMESPACE", 4)
    monkeypatch.setattr(servers, "UNKNOWN_SECONDS", 600.0)
    made = servers.serve(answer, None, None, "127.0.0.1", 0)  # type: ignore[arg-type]  # no ledgers, no MLflow
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Connections from any of this machine's own addresses."""
    with contextlib.ExitStack() as stack:

        def connected(address: str) -> socket.socket:
            there = ("127.0.0.1", server.server_address[1])
            return stack.enter_context(socket.create_connection(there, timeout=60, source_address=(address, 0)))

        yield connected


def held(server: Server, connect: Connect) -> list[socket.socket]:
    """Eight slow ones, of two addresses, each in another part of a request, in order of their waits."""
    found = []
    for address in ("127.0.0.2", "127.0.0.3"):
        for number, begun in enumerate(SLOW, 1):
            found.append(connect(address))
            found[-1].sendall(begun)
            wait_until(lambda: len(server.waiting._holders) == len(found), f"{number} of {address} wait")
    return found


def said(connection: socket.socket) -> bytes:
    connection.sendall(ASK)
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_while_slow_peers_hold_all_connections_others_are_answered(
    server: Server, connect: Connect, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = held(server, connect)
    for _ in range(3):
        assert said(connect("127.0.0.1")).startswith(b"HTTP/1.1 200")
    ended = [one for one in slow if _is_over(one)]
    assert 1 <= len(ended) <= 3, "no more than were needed"
    assert "8 connections are open: of 4 of 127.0.0." in capfd.readouterr().err


def test_whoever_holds_the_most_makes_room_for_itself_too(server: Server, connect: Connect) -> None:
    quiet = connect("127.0.0.1")  # the oldest of all, of an address with one
    wait_until(lambda: len(server.waiting._holders) == 1, "it waits")
    for number in range(4):
        connect("127.0.0.2")
        wait_until(lambda number=number: len(server.waiting._holders) == number + 2, "one more waits")
    for _ in range(3):
        connect("127.0.0.3")
    wait_until(lambda: server.connections.total == 8, "there are as many as there may be")
    for _ in range(4):
        connect("127.0.0.3")
    assert said(connect("127.0.0.4")).startswith(b"HTTP/1.1 200"), "taken after those"
    assert said(quiet).startswith(b"HTTP/1.1 200")


def test_whoever_may_not_come_in_ends_no_others_connection(server: Server, connect: Connect) -> None:
    slow = held(server, connect)
    for address in ("127.0.0.2", "127.0.0.3"):
        assert connect(address).recv(1) == b"", "it has its four"
    assert not [one for one in slow if _is_over(one)]


def test_a_controller_that_has_its_ledger_open_makes_no_room(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds its run's lock, and may be quiet for hours; then it is the newcomer that is closed."""
    monkeypatch.setattr(ledgers.Connection, "is_open", property(lambda self: True))
    controllers = [connect(address) for address in ("127.0.0.2", "127.0.0.3") for _ in range(4)]
    wait_until(lambda: server.connections.total == 8, "all are served")
    assert connect("127.0.0.1").recv(1) == b""
    assert said(controllers[0]).startswith(b"HTTP/1.1 200")


def of_team(connection: socket.socket, team: str) -> bytes:
    """The start of the answer to a request of a team; the connection stays open."""
    connection.sendall(f"GET /runs HTTP/1.1\r\nTeam: {team}\r\n\r\n".encode())
    found = b""
    while not found.endswith(b"{}"):
        if not (piece := connection.recv(1 << 16)):
            break
        found += piece
    return found[:12]


OK, CROWDED = b"HTTP/1.1 200", b"HTTP/1.1 429"


def test_connections_from_one_address_count_for_the_namespaces_whose_tokens_they_show(
    server: Server, connect: Connect
) -> None:
    """As those of all laptops, which come from the API server's address."""
    laptop = "127.0.0.2"
    held = []
    for team in ("a", "a", "a", "b", "b", "b"):
        held.append(connect(laptop))
        assert of_team(held[-1], team) == OK
        wait_until(lambda: len(server.waiting._holders) == len(held), "it waits for the next request")
    assert server.connections.total == 6, "more than an address may have that has shown no token"
    assert of_team(held[0], "b") == OK, "the API server uses a connection again for somebody else"
    assert of_team(connect(laptop), "b") == OK, "its team makes room for it"
    wait_until(lambda: _is_over(held[3]), "the oldest of its team is closed")
    assert not [one for one in held if one is not held[3] and _is_over(one)]
    assert of_team(held[1], "a") == OK


def test_a_namespace_that_has_all_that_it_may_is_told_so_and_others_are_answered(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controllers hold their runs' locks and make no room."""
    held = [connect("127.0.0.2") for _ in range(4)]
    with monkeypatch.context() as patch:
        patch.setattr(ledgers.Connection, "is_open", property(lambda self: True))
        assert [of_team(one, "a") for one in held] == [OK] * 4
        wait_until(lambda: not server.waiting._holders, "they wait as controllers do")
    assert of_team(connect("127.0.0.2"), "a") == CROWDED
    assert of_team(connect("127.0.0.2"), "b") == OK


def test_who_shows_no_token_has_little_time(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    known = connect("127.0.0.2")
    assert of_team(known, "a") == OK
    with monkeypatch.context() as patch:
        patch.setattr(servers, "UNKNOWN_SECONDS", 0.2)
        for begun in SLOW[:3]:
            slow = connect("127.0.0.2")
            slow.sendall(begun)
            assert slow.recv(1 << 16) == b"", "it is closed"
        assert of_team(known, "a") == OK, "it has the time of those that are known"
    assert said(connect("127.0.0.2")).startswith(OK)


def _is_over(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_of_what_all_wait_for_one_takes_its_part_only() -> None:
    limit = Limit()
    assert [limit.enter("a", 2, 3) for _ in range(3)] == [True, True, False]
    assert [limit.enter("b", 2, 3) for _ in range(2)] == [True, False]
    entered = threading.Event()
    waits = threading.Thread(target=lambda: limit.enter("b", 2, 3, patience=600) and entered.set(), daemon=True)
    waits.start()
    limit.leave("a")
    assert entered.wait(60)
    waits.join()
    assert not limit.enter("b", 2, 9, patience=0.01)
