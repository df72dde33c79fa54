"""How the supervisor starts the process of one rank: by a fork of itself, or by spawn."""

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
from trialplane.worker.ranks import pipes, rank


@dataclasses.dataclass
class Rank:
    """The process of one rank, as the supervisor holds it."""

    place: rank.Place
    pid: int
    handle: int  # pidfd
    channel: Channel[messages.ToRank, messages.FromRank]
    lines: pipes.Lines | None  # None for rank 0, which writes to the log itself
    ended: bool = False


def fork(job: rank.Job, place: rank.Place, leave: Callable[[], None]) -> Rank:
    """A rank that has everything the supervisor has imported.

    Args:
        job: what it runs.
        place: its own.
        leave: closes, in the child, what is the supervisor's: a peer is gone only when the last descriptor is.
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
    """A rank in a new interpreter, which imports the job itself; it inherits nothing that `leave` would have to close."""
    ours, theirs, source, sink = _channels(place)
    process = subprocess.Popen(
        [sys.executable, "-m", "trialplane.worker.ranks.rank", str(theirs.fileno()), str(os.getpid())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=sink if place.rank else None,
        stderr=sink if place.rank else None,
        env={**os.environ, **place.env(job.workdir)},
    )
    process.returncode = 0  # the supervisor waits for it, not the Popen object
    started = _held(place, process.pid, ours, theirs, source, sink)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has just died; its end says so
        started.channel.send(messages.RunRank(job.config, job.request, str(job.workdir), place.local, place.address))
    return started


@contextlib.contextmanager
def no_stop_in_between() -> Iterator[None]:
    """Keeps SIGTERM back while ranks are started, so that none takes it with the supervisor's handler."""
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
        lines = pipes.Lines(source, f"[rank {place.rank}] ", sys.stdout.fileno())
    return Rank(place, pid, os.pidfd_open(pid), Channel(ours, messages.FROM_RANK), lines)
