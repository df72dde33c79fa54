"""What a user sees of a run that goes on: a live display on a terminal, plain lines elsewhere. Only looks at the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
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

MOST_FAILURES = 20  # shown one by one; the rest is in `platform results`
_PAUSE = 1.0  # seconds between plain lines ...
_PAUSE_OF_STEPS = 10.0  # ... of which a training has one at each step, and a collection at each unit


class View(Protocol):
    """Where the progress goes."""

    def __enter__(self) -> View:
        """Begins to show."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends to show."""

    def update(self, status: RunStatus) -> None:
        """Shows a status."""

    def say(self, text: str) -> None:
        """Shows a line that stays."""


class Plain:
    """A line for each change, not more than one a second, and of a training's steps not more than one in ten.

    Args:
        stream: where to.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._last = ""
        self._time = 0.0
        self._pause = _PAUSE

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, status: RunStatus) -> None:
        """See `View`."""
        text = line(status)
        if text == self._last or time.monotonic() - self._time < self._pause:
            return
        self._last, self._time = text, time.monotonic()
        self._pause = _PAUSE_OF_STEPS if status.progress.numbers else _PAUSE  # a search has none
        left = kinds.of(status).left(status)
        self.say(text + (f"; {output.duration(left)} left" if left is not None else ""))

    def say(self, text: str) -> None:
        """See `View`."""
        _echo(text, self._stream)
        self._stream.flush()


def view(stream: Any) -> View:
    """The view that fits a stream."""
    if stream.isatty():
        from trialplane.cli.display import Display  # rich, 40 ms

        return Display(stream)
    return Plain(stream)


def show(handle: RunHandle, stream: Any = None) -> RunStatus:
    """Shows a run until nobody works on it any more; gives its last status."""
    with view(stream or sys.stdout) as shown:
        for status in follow(handle, shown):
            last = status
    summary(handle, last, stream)
    return last


def follow(handle: RunHandle, shown: View) -> Iterator[RunStatus]:
    """Shows each status and each failure, and gives the statuses."""
    place, _ = _ends(handle, 0)
    before, told = None, 0
    warned: set[str] = set()
    for status in handle.watch():
        for text in status.warnings:
            if text not in warned:
                warned.add(text)
                shown.say(f"warning: {text}")
        now = (status.ended_trials, status.retried)
        if now != before:
            before = now
            place, rows = _ends(handle, place)
            presenter = kinds.of(status)
            for row in rows:
                if row.failure in (None, FailureClass.STOPPED):
                    continue
                text = presenter.failure(handle.name, row)
                if not text:
                    continue
                told += 1
                if told <= MOST_FAILURES:
                    shown.say(text)
                elif told == MOST_FAILURES + 1:
                    shown.say(f"more {presenter.noun}s fail; `platform results {handle.name}` shows all")
        shown.update(status)
        yield status


def _ends(handle: RunHandle, place: int) -> tuple[int, list[TrialRow]]:
    """Ends since a place; none while those who know them are away, for the status says so."""
    try:
        return handle.target.rows(handle.name, place)
    except TargetError:
        if not handle.target.remote:
            raise
        return place, []


def line(status: RunStatus) -> str:
    """A status in one line, without what changes all the time."""
    if status.state in (RunState.PENDING, RunState.PAUSED) or not (status.ended_trials or status.running):
        slots = f" ({status.slots_ready}/{status.slots} slots ready)" if status.state is RunState.RUNNING else ""
        return f"{status.state}: {status.reason or 'the slots are warming up'}{slots}"
    return "; ".join(part for part in (kinds.of(status).line(status), status.recorder) if part)


def summary(handle: RunHandle, status: RunStatus, stream: Any = None) -> None:
    """How the run ended, and what to type next."""
    name = handle.name
    _echo(f"{name} {status.state}: {status.reason}" if status.reason else f"{name} {status.state}", stream)
    for text in kinds.of(status).summary(handle, status):
        _echo(text, stream)
    if status.state is RunState.PAUSED:
        _echo(f"go on with it: `platform resume {name}`", stream)


def _echo(text: str, stream: Any) -> None:
    click.echo(escapes.visible(text), file=stream)
