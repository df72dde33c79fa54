"""The protocol of presenters of runs, and the texts and tables that all kinds share.

A presenter returns texts and values only. `display` draws a `Live`, and `output` prints a table.
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

Table = tuple[list[str], list[list[Any]]]  # header and rows
Column = tuple[str, list[Any]]  # name, and a value for each row
Span = tuple[str, str]  # text and its style in rich, such as "dim" or "bold red"
MAX_MESSAGE = 2_000  # characters of an attempt's message; long, because advice is at its end


@dataclasses.dataclass(frozen=True)
class Live:
    """The live display of a run, below its name and state.

    Attributes:
        share: Share of the run that is done, from 0 to 1, drawn as a bar.
        bar_labels: Texts to the right of the bar.
        lines: Lines below the bar; each is a sequence of spans, of which those without text are not shown.
    """

    share: float
    bar_labels: tuple[str, ...]
    lines: tuple[tuple[Span, ...], ...]


class Presenter(Protocol):
    """The presentation of runs of one kind. The defaults are for a run of several trials.

    Attributes:
        noun: Noun for a trial.
        scaled_noun: Noun for the things whose number `platform scale` sets.
        max_failed_field: Field of the job that `platform resume --max-failed` sets.
        starter: Texts of job.yaml and train.py of `platform init`; `{name}` in them stands for the job's name.
    """

    noun: str = "trial"
    scaled_noun: str = "trial"
    max_failed_field: str = "budget.max_failed"
    starter: tuple[str, str]

    def job_summary(self, job: Job) -> str:
        """Return a one-line summary of a valid job."""

    def finished_hint(self, job: Job) -> str:
        """Return the next commands after the submission of a run that has already succeeded; `{0}` stands for its name."""

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

    def progress(self, status: RunStatus) -> str:
        """Return the progress of a run, for a column of `platform list`."""
        return f"{status.ended_trials}/{status.trials}"

    def best_value(self, status: RunStatus) -> float | None:
        """Return the best value of the first objective, for a column of `platform list`; None if there is none."""
        return None if status.best is None or not status.best.values else status.best.values[0]

    def seconds_left(self, status: RunStatus) -> float | None:
        """Return the seconds to the end; None while unknown."""
        return status.eta

    def progress_when_stopped(self, status: RunStatus) -> str:
        """Return the progress that a run had made when it was stopped."""
        return f"{status.ended_trials} of {errors.counted(status.trials, self.noun)} had ended"

    def workers(self, status: RunStatus) -> Table | None:
        """Return the table of a run's workers; None without workers."""
        return None

    def failure(self, run: str, row: TrialRow) -> str:
        """Return a line about a failed attempt; "" if the summary of the run covers it."""
        is_retried = row.state is TrialState.LOST  # an attempt that is not retried is FAILED
        next_step = "it is retried" if is_retried else f"`platform logs {run} {row.trial}`"
        return f"{self.noun} {row.trial}: {errors.shortened(attempt_message(row), MAX_MESSAGE)}; {next_step}"

    def in_order(self, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the trials of a run, which come best first, in the order in which they are shown."""
        return rows

    def why_no_best(self, run: str) -> str:
        """Return the reason why a run has no best trial to print; "" if it has one."""
        return ""

    def logs(self, handle: RunHandle, trial: int | None, attempt: int | None, *, follow: bool) -> Iterator[str]:
        """Yield lines of a trial's log, or of the log of the whole run.

        Raises:
            InputError: There is no such trial.
            click.UsageError: There is an attempt, but no trial.
        """
        if trial is None and attempt is not None:
            raise click.UsageError("--attempt needs a TRIAL")
        return handle.logs(trial, attempt, follow=follow)

    def worker_logs(self, handle: RunHandle, trial: int, worker: int, *, follow: bool) -> Iterator[str]:
        """Yield lines of one worker's log.

        Raises:
            click.UsageError: The run has no workers.
        """
        raise click.UsageError(f"--worker is for collections, and {handle.name} is not one")


def time_left_text(seconds: float | None) -> str:
    """Return a text such as `3 m 20 s left`; "" for None."""
    return "" if seconds is None else f"{output.duration(seconds)} left"


def values_text(status: RunStatus, row: TrialRow) -> str:
    """Return the objectives and values of a trial, as in `loss 0.12, accuracy 0.9`."""
    values = zip(status.objectives, row.values, strict=False)
    return ", ".join(f"{name} {output.cell(value)}" for name, value in values)


def spans(style: str, *texts: str) -> tuple[Span, ...]:
    """Return a line of a live display whose texts have one style."""
    return tuple((text, style) for text in texts)


def duration_text(status: RunStatus) -> str:
    """Return the duration of an ended run as a text; "" while unknown."""
    return output.duration(status.ended - status.started) if status.ended and status.started else ""


def parameters_text(status: RunStatus) -> str:
    """Return the parameters of the best trial, or of a training, as in `lr=0.01, layers=3`; "" without a result."""
    params = {} if status.best is None else status.best.params
    return ", ".join(f"{name}={output.cell(value)}" for name, value in params.items())


def slots_text(status: RunStatus) -> str:
    """Return a text with the number of the run's slots that are ready."""
    return f"{status.slots_ready}/{status.slots} slots ready"


def attempt_message(row: TrialRow) -> str:
    """Return the message of an attempt. That of a failed one begins with its failure class."""
    message = output.cell(row.message)
    if row.failure is None or message.startswith(row.failure.value):
        return message
    return f"{row.failure}: {message}"


def identifying_columns(noun: str, rows: Sequence[TrialRow]) -> list[Column]:
    """Return the columns that identify each row: its trial, and its attempt if any was retried."""
    trials: Column = (noun, [row.trial for row in rows])
    attempts: Column = ("attempt", [row.attempt for row in rows])
    return [trials, attempts] if any(row.attempt > 1 for row in rows) else [trials]


def objectives_text(job: Job) -> str:
    """Return the objectives of a job: `maximize accuracy`, or `maximize best accuracy` if the best report counts."""
    return ", ".join(
        f"{objective.direction} {'best ' if objective.of == 'best' else ''}{objective.metric}"
        for objective in job.objectives
    )


def best_step_columns(job: Job, rows: Sequence[TrialRow]) -> list[Column]:
    """Return a column with the step of the best report for each objective whose best report counts, not the last."""
    metrics = [objective.metric for objective in job.objectives if objective.of == "best"]
    return [(f"{metric} at step", [row.best_steps.get(metric) for row in rows]) for metric in metrics]


def results_table(identifiers: Sequence[Column], rows: Sequence[TrialRow], values: Sequence[Column]) -> Table:
    """Return the table of results: the identifiers, state, values, time and, if there are any, messages of attempts."""
    columns: list[Column] = [*identifiers, ("state", [row.state.value for row in rows]), *values]
    columns.append(("time", [output.duration(row.seconds) for row in rows]))
    messages = []
    for row in rows:
        infeasible = "" if row.feasible else "infeasible"
        messages.append(": ".join(part for part in (attempt_message(row), infeasible) if part))
    if any(messages):
        columns.append(("message", messages))
    header = [name for name, _ in columns]
    lines = [list(line) for line in zip(*(values_by_row for _, values_by_row in columns), strict=True)]
    return header, lines
