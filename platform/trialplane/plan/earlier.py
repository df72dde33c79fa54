"""Trials of earlier runs for a new one: history for its sampler, results that it takes over, and checkpoints. Pure.

A trial of an earlier study is mapped to the space of the new one. Results and checkpoints are taken over only from a job
with the same `training_digest`, whose trials would be trained in the same way.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trialplane import errors
from trialplane.job import space
from trialplane.job.kinds import Job, Study
from trialplane.job.kinds.study import Reuse
from trialplane.wire import earlier as wire_earlier
from trialplane.wire import rows as wire_rows
from trialplane.wire.earlier import Beginning, EarlierAttempt, EarlierTrial
from trialplane.wire.records import ReportRow, Segment, TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import FAILURE_RULES, FailureClass, TrialState

# Fields that do not affect a trial with given parameters: they choose the trials, their number, and where they run.
IGNORED_FIELDS = frozenset(
    [
        "name",
        "description",
        "links",  # their content is compared
        "space",
        "sampler",
        "pruner",
        "constraints",
        "trials",
        "parallel",
        "keep",
        "enqueue",
        "history",
        "reuse",
        "duplicates",
        "avoid_oom",
        "budget",
        "retries",
        "notify",
        "cluster",  # its image is compared
        "params",
        "checkpoints",
    ]
)


# Fields by which a study chooses its trials. An earlier run that has the same ones is followed rather than another.
_DECIDING_FIELDS = ("sampler", "space", "enqueue", "history", "duplicates", "constraints", "objectives")
# Failures that the same code has again with the same parameters, data, seed, image, packages and kind of machine. Others may
# come from a single machine.
_OWN_FAULTS = (FailureClass.ERROR, FailureClass.OOM, FailureClass.INVALID)


def training_digest(job: Job) -> str:
    """Return a digest of all fields of a job that affect the result of a trial with given parameters, and of its seed.

    The image and the packages are among them, as with another version of a library the same code gives other results.
    """
    fields = job.model_dump(mode="json", exclude=set(IGNORED_FIELDS)) | {"image": job.cluster.image}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def refusal(old: Job, new: Job) -> str:
    """Return the reason why the sampler of a new job cannot learn from the trials of an old one. "" if it can."""
    if old.kind != "hpo":
        return f"is a {old.title}, and the sampler of a study learns from studies"
    if old.objectives_text != new.objectives_text:
        return f"has other objectives: {old.objectives_text}, and this job has {new.objectives_text}"
    return ""


class HistoryMapper:
    """Mapper of the trials of an earlier study to the space of a new one.

    A parameter that was fixed in the earlier study has this value in all of its trials. A trial is left out if a value is
    outside of the new space, or if it lacks a parameter. Only TPE, which draws parameters one by one, learns from trials
    that lack some.

    Args:
        run: Name of the earlier study.
        old: Job of the earlier study.
        new: The new job.
        rows: Newest attempt of each trial of the earlier study.
        out_of_memory: Numbers of its trials that were out of memory, for a job with `avoid_oom`.
        trains_alike: Whether both studies have the same code and fields, so that equal trials need the same memory.

    Attributes:
        trials: Trials from which the sampler learns.
    """

    def __init__(
        self,
        run: str,
        old: Job,
        new: Job,
        rows: Iterable[TrialRow],
        out_of_memory: Collection[int] = (),
        trains_alike: bool = False,
    ) -> None:
        self.trials: list[EarlierTrial] = []
        self._run, self._old, self._new = run, old, new
        self._out_of_memory, self._trains_alike = out_of_memory, trains_alike
        self._omitted = collections.Counter[str]()  # reason → number of trials
        self._ignored: dict[str, None] = {}  # names of parameters that the new study does not search
        for row in rows:
            trial = self._trial(row)
            if trial is not None:
                self.trials.append(trial)

    def notes(self) -> Iterator[str]:
        """Yield remarks for the user: the numbers of trials and the parameters, then the reasons why trials are left out."""
        names = [name for name in self._new.search.names if any(name in trial.params for trial in self.trials)]
        missing = [name for name in self._new.search.names if name not in names]
        text = f"history: {errors.counted(len(self.trials), 'trial')} of {self._run}"
        if names:
            text += f", with {', '.join(names)}"
        if missing:
            text += f"; without {', '.join(missing)}"
        if self._ignored:
            text += f"; not in the space, and so ignored: {', '.join(self._ignored)}"
        yield text
        for reason, number in self._omitted.items():
            yield f"history: {errors.counted(number, 'trial')} of {self._run} left out: {reason}"
        if total := len(self._out_of_memory):
            number = sum(trial.out_of_memory for trial in self.trials)
            others = "" if number == total else "; the others had other code, fields or parameters"
            yield f"avoid_oom: {number} of {errors.counted(total, 'trial')} of {self._run} out of memory count{others}"

    def _trial(self, row: TrialRow) -> EarlierTrial | None:
        """Return a trial in the new space. None if it is left out.

        The reason is counted for `notes`, but not for a trial without a result, such as one whose pod was lost.
        """
        # A failure that counts is one of the job's code, so it is a bad result of the parameters.
        is_bad = row.state is TrialState.FAILED and row.failure is not None and FAILURE_RULES[row.failure].counts
        if row.state not in (TrialState.COMPLETE, TrialState.PRUNED) and not is_bad:
            return None
        constrained = [constraint.metric for constraint in self._new.search.constraints]
        missing_metrics = [metric for metric in constrained if metric not in row.metrics]
        if row.state is TrialState.COMPLETE and missing_metrics:
            self._omitted[f"it has no {missing_metrics[0]}, which is constrained here"] += 1
            return None
        old_params = {**self._old.params, **row.params}
        params = self._new_params(old_params)
        if params is None:
            return None
        self._ignored.update(dict.fromkeys(name for name in row.params if name not in self._new.search.names))
        if not params:
            self._omitted["it has none of the parameters"] += 1
            return None
        # Other code, fields or parameters may need more memory or less.
        needs_equal_memory = (
            self._trains_alike
            and old_params.keys() <= {*self._new.params, *self._new.search.names}
            and _has_fixed_params(old_params, self._new)
        )
        return EarlierTrial(
            run=self._run,
            trial=row.trial,
            params=params,
            values=row.values,
            metrics={metric: row.metrics[metric] for metric in self._new.required_metrics if metric in row.metrics},
            step=row.step or 0,
            pruned=row.state is TrialState.PRUNED,
            out_of_memory=is_bad and row.trial in self._out_of_memory and needs_equal_memory,
        )

    def _new_params(self, old_params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return those parameters of an earlier trial that the new space has. None, with a reason, if they do not fit."""
        sampler = self._new.search.sampler
        params: dict[str, Any] = {}
        for name, parameter in self._new.search.parameters.items():
            if not space.is_active(parameter, params):  # a trial of the new study with these values lacks it, too
                continue
            if name not in old_params:
                if sampler.accepts_partial_trials:
                    continue
                self._omitted[f"it has no {name}, which {sampler.name} needs of every trial"] += 1
                return None
            if not parameter.contains(old_params[name]):
                self._omitted[f"its {name} is outside of the space"] += 1
                return None
            params[name] = old_params[name]
        return params


