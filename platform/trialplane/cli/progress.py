"""What a user sees of a run that goes on: a live display on a terminal, plain lines elsewhere. Only looks at the run."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

import click

from trialplane import errors
from trialplane.cli import collecting, output, training
from trialplane.client.run import RunHandle
from trialplane.errors import TargetError
from trialplane.wire import escapes
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

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
        self._pause = _PAUSE_OF_STEPS if status.progress else _PAUSE  # a search has none
        left = training.left(status) if status.is_training else status.eta
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
            for row in rows:
                if row.failure in (None, FailureClass.STOPPED):
                    continue
                if status.is_training and row.state is not TrialState.LOST:
                    continue  # its end is the run's, which the summary tells whole
                told += 1
                if told <= MOST_FAILURES:
                    shown.say(failure(handle.name, row, status.kind))
                elif told == MOST_FAILURES + 1:
                    shown.say(f"more {status.noun}s fail; `platform results {handle.name}` shows all")
        shown.update(status)
        yield status


def _ends(handle: RunHandle, place: int) -> tuple[int, list[TrialRow]]:
    """Ends since a place; none while those who know them are away, for the status says so."""
    try:
        return handle.target.ends(handle.name, place)
    except TargetError:
        if not handle.target.remote:
            raise
        return place, []


def failure(run: str, row: TrialRow, kind: str = "hpo") -> str:
    """One line about an attempt that failed, of a job of that kind."""
    if kind == "train":
        return f"attempt {row.attempt}: {reason(row)[:200]}; it starts again from its last checkpoint"
    what = "iteration" if kind == "collect" else "trial"
    again = "; it is tried again" if row.state is TrialState.LOST else f"; `platform logs {run} {row.trial}`"
    return f"{what} {row.trial}: {reason(row)[:200]}{again}"


def reason(row: TrialRow) -> str:
    """Why an attempt failed, in words that begin with the class; empty for others."""
    if row.failure is None:
        return output.cell(row.message)
    message = output.cell(row.message)
    return message if message.startswith(row.failure.value) else f"{row.failure}: {message}"


def line(status: RunStatus) -> str:
    """A status in one line, without what changes all the time."""
    if status.state in (RunState.PENDING, RunState.PAUSED) or not (status.ended_trials or status.running):
        slots = f" ({status.slots_ready}/{status.slots} slots ready)" if status.state is RunState.RUNNING else ""
        return f"{status.state}: {status.reason or 'the slots are warming up'}{slots}"
    if status.is_training or status.is_collection:
        said = training.line(status) if status.is_training else collecting.line(status)
        return "; ".join(part for part in (said, status.recorder) if part)
    parts = [counts(status), f"best {best(status)}" if best(status) else "", status.recorder]
    return "; ".join(part for part in parts if part)


def counts(status: RunStatus) -> str:
    """How many trials stand how."""
    text = f"{status.ended_trials}/{status.trials} ended: {status.complete} complete, {status.pruned} pruned"
    text += f", {status.failed} failed"
    if status.running:
        text += f"; {status.running} running"
    if status.retried:
        text += f"; {errors.counted(status.retried, 'attempt')} tried again"
    return text


def stand(status: RunStatus) -> str:
    """How far a run had come when it was stopped."""
    if status.is_training:
        return training.steps(status) or "it had not reported a step"
    return f"{status.ended_trials} of {errors.counted(status.trials, status.noun)} had ended"


def best(status: RunStatus) -> str:
    """The best values and their trial."""
    if status.best is None or not status.best.values:
        return ""
    values = " ".join(
        f"{name} {output.cell(value)}" for name, value in zip(status.objectives, status.best.values, strict=False)
    )
    more = ", one of several: `platform best` shows all" if len(status.objectives) > 1 else ""
    return f"{values} (trial {status.best.trial}{more})"


def summary(handle: RunHandle, status: RunStatus, stream: Any = None) -> None:
    """How the run ended, and what to type next."""
    say = functools.partial(_echo, stream=stream)
    if status.is_training:
        _summary_of_training(handle, status, say)
        return
    if status.is_collection:
        _summary_of_collection(handle, status, say)
        return
    name = handle.name
    took = status.ended - status.started if status.ended and status.started else None
    say(f"{name} {status.state}: {status.reason}" if status.reason else f"{name} {status.state}")
    say(counts(status) + (f" in {output.duration(took)}" if took else ""))
    if status.best is not None and status.best.values:
        say(f"best {best(status)}")
        for key, value in status.best.params.items():
            say(f"  {key} = {output.cell(value)}")
    local = "" if handle.target.remote else " --local"
    say(f"logs are in {handle.log_place()}: `platform logs {name}`, `platform logs {name} TRIAL`")
    if status.ended_trials:
        say(f"see them all: `platform results {name}`, `platform ui`")
    if status.best is not None:
        again = f"platform submit hpo {status.job} --params best.yaml{local}"
        say(f"use the best: `platform best {name} > best.yaml`, `{again}`")
    if status.state is RunState.PAUSED:
        say(f"go on with it: `platform resume {name}`")


def _echo(text: str, stream: Any) -> None:
    click.echo(escapes.visible(text), file=stream)


def _summary_of_training(handle: RunHandle, status: RunStatus, say: Callable[[str], None]) -> None:
    name = handle.name
    took = status.ended - status.started if status.ended and status.started else None
    say(f"{name} {status.state}: {status.reason}" if status.reason else f"{name} {status.state}")
    result = training.result(status)
    parts = [training.steps(status), f"result: {result}" if result else "", *training.measures(status, bool(result))]
    done = "; ".join(part for part in (*parts, training.again(status)) if part)
    say(f"{done or 'no step was reported'}" + (f"; in {output.duration(took)}" if took else ""))
    say(f"its log: `platform logs {name}` (in {handle.log_place()}); its numbers: `platform results {name}`, `platform ui`")
    if status.state is RunState.PAUSED:
        say(f"go on with it: `platform resume {name}`")
    elif status.state in (RunState.FAILED, RunState.CANCELLED) and training.steps(status):  # else it has no checkpoint
        local = "" if handle.target.remote else " --local"
        say(f"go on from its newest checkpoint: `platform resume {name}`")
        say(f"the same with other code or parameters: `platform submit train {status.job} --resume {name}{local}`")


def _summary_of_collection(handle: RunHandle, status: RunStatus, say: Callable[[str], None]) -> None:
    name = handle.name
    took = status.ended - status.started if status.ended and status.started else None
    say(f"{name} {status.state}: {status.reason}" if status.reason else f"{name} {status.state}")
    say(collecting.done(status) + (f" in {output.duration(took)}" if took else ""))
    say(f"its iterations: `platform results {name}`, `platform ui`")
    say(f"logs are in {handle.log_place()}: `platform logs {name}`, `platform logs {name} ITERATION --worker N`")
    if status.state is RunState.PAUSED:
        say(f"go on with it: `platform resume {name}`")
    elif status.state in (RunState.FAILED, RunState.CANCELLED):
        say(f"go on after its last complete iteration: `platform resume {name}`")
