"""Start the process of one rank, by a fork of the supervisor or in a new interpreter, and forward its lines to the log.

Rank 0 writes to the trial's log itself. The output of each other rank goes through a pipe to the supervisor, which adds the
rank's number to each line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from trialplane.wire import messages
from trialplane.worker.channel import Channel
from trialplane.worker.ranks import rank

MAX_LINE = 8 << 10  # bytes; a longer one, or a progress bar's, is written in pieces
_CHUNK = 64 << 10  # the default capacity of a pipe


@dataclasses.dataclass
class Rank:
    """A rank's process, with the supervisor's ends of its connections.

    Attributes:
        placement: Number and devices of the rank.
        pid: Process id.
        pidfd: Descriptor of the process, by which it is signaled.
        channel: Channel to the rank.
        forwarder: Forwards its output; None for rank 0, which writes to the log itself.
        has_ended: Whether the process has ended.
    """

    placement: rank.Placement
    pid: int
    pidfd: int
    channel: Channel[messages.ToRank, messages.FromRank]
    forwarder: LineForwarder | None
    has_ended: bool = False


def fork(work: rank.TrialWork, placement: rank.Placement, close_inherited: Callable[[], None]) -> Rank:
    """Start a rank as a fork of this process, which inherits everything that the supervisor has imported.

    In the fork, `close_inherited` closes the supervisor's descriptors. Otherwise a channel that the supervisor closes would
    stay open.
    """
    connections = _open_connections(placement)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        if placement.rank > 0:
            os.dup2(connections.sink, 1)
            os.dup2(connections.sink, 2)
            os.close(connections.sink)
            os.close(connections.source)
        connections.supervisor_end.close()
        close_inherited()
        rank.run_and_end(work, placement, Channel(connections.rank_end, messages.TO_RANK), parent)
    return _started_rank(placement, pid, connections)


def spawn(work: rank.TrialWork, placement: rank.Placement, close_inherited: Callable[[], None]) -> Rank:
    """Start a rank in a new interpreter, which imports the job itself.

    The arguments are those of `fork`. A new interpreter inherits no descriptors, so `close_inherited` is not called.
    """
    connections = _open_connections(placement)
    descriptor = connections.rank_end.fileno()
    output = connections.sink if placement.rank > 0 else None
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trialplane.worker.ranks.rank", str(descriptor), str(os.getpid())],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, **placement.env(work.workdir)},
    )
    process.returncode = 0  # otherwise the Popen object may wait for the process, whose exit the supervisor needs
    started = _started_rank(placement, process.pid, connections)
    request = messages.RunRank(
        work.config, work.request, workdir=str(work.workdir), local=placement.local_rank, address=placement.address
    )
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the process has died, which the supervisor handles
        started.channel.send(request)
    return started


@contextlib.contextmanager
def block_sigterm() -> Iterator[None]:
    """Block SIGTERM within the block, so that no rank receives it before the supervisor's handler is replaced."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


class _Connections(NamedTuple):
    """The connections of a supervisor and a rank.

    Attributes:
        supervisor_end: Supervisor's end of the channel.
        rank_end: Rank's end of the channel.
        source: Descriptor from which the supervisor reads the rank's output; -1 for rank 0, which needs no pipe.
        sink: Descriptor to which the rank writes it; -1 for rank 0.
    """

    supervisor_end: socket.socket
    rank_end: socket.socket
    source: int
    sink: int


def _open_connections(placement: rank.Placement) -> _Connections:
    """Open the connections of a rank."""
    supervisor_end, rank_end = socket.socketpair()
    source, sink = os.pipe() if placement.rank > 0 else (-1, -1)
    return _Connections(supervisor_end, rank_end, source, sink)


def _started_rank(placement: rank.Placement, pid: int, connections: _Connections) -> Rank:
    """Close the rank's ends of its connections in the supervisor, and return the started rank with the other ends."""
    connections.rank_end.close()
    forwarder = None
    if placement.rank > 0:
        os.close(connections.sink)
        forwarder = LineForwarder(connections.source, prefix=f"[rank {placement.rank}] ", log=sys.stdout.fileno())
    channel: Channel[messages.ToRank, messages.FromRank] = Channel(connections.supervisor_end, messages.FROM_RANK)
    return Rank(placement, pid, os.pidfd_open(pid), channel, forwarder)


class LineForwarder:
    """A forwarder of a rank's output to the trial's log, with the rank's number before each line.

    The output waits in a pipe of the kernel, so it is not lost if the rank is killed right after it has written.

    Args:
        source: Descriptor to read from; closed by `close`.
        prefix: Prefix of each line.
        log: Descriptor of the log.
    """

    def __init__(self, source: int, prefix: str, log: int) -> None:
        os.set_blocking(source, False)
        self.source = source
        self._prefix = prefix.encode()
        self._log = log
        self._rest = b""

    def pump(self) -> bool:
        """Forward the new lines in the pipe; return False if the rank has closed its end.

        It reads only once, so that endless output does not block the supervisor. An incomplete last line waits.
        """
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:  # write a part of a long line now
            lines.append(self._rest)
            self._rest = b""
        self._write(lines)
        return bool(data)

    def close(self) -> None:
        """Forward what is left in the pipe, with an incomplete last line, and close the source."""
        self.pump()  # one read is enough: it takes as much as the pipe holds
        if self._rest:
            self._write([self._rest])
            self._rest = b""
        os.close(self.source)

    def _write(self, lines: list[bytes]) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the training
            write_all(self._log, b"".join(b"%s%s\n" % (self._prefix, line) for line in lines))


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data to a descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]