def results(run: str, job: Job, rows: Iterable[TrialRow], new: Job) -> Iterator[EarlierTrial]:
    """Yield the complete trials of an earlier run. A new run uses their results for trials with the same parameters.

    Args:
        run: Name of the run.
        job: Job of the run.
        rows: Newest attempt of each trial.
        new: Job of the new run.
    """
    required = set(new.required_metrics)
    for row in rows:
        params: Mapping[str, Any] = {**job.params, **row.params}
        if row.state is TrialState.COMPLETE and required <= row.metrics.keys() and _has_fixed_params(params, new):
            yield EarlierTrial(
                run=run,
                trial=row.trial,
                params=params,
                values=row.values,
                metrics=row.metrics,
                step=row.step or 0,
                returned=row.returned,
            )


def beginnings(
    run: str,
    job: Job,
    attempts: Iterable[tuple[TrialRequest, TrialOutcome | None]],
    new: Study,
    offset: int,
    answered: Collection[int],
) -> tuple[list[Beginning], int]:
    """Return the checkpoints of an earlier run from which trials of a new run can start.

    They are the newest ones of trials that have ended or are paused, if all parameters that the new job fixes are the same.
    Of the parameter in `reuse.steps`, a smaller number is accepted as well. Complete trials count only with a smaller one.

    Args:
        run: Name of the earlier run.
        job: Its job.
        attempts: Its attempts, with only the sampled parameters, in the order of their numbers.
        new: Job of the new run.
        offset: 1 if the code counts its steps from 0, otherwise 0.
        answered: Numbers of the attempts whose ends the new run may take over.

    Returns:
        The checkpoints, and the number of other trials that must be continued but have none, or none in the ledger, as
        after a loss.
    """
    newest = {request.trial: (request, outcome) for request, outcome in attempts}  # the newest attempt of each trial
    rows = [wire_rows.row(job, request, request.params, outcome) for request, outcome in newest.values()]
    trials_with_checkpoints = _trials_with_checkpoints(job, rows)
    steps_name = new.reuse.steps if isinstance(new.reuse, Reuse) else ""  # parameter with the number of steps of a trial
    selected: list[Beginning] = []
    lacking_count = 0
    for row, (request, outcome) in zip(rows, newest.values(), strict=True):
        params = {**job.params, **request.params}
        steps = params.get(steps_name)
        is_shorter = isinstance(steps, int) and steps < new.params[steps_name]
        if is_shorter:
            params[steps_name] = new.params[steps_name]
        is_fully_trained = row.state is TrialState.COMPLETE and not is_shorter
        if is_fully_trained or not _has_fixed_params(params, new):
            continue
        if outcome is not None and outcome.checkpoints is not None and row.trial in trials_with_checkpoints:
            selected.append(
                Beginning(
                    run=run,
                    trial=request.trial,
                    params=params,
                    seed=request.seed,
                    digest=outcome.checkpoints.digest,
                    step=outcome.step,
                    offset=offset,
                    best=dict(outcome.best),
                )
            )
        elif request.number not in answered:
            lacking_count += 1
    return selected, lacking_count


