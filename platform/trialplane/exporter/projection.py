"""The form of a run in MLflow: its parent run, and a run for each attempt. Pure functions of the ledger's records.

Segments of a trial that continue one another, after promotions, have one run: a series. Tags and parameters of an attempt
follow from its request, and what its end adds from its outcome. So they are the same whenever they are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trialplane.exporter.batch import Batch, milliseconds
from trialplane.job import values
from trialplane.job.kinds import Job
from trialplane.ledger.attempts import Attempt
from trialplane.wire import labels, rows
from trialplane.wire.exports import End
from trialplane.wire.records import TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

MOST_PARAMS = (
    500  # of a trial; MLflow reads all that a run has for each hundred that it gets, so 5,000 would take 10 seconds
)
# A pruned trial has done its work; MLflow shows KILLED like FAILED.
_STATUS = {
    TrialState.COMPLETE: "FINISHED",
    TrialState.PRUNED: "FINISHED",
    TrialState.PAUSED: "KILLED",  # RUNNING again with a promotion
    TrialState.LOST: "FAILED",
    TrialState.FAILED: "FAILED",
}
_RUN_STATUS = {RunState.SUCCEEDED: "FINISHED", RunState.FAILED: "FAILED", RunState.CANCELLED: "KILLED"}


@dataclasses.dataclass(frozen=True)
class Best:
    """The best trial among the first ends of a run, and the values of its objectives."""

    trial: int
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Ends:
    """The first ends of attempts.

    Attributes:
        place: place of the last one; 0 for none.
        trials: number of trials that have ended for good.
        best: the best of them.
    """

    place: int = 0
    trials: int = 0
    best: Best | None = None


def parent(job: Job, submission: Mapping[str, Any]) -> Batch:
    """Return the tags and parameters of the parent run."""
    batch = Batch()
    batch.add_tags(
        {
            labels.KIND: "study",
            labels.JOB: job.name,
            labels.SEED: job.seed,
            **_code(submission),
            labels.SPEC_HASH: submission.get("spec_hash", ""),
            "mlflow.note.content": job.description,
        }
    )
    objectives = ", ".join(f"{objective.direction} {objective.metric}" for objective in job.objectives)
    batch.add_params({**job.facts(), "objectives": objectives})
    return batch


def parent_end(end: End) -> Batch:
    """Return what the end of a run adds to the parent run."""
    batch = Batch(status=_RUN_STATUS.get(end.state, "SCHEDULED"))
    batch.add_tags({labels.STATE: end.state.value, labels.MESSAGE: end.reason})
    batch.end = milliseconds(end.time) if end.state in _RUN_STATUS else None
    return batch


def name(job: Job, request: TrialRequest) -> str:
    """Return the name of an attempt's run."""
    attempt = f"-attempt-{request.attempt}" if request.attempt > 1 else ""
    return f"{job.trial_name}-{request.trial:04d}{attempt}"


def started(job: Job, request: TrialRequest, submission: Mapping[str, Any], parent_id: str) -> Batch:
    """Return the tags of an attempt's run.

    MLflow never changes a parameter: with ours it would refuse the job's own of the same name, which fails the trial, or a
    whole batch of them. So they are tags while the trial runs, and parameters once it has ended.

    Args:
        job: of the run.
        request: of the attempt.
        submission: the facts of the run's submission.
        parent_id: id of the parent run.
    """
    batch = Batch()
    batch.add_tags(
        {
            **labels.identity(request.run, submission),
            "mlflow.runName": name(job, request),
            labels.PARENT: parent_id,
            labels.KIND: "trial",
            labels.NUMBER: request.number,
            labels.TRIAL: request.trial,
            **_segment(job, request),
            labels.SEED: request.seed,
            **_code(submission),
            **({} if request.retry_of is None else {labels.RETRY_OF: request.retry_of}),
        }
    )
    shown = _shown({**job.params, **request.params})
    batch.add_tags({labels.PARAM + values.key(key): value for key, value in sorted(shown.items())})
    return batch


def promoted(job: Job, request: TrialRequest) -> Batch:
    """Return what the start of a later segment changes in a trial's run."""
    batch = Batch(status="RUNNING")
    batch.add_tags({labels.STATE: TrialState.RUNNING.value, **_segment(job, request)})
    return batch


