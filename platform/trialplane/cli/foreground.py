"""A run in the foreground: shown until it ends.

On this machine the first Ctrl-C stops the run cleanly, the second kills it. For a run on a cluster Ctrl-C only ends the
display. A local run is no child of the terminal either: it continues when the terminal closes, as with `--detach`. So on a
terminal the prompt returns when all trials have ended, although MLflow may still lack the last of them; a script, which may
read MLflow next, waits for it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.cli import output, progress
from trialplane.cli import status as status_verb

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle

_PATIENCE = 0.5  # seconds that a terminal waits for MLflow after the last trial


def attend(handle: RunHandle, kind: str, received: Sequence[int]) -> int:
    """Show a run until it ends and return its exit code.

    Args:
        handle: the run.
        kind: output format; with json or yaml the last status goes to stdout.
        received: from `signals`, entered before the run was started.
    """
    stream = sys.stdout if kind == "table" else sys.stderr
    try:
        with progress.view(stream) as shown:
            stops, ended = 0, 0.0
            for status in progress.follow(handle, shown):
                last = status
                if status.unrecorded and not status.state.is_active and stream.isatty():
                    ended = ended or time.monotonic()
                    if time.monotonic() - ended >= _PATIENCE:
                        break
                if received and handle.target.remote:
                    return _detach(handle, shown)
                while stops < len(received):
                    stops += 1
                    _stop(handle, shown, stops)
    except BrokenPipeError:
        output.note(f"the output was closed; the run {handle.name} continues: `platform status {handle.name}`")
        raise
    progress.summary(handle, last, stream)
    if ended and last.unrecorded:
        output.note(f"MLflow gets the last results in the background: `platform status {handle.name}`")
    if kind != "table":
        status_verb.show(last, kind)
    return handle.exit_code


def detached(handle: RunHandle, kind: str) -> int:
    """Print the commands for a run that continues in the background."""
    name = handle.name
    if kind != "table":
        status_verb.show(handle.status(), kind)
        return 0
    where = "on the cluster" if handle.target.remote else "in the background"
    output.note(f"{name} runs {where}: `platform status {name} --watch`, `platform logs {name} -f`,")
    output.note(f"`platform cancel {name}`. Its logs are in {handle.log_place()}")
    return 0


def _detach(handle: RunHandle, shown: progress.View) -> int:
    name = handle.name
    shown.message(f"{name} continues in {handle.log_place()}: `platform status {name} --watch` shows it again,")
    shown.message(f"`platform pause {name}` and `platform cancel {name}` end it")
    return errors.EXIT_INTERRUPTED


def _stop(handle: RunHandle, shown: progress.View, times: int) -> None:
    if times == 1:
        shown.message(
            f"stopping {handle.name}; `platform resume {handle.name}` continues it. Press Ctrl-C again to kill it at once"
        )
        handle.stop()
    else:
        shown.message(f"killed; completed work is kept, `platform resume {handle.name}` continues it")
        handle.stop(now=True)


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, instead of raising exceptions at arbitrary points.

    Entered before a run is started: a Ctrl-C in between must not leave behind a run that was never announced.
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
