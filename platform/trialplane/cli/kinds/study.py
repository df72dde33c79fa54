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


_MIN_SAME, _MAX_SAME = 3, 1000  # complete trials among which a warning looks for equal results


class StudyPresenter(Presenter):
    """The presentation of a study."""

    starter = starters.STUDY

    def job_summary(self, job: Job) -> str:
        """Return a line such as `9 trials, 2 at a time, 4 parameters, minimize loss, sampler tpe, pruner asha by loss`."""
        study = cast("Study", job)
        search = study.search
        if search.suggests:  # the function of `entrypoint` asks Optuna for its parameters
            space = f"parameters of {study.entrypoint.removeprefix('optuna:')}"
        else:
            space = search.function or errors.counted(len(search.parameters), "parameter")
        pruner = study.pruner.name
        if study.population is not None:
            pruner += f", population {study.population.comparison}"
        elif pruner != "none" and job.watched_metric:
            pruner += f" by {job.watched_metric}"
        return (
            f"{errors.counted(study.trials, 'trial')}, {study.parallel} at a time, {space}, "
            f"{presenter.objectives_text(job)}, sampler {study.sampler.name}, pruner {pruner}"
        )

    def finished_hint(self, job: Job) -> str:
        """Return the commands to show the trials, and to run more of them; `{0}` stands for the run."""
        results = "`platform results {0}` shows its trials, "
        if job.search.population is not None:
            return results + "`platform best {0} --schedule` its best parameters by step"
        return results + "`platform resume {0} --trials N` runs more"

    def line(self, status: RunStatus) -> str:
        """Return the number of trials by state, and the best value."""
        counts, best = counts_text(status), best_text(status)
        return f"{counts}; best {best}" if best else counts

    def summary(self, handle: RunHandle, status: RunStatus) -> Iterator[str]:
        """Yield lines with the counts, the best trial with its parameters, and the next commands."""
        name, duration = handle.name, presenter.duration_text(status)
        yield counts_text(status) + (f" in {duration}" if duration else "")
        if status.best is not None and status.best.values:
            yield f"best {best_text(status)}"
            for key, value in status.best.params.items():
                yield f"  {key} = {output.cell(value)}"
        if warning := _same_values_warning(handle, status):
            yield warning
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
        count_spans = (
            (f"{status.complete} complete", "green" if status.complete else "dim"),
            (f"{status.running} running", "" if status.running else "dim"),
            (f"{status.paused} paused" if status.paused else "", ""),
            (f"{status.pruned} pruned", "" if status.pruned else "dim"),
            (f"{status.failed} failed", "red" if status.failed else "dim"),
            (f"{status.retried} retried" if status.retried else "", "yellow"),
        )
        time_left = presenter.time_left_text(status.eta)
        best = best_text(status)
        lines = (
            count_spans,
            presenter.spans("dim", _speed_text(status), time_left, presenter.slots_text(status), status.mlflow),
            ((f"best {best}" if best else "", "bold"), (presenter.parameters_text(status) if best else "", "")),
        )
        labels = (f"{status.ended_trials}/{status.trials}", output.percent(share))
        return Live(share, bar_labels=labels, lines=lines)

    def fields(self, status: RunStatus) -> dict[str, object]:
        """Return counts, the best trial, the speed, and what is known of rungs, checkpoints, reuse and memory."""
        progress = status.progress
        assert isinstance(progress, StudyProgress)  # a record of a study has no other
        return {
            "trials": counts_text(status),
            "best": best_text(status),
            "parameters": presenter.parameters_text(status),
            "speed": _speed_text(status),
            "rungs": _rungs_text(progress),
            "checkpoints": _checkpoints_text(progress),
            "reuse": _reuse_text(progress),
            "memory": _avoided_text(progress),
        }

    def results(self, job: Job, rows: Sequence[TrialRow]) -> Table:
        """Return the trials with their objectives and parameters, and with their last step if they have rungs."""
        metric_names = [objective.metric for objective in job.objectives]
        param_names = dict.fromkeys(name for row in rows for name in row.params)
        metrics: list[Column] = [(name, [row.metrics.get(name) for row in rows]) for name in metric_names]
        params: list[Column] = [(name, [row.params.get(name) for row in rows]) for name in param_names]
        steps: list[Column] = [("step", [row.step for row in rows])] if job.search.ladder is not None else []
        values = [*steps, *metrics, *presenter.best_step_columns(job, rows), *params]
        return presenter.results_table(presenter.identifying_columns(self.noun, rows), rows, values)


