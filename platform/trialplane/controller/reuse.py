"""Takes over results, ends of attempts, and checkpoints to start from, from earlier trials.

With `reuse` the earlier trials are of another run, and with `duplicates: answer` of this one. An attempt that takes over an
end is not run: it is answered.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trialplane.controller.following import Following
from trialplane.job.kinds import Job
from trialplane.ledger.attempts import Attempt
from trialplane.wire import earlier
from trialplane.wire.earlier import Beginning, Earlier, EarlierTrial
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import TrialState


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

    def __init__(
        self,
        job: Job,
        run: str,
        earlier_trials: Earlier,
        attempts: Mapping[int, Attempt],
    ) -> None:
        self._job = job
        self._run = run
        self._attempts = attempts
        self._is_promoted = job.search.ladder is not None  # whether trials are paused at rungs
        self._answers: collections.deque[TrialRequest] = collections.deque()  # attempts that will get an earlier result
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
        """Return whether an attempt takes over the result of an earlier trial. `take_answers` then yields it."""
        has_result = self._reusable_trial(request) is not None
        if has_result:
            self._answers.append(request)
        return has_result

    def take_answers(
        self, is_stuck: bool
    ) -> Iterator[tuple[TrialRequest, TrialOutcome, Sequence[tuple[int, Mapping[str, float]]]]]:
        """Yield attempts that end now, each with its outcome and the reports that it takes over: pairs of step and metrics.

        Args:
            is_stuck: Whether nothing starts before one of them has ended.
        """
        is_stuck = is_stuck and not self._answers
        while self._answers:
            request = self._answers.popleft()
            trial = self._reusable_trial(request)
            assert trial is not None
            outcome = TrialOutcome(
                request.number, TrialState.COMPLETE, metrics=trial.metrics, returned=trial.returned, step=trial.step
            )
            yield request, _answered(outcome, trial.run, trial.trial), ()
        for request in self.following.take_due(is_stuck):
            attempt = self.following.repeated_attempt(request)
            assert attempt is not None
            assert attempt.outcome is not None
            outcome = dataclasses.replace(attempt.outcome, number=request.number)
            yield request, _answered(outcome, attempt.run, attempt.trial), attempt.reports

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
        beginning, segment = self._equal_beginning(request), request.segment
        if beginning is None or segment is None:
            return beginning
        continues_own = segment.parent is not None
        is_before_rung = not segment.rung or beginning.step + beginning.offset < segment.rung
        return beginning if is_before_rung and not continues_own else None

    def _equal_beginning(self, request: TrialRequest) -> Beginning | None:
        """Return the checkpoint of an earlier trial that was trained in the same way, at whatever step; None without one."""
        if not self._beginnings:
            return None
        return self._beginnings.get(self._beginning_key({**self._job.params, **request.params}, request.seed))

    def _beginning_key(self, params: Mapping[str, Any], seed: int) -> tuple[str, int | None]:
        """Return the key in `_beginnings` of a trial with these parameters and this seed.

        With promotion the seed counts, because the trial may have trained its first segments in this run, with its own seed.
        """
        return earlier.params_key(params), seed if self._is_promoted else None

    def add_beginning(self, request: TrialRequest, outcome: TrialOutcome) -> TrialOutcome:
        """Return an outcome that says from which checkpoint of an earlier run its trial has begun, if from any.

        The fields `begun_from` and `spared_steps` say that, and the message does unless the attempt failed.
        """
        beginning, start = self.beginning(request), request.start
        message = outcome.message
        if beginning is None or start is None or start.step < 0:  # it has started at step 0, see `Parent`
            if outcome.failure is None and not outcome.answered_by:
                message = "; ".join(filter(None, (message, self._reason_to_begin_anew(request))))
            return dataclasses.replace(outcome, begun_from="", spared_steps=0, message=message)
        if outcome.failure is None:  # the messages of failures are compared, so they stay as they are
            text = f"continued from step {start.step} of trial {start.trial} of {request.resume}"
            message = "; ".join(filter(None, (message, text)))
        return dataclasses.replace(
            outcome,
            begun_from=f"{request.resume}:{start.trial}",
            spared_steps=start.step + beginning.offset,
            message=message,
        )

    def _last_pause(self, request: TrialRequest) -> TrialOutcome | None:
        """Return the outcome with which the trial was paused before an attempt; None if it was not."""
        number = request.retry_of
        while number is not None:
            attempt = self._attempts[number]
            if attempt.outcome is not None and attempt.outcome.state is TrialState.PAUSED:
                return attempt.outcome
            number = attempt.request.retry_of  # the attempt has failed, and itself repeats or continues this one
        return None

    def _reason_to_begin_anew(self, request: TrialRequest) -> str:
        """Return why an attempt at a trial whose pause an earlier run has answered starts at step 0; "" if it does not."""
        pause = self._last_pause(request)
        if pause is None or not pause.answered_by or request.segment is None or self.beginning(request) is not None:
            return ""
        beginning = self._equal_beginning(request)
        if beginning is None:
            run, _, trial = pause.answered_by.rpartition(":")
            return f"trained from step 0, because {run} has no checkpoint of trial {trial} any more"
        return (
            f"trained from step 0, because the checkpoint of trial {beginning.trial} of {beginning.run} is at or beyond the "
            f"next rung, {request.segment.rung}"
        )


def _answered(outcome: TrialOutcome, run: str, trial: int) -> TrialOutcome:
    """Return the outcome of an attempt that it takes over from a trial of an earlier run, which it names."""
    message = "; ".join(filter(None, (outcome.message, earlier.answer_message(run, trial))))
    now = time.time()
    return dataclasses.replace(outcome, message=message, answered_by=f"{run}:{trial}", started=now, ended=now)
