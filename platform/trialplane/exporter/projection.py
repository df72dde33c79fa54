"""Defines what MLflow shows of a run: a parent run, and below it a run for each series of attempts. Pure.

A series is usually one attempt. The segments of a promoted trial continue one another, and so are one series. The entries
of an attempt depend only on its request and its outcome, so writing them again changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trialplane.exporter.batch import Batch, milliseconds
from trialplane.job import mlflow_names
from trialplane.job.kinds import Job
from trialplane.ledger.attempts import Attempt
from trialplane.wire import labels, rows
from trialplane.wire.exports import End
from trialplane.wire.records import Parent, TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

# Largest number of a trial's parameters in MLflow. With each call of a hundred, MLflow reads all parameters that the run
# has, so 5,000 would take 10 seconds.
MOST_PARAMS = 500
# MLflow's status by the state of an attempt. A pruned trial is FINISHED, because MLflow shows KILLED like FAILED.
_STATUS = {
    TrialState.COMPLETE: "FINISHED",
    TrialState.PRUNED: "FINISHED",
    TrialState.PAUSED: "KILLED",  # RUNNING again after a promotion
    TrialState.LOST: "FAILED",
    TrialState.FAILED: "FAILED",
}
# MLflow's status of the parent run by the last state of the run; a paused run is SCHEDULED.
_RUN_STATUS = {RunState.SUCCEEDED: "FINISHED", RunState.FAILED: "FAILED", RunState.CANCELLED: "KILLED"}


@dataclasses.dataclass(frozen=True)
class Best:
    """The best trial so far, and the values of its objectives."""

    trial: int
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Ends:
    """A summary of all ends of attempts up to one of them.

    Attributes:
        end_number: Number of this end; 0 before the first end.
        trials: Number of trials that have ended for good.
        best: Best of these trials; None before one is complete.
    """

    end_number: int = 0
    trials: int = 0
    best: Best | None = None


def parent_start(job: Job, submission: Mapping[str, Any]) -> Batch:
    """Return the tags and parameters of the parent run at its start. They describe the job and its code."""
    batch = Batch()
    batch.add_tags(
        {
            labels.KIND: "study",  # for trainings and collections, too: by this tag the parent run is found
            labels.JOB: job.name,
            labels.SEED: job.seed,
            **_code_tags(submission),
            labels.SPEC_HASH: submission.get("spec_hash", ""),
            "mlflow.note.content": job.description,
        }
    )
    batch.add_params({**job.facts(), "objectives": job.objectives_text})
    return batch


def page_tag(run: str, *, is_stored: bool) -> dict[str, str]:
    """Return the tag of the parent run that names the page of the run.

    Args:
        run: Name of the run.
        is_stored: Whether the page is among the artifacts of the parent run.
    """
    stored = "the artifact report.html; " if is_stored else ""
    return {labels.PAGE: f"{stored}`platform ui {run}` shows it live"}


def parent_end(end: End) -> Batch:
    """Return the entries that the end of a run adds to the parent run."""
    batch = Batch(status=_RUN_STATUS.get(end.state, "SCHEDULED"))
    batch.add_tags({labels.STATE: end.state.value, labels.MESSAGE: end.reason})
    batch.end = milliseconds(end.time) if end.state in _RUN_STATUS else None
    return batch


def run_name(job: Job, request: TrialRequest) -> str:
    """Return the name of an attempt's run in MLflow."""
    attempt = f"-attempt-{request.attempt}" if request.attempt > 1 else ""
    return f"{job.trial_name}-{request.trial:04d}{attempt}"