@dataclasses.dataclass(frozen=True)
class FollowableRun:
    """The attempts of an earlier run that a new run may follow.

    Attributes:
        run: Name of the earlier run.
        decides_alike: Whether its search has the fields of the new one by which trials are chosen.
        attempts: The attempts in the order of their starts, each with its retries, still without reports.
        positions: Position of each attempt in `attempts`, by its number.
    """

    run: str
    decides_alike: bool
    attempts: Sequence[EarlierAttempt] = ()
    positions: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @property
    def answered_count(self) -> int:
        """The number of attempts that need no training; an attempt and its retries count as one."""
        return sum(attempt.outcome is not None for attempt in self.attempts)

    @property
    def answered(self) -> Collection[int]:
        """The numbers of the attempts that need no training, also of the failed ones of which they are retries."""
        return {number for number, position in self.positions.items() if self.attempts[position].outcome is not None}


def followable_run(
    run: str, job: Job, attempts: Iterable[tuple[TrialRequest, TrialOutcome | None]], new: Study
) -> FollowableRun:
    """Return the attempts of an earlier run that a new run may follow.

    There are none if the pruner differs, because it has ended trials by other rules; in a population, whose trials continue
    from checkpoints of others; and with an Optuna objective, whose trials get their parameters only after their start.

    Args:
        run: Name of the earlier run.
        job: Its job.
        attempts: Its attempts, with only the sampled parameters, in the order of their numbers.
        new: Job of the new run.
    """
    assert isinstance(job, Study)
    decides_alike = all(getattr(job, field) == getattr(new, field) for field in _DECIDING_FIELDS)
    if job.pruner != new.pruner or new.population is not None or new.search.suggests:
        return FollowableRun(run, decides_alike)
    all_attempts = list(attempts)
    succeeded = [request.number for request, outcome in all_attempts if outcome is not None and outcome.failure is None]
    failed = {request.number for request, outcome in all_attempts if outcome is not None and outcome.failure is not None}
    # If all trials failed, the code may have been at fault. Another kind of machine may not fail.
    repeats_failures = bool(succeeded) and job.cluster == new.cluster
    # Numbers of the failed attempts with a retry. (An attempt that continues a paused one has `retry_of`, too.)
    retried = failed.intersection(request.retry_of for request, _ in all_attempts if request.retry_of is not None)
    selected: list[EarlierAttempt] = []
    positions: dict[int, int] = {}
    ended: list[int] = []  # positions of the attempts that have ended since the last start
    for request, outcome in all_attempts:
        params = {**job.params, **request.params}
        ended += [positions[number] for number in request.ended_before if number not in retried]
        reusable_outcome = _reusable_outcome(outcome, params, new, repeats_failures=repeats_failures)
        if request.retry_of in retried:  # it replaces the outcome of the attempt that failed
            position = positions[request.retry_of]
            selected[position] = dataclasses.replace(selected[position], outcome=reusable_outcome)
        else:
            position = len(selected)
            segment = request.segment or Segment()
            selected.append(
                EarlierAttempt(
                    run=run,
                    trial=request.trial,
                    params=params,
                    seed=request.seed,
                    rung=segment.rung,
                    done=segment.done,
                    ended_before=tuple(ended),
                    outcome=reusable_outcome,
                )
            )
            ended = []
        positions[request.number] = position
    return FollowableRun(run=run, decides_alike=decides_alike, attempts=selected, positions=positions)


