"""A run in the foreground: shown until it ends.

On this machine the first Ctrl-C stops it cleanly, the second at once. One on a cluster lives there, and Ctrl-C only ends
to show it. A local run is no child that dies with the terminal either: it goes on, as with `--detach`.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.cli import output, progress
from trialplane.cli import status as status_verb

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle


def attend(handle: RunHandle, kind: str, received: Sequence[int]) -> int:
    """Shows a run until it ends and gives its exit code.

    Args:
        handle: the run.
        kind: with json or yaml the last status goes to stdout.
        received: of `signals`, entered before the run was started.
    """
    stream = sys.stdout if kind == "table" else sys.stderr
    try:
        with progress.view(stream) as shown:
            stops = 0
            for status in progress.follow(handle, shown):
                last = status
                if received and handle.target.remote:
                    return _left(handle, shown)
                while stops < len(received):
                    stops += 1
                    _stop(handle, shown, stops)
    except BrokenPipeError:
        output.note(f"nobody reads this any more; the run {handle.name} goes on: `platform status {handle.name}`")
        raise
    progress.summary(handle, last, stream)
    if kind != "table":
        status_verb.show(last, kind)
    return handle.exit_code


def detached(handle: RunHandle, kind: str) -> int:
    """Says how to find a run that goes on by itself."""
    name = handle.name
    if kind != "table":
        status_verb.show(handle.status(), kind)
        return 0
    where = "on the cluster" if handle.target.remote else "in the background"
    output.note(f"{name} runs {where}: `platform status {name} --watch`, `platform logs {name} -f`,")
    output.note(f"`platform cancel {name}`. Its logs are in {handle.log_place()}")
    return 0


def _left(handle: RunHandle, shown: progress.View) -> int:
    name = handle.name
    shown.say(f"{name} goes on in {handle.log_place()}: `platform status {name} --watch` shows it again,")
    shown.say(f"`platform pause {name}` and `platform cancel {name}` end it")
    return errors.EXIT_INTERRUPTED


def _stop(handle: RunHandle, shown: progress.View, times: int) -> None:
    if times == 1:
        shown.say(f"stopping {handle.name}; `platform resume {handle.name}` goes on. Again Ctrl-C kills it at once")
        handle.stop()
    else:
        shown.say(f"killed; what has ended is kept, `platform resume {handle.name}` goes on")
        handle.stop(now=True)


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM as a list that grows, instead of as exceptions in the middle of something.

    Entered before a run is started: a Ctrl-C in between must not leave a run behind that nobody was told of.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
