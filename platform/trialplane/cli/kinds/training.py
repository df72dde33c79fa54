"""The presenter of trainings: step, rate and time left; attempts instead of trials."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from trialplane import errors
from trialplane.cli import output, starters
from trialplane.cli.kinds import presenter
from trialplane.cli.kinds.presenter import Column, Live, Presenter, Table
from trialplane.wire import ranks
from trialplane.wire.progress import TrainingProgress
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState, TrialState

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.job.kinds import Job, Training

# Metric with a training's own estimate of the time left, which `training/progress.py` reports.
_SECONDS_LEFT = "seconds_left"
# Metrics of speed and progress, which are not results.
_SPEED_METRICS = {
    _SECONDS_LEFT,
    ranks.SLOWEST_RANK,
    ranks.SLOWEST_RANK_FACTOR,
    "samples_per_second",
    "samples_per_second_and_rank",
    "seconds_per_step",
    "tokens_per_second",
    "tokens_per_second_and_rank",
    "total_steps",
}
_RATES = {"tokens_per_second": "tokens/s", "samples_per_second": "samples/s"}


class TrainingPresenter(Presenter):
    """The presentation of a training."""

    starter = starters.TRAINING

    def job_summary(self, job: Job) -> str:
        """Return a line with the number of ranks, nodes and GPUs, and the objectives."""
        training = cast("Training", job)
        gpus = f"with {errors.counted(job.resources.gpus, 'GPU')}" if job.resources.gpus else "without GPUs"
        each = " each" if job.resources.gpus and training.nodes > 1 else ""
        nodes = errors.counted(training.nodes, "node")
        return f"{errors.counted(job.world_size, 'rank')} on {nodes} {gpus}{each}, {presenter.objectives_text(job)}"

    def finished_hint(self, job: Job) -> str:
        """Return the command to show the metrics, and how to train again; `{0}` stands for the run."""
        return "`platform results {0}` shows its metrics; another training needs another --name"

    def line(self, status: RunStatus) -> str:
        """Return the step, the measures of the newest report, the rank that delays others, and the restarts."""
        share = _done_share(status)
        step = _step_text(status) + (f" ({output.percent(share)})" if share is not None else "")
        parts = (step or _start_text(status), *_measure_texts(status), _slowest_rank_text(status), restarts_text(status))
        return "; ".join(part for part in parts if part)

    def summary(self, handle: RunHandle, status: RunStatus) -> Iterator[str]:
        """Yield lines with the result, the log, and the commands that continue a training that failed."""
        name, duration, result = handle.name, presenter.duration_text(status), _result_text(status)
        # The objectives of the result, if there is one, instead of those of the last batches.
        measures = [f"result: {result}", *_rate_texts(status)] if result else _measure_texts(status)
        outcome = "; ".join(part for part in (_step_text(status), *measures, restarts_text(status)) if part)
        yield f"{outcome or 'no step was reported'}" + (f"; in {duration}" if duration else "")
        log = f"`platform logs {name}` (in {handle.log_location()})"
        yield f"its log: {log}; its metrics: `platform results {name}`, `platform ui`"
        if status.state in (RunState.FAILED, RunState.CANCELLED) and _step_text(status):  # without a step, no checkpoint
            local = "" if handle.target.remote else " --local"
            yield f"continue from its newest checkpoint: `platform resume {name}`"
            yield f"the same with other code or parameters: `platform submit train {status.job} --resume {name}{local}`"

    def live(self, status: RunStatus) -> Live:
        """Return a bar of steps, with measures, the time left and warnings below it."""
        share = 1.0 if status.complete else _done_share(status)
        time_left = presenter.time_left_text(self.seconds_left(status))
        lines = (
            presenter.spans("", *_measure_texts(status), time_left),
            presenter.spans("dim", _details_text(status), presenter.slots_text(status), status.mlflow),
            presenter.spans("yellow", _slowest_rank_text(status), restarts_text(status)),
        )
        labels = (_step_text(status), "" if share is None else output.percent(share))
        return Live(share=share or 0.0, bar_labels=labels, lines=lines)

    def fields(self, status: RunStatus) -> dict[str, object]:
        """Return the line of the training, its other metrics, its result and its parameters."""
        fields = {"training": self.line(status), "also": _details_text(status), "result": _result_text(status)}
        return {**fields, "parameters": presenter.parameters_text(status)}

    def progress(self, status: RunStatus) -> str:
        """Return `done`, `failed`, `stopped`, the share of steps done or the step; "" before the first report."""
        if status.complete:  # a training is one trial, so that each of these counts is 0 or 1
            return "done"
        if status.failed:
            return "failed"
        if status.pruned:
            return "stopped"
        share = _done_share(status)
        return _step_text(status) if share is None else output.percent(share)

    def results(self, job: Job, rows: Sequence[TrialRow]) -> Table:
        """Return a table of attempts with their metrics, those that the job requires first. Those of speed are left out."""
        reported_names = [name for row in rows for name in row.metrics if name not in _SPEED_METRICS]
        metric_names = dict.fromkeys([*job.required_metrics, *reported_names])
        metrics: list[Column] = [(name, [row.metrics.get(name) for row in rows]) for name in metric_names]
        metrics += presenter.best_step_columns(job, rows)
        return presenter.results_table([("attempt", [row.attempt for row in rows])], rows, metrics)

    def seconds_left(self, status: RunStatus) -> float | None:
        """Return the estimate of the controller, or else that of the training; None while it does not run, or unknown."""
        if not status.running:
            return None
        return status.eta if status.eta is not None else _progress(status).metrics.get(_SECONDS_LEFT)

    def progress_when_stopped(self, status: RunStatus) -> str:
        """Return the last step."""
        return _step_text(status) or "it had not reported a step"

    def failure(self, run: str, row: TrialRow) -> str:
        """Return a line for an attempt that is retried; "" for the last one, which the run's summary covers."""
        is_retried = row.state is TrialState.LOST  # an attempt that is not retried is FAILED
        if not is_retried:
            return ""
        message = errors.shortened(presenter.attempt_message(row), presenter.MAX_MESSAGE)
        return f"attempt {row.attempt}: {message}; it restarts from its last checkpoint"

    def why_no_best(self, run: str) -> str:
        """Return that the parameters of a training are those of its job."""
        return (
            f"{run} is a training, which searches nothing: its parameters are those of the job "
            f"(`platform results {run}` shows its metrics)"
        )

    def logs(self, handle: RunHandle, trial: int | None, attempt: int | None, *, follow: bool) -> Iterator[str]:
        """Yield lines of the training's log, or of one of its attempts.

        Raises:
            InputError: There is a trial other than 0.
        """
        name = handle.name
        if trial:
            raise errors.InputError(
                f"{name} is a training, and has no trial {trial}: `platform logs {name}` shows the output of all its ranks, "
                f"`platform logs {name} --attempt {trial}` its attempt {trial}"
            )
        if trial is None and attempt is None:
            return _newest_logs(handle, follow)
        return handle.logs(trial=0, attempt=attempt, follow=follow)


