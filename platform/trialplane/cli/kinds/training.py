"""The presenter of trainings: step, rate and time left; attempts instead of trials."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from trialplane import errors
from trialplane.cli import output, starters
from trialplane.cli.kinds import presenter
from trialplane.cli.kinds.presenter import Column, Live, Presenter, Table
from trialplane.wire.progress import TrainingProgress
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState, TrialState

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.job.kinds import Job, Training

# Metrics of a report that are shown apart from the others; `training/progress.py` reports them.
LEFT = "seconds_left"
SLOWEST = "slowest_rank"  # from the supervisor of the ranks, while one of them delays the others
# Metrics of speed and progress, not of quality.
_PASSING = (
    *(LEFT, "total_steps", SLOWEST, "slowest_rank_factor", "seconds_per_step"),
    *("samples_per_second", "samples_per_second_and_rank", "tokens_per_second", "tokens_per_second_and_rank"),
)
_RATES = {"tokens_per_second": "tokens/s", "samples_per_second": "samples/s"}


class TrainingPresenter(Presenter):
    """See `Presenter`."""

    finished = "`platform results {0}` shows its metrics; another training needs another --name"
    starter = starters.TRAINING

    def valid(self, job: Job) -> str:
        """See `Presenter`."""
        training = cast("Training", job)
        gpus = f"with {errors.counted(job.resources.gpus, 'GPU')}{' each' if training.nodes > 1 else ''}"
        nodes = f"{errors.counted(training.nodes, 'node')} {gpus if job.resources.gpus else 'without GPUs'}"
        return f"{errors.counted(job.world_size, 'rank')} on {nodes}, {presenter.goals(job)}"

    def line(self, status: RunStatus) -> str:
        """See `Presenter`."""
        done = _share(status)
        where = _steps(status) + (f" ({output.percent(done)})" if done is not None else "")
        parts = (where or _before(status), *_measures(status), _slowest(status), again(status))
        return "; ".join(part for part in parts if part)

    def summary(self, handle: RunHandle, status: RunStatus) -> Iterator[str]:
        """See `Presenter`."""
        name, took, result = handle.name, presenter.took(status), _result(status)
        # The objectives of its result, if there is one, rather than those of the last batches.
        measures = [f"result: {result}", *_rates(status)] if result else _measures(status)
        done = "; ".join(part for part in (_steps(status), *measures, again(status)) if part)
        yield f"{done or 'no step was reported'}" + (f"; in {took}" if took else "")
        where = f"`platform logs {name}` (in {handle.log_place()})"
        yield f"its log: {where}; its metrics: `platform results {name}`, `platform ui`"
        if status.state in (RunState.FAILED, RunState.CANCELLED) and _steps(status):  # otherwise it has no checkpoint
            local = "" if handle.target.remote else " --local"
            yield f"continue from its newest checkpoint: `platform resume {name}`"
            yield f"the same with other code or parameters: `platform submit train {status.job} --resume {name}{local}`"

    def live(self, status: RunStatus) -> Live:
        """See `Presenter`."""
        done = 1.0 if status.complete else _share(status)
        seconds_left = self.seconds_left(status)
        lines = (
            tuple(
                (text, "")
                for text in (*_measures(status), "" if seconds_left is None else f"{output.duration(seconds_left)} left")
            ),
            tuple((text, "dim") for text in (_details(status), presenter.slots(status), status.mlflow)),
            tuple((text, "yellow") for text in (_slowest(status), again(status))),
        )
        return Live(done or 0.0, (_steps(status), "" if done is None else output.percent(done)), lines)

    def fields(self, status: RunStatus) -> dict[str, object]:
        """See `Presenter`."""
        shown = {"training": self.line(status), "also": _details(status), "result": _result(status)}
        return {**shown, "parameters": presenter.parameters(status)}

    def ended(self, status: RunStatus) -> str:
        """`done`, `failed`, or its progress; "" before its first report."""
        if status.complete:
            return "done"
        if status.failed or status.pruned:
            return "failed" if status.failed else "stopped"
        done = _share(status)
        return _steps(status) if done is None else output.percent(done)

    def results(self, job: Job, rows: Sequence[TrialRow]) -> Table:
        """Return attempts instead of trials, with every metric instead of the objectives."""
        reported = (name for row in rows for name in row.metrics if name not in _PASSING)
        names = dict.fromkeys([*job.required_metrics, *reported])
        shown: list[Column] = [(name, [row.metrics.get(name) for row in rows]) for name in names]
        shown += presenter.best_steps(job, rows)
        return presenter.table([("attempt", [row.attempt for row in rows])], rows, shown)

    def seconds_left(self, status: RunStatus) -> float | None:
        """Return the controller's estimate, or that of the training; None while it does not run."""
        if not status.running:
            return None
        return status.eta if status.eta is not None else _progress(status).metrics.get(LEFT)

    def stand(self, status: RunStatus) -> str:
        """See `Presenter`."""
        return _steps(status) or "it had not reported a step"

    def failure(self, run: str, row: TrialRow) -> str:
        """Return a line for an attempt that is retried; the summary of the run covers the last one."""
        if row.state is not TrialState.LOST:
            return ""
        reason = errors.shortened(presenter.reason(row), presenter.LONGEST)
        return f"attempt {row.attempt}: {reason}; it restarts from its last checkpoint"

    def why_no_best(self, run: str) -> str:
        """See `Presenter`."""
        return (
            f"{run} is a training, which searches nothing: its parameters are those of the job "
            f"(`platform results {run}` shows its metrics)"
        )

    def logs(self, handle: RunHandle, trial: int | None, attempt: int | None, *, follow: bool) -> Iterator[str]:
        """Without a trial, the log of the training instead of the controller's."""
        name = handle.name
        if trial:
            raise errors.InputError(
                f"{name} is a training, and has no trial {trial}: `platform logs {name}` shows the output of all its ranks, "
                f"`platform logs {name} --attempt {trial}` its attempt {trial}"
            )
        return _logs(handle, follow) if trial is None and attempt is None else handle.logs(0, attempt, follow=follow)


