"""The presenter of studies: trials by state, and the best of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from trialplane import errors
from trialplane.cli import names, output, starters
from trialplane.cli.kinds import presenter
from trialplane.cli.kinds.presenter import Column, Live, Presenter, Table
from trialplane.wire.progress import StudyProgress
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import TrialState

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.job.kinds import Job, Study


_LEAST_ALIKE, _MOST_ALIKE = 3, 1000  # trials with one result that a warning is about


class StudyPresenter(Presenter):
    """The presentation of a study."""

    starter = starters.STUDY

    def job_summary(self, job: Job) -> str:
        """Return a line with the number of trials, the size of the space, the objectives, the sampler and the pruner."""
        study = cast("Study", job)
        search = study.search
        space = search.function or errors.counted(len(search.parameters), "parameter")
        if search.suggests:
            space = f"parameters of {study.entrypoint.removeprefix('optuna:')}"
        comparison = f" by {job.watched_metric}" if study.pruner.name != "none" and job.watched_metric else ""
        if study.population is not None:
            comparison = f", population {study.population.comparison}"
        return (
            f"{errors.counted(study.trials, 'trial')}, {study.parallel} at a time, {space}, {presenter.goals(job)}, "
            f"sampler {study.sampler.name}, pruner {study.pruner.name}{comparison}"
        )

    def finished_hint(self, job: Job) -> str:
        """Return the commands to show the trials, and to run more of them; `{0}` stands for the run."""
        hint = "`platform resume {0} --trials N` runs more"
        if job.search.population is not None:
            hint = "`platform best {0} --schedule` its best parameters by step"
        return f"`platform results {{0}}` shows its trials, {hint}"

    def line(self, status: RunStatus) -> str:
        """Return the number of trials by state, and the best value."""
        best_text = best(status)
        return f"{counts(status)}; best {best_text}" if best_text else counts(status)

    def summary(self, handle: RunHandle, status: RunStatus) -> Iterator[str]:
        """Yield lines with the counts, the best trial with its parameters, and the next commands."""
        name, duration = handle.name, presenter.run_duration(status)
        yield counts(status) + (f" in {duration}" if duration else "")
        if status.best is not None and status.best.values:
            yield f"best {best(status)}"
            for key, value in status.best.params.items():
                yield f"  {key} = {output.cell(value)}"
        if message := _same_values_message(handle, status):
            yield message
        yield f"logs are in {handle.log_location()}: `platform logs {name}`, `platform logs {name} TRIAL`"
        if status.ended_trials:
            yield f"see them all: `platform results {name}`, `platform ui`"
        if status.best is not None and handle.job.search.population is not None:
            yield f"the parameters of the best by step, for population.schedule: `platform best {name} --schedule`"
        elif status.best is not None and status.job not in names.jobs():  # `platform submit hpo NAME` would not find the job
            yield f"the best as YAML: `platform best {name}`"
        elif status.best is not None:
            local = "" if handle.target.remote else " --local"
            submit = f"platform submit hpo {status.job} --params best.yaml --trials 1{local}"
            yield f"use the best: `platform best {name} > best.yaml`, `{submit}`"

    def live(self, status: RunStatus) -> Live:
        """Return a bar of ended trials, with counts by state, the speed and the best trial below it."""
        share = status.ended_trials / status.trials if status.trials else 0.0
        count_spans = [
            (f"{status.complete} complete", "green" if status.complete else "dim"),
            (f"{status.running} running", "" if status.running else "dim"),
            (f"{status.paused} paused" if status.paused else "", ""),
            (f"{status.pruned} pruned", "" if status.pruned else "dim"),
            (f"{status.failed} failed", "red" if status.failed else "dim"),
            (f"{status.retried} retried" if status.retried else "", "yellow"),
        ]
        time_left = "" if status.eta is None else f"{output.duration(status.eta)} left"
        lines = [
            tuple(count_spans),
            tuple((text, "dim") for text in (_speed(status), time_left, presenter.slots(status), status.mlflow)),
        ]
        if best(status):
            lines.append(((f"best {best(status)}", "bold"), (presenter.parameters(status), "")))
        labels = (f"{status.ended_trials}/{status.trials}", output.percent(share))
        return Live(share, bar_labels=labels, lines=tuple(lines))

    def fields(self, status: RunStatus) -> dict[str, object]:
        """Return counts, the best trial, the speed, and what is known of rungs, checkpoints, reuse and memory."""
        progress = status.progress if isinstance(status.progress, StudyProgress) else StudyProgress()
        return {
            "trials": counts(status),
            "best": best(status),
            "parameters": presenter.parameters(status),
            "speed": _speed(status),
            "rungs": _rungs(progress),
            "checkpoints": _checkpoints(progress),
            "reuse": _reuse(progress),
            "memory": _avoided(progress),
        }

    def results(self, job: Job, rows: Sequence[TrialRow]) -> Table:
        """Return the trials with their objectives and parameters, and with their last step if they have rungs."""
        params = dict.fromkeys(name for row in rows for name in row.params)
        metrics: list[Column] = [
            (objective.metric, [row.metrics.get(objective.metric) for row in rows]) for objective in job.objectives
        ]
        parameters: list[Column] = [(name, [row.params.get(name) for row in rows]) for name in params]
        values = [*metrics, *presenter.best_steps(job, rows), *parameters]
        steps: list[Column] = [("step", [row.step for row in rows])] if job.search.ladder is not None else []
        return presenter.table(presenter.identifying_columns(self.noun, rows), rows, [*steps, *values])


def _same_values_message(handle: RunHandle, status: RunStatus) -> str:
    """Return a warning that all trials of a program have the same result despite other parameters; "" if they do not."""
    program = getattr(handle.job, "script", None) or " ".join(getattr(handle.job, "command", None) or ())
    if not program or not _LEAST_ALIKE <= status.complete <= _MOST_ALIKE:
        return ""
    rows: list[TrialRow] = []
    with contextlib.suppress(errors.TrialplaneError):  # the results cannot be read now
        rows = [row for row in handle.rows() if row.state is TrialState.COMPLETE]
    has_one_result = len({tuple(row.values) for row in rows}) == 1
    if not has_one_result or len({repr(sorted(row.params.items())) for row in rows}) < _LEAST_ALIKE:
        return ""
    result = " ".join(f"{name} {output.cell(value)}" for name, value in zip(status.objectives, rows[0].values, strict=False))
    names = ", ".join(dict.fromkeys(name for row in rows for name in row.params))
    reason = f"{names} may not reach {errors.shortened(program, 60)}, or not change {status.objectives[0]}"
    logs = " with ".join(f"`platform logs {handle.name} {row.trial}`" for row in (rows[0], rows[-1]))
    return (
        f"note: all {len(rows)} complete trials have {result}: {reason}; let it print them, and compare {logs}; "
        "`platform docs scripts` has the ways to pass parameters"
    )


def counts(status: RunStatus) -> str:
    """Return a text with the number of trials by state."""
    by_state = f"{status.complete} complete, {status.pruned} pruned, {status.failed} failed"
    text = f"{status.ended_trials}/{status.trials} ended: {by_state}"
    if status.running:
        text += f"; {status.running} running"
    if status.paused:
        text += f"; {status.paused} paused"
    if status.retried:
        text += f"; {errors.counted(status.retried, 'attempt')} retried"
    return text


def best(status: RunStatus) -> str:
    """Return a text with the best values and their trial; "" without a result."""
    if status.best is None or not status.best.values:
        return ""
    values = " ".join(
        f"{name} {output.cell(value)}" for name, value in zip(status.objectives, status.best.values, strict=False)
    )
    hint = ", one of several: `platform best` shows all" if len(status.objectives) > 1 else ""
    return f"{values} (trial {status.best.trial}{hint})"


def _rungs(progress: StudyProgress) -> str:
    """Return a text with the number of trials that have reached each rung, and of the steps trained; "" without rungs."""
    if not progress.rungs:
        return ""
    rungs = ", ".join(f"{rung.reached} at step {rung.step}" for rung in progress.rungs)
    whose = "counted, with those of the earlier trials" if progress.answered else "trained"
    return f"{rungs}; {errors.counted(progress.steps, 'step')} {whose}"


def _checkpoints(progress: StudyProgress) -> str:
    """Return a text with the number of the trials' checkpoints and their size; "" without checkpoints."""
    if not progress.checkpoints:
        return ""
    return f"{progress.checkpoints}, {output.size(progress.checkpoint_bytes)}"


def _reuse(progress: StudyProgress) -> str:
    """Return a text with the numbers of trials that earlier ones have answered, and that have begun from their checkpoints.

    It is "" without such trials.
    """
    texts = []
    if progress.answered:
        texts.append(f"{errors.counted(progress.answered, 'trial')} answered by earlier ones")
    if progress.begun:
        trials = errors.counted(progress.begun, "trial")
        texts.append(f"{trials} begun from earlier checkpoints, {errors.counted(progress.spared_steps, 'step')} spared")
    return "; ".join(texts)


def _avoided(progress: StudyProgress) -> str:
    """Return a text with the number of points that were not run, as they would be out of memory; "" without such points."""
    if not progress.avoided:
        return ""
    return f"{errors.counted(progress.avoided, 'point')} not run, at or above one that was out of memory"


def _speed(status: RunStatus) -> str:
    return "" if status.rate is None else f"{status.rate:.3g} trials/s"
