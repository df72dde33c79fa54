"""Whole messages over a socket: however they are cut, however many come at once, and from whoever does not keep to it.

Not checked here: what a message is (tests/wire/test_messages.py), and what becomes of a trial that sends none
(test_strangers.py).
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from trialplane import errors
from trialplane.wire import messages
from trialplane.worker.channel import Channel, TrialChannel

Ours = Channel[messages.ToTrial, messages.FromTrial]
WANTED = [messages.UnitsWanted(count) for count in range(1, 1001)]


class Pair:
    """A slot's end, and a trial's as a channel and as the socket below it."""

    def __init__(self) -> None:
        ours, self.raw = socket.socketpair()
        self.slot: Ours = Channel(ours, messages.FROM_WORKER)
        self.trial: TrialChannel = Channel(self.raw, messages.TO_TRIAL)

    def close(self) -> None:
        self.slot.close()
        self.trial.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def framed(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def test_messages_come_in_order_and_both_ways(pair: Pair) -> None:
    for message in WANTED[:3]:
        pair.trial.send(message)
    pair.slot.send(messages.EndFeed(2))
    assert list(pair.slot.read()) == WANTED[:3], "all that have come, with one read"
    assert not pair.slot.is_readable()
    assert pair.trial.receive() == messages.EndFeed(2)
    assert pair.trial.receive(0.0) is None


def test_half_a_message_holds_nobody_up(pair: Pair) -> None:
    data = framed(messages.encode(WANTED[0]))
    for cut in range(len(data)):
        pair.raw.sendall(data[cut : cut + 1])
        assert list(pair.slot.read()) == (WANTED[:1] if cut == len(data) - 1 else [])
    pair.raw.sendall(data[:9])
    assert pair.slot.receive(0.0) is None
    assert pair.slot.receive(0.01) is None


def test_a_long_message_comes_whole(pair: Pair) -> None:
    long = messages.UnitsBegun(tuple(range(10**9, 10**9 + 300_000)))
    sender = threading.Thread(target=pair.trial.send, args=(long,))
    sender.start()
    assert pair.slot.receive() == long
    sender.join()


def test_a_message_that_is_too_long_is_not_sent(pair: Pair) -> None:
    with pytest.raises(errors.MessageError, match=r"^Reported has [\d,]+ bytes; a message has at most 4,194,304$"):
        pair.trial.send(messages.Reported(1, {"m" * 100 + str(number): 0.5 for number in range(40_000)}, 1.0, 1.0))
    pair.trial.send(WANTED[0])
    assert pair.slot.receive() == WANTED[0]


def test_what_is_sent_without_waiting_waits_for_nobody_and_comes_in_order(pair: Pair) -> None:
    big = messages.ResultsTaken(tuple(range(1000)))
    slot: Ours = Channel(socket.socket(fileno=pair.slot._socket.detach()), messages.FROM_LEARNER)
    pair.slot = slot
    for _ in range(1000):
        pair.trial.send(big, wait=False)
    assert pair.trial.has_unsent, "more than the system takes, and nobody reads"
    received = []
    while len(received) < 1000:
        pair.trial.flush()
        if slot.is_readable():
            received += slot.read()
    assert received == [big] * 1000
    assert not pair.trial.has_unsent
    slot.close()
    with pytest.raises(OSError, match="Broken pipe"):
        pair.trial.send(big, wait=False)
    assert not pair.trial.has_unsent, "nobody is there"


def test_who_reads_nothing_is_not_waited_for_longer_than_that(pair: Pair) -> None:
    pair.slot.set_patience(0.05)
    with pytest.raises(TimeoutError):
        for _ in range(10_000):
            pair.slot.send(messages.HandUnits((), last=False))


@pytest.mark.parametrize("left", [b"", b"\0\0", framed(b"[")[:4], framed(messages.encode(WANTED[0]))[:-1]])
def test_a_closed_end_is_an_end_also_in_mid_message(pair: Pair, left: bytes) -> None:
    pair.trial.send(WANTED[0])
    pair.raw.sendall(left)
    pair.trial.close()
    assert pair.slot.receive() == WANTED[0]
    for _ in range(2):
        with pytest.raises(EOFError):
            pair.slot.receive()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (struct.pack("!I", messages.MAX_BYTES + 1), "a worker began a message of 4,194,305 bytes; a message has at most"),
        (b"\xff" * 4, "a worker began a message of 4,294,967,295 bytes"),
        (framed(b"[1, 2"), "a worker sent an invalid message"),
        (framed(b'["Slept", "7.0", {}]'), "a worker of trialplane 7.0 sent 'Slept', which trialplane"),
        (framed(messages.encode(messages.FilesFree((1,)))), "sent 'FilesFree', which"),
    ],
)
def test_what_is_no_message_is_an_error_after_those_before_it_and_ends_the_channel(
    pair: Pair, data: bytes, said: str
) -> None:
    pair.trial.send(WANTED[0])
    pair.raw.sendall(data)
    pair.trial.send(WANTED[1])
    read = pair.slot.read()
    assert next(read) == WANTED[0]
    with pytest.raises(errors.MessageError, match=rf"^.*{said}"):
        next(read)
    pair.trial.send(WANTED[2])
    with pytest.raises(EOFError):
        pair.slot.receive()
