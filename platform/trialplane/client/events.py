"""Events of a run: changes of its state, and attempts that start and end.

    async for event in run.events():
        if isinstance(event, TrialEnded) and event.row.failure:
            print(event.row.trial, event.row.message)

An iteration starts with everything that has happened so far, so no event is missed. `RunHandle.history` lists the past with
times and users instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trialplane.client.target import Observation, Target, unknown_run_error
from trialplane.errors import TargetError
from trialplane.ledger import attempts as reading
from trialplane.ledger.attempts import Attempt
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import FailureClass, RunState

if TYPE_CHECKING:
    from trialplane.job.kinds import Job


@dataclasses.dataclass(frozen=True)
class RunChanged:
    """The state of the run changed, or was read for the first time.

    Attributes:
        status: New status. `status.reason` explains the state.
    """

    status: RunStatus


@dataclasses.dataclass(frozen=True)
class TrialStarted:
    """An attempt of a trial started.

    Attributes:
        trial: Number of the trial, from 0.
        attempt: Number of the attempt, from 1.
        params: Parameters of the trial.
    """

    trial: int
    attempt: int
    params: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class TrialEnded:
    """A trial ended for good.

    Attributes:
        row: Result of the trial. `row.state` is complete, pruned or failed.
    """

    row: TrialRow


@dataclasses.dataclass(frozen=True)
class TrialInterrupted:
    """An attempt was lost, crashed or was stopped, and its trial will be retried; or the trial is paused at a rung.

    Attributes:
        row: Result of the attempt. `row.message` explains the interruption.
    """

    row: TrialRow


@dataclasses.dataclass(frozen=True)
class RunEnded:
    """The last event: the run has ended or was paused.

    Attributes:
        status: Last status.
    """

    status: RunStatus


@dataclasses.dataclass(frozen=True)
class Moment:
    """An entry of the history of a run.

    Attributes:
        at: Time, in seconds since the epoch. None for an attempt that still runs, or was lost.
        text: Description in words.
        by: User who did it, on a cluster. "" for the run itself.
    """

    at: float | None
    text: str
    by: str = ""


Event = RunChanged | TrialStarted | TrialEnded | TrialInterrupted | RunEnded


async def follow(target: Target, run: str) -> AsyncIterator[Event]:
    """Iterate over the events of a run, until it is inactive; see `RunHandle.events`."""
    job = await asyncio.to_thread(target.job, run)
    reported = _ReportedEvents(job)
    while True:
        # Read in a thread, because this waits for files or the network. Reading changes nothing, so it can be cancelled.
        progress = await asyncio.to_thread(_read_progress, target, run, reported.position)
        for event in reported.new_events(progress):
            yield event
        reported.position = progress.position
        if not progress.observed.is_active:
            yield RunEnded(progress.observed.status)
            return
        await asyncio.sleep(target.poll)


class _Progress(NamedTuple):
    """The state of a run, and its attempts since a position.

    Attributes:
        observed: State of the run.
        attempts: Its attempts that run, and those that ended after the position.
        is_alive: Whether its controller is running, so that an attempt without an end is not lost.
        position: Position of the last attempt that ended.
    """

    observed: Observation
    attempts: list[Attempt]
    is_alive: bool
    position: int


def _read_progress(target: Target, run: str, after: int) -> _Progress:
    """Read the state of a run, then its attempts since the position `after`, so that none of an inactive run is missed.

    Raises:
        RunNotFound: There is no such run.
        TargetError: The ledger cannot be read, and the run is not active.
    """
    observed = target.observe(run)
    if observed is None:
        raise unknown_run_error(target, run)
    try:
        attempts, is_alive = target.attempts(run, after)
    except TargetError:
        if not target.remote or not observed.is_active:
            raise
        # The ledger is unavailable, which the status reports, and may answer later.
        return _Progress(observed, attempts=[], is_alive=True, position=after)
    return _Progress(observed, attempts, is_alive, position=reading.newest_end_number(attempts, after))


class _ReportedEvents:
    """State of an iterator: which events it has already yielded.

    Attributes:
        position: Position of the last attempt whose end was yielded.
    """

    def __init__(self, job: Job) -> None:
        self.position = 0
        self._job = job
        self._state: RunState | None = None
        self._running_numbers: set[int] = set()  # ledger numbers of attempts that run

    def new_events(self, progress: _Progress) -> Iterator[Event]:
        """Yield the new events, in an order in which they can have happened."""
        status = progress.observed.status
        if status.state is not self._state:
            self._state = status.state
            yield RunChanged(status)
        for attempt in progress.attempts:
            if attempt.request.number not in self._running_numbers:
                self._running_numbers.add(attempt.request.number)
                yield TrialStarted(attempt.request.trial, attempt.request.attempt, attempt.request.params)
        ended_attempts = [attempt for attempt in progress.attempts if attempt.end_number is not None]
        for attempt in sorted(ended_attempts, key=lambda attempt: attempt.end_number or 0):  # in the order of their ends
            self._running_numbers.discard(attempt.request.number)
            row = reading.trial_row(self._job, attempt, progress.is_alive)
            yield TrialEnded(row) if row.state.is_ended else TrialInterrupted(row)


def history(target: Target, run: str) -> list[Moment]:
    """List what has happened in a run so far: the recorded changes, the starts and ends of attempts, and the run's end.

    They are in order of time. Those without a time come last: of an attempt that still runs, whose start is not in the
    ledger yet, and of one that never started or was lost.
    """
    job = target.job(run)
    progress = _read_progress(target, run, after=0)
    changes, status = target.changes(run), progress.observed.status
    moments = [Moment(change.at, change.description, change.by) for change in changes]
    if not changes and status.created:  # else the submission is the first change
        moments.append(Moment(status.created, "submitted"))
    for attempt in progress.attempts:
        moments += _attempt_moments(job, attempt, is_alive=progress.is_alive)
    if not progress.observed.is_active and status.ended:
        reason = f": {status.reason}" if status.reason else ""
        moments.append(Moment(status.ended, f"{status.state.value.lower()}{reason}"))
    return sorted(moments, key=lambda moment: float("inf") if moment.at is None else moment.at)


def _attempt_moments(job: Job, attempt: Attempt, *, is_alive: bool) -> list[Moment]:
    """Return the start and the end of an attempt. If it has not ended, the one moment of its present state.

    Args:
        job: The job.
        attempt: The attempt.
        is_alive: Whether the run has a controller. An attempt without an end is lost with its controller.
    """
    request, outcome = attempt.request, attempt.outcome
    attempt_text = f", attempt {request.attempt}," if request.attempt > 1 else ""
    title = f"{job.noun} {request.trial}{attempt_text}"
    if outcome is None:
        return [Moment(None, f"{title} runs" if is_alive else f"{title} was lost with its controller")]
    row = reading.trial_row(job, attempt, is_alive)
    # A stopped attempt has a message that says so.
    failure = "" if row.failure in (None, FailureClass.STOPPED) else f" ({row.failure})"
    values = zip(job.objectives, row.values, strict=False)  # an attempt without a result has no values
    value_texts = [f"{objective.metric}={value:.5g}" for objective, value in values]
    result = " ".join([f"{row.state.value.lower()}{failure}", *value_texts])  # "complete loss=0.12", "failed (oom)"
    first_line = row.message.strip().partition("\n")[0]
    message = f": {first_line}" if first_line else ""
    return [
        Moment(outcome.started or None, f"{title} started"),
        Moment(outcome.ended or None, f"{title} {result}{message}"),
    ]
