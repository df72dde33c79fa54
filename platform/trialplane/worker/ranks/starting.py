"""Starts the process of one rank, by a fork of the supervisor or by spawn, and forwards the lines it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

from trialplane.wire import messages
from trialplane.worker.channel import Channel
from trialplane.worker.ranks import rank

MAX_LINE = 8 << 10  # bytes; a longer one, or a progress bar's, is written in pieces
_CHUNK = 64 << 10  # the default capacity of a pipe


@dataclasses.dataclass
class Rank:
    """The process of one rank, from the supervisor's side."""

    place: rank.Place
    pid: int
    handle: int  # pidfd
    channel: Channel[messages.ToRank, messages.FromRank]
    lines: Lines | None  # None for rank 0, which writes to the log itself
    ended: bool = False


def fork(job: rank.Job, place: rank.Place, leave: Callable[[], None]) -> Rank:
    """Starts a rank that inherits everything the supervisor has imported.

    Args:
        job: what it runs.
        place: its own.
        leave: closes the supervisor's descriptors in the child: a peer counts as gone only when the last one is closed.
    """
    ours, theirs, source, sink = _channels(place)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        if place.rank:
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.close(sink)
            os.close(source)
        ours.close()
        leave()
        rank.run_and_end(job, place, Channel(theirs, messages.TO_RANK), parent)
    return _held(place, pid, ours, theirs, source, sink)


def spawn(job: rank.Job, place: rank.Place, leave: Callable[[], None]) -> Rank:
    """Starts a rank in a new interpreter, which imports the job itself and inherits nothing that `leave` would close."""
    ours, theirs, source, sink = _channels(place)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trialplane.worker.ranks.rank", str(theirs.fileno()), str(os.getpid())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=sink if place.rank else None,
        stderr=sink if place.rank else None,
        env={**os.environ, **place.env(job.workdir)},
    )
    process.returncode = 0  # the supervisor waits for it, not the Popen object
    started = _held(place, process.pid, ours, theirs, source, sink)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has just died, which its end reports
        started.channel.send(messages.RunRank(job.config, job.request, str(job.workdir), place.local, place.address))
    return started


@contextlib.contextmanager
def no_stop_in_between() -> Iterator[None]:
    """Blocks SIGTERM while ranks are started, so that none receives it with the supervisor's handler."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _channels(place: rank.Place) -> tuple[socket.socket, socket.socket, int, int]:
    """A channel's two ends, and those of the pipe for a rank's lines, if it has one."""
    source, sink = os.pipe() if place.rank else (-1, -1)
    return *socket.socketpair(), source, sink


def _held(place: rank.Place, pid: int, ours: socket.socket, theirs: socket.socket, source: int, sink: int) -> Rank:
    theirs.close()
    lines = None
    if place.rank:
        os.close(sink)
        lines = Lines(source, f"[rank {place.rank}] ", sys.stdout.fileno())
    return Rank(place, pid, os.pidfd_open(pid), Channel(ours, messages.FROM_RANK), lines)


class Lines:
    """Forwards a rank's output to the trial's log, each line prefixed with the rank's number.

    The kernel holds the pipe: what a rank wrote is kept even if it is killed in the next moment.

    Args:
        source: the pipe's end; closed by `close`.
        prefix: of each line.
        log: descriptor of the log.
    """

    def __init__(self, source: int, prefix: str, log: int) -> None:
        os.set_blocking(source, False)
        self.source = source
        self._prefix = prefix.encode()
        self._log = log
        self._rest = b""

    def pump(self) -> bool:
        """Forwards the available output once, as more may never end; False once the other end is closed."""
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        self._write(lines)
        return bool(data)

    def close(self) -> None:
        """Writes the rest, even an incomplete line; if a process still writes, at most the capacity of the pipe."""
        self.pump()
        if self._rest:
            self._write([self._rest])
            self._rest = b""
        os.close(self.source)

    def _write(self, lines: list[bytes]) -> None:
        with contextlib.suppress(OSError):  # a full disk ends no training
            write_all(self._log, b"".join(b"%s%s\n" % (self._prefix, line) for line in lines))


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of it."""
    while data:
        data = data[os.write(descriptor, data) :]
