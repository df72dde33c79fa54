"""Takes over results, ends of attempts, and checkpoints to start from, from earlier trials.

With `reuse` the earlier trials are of another run, and with `duplicates: answer` of this one. An attempt that takes over an
end is not run: it is answered.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trialplane.controller.following import Following
from trialplane.job.kinds import Job
from trialplane.ledger.attempts import Attempt
from trialplane.wire import earlier
from trialplane.wire.earlier import Beginning, Earlier, EarlierTrial
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import TrialState


class Answer(NamedTuple):
    """The end of an attempt that is not run: its outcome and reports are those of an earlier trial."""

    request: TrialRequest
    outcome: TrialOutcome
    reports: Sequence[tuple[int, Mapping[str, float]]]  # pairs of step and metrics


class Reuse:
    """The earlier trials of one study.

    Args:
        job: Resolved job.
        run: Name of the run.
        earlier_trials: Trials of earlier runs.
        attempts: Attempts of this run so far, by number. The ledger adds to it.

    Attributes:
        following: Attempts of an earlier run that this one repeats.
        spared_steps: Number of steps that were not trained again, of each ended trial that has begun from a checkpoint of an
            earlier run.
    """

    def __init__(self, job: Job, run: str, earlier_trials: Earlier, attempts: Mapping[int, Attempt]) -> None:
        self._job = job
        self._run = run
        self._attempts = attempts
        self._has_rungs = job.search.ladder is not None  # whether trials are paused at rungs
        self._unanswered: collections.deque[TrialRequest] = collections.deque()  # attempts that will get an earlier result
        # Parameters → an earlier trial with these parameters, whose result a new trial gets. The first of several counts.
        self._reusable = {earlier.params_key(trial.params): trial for trial in reversed(earlier_trials.results)}
        # Parameters, and with promotion the seed → checkpoint of an earlier run from which a trial starts.
        self._beginnings = {
            self._beginning_key(beginning.params, beginning.seed): beginning
            for beginning in reversed(earlier_trials.beginnings)
        }
        self._answered: set[int] = set()  # trials whose newest attempt has the end of an earlier one
        self.following = Following(earlier_trials.followed)
        self.spared_steps: dict[int, int] = {}

    @property
    def answered(self) -> int:
        """The number of trials with the result of an earlier trial with the same parameters, which were not trained."""
        return len(self._answered)

    def answer(self, request: TrialRequest) -> bool:
        """Let an attempt take over the result of an earlier trial; return whether there is one. `take_answers` yields it."""
        has_result = self._reusable_trial(request) is not None
        if has_result:
            self._unanswered.append(request)
        return has_result

    def take_answers(self, is_stuck: bool) -> Iterator[Answer]:
        """Yield the ends of attempts that end now, because they take over those of earlier trials.

        Args:
            is_stuck: Whether nothing starts before one of them has ended.
        """
        is_stuck = is_stuck and not self._unanswered  # the end of one of these may let something start
        while self._unanswered:
            request = self._unanswered.popleft()
            trial = self._reusable_trial(request)
            assert trial is not None
            outcome = TrialOutcome(
                request.number, TrialState.COMPLETE, metrics=trial.metrics, returned=trial.returned, step=trial.step
            )
            yield Answer(request, _mark_answered(outcome, trial.run, trial.trial), reports=())
        for request in self.following.take_due(is_stuck):  # with `reuse`, in the order of the earlier run
            attempt = self.following.repeated_attempt(request)
            assert attempt is not None
            assert attempt.outcome is not None
            outcome = dataclasses.replace(attempt.outcome, number=request.number)
            yield Answer(request, _mark_answered(outcome, attempt.run, attempt.trial), attempt.reports)

    def record_end(self, request: TrialRequest, sampled: Mapping[str, Any], outcome: TrialOutcome) -> None:
        """Record the end of an attempt. With `duplicates: answer`, later trials with its parameters take over its result."""
        if outcome.answered_by:
            self._answered.add(request.trial)
        else:
            self._answered.discard(request.trial)
        if outcome.begun_from:
            self.spared_steps[request.trial] = outcome.spared_steps
        if self._job.search.duplicates == "answer" and outcome.state is TrialState.COMPLETE and not outcome.answered_by:
            params = {**self._job.params, **sampled}
            trial = EarlierTrial(
                run=self._run,
                trial=request.trial,
                params=params,
                metrics=outcome.metrics,
                step=outcome.step,
                returned=outcome.returned,
            )
            self._reusable.setdefault(earlier.params_key(params), trial)

    def _reusable_trial(self, request: TrialRequest) -> EarlierTrial | None:
        """Return the complete earlier trial whose result an attempt takes over; None if the attempt has to run.

        With `reuse`, the earlier trial is one of another run, and with `duplicates: answer` one of this run. It has the same
        parameters. A trial that has already trained some steps in this run has to run.
        """
        has_trained = request.segment is not None and request.segment.done > 0
        return None if has_trained else self._reusable.get(earlier.params_key(request.params))

    def beginning(self, request: TrialRequest) -> Beginning | None:
        """Return the checkpoint of an earlier run from which an attempt starts; None if it starts otherwise.

        An attempt that continues a checkpoint of this run does not start from it, nor does one that ends at an earlier rung.
        """
        beginning, segment = self._matching_beginning(request), request.segment
        if beginning is None or segment is None:
            return beginning
        continues_own_checkpoint = segment.parent is not None
        trains_to_end = segment.rung == 0
        trained_steps = beginning.step + beginning.offset
        is_before_rung = trained_steps < segment.rung
        return beginning if not continues_own_checkpoint and (trains_to_end or is_before_rung) else None

    def _matching_beginning(self, request: TrialRequest) -> Beginning | None:
        """Return the checkpoint of an earlier trial that was trained in the same way, at whatever step; None without one."""
        if not self._beginnings:
            return None
        return self._beginnings.get(self._beginning_key({**self._job.params, **request.params}, request.seed))

    def _beginning_key(self, params: Mapping[str, Any], seed: int) -> tuple[str, int | None]:
        """Return the key in `_beginnings` of a trial with these parameters and this seed.

        With promotion the seed counts, because the trial may have trained its first segments in this run, with its own seed.
        """
        return earlier.params_key(params), seed if self._has_rungs else None

    def add_beginning(self, request: TrialRequest, outcome: TrialOutcome) -> TrialOutcome:
        """Return an outcome that says from which checkpoint of an earlier run its trial has begun, if from any.

        The fields `begun_from` and `spared_steps` say that, and the message does unless the attempt failed.
        """
        beginning, start = self.beginning(request), request.start
        begun_from, spared_steps, remark = "", 0, ""
        if beginning is not None and start is not None and start.step >= 0:  # -1 if it started at step 0
            begun_from = f"{request.resume}:{start.trial}"
            spared_steps = start.step + beginning.offset
            remark = f"continued from step {start.step} of trial {start.trial} of {request.resume}"
        elif not outcome.answered_by:
            remark = self._reason_to_begin_anew(request)
        message = outcome.message
        if outcome.failure is None:  # the messages of failures are compared, so they stay as they are
            message = "; ".join(filter(None, (message, remark)))
        return dataclasses.replace(outcome, begun_from=begun_from, spared_steps=spared_steps, message=message)

    def _outcome_of_pause(self, request: TrialRequest) -> TrialOutcome | None:
        """Return the outcome with which the trial was last paused before an attempt; None if it was not."""
        number = request.retry_of
        while number is not None:
            attempt = self._attempts[number]
            if attempt.outcome is not None and attempt.outcome.state is TrialState.PAUSED:
                return attempt.outcome
            number = attempt.request.retry_of  # the attempt has failed, and itself repeats or continues this one
        return None

    def _reason_to_begin_anew(self, request: TrialRequest) -> str:
        """Return why an attempt at a trial whose pause an earlier run has answered starts at step 0; "" if it does not."""
        pause = self._outcome_of_pause(request)
        if pause is None or not pause.answered_by:
            return ""
        if request.segment is None or self.beginning(request) is not None:
            return ""
        beginning = self._matching_beginning(request)
        if beginning is None:
            run, _, trial = pause.answered_by.rpartition(":")  # RUN:TRIAL
            return f"trained from step 0, because {run} has no checkpoint of trial {trial} any more"
        return (
            f"trained from step 0, because the checkpoint of trial {beginning.trial} of {beginning.run} is at or beyond the "
            f"next rung, {request.segment.rung}"
        )


def _mark_answered(outcome: TrialOutcome, run: str, trial: int) -> TrialOutcome:
    """Return an outcome that an attempt takes over from this trial of this run, with a message that names them."""
    message = "; ".join(filter(None, (outcome.message, earlier.answer_message(run, trial))))
    now = time.time()
    return dataclasses.replace(outcome, message=message, answered_by=f"{run}:{trial}", started=now, ended=now)