def _same_values_warning(handle: RunHandle, status: RunStatus) -> str:
    """Return a warning if trials of a script or a command have the same result despite other parameters; "" otherwise.

    Such a program probably ignores its arguments.
    """
    program = getattr(handle.job, "script", None) or " ".join(getattr(handle.job, "command", None) or ())
    if not program or not _MIN_SAME <= status.complete <= _MAX_SAME:
        return ""
    rows: list[TrialRow] = []
    with contextlib.suppress(errors.TrialplaneError):  # the results cannot be read now
        rows = [row for row in handle.rows() if row.state is TrialState.COMPLETE]
    different_results = {tuple(row.values) for row in rows}
    different_params = {repr(sorted(row.params.items())) for row in rows}
    if len(different_results) != 1 or len(different_params) < _MIN_SAME:
        return ""
    names = ", ".join(dict.fromkeys(name for row in rows for name in row.params))
    reason = f"{names} may not reach {errors.shortened(program, 60)}, or not change {status.objectives[0]}"
    logs = " with ".join(f"`platform logs {handle.name} {row.trial}`" for row in (rows[0], rows[-1]))
    return (
        f"note: all {len(rows)} complete trials have {presenter.values_text(status, rows[0])}: {reason}; let it print "
        f"them, and compare {logs}; `platform docs scripts` has the ways to pass parameters"
    )


def counts_text(status: RunStatus) -> str:
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


def best_text(status: RunStatus) -> str:
    """Return a text such as `loss 0.12 (trial 7)` with the values of the best trial; "" without a result."""
    if status.best is None or not status.best.values:
        return ""
    hint = ", one of several: `platform best` shows all" if len(status.objectives) > 1 else ""
    return f"{presenter.values_text(status, status.best)} (trial {status.best.trial}{hint})"


def _rungs_text(progress: StudyProgress) -> str:
    """Return a text with the number of trials that have reached each rung, and of the steps trained; "" without rungs."""
    if not progress.rungs:
        return ""
    rungs = ", ".join(f"{rung.reached} at step {rung.step}" for rung in progress.rungs)
    # The steps of earlier trials that answer one of this study count, but were not trained again.
    verb = "counted, with those of the earlier trials" if progress.answered else "trained"
    return f"{rungs}; {errors.counted(progress.steps, 'step')} {verb}"


def _checkpoints_text(progress: StudyProgress) -> str:
    """Return a text with the number of the trials' checkpoints and their size; "" without checkpoints."""
    if not progress.checkpoints:
        return ""
    return f"{progress.checkpoints}, {output.size(progress.checkpoint_bytes)}"


def _reuse_text(progress: StudyProgress) -> str:
    """Return a text with the numbers of trials that have the results of earlier ones or continue them; "" if none do."""
    texts = []
    if progress.answered:
        texts.append(f"{errors.counted(progress.answered, 'trial')} answered by earlier ones")
    if progress.begun:
        trials = errors.counted(progress.begun, "trial")
        texts.append(f"{trials} begun from earlier checkpoints, {errors.counted(progress.spared_steps, 'step')} spared")
    return "; ".join(texts)


def _avoided_text(progress: StudyProgress) -> str:
    """Return a text with the number of points that were not run, as they would be out of memory; "" without such points."""
    if not progress.avoided:
        return ""
    return f"{errors.counted(progress.avoided, 'point')} not run, at or above one that was out of memory"


def _speed_text(status: RunStatus) -> str:
    return "" if status.rate is None else f"{status.rate:.3g} trials/s"
