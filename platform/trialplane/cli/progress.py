"""The progress of an active run: a live display on a terminal, or else plain lines. It only reads."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import click

from trialplane.cli import kinds, output
from trialplane.cli.kinds.presenter import slots_text
from trialplane.errors import TargetError
from trialplane.wire import escapes
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import FailureClass, RunState

if TYPE_CHECKING:  # imports pydantic, which would delay `--help`
    from trialplane.client.run import RunHandle

MAX_FAILURES = 20  # that are shown one by one
_PAUSE = 1.0  # seconds between plain lines
_STEP_PAUSE = 10.0  # the same for trainings and collections, whose lines change with each step or unit


class View(Protocol):
    """A view of the progress of a run."""

    def __enter__(self) -> View:
        """Start the display."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop the display."""

    def update(self, status: RunStatus) -> None:
        """Show a status."""

    def message(self, text: str) -> None:
        """Print a line that the display does not replace."""


class PlainView:
    """A view that prints a line for each change, at most one per second, or per ten seconds for steps and units.

    Args:
        stream: Stream to print to.
        clock: Function that returns the time in seconds, monotonic.
    """

    def __init__(self, stream: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._last_text = ""
        self._last_time = -math.inf
        self._pause = _PAUSE

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, status: RunStatus) -> None:
        """Print a status as a line, unless it has not changed or the last line was just printed."""
        text, now = line(status), self._clock()
        is_too_early = now - self._last_time < self._pause
        if text == self._last_text or is_too_early:
            return
        self._last_text, self._last_time = text, now
        changes_with_each_step = bool(status.progress.numbers)  # a training or a collection that has reported
        self._pause = _STEP_PAUSE if changes_with_each_step else _PAUSE
        seconds_left = kinds.of(status).seconds_left(status)
        self.message(text + (f"; {output.duration(seconds_left)} left" if seconds_left is not None else ""))

    def message(self, text: str) -> None:
        """Print a line at once, even if the stream is a file."""
        _echo(text, self._stream)
        self._stream.flush()


def view(stream: Any) -> View:
    """Return the view for a stream."""
    if stream.isatty():
        from trialplane.cli.display import Display  # imports rich, which takes 40 ms

        return Display(stream)
    return PlainView(stream)


def show(handle: RunHandle) -> None:
    """Show a run on stdout until it is no longer active."""
    with view(sys.stdout) as progress_view:
        for status in follow(handle, progress_view):
            last_status = status
    summary(handle, last_status, sys.stdout)


def follow(handle: RunHandle, view: View) -> Iterator[RunStatus]:
    """Show each status, warning and new failure of a run in a view, and yield each status until the run is not active."""
    position, _ = _newly_ended(handle, position=0)  # failures from before are not shown; `platform results` has them
    old_counts, failure_count = None, 0
    shown_warnings: set[str] = set()
    for status in handle.watch():
        for warning in status.warnings:
            if warning not in shown_warnings:
                shown_warnings.add(warning)
                view.message(f"warning: {warning}")
        counts = (status.ended_trials, status.retried)
        if counts != old_counts:  # attempts have ended, so that it is worth a request to read them
            old_counts = counts
            position, ended_rows = _newly_ended(handle, position)
            for text in _failure_texts(status, ended_rows):
                failure_count += 1
                if failure_count <= MAX_FAILURES:
                    view.message(text)
                elif failure_count == MAX_FAILURES + 1:
                    view.message(f"more {kinds.of(status).noun}s fail; `platform results {handle.name}` shows all")
        view.update(status)
        yield status


def _failure_texts(status: RunStatus, rows: Sequence[TrialRow]) -> list[str]:
    """Return the lines about the attempts that have failed; those that were stopped with their run have not."""
    failed_rows = [row for row in rows if row.failure not in (None, FailureClass.STOPPED)]
    texts = [kinds.of(status).failure(status.run, row) for row in failed_rows]
    return [text for text in texts if text]  # "" if the summary of the run covers the failure


def _newly_ended(handle: RunHandle, position: int) -> tuple[int, list[TrialRow]]:
    """Return the new position in the order in which attempts end, and those that ended after the old position.

    If the ledger of a cluster cannot be reached, there are none. The status shows the reason.
    """
    try:
        return handle.target.ended_rows(handle.name, position)
    except TargetError:
        if not handle.target.remote:
            raise
        return position, []


def line(status: RunStatus) -> str:
    """Return a status as one line, without values that change all the time."""
    has_begun = status.ended_trials or status.running
    if status.state in (RunState.PENDING, RunState.PAUSED) or not has_begun:
        if not status.state.is_active:
            return str(status.state)  # without the reason, which the summary has
        slots = f" ({slots_text(status)})" if status.state is RunState.RUNNING else ""
        return f"{status.state}: {status.reason or 'the slots are warming up'}{slots}"
    return "; ".join(part for part in (kinds.of(status).line(status), status.mlflow) if part)


def summary(handle: RunHandle, status: RunStatus, stream: Any) -> None:
    """Print the outcome of a run that is no longer active, and the next commands."""
    name = handle.name
    _echo(f"{name} {status.state}: {status.reason}" if status.reason else f"{name} {status.state}", stream)
    for text in kinds.of(status).summary(handle, status):
        _echo(text, stream)
    if status.unrecorded and not handle.is_active():  # otherwise its controller still records them
        _echo(f"warning: {status.mlflow}", stream)
    if status.state is RunState.PAUSED and "platform resume" not in status.reason:
        _echo(f"continue it: `platform resume {name}`", stream)


def _echo(text: str, stream: Any) -> None:
    """Print a line, with control characters made visible, because a job's messages may contain them."""
    click.echo(escapes.escape_controls(text), file=stream)