def attempt_start(job: Job, request: TrialRequest, submission: Mapping[str, Any], parent_id: str) -> Batch:
    """Return the tags of an attempt's run at its start.

    While a trial runs, its parameters are only tags. They become MLflow's parameters after its end, because MLflow never
    changes a parameter: the job itself may still log one with the same name and another value, and would fail then.
    """
    batch = Batch()
    batch.add_tags(
        {
            **labels.identity(request.run, submission),
            "mlflow.runName": run_name(job, request),
            labels.PARENT: parent_id,
            labels.KIND: "trial",
            labels.NUMBER: request.number,
            labels.TRIAL: request.trial,
            **_segment_tags(job, request),
            labels.SEED: request.seed,
            **_code_tags(submission),
            **({} if request.retry_of is None else {labels.RETRY_OF: request.retry_of}),
        }
    )
    batch.add_tags(_param_tags(_limit_params({**job.params, **request.params})))
    return batch


def segment_start(job: Job, request: TrialRequest) -> Batch:
    """Return the entries that change in a trial's run when a later segment of the same series starts."""
    batch = Batch(status="RUNNING")
    batch.add_tags({labels.STATE: TrialState.RUNNING.value, **_segment_tags(job, request)})
    return batch


def attempt_end(job: Job, request: TrialRequest, outcome: TrialOutcome) -> Batch:
    """Return the entries that the end of an attempt adds to its run: parameters, metrics of the result, state and times.

    A trial that is paused may still log parameters itself when it continues, so it gets none yet; see `attempt_start`.
    """
    state = rows.displayed_state(outcome)
    batch = Batch(status=_STATUS[state], end=milliseconds(outcome.ended))
    params = _limit_params({**job.params, **request.params})
    if outcome.state is not TrialState.PAUSED:
        batch.add_params(dict(sorted(params.items())))
    # Only a trial of an Optuna objective has directions. It draws its parameters while it runs, so the tags of its start
    # lack them.
    if request.directions:
        batch.add_tags(_param_tags(params))
    batch.add_metrics(_end_metrics(request, outcome), moment=outcome.ended, step=outcome.step)
    batch.add_tags({labels.STATE: state.value, **_segment_tags(job, request), **_outcome_tags(request, outcome)})
    return batch


def _end_metrics(request: TrialRequest, outcome: TrialOutcome) -> dict[str, float]:
    """Return the metrics that an attempt's run gets at the attempt's end: its result, its best steps and its duration."""
    duration = "trial_seconds" if request.segment is None else "segment_seconds"
    seconds = {duration: outcome.ended - outcome.started} if outcome.started else {}
    steps = {f"best_step_{metric}": float(step) for metric, step in outcome.best_steps.items()}
    # The metrics of an attempt without a result are those of its last report, which MLflow already has.
    is_cut_short = outcome.state in (TrialState.PRUNED, TrialState.PAUSED)
    has_result = outcome.failure in (None, FailureClass.INVALID) and not is_cut_short
    result = outcome.metrics if has_result else {}
    return {**result, **steps, **seconds}


def _outcome_tags(request: TrialRequest, outcome: TrialOutcome) -> dict[str, Any]:
    """Return the tags that describe an attempt's outcome."""
    tags: dict[str, Any] = {labels.NODE: outcome.node, labels.START_METHOD: outcome.start_method}
    if outcome.failure:
        tags[labels.CLASS] = outcome.failure.value
    if outcome.message or request.segment:  # an empty message must replace the message of an earlier segment
        tags[labels.MESSAGE] = outcome.message
    if outcome.answered_by:  # a trial of an earlier run with the same parameters, whose result was taken
        tags[labels.ANSWERED_BY] = outcome.answered_by
    if outcome.begun_from:  # a checkpoint of an earlier run, which spared some steps
        tags |= {labels.BEGUN_FROM: outcome.begun_from, labels.SPARED_STEPS: outcome.spared_steps}
    return tags


def checkpoint_tags(checkpoint: Parent, series: int) -> dict[str, Any]:
    """Return the tags of the run of a trial that continues from the checkpoint of another trial.

    Args:
        checkpoint: The checkpoint.
        series: Series of the attempt that saved it. It identifies the run of that attempt.
    """
    return {labels.PARENT_NUMBER: series, labels.PARENT_TRIAL: checkpoint.trial, labels.PARENT_STEP: checkpoint.step}