def _reusable_outcome(
    outcome: TrialOutcome | None, params: Mapping[str, Any], new: Study, *, repeats_failures: bool
) -> TrialOutcome | None:
    """Return what a new run takes over of an attempt's end; None if it must train.

    These are results, and neither files nor facts of a process.

    Args:
        outcome: End of the attempt; None if it has not ended.
        params: All its parameters.
        new: Job of the new run.
        repeats_failures: Whether a failure through the trial's own fault is taken over. A sampler has learned from it, so
            the search goes on as before only if the trial fails again.
    """
    if outcome is None or not _has_fixed_params(params, new):
        return None
    if outcome.failure is not None and not (repeats_failures and outcome.failure in _OWN_FAULTS):
        return None
    if outcome.state is TrialState.COMPLETE and not outcome.metrics.keys() >= set(new.required_metrics):
        return None
    if outcome.state is TrialState.PRUNED and new.pruner.name == "none":  # the job's code has decided this
        return None
    return TrialOutcome(
        outcome.number,
        outcome.state,
        failure=outcome.failure,
        metrics=outcome.metrics,
        returned=outcome.returned,
        message="" if outcome.failure is None else _own_message(outcome),
        fingerprint=outcome.fingerprint,
        traceback=outcome.traceback,
        ended=outcome.ended,
        step=outcome.step,
        early=outcome.early,
    )


def _own_message(outcome: TrialOutcome) -> str:
    """Return the message of an outcome, without the part that says which earlier trial has answered it."""
    run, _, trial = outcome.answered_by.rpartition(":")
    return outcome.message.removesuffix("; " + wire_earlier.answer_message(run, int(trial))) if run else outcome.message


def add_reports(followable: FollowableRun, reports: Iterable[ReportRow]) -> tuple[EarlierAttempt, ...]:
    """Return the attempts to follow with their reports, and with the states that they had when they ended.

    A trial that promotion has dropped counts as pruned, but was paused when its attempt ended.

    Args:
        followable: The attempts without their reports.
        reports: Reports of the earlier run, in order.
    """
    reports_by_position: dict[int, list[ReportRow]] = collections.defaultdict(list)
    for report in reports:
        if report.number not in followable.positions:
            continue  # its attempt has started since the attempts were read
        rows = reports_by_position[followable.positions[report.number]]
        is_first_of_retry = rows and report.number > rows[-1].number
        if is_first_of_retry:  # a retry does again what follows on the step from which it continues
            rows[:] = [row for row in rows if row.step < report.step]
        rows.append(report)
    trials_from_0 = {row.trial for rows in reports_by_position.values() for row in rows if row.step == 0}
    complete: list[EarlierAttempt] = []
    for position, attempt in enumerate(followable.attempts):
        outcome = attempt.outcome
        if outcome is not None and outcome.state is TrialState.PRUNED:
            steps_done = outcome.step + 1 if attempt.trial in trials_from_0 else outcome.step
            is_at_rung = 0 < attempt.rung <= steps_done
            if is_at_rung:
                outcome = dataclasses.replace(outcome, state=TrialState.PAUSED)
        reported = tuple((row.step, row.metrics) for row in reports_by_position[position])
        complete.append(dataclasses.replace(attempt, outcome=outcome, reports=reported))
    return tuple(complete)


def _has_fixed_params(params: Mapping[str, Any], job: Job) -> bool:
    """Return whether the parameters of a trial have the values that a job fixes."""
    return all(name in params and params[name] == value for name, value in job.params.items())


def _trials_with_checkpoints(job: Job, rows: Sequence[TrialRow]) -> Collection[int]:
    """Return the numbers of the trials whose checkpoints the controller has not removed.

    It removes none, except in a job with `keep` or promotion: of the trials that have ended, it then keeps the checkpoints
    of complete ones; with `keep`, only of the best of these.
    """
    assert isinstance(job, Study)
    has_promotion = job.search.ladder is not None
    if job.keep is None and not has_promotion:
        return {row.trial for row in rows}
    remaining = [row for row in wire_rows.ranked(job, list(rows)) if row.state is TrialState.COMPLETE]
    if job.keep is not None:
        remaining = [row for row in remaining if row.feasible][: job.keep.best]
    return {row.trial for row in remaining} | {row.trial for row in rows if not row.state.is_ended}
