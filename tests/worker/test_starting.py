"""The supervisor's pipes: lines with their prefix, whole and in order; and the port at which ranks meet.

Not checked here: real ranks (test_ranks.py).
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialplane.worker.ranks import meeting, starting


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    file = tmp_path / "log"
    with file.open("wb") as opened:
        yield opened.fileno(), file


def test_lines_come_whole_and_with_their_prefix(log: tuple[int, Path]) -> None:
    source, sink = os.pipe()
    forwarder = starting.LineForwarder(source, "[rank 3] ", log[0])
    os.write(sink, b"one\ntw")
    assert forwarder.pump()
    assert log[1].read_bytes() == b"[rank 3] one\n"
    os.write(sink, b"o\n\nthree")
    assert forwarder.pump()
    assert log[1].read_bytes() == b"[rank 3] one\n[rank 3] two\n[rank 3] \n"
    os.write(sink, b" and a half")  # nobody has looked since: `close` does
    forwarder.close()
    os.close(sink)
    assert log[1].read_bytes().endswith(b"[rank 3] \n[rank 3] three and a half\n")


def test_an_endless_line_is_written_in_pieces(log: tuple[int, Path]) -> None:
    source, sink = os.pipe()
    forwarder = starting.LineForwarder(source, "> ", log[0])
    os.write(sink, b"x" * 20_000)
    os.close(sink)
    assert forwarder.pump()
    assert not forwarder.pump(), "the other end is closed"
    forwarder.close()
    written = log[1].read_bytes().splitlines()
    assert all(line.startswith(b"> ") for line in written)
    assert sum(line.count(b"x") for line in written) == 20_000


def test_a_rank_that_never_stops_printing_holds_nobody_up(log: tuple[int, Path]) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        forwarder = starting.LineForwarder(os.dup(endless.stdout.fileno()), "> ", log[0])
        select.select([endless.stdout], [], [])
        assert forwarder.pump()
        forwarder.close()
        endless.kill()
    assert log[1].read_bytes().startswith(b"> y\n> y\n")


def test_a_port_is_held_and_can_be_listened_on() -> None:
    port = meeting.Port()
    assert port.address == f"127.0.0.1:{port.number}"
    with socket.socket() as rank_0:
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind(("0.0.0.0", port.number))
        rank_0.listen()
        socket.create_connection((port.host, port.number), timeout=10).close()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port.number))
    port.close()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port.number))
