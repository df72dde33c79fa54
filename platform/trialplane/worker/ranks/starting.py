"""Start the process of one rank, by a fork of the supervisor or by spawn, and forward the lines it writes."""

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
    """The process of one rank, as the supervisor sees it."""

    placement: rank.Placement
    pid: int
    handle: int  # pidfd
    channel: Channel[messages.ToRank, messages.FromRank]
    lines: Lines | None  # None for rank 0, which writes to the log itself
    has_ended: bool = False


def fork(job: rank.Job, placement: rank.Placement, close_inherited: Callable[[], None]) -> Rank:
    """Start a rank that inherits everything the supervisor has imported.

    Args:
        job: Work of the trial's ranks.
        placement: Placement of this rank.
        close_inherited: Closes the supervisor's descriptors in the child, as a channel ends only when all copies are closed.
    """
    supervisor_end, rank_end, source, sink = _open_channels(placement)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        if placement.rank:
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.close(sink)
            os.close(source)
        supervisor_end.close()
        close_inherited()
        rank.run_and_end(job, placement, Channel(rank_end, messages.TO_RANK), parent)
    return _parent_side(placement, pid, supervisor_end, rank_end, source, sink)


def spawn(job: rank.Job, placement: rank.Placement, close_inherited: Callable[[], None]) -> Rank:
    """Start a rank in a new interpreter, which imports the job itself. `close_inherited` is not needed, and not called."""
    supervisor_end, rank_end, source, sink = _open_channels(placement)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trialplane.worker.ranks.rank", str(rank_end.fileno()), str(os.getpid())],
        pass_fds=[rank_end.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=sink if placement.rank else None,
        stderr=sink if placement.rank else None,
        env={**os.environ, **placement.env(job.workdir)},
    )
    process.returncode = 0  # the supervisor waits for it, not the Popen object
    started = _parent_side(placement, process.pid, supervisor_end, rank_end, source, sink)
    with contextlib.suppress(
        BrokenPipeError, ConnectionResetError
    ):  # the process has just died, and its end is handled later
        started.channel.send(messages.RunRank(job.config, job.request, str(job.workdir), placement.local, placement.address))
    return started


@contextlib.contextmanager
def block_sigterm() -> Iterator[None]:
    """Block SIGTERM while ranks are started, so that no rank receives it with the supervisor's handler."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _open_channels(placement: rank.Placement) -> tuple[socket.socket, socket.socket, int, int]:
    """Return the ends of a channel, for supervisor and rank, and of a pipe for the rank's lines; -1 for rank 0's pipe."""
    source, sink = os.pipe() if placement.rank else (-1, -1)
    return *socket.socketpair(), source, sink


def _parent_side(
    placement: rank.Placement, pid: int, supervisor_end: socket.socket, rank_end: socket.socket, source: int, sink: int
) -> Rank:
    """Close the rank's ends in the supervisor, and return the rank."""
    rank_end.close()
    lines = None
    if placement.rank:
        os.close(sink)
        lines = Lines(source, f"[rank {placement.rank}] ", sys.stdout.fileno())
    return Rank(placement, pid, os.pidfd_open(pid), Channel(supervisor_end, messages.FROM_RANK), lines)


class Lines:
    """Forward a rank's output to the trial's log, each line prefixed with the rank's number.

    The kernel holds the pipe, so the output of a rank is kept even if the rank is killed in the next moment.

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
        """Forward the available output once, as it may never end; return False if the other end is closed."""
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
        """Write the rest, also of an incomplete line, and close the source. At most the capacity of the pipe is read."""
        self.pump()
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