def ended(job: Job, request: TrialRequest, outcome: TrialOutcome) -> Batch:
    """Return what the end of an attempt adds to its run: parameters, the result's metrics, its state and its times.

    A trial that is paused at a rung may still log parameters, so it has none of ours.
    """
    state = rows.displayed_state(outcome)
    batch = Batch(status=_STATUS[state], end=milliseconds(outcome.ended))
    params = _shown({**job.params, **request.params})
    if outcome.state is not TrialState.PAUSED:
        batch.add_params(dict(sorted(params.items())))
    if request.objectives:  # it has asked for some of them since it started
        batch.add_tags({labels.PARAM + values.key(key): value for key, value in sorted(params.items())})
    duration = "trial_seconds" if request.segment is None else "segment_seconds"
    seconds = {duration: outcome.ended - outcome.started} if outcome.started else {}
    steps = {f"best_step_{metric}": float(step) for metric, step in outcome.best_steps.items()}
    # Of an attempt without a result they are those of its last report, which MLflow has.
    is_open = outcome.state in (TrialState.PRUNED, TrialState.PAUSED)
    is_result = outcome.failure in (None, FailureClass.INVALID) and not is_open
    result = outcome.metrics if is_result else {}
    batch.add_metrics({**result, **steps, **seconds}, outcome.ended, outcome.step)
    batch.add_tags(
        {
            labels.STATE: state.value,
            **_segment(job, request),
            labels.NODE: outcome.node,
            labels.START_METHOD: outcome.start_method,
            **({labels.CLASS: outcome.failure.value} if outcome.failure else {}),
            # Also an empty one, if an earlier segment may have had another.
            **({labels.MESSAGE: outcome.message} if outcome.message or request.segment else {}),
            **({labels.ANSWERED_BY: outcome.answered_by} if outcome.answered_by else {}),
        }
    )
    return batch


def better(job: Job, best: Best | None, attempt: Attempt) -> Best | None:
    """Return the attempt's result if it is better than the best one before it, or None."""
    if attempt.outcome is None or not job.objectives:
        return None
    row = rows.row(job, attempt.request, attempt.request.params, attempt.outcome)
    if row.state is not TrialState.COMPLETE or not row.feasible:
        return None
    before = [] if best is None else [TrialRow(best.trial, TrialState.COMPLETE, 1, 0, values=best.values)]
    best_row = rows.best_trial(job, [*before, row])
    return Best(row.trial, tuple(row.values)) if best_row is row else None


def is_last(outcome: TrialOutcome | None) -> bool:
    """Whether a trial has ended for good with an attempt, unless the user has it tried again."""
    return outcome is not None and not outcome.retried and outcome.state is not TrialState.PAUSED


def improvement(job: Job, best: Best, attempt: Attempt, trials: int) -> Batch:
    """Return the metrics of the parent run for a new best trial, at the number of trials that had ended by then."""
    assert attempt.outcome is not None
    batch = Batch()
    values_ = {f"best_{job.objectives[0].metric}": best.values[0], "best_trial": float(best.trial)}
    batch.add_metrics(values_, attempt.outcome.ended, trials)
    return batch


def has_more_params(job: Job, request: TrialRequest) -> bool:
    """Whether an attempt has more parameters than MLflow shows."""
    return len({**job.params, **request.params}) > MOST_PARAMS


def _segment(job: Job, request: TrialRequest) -> dict[str, Any]:
    """The tags that differ between the segments of a trial."""
    segment, ladder = request.segment, job.search.ladder
    if segment is None or ladder is None:
        return {labels.ATTEMPT: request.attempt}
    promotions = sum(rung <= segment.done for rung in ladder.rungs(ladder.bracket(request.trial)))
    return {labels.ATTEMPT: request.attempt, labels.RUNG: segment.rung, labels.PROMOTIONS: promotions}


def _code(submission: Mapping[str, Any]) -> dict[str, Any]:
    return {
        labels.GIT_REVISION: submission.get("git_revision", ""),
        labels.CODE_HASH: submission.get("code_hash", ""),
    }


def _shown(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that MLflow shows: those that are searched come last, and count first."""
    return dict(list(params.items())[-MOST_PARAMS:])
