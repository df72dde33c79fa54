"""What happens in a run, as typed events, from what its place can observe: the status, and attempts that start and end.

    async for event in run.events():
        if isinstance(event, TrialEnded) and event.row.failure:
            print(event.row.trial, event.row.message)

Nothing is subscribed to and nothing is missed: an iterator begins with what has happened so far, and whoever stops listening
leaves nothing behind. `history` is what has happened, with times, and who changed what the run is to be.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trialplane.client.target import Observed, Target, unknown
from trialplane.errors import TargetError
from trialplane.wire import attempts as reading
from trialplane.wire.attempts import Attempt
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import FailureClass, RunState

if TYPE_CHECKING:
    from trialplane.spec.jobs import Job


@dataclasses.dataclass(frozen=True)
class RunChanged:
    """The run's state is another than before, or was seen for the first time; `status.reason` says why."""

    status: RunStatus


@dataclasses.dataclass(frozen=True)
class TrialStarted:
    """An attempt at a trial began.

    Attributes:
        trial: number of the trial, from 0.
        attempt: 1, or more for one that is tried again.
        params: that were drawn.
    """

    trial: int
    attempt: int
    params: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class TrialEnded:
    """A trial ended for good: complete, pruned or failed, as `row.state` says."""

    row: TrialRow


@dataclasses.dataclass(frozen=True)
class TrialInterrupted:
    """An attempt was lost or stopped, and its trial will be tried again; `row.message` says why."""

    row: TrialRow


@dataclasses.dataclass(frozen=True)
class RunEnded:
    """The last event: the run is no longer active. It has ended, or was paused, as `status.state` says."""

    status: RunStatus


@dataclasses.dataclass(frozen=True)
class Moment:
    """Something that happened in a run.

    Attributes:
        at: when, in seconds since the epoch; None for what goes on and has no time yet.
        what: in words.
        by: who did it, as the API server knows its users; "" for what the run did.
    """

    at: float | None
    what: str
    by: str = ""


Event = RunChanged | TrialStarted | TrialEnded | TrialInterrupted | RunEnded


async def follow(target: Target, run: str) -> AsyncIterator[Event]:
    """See `RunHandle.events`."""
    job = await asyncio.to_thread(target.job, run)
    seen = _Seen(job)
    while True:
        # In a thread, as reading waits for files or a network. It changes nothing, so one that is cancelled may just end.
        now, found, alive, place = await asyncio.to_thread(_look, target, run, seen.place)
        for event in seen.news(now, found, alive):
            yield event
        seen.place = place
        if not now.is_active:
            yield RunEnded(now.status)
            return
        await asyncio.sleep(target.poll)


def _look(target: Target, run: str, after: int) -> tuple[Observed, list[Attempt], bool, int]:
    """The run's state, and the attempts that run and those that ended since the place `after`, with the next place.

    The state is read first, so that the attempts of a run that was no longer active are all there.
    """
    now = target.observe(run)
    if now is None:
        raise unknown(target, run)
    try:
        found, alive = target.attempts(run, after)
    except TargetError:
        if not target.remote or not now.is_active:
            raise
        return now, [], True, after  # the ledger cannot be reached at the moment, which the status says
    return now, found, alive, reading.newest_place(found, after)


class _Seen:
    """What an iterator has already told.

    Args:
        job: of the run.
    """

    def __init__(self, job: Job) -> None:
        self.place = 0
        self._job = job
        self._state: RunState | None = None
        self._started: set[int] = set()  # ledger numbers of attempts that run

    def news(self, now: Observed, found: list[Attempt], alive: bool) -> Iterator[Event]:
        """The events that what was read makes, in an order in which they may have happened."""
        if now.status.state is not self._state:
            self._state = now.status.state
            yield RunChanged(now.status)
        for attempt in found:
            if attempt.request.number not in self._started:
                self._started.add(attempt.request.number)
                yield TrialStarted(attempt.request.trial, attempt.request.attempt, attempt.request.params)
        for attempt in sorted((one for one in found if one.place is not None), key=lambda one: one.place or 0):
            self._started.discard(attempt.request.number)
            row = reading.row(self._job, attempt, alive)
            yield TrialEnded(row) if row.state.is_ended else TrialInterrupted(row)


def history(target: Target, run: str) -> list[Moment]:
    """What has happened in a run so far, in the order of time: who changed it, attempts that started and ended, its end."""
    job = target.job(run)
    now, found, alive, _ = _look(target, run, 0)
    changes, status = target.changes(run), now.status
    made = [Moment(change.at, change.what, change.by) for change in changes]
    if not changes and status.created:
        made.append(Moment(status.created, "submitted"))
    for attempt in found:
        again = f", attempt {attempt.request.attempt}," if attempt.request.attempt > 1 else ""
        who = f"{job.noun} {attempt.request.trial}{again}"
        if attempt.outcome is None:
            made.append(Moment(None, f"{who} runs" if alive else f"{who} was lost with its controller"))
            continue
        row = reading.row(job, attempt, alive)
        why = f" ({row.failure})" if row.failure not in (None, FailureClass.STOPPED) else ""
        values = zip((objective.metric for objective in job.objectives), row.values, strict=False)
        result = " ".join([row.state.value.lower() + why, *(f"{name}={value:.5g}" for name, value in values)])
        message = row.message.strip().partition("\n")[0]
        made.append(Moment(attempt.outcome.started or None, f"{who} started"))
        made.append(Moment(attempt.outcome.ended or None, f"{who} {result}" + (f": {message}" if message else "")))
    if not now.is_active and status.ended:
        made.append(Moment(status.ended, f"{status.state.value.lower()}" + (f": {status.reason}" if status.reason else "")))
    return sorted(made, key=lambda one: float("inf") if one.at is None else one.at)