def replacement_end(job: Job, before: Attempt, request: TrialRequest) -> Batch:
    """Return the entries that end the run of a paused trial, because the trial continues with other parameters in a new run.

    Args:
        job: Job of the run.
        before: Paused attempt of the trial.
        request: Request of the attempt that continues the trial.
    """
    assert before.outcome is not None
    assert request.segment is not None
    assert request.segment.parent is not None
    checkpoint = request.segment.parent
    is_own = checkpoint.trial == request.trial
    change = "changed its parameters" if is_own else f"took over the state of trial {checkpoint.trial}"
    message = f"{change} after step {checkpoint.step}"
    return attempt_end(job, before.request, dataclasses.replace(before.outcome, state=TrialState.PRUNED, message=message))


def new_best(job: Job, best: Best | None, attempt: Attempt) -> Best | None:
    """Return the trial and the values of an attempt if it is better than the best one so far; otherwise None."""
    if attempt.outcome is None or not job.objectives:
        return None
    row = rows.row(job, attempt.request, attempt.request.params, attempt.outcome)
    if row.state is not TrialState.COMPLETE or not row.feasible:
        return None
    new_best = Best(row.trial, tuple(row.values))
    if best is None:
        return new_best
    # Only the values of rows are compared. Of equal ones, the first is the best.
    best_row = TrialRow(best.trial, TrialState.COMPLETE, attempt=1, number=0, values=best.values)
    return new_best if rows.best_trial(job, [best_row, row]) is row else None


def ends_trial(outcome: TrialOutcome | None) -> bool:
    """Return whether the end of an attempt has ended its trial for good, unless the user has it retried later."""
    return outcome is not None and not outcome.retried and outcome.state is not TrialState.PAUSED


def improvement(job: Job, best: Best, attempt: Attempt, trials: int) -> Batch:
    """Return the metrics that the parent run gets for a new best trial.

    Args:
        job: Job of the run.
        best: The new best trial.
        attempt: Its attempt.
        trials: Number of trials that have ended, which is the step of the metrics.
    """
    assert attempt.outcome is not None
    batch = Batch()
    metrics = {f"best_{job.objectives[0].metric}": best.values[0], "best_trial": float(best.trial)}
    batch.add_metrics(metrics, moment=attempt.outcome.ended, step=trials)
    return batch


def has_more_params(job: Job, request: TrialRequest) -> bool:
    """Return whether an attempt has more parameters than MLflow shows."""
    return len({**job.params, **request.params}) > MOST_PARAMS


def _segment_tags(job: Job, request: TrialRequest) -> dict[str, Any]:
    """Return the tags whose values differ between the segments of a trial."""
    segment, ladder = request.segment, job.search.ladder
    if segment is None or ladder is None:
        return {labels.ATTEMPT: request.attempt}
    passed_rungs = [rung for rung in ladder.rungs(ladder.bracket(request.trial)) if rung <= segment.done]
    begins_new_run = job.search.population is not None and segment.series is None  # because its parameters are new
    promotions = 0 if begins_new_run else len(passed_rungs)
    return {labels.ATTEMPT: request.attempt, labels.RUNG: segment.rung, labels.PROMOTIONS: promotions}


def _param_tags(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tag for each parameter, in the order of their names."""
    return {labels.PARAM + mlflow_names.parameter(key): value for key, value in sorted(params.items())}


def _code_tags(submission: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tags that identify the code of a submission."""
    return {
        labels.GIT_REVISION: submission.get("git_revision", ""),
        labels.CODE_HASH: submission.get("code_hash", ""),
    }


def _limit_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last `MOST_PARAMS` parameters: the searched ones are last, and so are not left out first."""
    return dict(list(params.items())[-MOST_PARAMS:])
