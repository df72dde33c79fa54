"""The protocol of presenters of runs, and the texts and tables that all kinds share.

Only texts and values: `display` draws a `Live`, `output` prints a table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click

from trialplane import errors
from trialplane.cli import output
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import TrialState

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.job.kinds import Job

Table = tuple[list[str], list[list[Any]]]  # header and lines
Column = tuple[str, list[Any]]  # name, and a value for each row
Span = tuple[str, str]  # a text, and its style as rich names it
LONGEST = 2_000  # characters of a reason, at whose end the advice is


@dataclasses.dataclass(frozen=True)
class Live:
    """The live display of a run, below its name and state.

    Attributes:
        share: of the run that is done, 0 to 1.
        beside: texts beside the bar that shows it.
        lines: below it; each a sequence of spans.
    """

    share: float
    beside: tuple[str, ...]
    lines: tuple[tuple[Span, ...], ...]


class Presenter(Protocol):
    """The presentation of runs of one kind. The defaults are for a run of several trials.

    Attributes:
        noun: for one trial.
        scaled: noun of the things whose number `platform scale` sets.
        max_failed: the field of the job that `platform resume --max-failed` sets.
        finished: commands for a submission of a finished run; `{0}` is its name.
        starter: job.yaml and train.py of `platform init`; `{name}` in them is the job's name.
    """

    noun: str = "trial"
    scaled: str = "trial"
    max_failed: str = "budget.max_failed"
    finished: str
    starter: tuple[str, str]

    def valid(self, job: Job) -> str:
        """Return a one-line summary of a valid job."""

    def line(self, status: RunStatus) -> str:
        """Return the state of a run that has begun, in one line, without the time left."""

    def summary(self, handle: RunHandle, status: RunStatus) -> Iterator[str]:
        """Yield lines about the outcome of an ended run, and the next commands."""

    def live(self, status: RunStatus) -> Live:
        """Return the live display."""

    def fields(self, status: RunStatus) -> dict[str, object]:
        """Return the fields of `platform status` that only this kind has; empty ones are not shown."""

    def results(self, job: Job, rows: Sequence[TrialRow]) -> Table:
        """Return the table of `platform results`."""

    def ended(self, status: RunStatus) -> str:
        """Return the progress of a run, for a column of `platform list`."""
        return f"{status.ended_trials}/{status.trials}"

    def best_value(self, status: RunStatus) -> float | None:
        """Return the best value of the first objective, for another column; None without one."""
        return None if status.best is None or not status.best.values else status.best.values[0]

    def seconds_left(self, status: RunStatus) -> float | None:
        """Return the seconds to the end; None while unknown."""
        return status.eta

    def stand(self, status: RunStatus) -> str:
        """Return the progress of a run when it was stopped."""
        return f"{status.ended_trials} of {errors.counted(status.trials, self.noun)} had ended"

    def workers(self, status: RunStatus) -> Table | None:
        """Return the table of a run's workers; None without workers."""
        return None

    def failure(self, run: str, row: TrialRow) -> str:
        """Return a line about a failed attempt; "" if the summary of the run suffices."""
        again = "; it is retried" if row.state is TrialState.LOST else f"; `platform logs {run} {row.trial}`"
        return f"{self.noun} {row.trial}: {errors.shortened(reason(row), LONGEST)}{again}"

    def ordered(self, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the trials of a run, given best first, in the order in which to show them."""
        return rows

    def why_no_best(self, run: str) -> str:
        """Return the reason why a run has no best trial to print; "" if it has one."""
        return ""

    def logs(self, handle: RunHandle, trial: int | None, attempt: int | None, *, follow: bool) -> Iterator[str]:
        """Yield lines of a trial's log, or of the log of the whole run.

        Raises:
            InputError: there is no such trial.
        """
        if trial is None and attempt is not None:
            raise click.UsageError("--attempt needs a TRIAL")
        return handle.logs(trial, attempt, follow=follow)

    def worker_logs(self, handle: RunHandle, trial: int, worker: int, *, follow: bool) -> Iterator[str]:
        """Yield lines of one worker's log."""
        raise click.UsageError(f"--worker is for collections, and {handle.name} is not one")


def took(status: RunStatus) -> str:
    """Return the duration of an ended run; "" while unknown."""
    return output.duration(status.ended - status.started) if status.ended and status.started else ""


def parameters(status: RunStatus) -> str:
    """Return the parameters of the best trial, or of a training."""
    return "" if status.best is None else ", ".join(f"{k}={output.cell(v)}" for k, v in status.best.params.items())


def slots(status: RunStatus) -> str:
    """Return the number of the run's slots that are ready."""
    return f"{status.slots_ready}/{status.slots} slots ready"


def reason(row: TrialRow) -> str:
    """Return the reason for a failed attempt, beginning with the failure class; "" if it did not fail."""
    message = output.cell(row.message)
    if row.failure is None:
        return message
    return message if message.startswith(row.failure.value) else f"{row.failure}: {message}"


def numbered(noun: str, rows: Sequence[TrialRow]) -> list[Column]:
    """Return the columns that identify each row: its trial, and its attempt if any was retried."""
    trials: Column = (noun, [row.trial for row in rows])
    attempts: Column = ("attempt", [row.attempt for row in rows])
    return [trials, attempts] if any(row.attempt > 1 for row in rows) else [trials]


def goals(job: Job) -> str:
    """Return the goals of a job: `maximize accuracy`, or `maximize best accuracy`."""
    return ", ".join(
        f"{objective.direction} {'best ' if objective.of == 'best' else ''}{objective.metric}"
        for objective in job.objectives
    )


def best_steps(job: Job, rows: Sequence[TrialRow]) -> list[Column]:
    """Return columns with the step of the best report, for objectives whose best report counts."""
    best = [objective.metric for objective in job.objectives if objective.of == "best"]
    return [(f"{metric} at step", [row.best_steps.get(metric) for row in rows]) for metric in best]


def table(names: Sequence[Column], rows: Sequence[TrialRow], shown: Sequence[Column]) -> Table:
    """Return results as a table: identifying columns, state, `shown` columns, time, and message if any row has one."""
    columns: list[Column] = [*names, ("state", [row.state.value for row in rows]), *shown]
    columns.append(("time", [output.duration(row.seconds) for row in rows]))
    messages = [": ".join(filter(None, (reason(row), "" if row.feasible else "infeasible"))) for row in rows]
    if any(messages):
        columns.append(("message", messages))
    return [name for name, _ in columns], [list(line) for line in zip(*(values for _, values in columns), strict=True)]
