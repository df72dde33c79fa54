"""The progress of an active run: a live display on a terminal, plain lines elsewhere. Reads only."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import click

from trialplane.cli import kinds, output
from trialplane.errors import TargetError
from trialplane.wire import escapes
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import FailureClass, RunState

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle

MOST_FAILURES = 20  # shown one by one; `platform results` shows all
_PAUSE = 1.0  # seconds between plain lines ...
_PAUSE_OF_STEPS = 10.0  # ... of trainings and collections, which change at each step or unit


class View(Protocol):
    """A destination of progress."""

    def __enter__(self) -> View:
        """Start the display."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop the display."""

    def update(self, status: RunStatus) -> None:
        """Show a status."""

    def message(self, text: str) -> None:
        """Print a line that stays."""


class Plain:
    """A line for each change, at most one per second, and for steps and units at most one in ten seconds.

    Args:
        stream: to write to.
        clock: seconds.
    """

    def __init__(self, stream: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._last = ""
        self._time = -math.inf
        self._pause = _PAUSE

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, status: RunStatus) -> None:
        """See `View`."""
        text, now = line(status), self._clock()
        if text == self._last or now - self._time < self._pause:
            return
        self._last, self._time = text, now
        self._pause = _PAUSE_OF_STEPS if status.progress.numbers else _PAUSE  # a search has none
        seconds_left = kinds.of(status).seconds_left(status)
        self.message(text + (f"; {output.duration(seconds_left)} left" if seconds_left is not None else ""))

    def message(self, text: str) -> None:
        """See `View`."""
        _echo(text, self._stream)
        self._stream.flush()


def view(stream: Any) -> View:
    """Return the view for a stream."""
    if stream.isatty():
        from trialplane.cli.display import Display  # rich, 40 ms

        return Display(stream)
    return Plain(stream)


def show(handle: RunHandle, stream: Any = None) -> RunStatus:
    """Show a run until it is no longer active; return its last status."""
    with view(stream or sys.stdout) as shown:
        for status in follow(handle, shown):
            last = status
    summary(handle, last, stream)
    return last


def follow(handle: RunHandle, shown: View) -> Iterator[RunStatus]:
    """Show each status and each failure, and yield the statuses."""
    position, _ = _ends(handle, 0)
    before, failures = None, 0
    warned: set[str] = set()
    for status in handle.watch():
        for text in status.warnings:
            if text not in warned:
                warned.add(text)
                shown.message(f"warning: {text}")
        now = (status.ended_trials, status.retried)
        if now != before:
            before = now
            position, rows = _ends(handle, position)
            presenter = kinds.of(status)
            for row in rows:
                if row.failure in (None, FailureClass.STOPPED):
                    continue
                text = presenter.failure(handle.name, row)
                if not text:
                    continue
                failures += 1
                if failures <= MOST_FAILURES:
                    shown.message(text)
                elif failures == MOST_FAILURES + 1:
                    shown.message(f"more {presenter.noun}s fail; `platform results {handle.name}` shows all")
        shown.update(status)
        yield status


def _ends(handle: RunHandle, position: int) -> tuple[int, list[TrialRow]]:
    """Return attempts that ended since a position; none while the ledger is unreachable, which the status reports."""
    try:
        return handle.target.rows(handle.name, position)
    except TargetError:
        if not handle.target.remote:
            raise
        return position, []


def line(status: RunStatus) -> str:
    """Return a status in one line, without constantly changing values."""
    if status.state in (RunState.PENDING, RunState.PAUSED) or not (status.ended_trials or status.running):
        slots = f" ({status.slots_ready}/{status.slots} slots ready)" if status.state is RunState.RUNNING else ""
        return f"{status.state}: {status.reason or 'the slots are warming up'}{slots}"
    return "; ".join(part for part in (kinds.of(status).line(status), status.mlflow) if part)


def summary(handle: RunHandle, status: RunStatus, stream: Any = None) -> None:
    """Print the end of the run, and the next commands."""
    name = handle.name
    _echo(f"{name} {status.state}: {status.reason}" if status.reason else f"{name} {status.state}", stream)
    for text in kinds.of(status).summary(handle, status):
        _echo(text, stream)
    if status.state is RunState.PAUSED and "platform resume" not in status.reason:
        _echo(f"continue it: `platform resume {name}`", stream)


def _echo(text: str, stream: Any) -> None:
    click.echo(escapes.escape_controls(text), file=stream)