def again(status: RunStatus) -> str:
    """Return the number of restarts, in words."""
    waits = not (status.running or status.ended_trials)  # for an attempt that has not begun, or for `platform resume`
    count = status.retried - waits
    times = {1: "once", 2: "twice"}.get(count, f"{count} times")
    return f"restarted {times}" if count > 0 else ""


def _progress(status: RunStatus) -> TrainingProgress:
    assert isinstance(status.progress, TrainingProgress)
    return status.progress


def _share(status: RunStatus) -> float | None:
    """Return the share of steps done, 0 to 1; None while unknown."""
    now = _progress(status)
    if now.step is None or not now.total_steps:
        return None
    return now.step / now.total_steps if now.step < now.total_steps else 1.0  # the quotient of huge integers may overflow


def _steps(status: RunStatus) -> str:
    """`step 1,200/10,000`, or the part of it that is known."""
    now = _progress(status)
    if now.step is None:
        return ""
    return f"step {now.step:,}" + (f"/{now.total_steps:,}" if now.total_steps else "")


def _measures(status: RunStatus) -> list[str]:
    """Return the objectives and the rates of the newest report."""
    metrics = _progress(status).metrics
    names = [*status.objectives, *(["loss"] if "loss" not in status.objectives else [])]
    return [*(f"{name} {output.cell(metrics[name])}" for name in names if name in metrics), *_rates(status)]


def _rates(status: RunStatus) -> list[str]:
    metrics = _progress(status).metrics
    return [f"{output.rate(metrics[name])} {unit}" for name, unit in _RATES.items() if name in metrics]


def _details(status: RunStatus) -> str:
    """Return the other metrics of the newest report."""
    shown = (LEFT, SLOWEST, "loss", *status.objectives, *_RATES)
    metrics = _progress(status).metrics
    return ", ".join(f"{name} {output.cell(value)}" for name, value in metrics.items() if name not in shown)


def _result(status: RunStatus) -> str:
    """Return the objectives of its result, which may be missing from its newest report; "" before its end."""
    if status.best is None or not status.best.values:
        return ""
    values = zip(status.objectives, status.best.values, strict=False)
    return ", ".join(f"{name} {output.cell(value)}" for name, value in values)


def _slowest(status: RunStatus) -> str:
    """Return the rank that delays the others; "" if none does."""
    rank = _progress(status).metrics.get(SLOWEST)
    return "" if rank is None else f"rank {rank:.0f} delays the others"


def _before(status: RunStatus) -> str:
    if status.ended_trials:
        return "ended"
    return "the training has started; it has not reported a step yet" if status.running else ""


def _logs(handle: RunHandle, follow: bool) -> Iterator[str]:
    """Yield the newest attempt's log; with `follow` also those of later attempts."""
    shown = 0
    noted = False
    while True:
        active = handle.is_active()  # read first, so that an attempt that has just begun is not missed
        newest = max((row.attempt for row in handle.attempts()), default=0)
        if newest > shown:
            shown = newest
            yield from handle.logs(0, newest, follow=follow)
        elif not (follow and active):
            break
        else:
            if not shown and not noted:
                noted = True
                output.note(f"{handle.name} has not started to train; `platform status {handle.name}` shows why")
            time.sleep(handle.target.poll)
        if not follow:
            break
    if not shown:
        output.note(f"{handle.name} has not started to train; this is its controller's log")
        yield from handle.logs()
