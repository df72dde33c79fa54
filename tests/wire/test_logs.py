"""Checks how the pieces of a growing log become lines."""

from __future__ import annotations

import pytest

from trialplane.wire import logs
from trialplane.wire.logs import Piece


@pytest.mark.parametrize("size", [1, 2, 100])
def test_pieces_of_any_size_give_the_same_lines(size: int) -> None:
    data = "first ä\n1%\r2%\r\nlast".encode() + b"\xff"
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    assert list(logs.lines(pieces)) == ["first ä\n", "1%\n", "2%\n", "last\ufffd"]


def test_a_log_is_followed_from_offset_to_offset_until_it_no_longer_grows() -> None:
    replies = [Piece(b"", 0, True), Piece(b"ab", 2, True), Piece(b"", 2, True), Piece(b"c", 3), Piece(b"", 3)]
    offsets = []

    def read(offset: int) -> Piece:
        offsets.append(offset)
        return replies[len(offsets) - 1]

    assert list(logs.follow(read, 0)) == [b"ab", b"c"]
    assert offsets == [0, 0, 2, 2, 3]