def restarts_text(status: RunStatus) -> str:
    """Return a text with the number of restarts; "" without a restart."""
    restart_count = status.retried  # each retried attempt is followed by a restart
    is_restart_pending = not (status.running or status.ended_trials)  # perhaps until `platform resume`
    if is_restart_pending:
        restart_count -= 1
    times = {1: "once", 2: "twice"}.get(restart_count, f"{restart_count} times")
    return f"restarted {times}" if restart_count > 0 else ""


def _progress(status: RunStatus) -> TrainingProgress:
    assert isinstance(status.progress, TrainingProgress)  # a record of a training has no other
    return status.progress


def _done_share(status: RunStatus) -> float | None:
    """Return the share of steps done, from 0 to 1; None while unknown."""
    progress = _progress(status)
    if progress.step is None or not progress.total_steps:
        return None
    return min(1.0, progress.step / progress.total_steps)


def _step_text(status: RunStatus) -> str:
    """Return a text such as `step 1,200/10,000`, without an unknown total; "" before the first report."""
    progress = _progress(status)
    if progress.step is None:
        return ""
    return f"step {progress.step:,}" + (f"/{progress.total_steps:,}" if progress.total_steps else "")


def _measure_texts(status: RunStatus) -> list[str]:
    """Return texts with the objectives, the loss and the rates of the newest report."""
    metrics = _progress(status).metrics
    names = [*status.objectives, *(["loss"] if "loss" not in status.objectives else [])]
    return [*(f"{name} {output.cell(metrics[name])}" for name in names if name in metrics), *_rate_texts(status)]


def _rate_texts(status: RunStatus) -> list[str]:
    metrics = _progress(status).metrics
    return [f"{output.rate(metrics[name])} {unit}" for name, unit in _RATES.items() if name in metrics]


def _details_text(status: RunStatus) -> str:
    """Return a text with the metrics of the newest report that no other text has."""
    other_texts = (_SECONDS_LEFT, ranks.SLOWEST_RANK, "loss", *status.objectives, *_RATES)
    metrics = ranks.without_seconds(_progress(status).metrics)
    return ", ".join(f"{name} {output.cell(value)}" for name, value in metrics.items() if name not in other_texts)


def _result_text(status: RunStatus) -> str:
    """Return a text with the objectives of the result; "" before the end. The newest report may lack them."""
    return "" if status.best is None else presenter.values_text(status, status.best)


def _slowest_rank_text(status: RunStatus) -> str:
    """Return a text with the rank that delays the others; "" if none does."""
    rank = _progress(status).metrics.get(ranks.SLOWEST_RANK)
    return "" if rank is None else f"rank {rank:.0f} delays the others"


def _start_text(status: RunStatus) -> str:
    """Return the state of a training that has reported no step; "" if it has not started."""
    if status.ended_trials:
        return "ended"
    return "the training has started; it has not reported a step yet" if status.running else ""


def _newest_logs(handle: RunHandle, follow: bool) -> Iterator[str]:
    """Yield lines of the newest attempt's log and, with `follow`, of the logs of later attempts until the run ends.

    If no attempt has started, print a note about this on stderr, and yield the lines of the controller's log at the end.
    """
    shown_attempt = 0  # none so far
    has_noted = False
    while True:
        is_active = handle.is_active()  # read first, so that an attempt that has just started is not missed
        newest = max((row.attempt for row in handle.attempts()), default=0)
        if newest > shown_attempt:
            shown_attempt = newest
            # A training is trial 0 of its run. With `follow`, this lasts until the attempt ends.
            yield from handle.logs(trial=0, attempt=newest, follow=follow)
            if not follow:
                break
            continue
        if not (follow and is_active):
            break
        if not shown_attempt and not has_noted:
            has_noted = True
            output.note(f"{handle.name} has not started to train; `platform status {handle.name}` shows why")
        time.sleep(handle.target.poll)  # until the next attempt
    if not shown_attempt:
        output.note(f"{handle.name} has not started to train; this is its controller's log")
        yield from handle.logs()
