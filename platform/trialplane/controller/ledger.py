"""The ledger: takes trials from Optuna's `ask` and reports their ends by `tell`, each logical trial once.

The study exists twice: in memory (`History`), where samplers and pruners work without delay, and in the database
(`Store`), where a trial with its parameters is written before it starts, its reports a few times a second, and its end,
after its last report, before the next decision. On opening, memory is filled from the database, and attempts that were
running are recorded as lost, with what they had reported, and retried.

Logical trials are numbered 0 to `trials` - 1. Each attempt at one is a row in the database; a retry has the same parameters
and names in its request the attempt that it repeats. In memory, which is Optuna's, it takes the place of the attempt before.
In this room only this module, `samplers`, `suggesting`, `pruning`, `history`, `points`, `replaying`, `tune_search` and
`export` use Optuna.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import logging
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from trialplane import errors
from trialplane.controller import history, points, replaying, samplers, suggesting
from trialplane.controller.counts import BestReports, Counts, Repeats
from trialplane.controller.curves import Curves
from trialplane.controller.patience import Patience
from trialplane.controller.promotion import Promotion, Stretch
from trialplane.controller.pruning import Pruning
from trialplane.job.kinds import Job
from trialplane.ledger import Store, remote, study
from trialplane.ledger.attempts import Attempt
from trialplane.wire import earlier, labels, messages, records, rows
from trialplane.wire.earlier import EarlierTrial
from trialplane.wire.records import (
    CheckpointSummary,
    Desired,
    Parent,
    ReportRow,
    RunStatus,
    Segment,
    TrialOutcome,
    TrialReport,
    TrialRequest,
    TrialRow,
)
from trialplane.wire.states import FailureClass
from trialplane.wire.states import TrialState as State

log = logging.getLogger(__name__)

_LONGEST_REASON = 1000  # characters of a status that was refused
_REPORT_SECONDS = 0.25  # between two batches of reports
_REPORT_PAUSE = 5.0  # the same after one that could not be written
_REDRAWS = 100  # of a trial whose parameters an earlier one has
_BY_SAMPLER = 10  # of these, by the sampler; it may insist on its point
_AHEAD = 1800.0  # seconds by which the clock of a trial may be ahead
_TOP = "trialplane:top"  # attribute of a study: the rung from which no trial is promoted, if it was raised


@dataclasses.dataclass
class _Attempt:
    request: TrialRequest
    trial: optuna.trial.Trial
    started: float


class _Study(optuna.Study):
    """A study driven by ask and tell, which records a sampler's request to stop instead of refusing it."""

    exhausted = False

    def stop(self) -> None:
        """Called by samplers that have drawn every point."""
        self.exhausted = True


class Ledger:
    """One study, opened by this controller alone; `pruning` is its pruner.

    Args:
        url: of the database, or of the gateway, with the run's token: `http://:TOKEN@HOST:PORT`.
        job: the resolved job.
        run: name of the run, which names the study.
        code: folder of the job's code, for spaces and options given as functions.
        lock: file to lock when the database is SQLite.
        patience: how long to wait for a database that is away, or that another controller holds.

    Raises:
        LedgerError: see `ledger.study.Storage` and `ledger.remote.Storage`.
    """

    def __init__(
        self,
        url: str,
        job: Job,
        run: str,
        code: Path,
        lock: Path,
        *,
        patience: Patience | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.job = job
        self._search = job.search
        self.run = run
        self.counts = Counts(keeps_checkpoints=job.keeps_checkpoints)
        self.newest: dict[int, TrialRow] = {}
        self.best: TrialRow | None = None
        self.saved: dict[int, CheckpointSummary] = {}  # by trial, when its newest attempt ended
        self.status: RunStatus | None = None  # the run's last one in the database
        self._refusal = ""  # of the last status that was refused, which is logged once
        self._code = samplers.JobCode(code)
        self._patiently = patience or Patience()
        self._next = 0  # logical number of the next new trial
        self._open: dict[int, _Attempt] = {}
        self._unwritten: _Attempt | None = None  # drawn, when the ledger was full
        # Number → each attempt, with only the drawn parameters, and how it ended.
        self._attempts: dict[int, tuple[TrialRequest, TrialOutcome | None]] = {}
        self._again = Repeats(self.counts)
        ladder = job.search.ladder
        self.promotion = None if ladder is None else Promotion(ladder, job.trials, job.budget.steps)
        self._untold: list[int] = []  # trials that have ended since the last draw, in order
        self._bad: set[int] = set()  # trials that have failed by their own fault
        self._offsets: dict[int, int] = {}  # trial that has reported → 1 if it counts its steps from 0, otherwise 0
        self._dropped: list[tuple[TrialRequest, TrialOutcome]] = []
        self._stop = tuple(records.StopRule(**rule.model_dump()) for rule in job.stops)
        self._best_reports = BestReports(job.objectives, job.keeps_checkpoints)
        metrics = (*job.required_metrics, job.watched_metric, *(rule.metric for rule in job.stops))
        self._curves = Curves({metric for metric in metrics if metric})
        self._write_at = 0.0  # when the next reports are written, by the monotonic clock
        self._unwritable = ""  # why some reports are not in the database
        earlier_trials = earlier.read(code)
        self._earlier = samplers.frozen(job, earlier_trials.history)
        self._answers = {earlier.key(trial.params): trial for trial in reversed(earlier_trials.results)}
        self._points: set[str] = set()  # parameters of all trials
        self._memory = history.History(job, self._earlier)
        self.pruning = Pruning(job, self._code)
        self._study = self._memory_study()
        self.storage = self._opened(url, lock)
        try:
            self._saved_attributes: dict[str, Any] = {}
            self._load()
        except BaseException:
            self.storage.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the study; the next controller finds the attempts that are still open."""
        self.storage.close()

    def prepare(self) -> None:
        """Build the sampler and import the job's functions, so that what is wrong with them shows before a trial starts.

        Raises:
            EntrypointError: a function of the job cannot be imported.
            InputError: Optuna refuses the sampler.
        """
        samplers.build_sampler(self.job, 0, self._code)
        _ = self._space_function

    @functools.cached_property
    def _space_function(self) -> Callable[..., Any] | None:
        return self._code.function(self._search.function) if self._search.function else None

    @property
    def exhausted(self) -> bool:
        """Whether the sampler has drawn every point, and none of them is to be retried."""
        return not (self._again or self._unwritten) and (
            self._study.exhausted or samplers.grid_is_drawn(self.job, self._study)
        )

    @property
    def is_done(self) -> bool:
        """Whether every trial has ended, or the sampler has none left to draw."""
        if self.counts.paused or self.counts.running or self._again:
            return False
        is_spent = self.promotion is not None and self.promotion.is_spent
        return self.counts.ended >= self.job.trials or self.exhausted or is_spent

    @property
    def unstarted(self) -> int:
        """The number of trials that may start now or later, if the sampler draws as many points as there are trials."""
        undrawn = self.job.trials - self._next + (self._unwritten is not None)
        return len(self._again) + undrawn + self.counts.paused

    def ask(self) -> TrialRequest | None:
        """The next attempt, written to the database; None when nothing is left to start.

        Raises:
            EntrypointError: the job's space function fails.
            LedgerError: the database cannot be written. After LedgerFull the next call tries the same attempt again.
        """
        if self._unwritten is not None:
            attempt = self._unwritten
        elif self._again:
            attempt = self._repeat(self._again.take())
        elif self.promotion is not None:
            stretch = self.promotion.next(self._next if self._can_draw else None)
            if stretch is None:
                if not self.counts.running:
                    self._drop(self.promotion.waiting)
                return None
            attempt = self._draw(self._next) if stretch.trial is None else self._continue(stretch)
        elif self._can_draw:
            attempt = self._draw(self._next)
        else:
            return None
        self._unwritten = attempt
        self._write(self.storage.begin, attempt.request.number)
        self._unwritten = None
        self._count_start(attempt.request)
        self._open[attempt.request.number] = attempt
        self.counts.running += 1
        self._show(rows.row(self.job, attempt.request, self._sampled(attempt.request.number), None))
        return attempt.request

    @property
    def _can_draw(self) -> bool:
        return self._next < self.job.trials and not self.exhausted

    def take_dropped(self) -> list[tuple[TrialRequest, TrialOutcome]]:
        """Return the last attempts of paused trials that were dropped since the last call, and how they ended."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def suggest(self, number: int, parameter: messages.Suggest) -> messages.Suggested:
        """Draw a parameter that a running attempt requests, and write it to the database before answering.

        So a retry, which repeats what the attempts before it were given, never gets another value.

        Raises:
            LedgerError: the database cannot be written.
        """
        attempt = self._open.get(number)
        if attempt is None:
            return messages.Suggested(None, "the trial has ended")
        with self._drawing():
            answer = suggesting.suggest(attempt.trial, self.job, parameter, self._code)
        sampled = self._sampled(number)
        if answer.value is not None and parameter.name not in sampled:
            sampled[parameter.name] = suggesting.value(parameter, answer.value)
            attempt.request = dataclasses.replace(attempt.request, params={**self.job.params, **sampled})
            self._attempts[number] = dataclasses.replace(attempt.request, params=sampled), None
            self._write(self.storage.draw, number)
            self._show(rows.row(self.job, attempt.request, sampled, None))
        return answer

    def report(self, report: TrialReport) -> bool:
        """Take the metrics of one step, in the order they were reported; True when the pruner decides to end the trial.

        A report of an attempt that is not running is ignored.
        """
        attempt = self._open.get(report.number)
        if attempt is None:
            return False
        now = time.time()
        if not 0 <= report.time <= now + _AHEAD:  # a trial may say anything
            report = dataclasses.replace(report, time=now)
        self._curves.add(attempt.request, report)
        self._see(attempt.request.trial, report.step)
        return self._compare(attempt, report.step, report.metrics)

    def _compare(self, attempt: _Attempt, step: int, metrics: Mapping[str, float]) -> bool:
        """Take a report for the objectives that are the best of them, and for the pruner; True when that ends the trial."""
        self._best_reports.add(attempt.request.trial, step, metrics)
        if not self.job.watched_metric:  # Optuna copies all reports for each new one, and a training may have millions
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # optuna on a step reported twice: the first counts
            return self.pruning.report(attempt.trial, step, metrics)

    def write_reports(self, *, patient: bool = False) -> None:
        """Write the reports that have come since the last time, unless that was a moment ago.

        While the database is away they are kept, as many as it would keep. Results go before reports: those for which a
        namespace has no room are left out.

        Args:
            patient: whether to write them in any case, and to wait for a database that is away.
        """
        if not patient and time.monotonic() < self._write_at:
            return
        self._write_at = time.monotonic() + _REPORT_SECONDS
        while (batch := self._curves.batch()) is not None:
            write = functools.partial(self.storage.report, batch.reports, batch.deleted)
            try:
                if patient:
                    self._patiently(write)
                else:
                    write()
            except errors.LedgerUnavailable:
                if patient:
                    raise
                self._write_at = time.monotonic() + _REPORT_PAUSE
                return
            except (errors.LedgerFull, errors.LedgerRefused) as error:
                self._unwritable = self._unwritable or f"curves lack reports that the ledger does not take: {error}"
                self._write_at = time.monotonic() + _REPORT_PAUSE
                self._curves.refused()
            else:
                self._curves.written()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the user on the curves in the database."""
        return tuple(filter(None, (self._curves.remark, self._unwritable)))

    def tell(self, outcome: TrialOutcome) -> TrialOutcome | None:
        """Write how an attempt ended, once.

        Returns:
            The outcome with `retried` decided, or None when the attempt is not running: a late result of a former
            attempt, or one already recorded.
        """
        attempt = self._open.get(outcome.number)
        if attempt is None:
            return None
        request = attempt.request
        outcome = dataclasses.replace(outcome, step=max(outcome.step, self._curves.end(outcome.number)))
        self.write_reports(patient=True)
        retried = outcome.failure is not None and self.counts.may_retry(
            request.trial, outcome.failure, self.job.retries, outcome.step
        )
        outcome = dataclasses.replace(outcome, retried=retried, started=outcome.started or attempt.started)
        outcome = self._best_reports.applied(request.trial, outcome)
        self._tell_memory(attempt, outcome)
        self._attempts[outcome.number] = self._attempts[outcome.number][0], outcome
        self._raise_top(request, outcome)
        self._write(self.storage.finish, outcome.number)
        del self._open[outcome.number]
        self.counts.running -= 1
        self._count(request, self._sampled(outcome.number), outcome)
        if self.promotion is not None:
            self._drop(self.promotion.hopeless())
        return outcome

    def take_up(self, number: int | None = None) -> bool:
        """Reopen a training or an iteration that failed for good, at the user's request; see `Repeats.take_up`.

        The recorded outcome does not change: the next attempt names the one it repeats, so a later controller counts the
        same.
        """
        return self.job.is_sequential and self._again.take_up(number)

    def running(self) -> list[TrialRequest]:
        """The attempts that have started and not ended."""
        return [attempt.request for attempt in self._open.values()]

    def attempts(self) -> Iterator[tuple[TrialRequest, TrialOutcome | None]]:
        """Every attempt in order of numbers, with its outcome unless it is running."""
        for request, outcome in self._attempts.values():
            yield dataclasses.replace(request, params={**self.job.params, **request.params}), outcome

    def describe(self, attributes: Mapping[str, Any], *, patient: bool = True) -> None:
        """Write facts about the run.

        Args:
            attributes: by the name of a column, JSON values.
            patient: whether to wait for a database that is away; otherwise the write is skipped.
        """
        if patient:
            self._patiently(lambda: self.storage.describe(attributes))
        elif not self._patiently.waiting:
            with contextlib.suppress(errors.LedgerUnavailable):
                self.storage.describe(attributes)

    def record_status(self, status: RunStatus, *, patient: bool = True) -> None:
        """Write the run's status; if it is refused, without the parts that a trial's code has made.

        A status that ended the run would end each controller that goes on with it the same way.

        Args:
            status: of the run.
            patient: as of `describe`.
        """
        for shown in (status, _bare(status)):
            try:
                self.describe({labels.LEDGER_STATUS: records.to_dict(shown)}, patient=patient)
            except errors.LedgerRefused as error:
                if str(error) != self._refusal:
                    log.warning("the run's status is not recorded as it is, and the run goes on: %s", error)
                self._refusal = str(error)
            else:
                return

    def desired(self) -> Desired:
        """The desired state of the run, as written by the gateway; raises LedgerUnavailable when the database is away."""
        return records.from_dict(Desired, self.storage.described(labels.LEDGER_DESIRED) or {})

    # Drawing

    def _draw(self, trial: int) -> _Attempt:
        """A new logical trial: an enqueued point, completed by the sampler, or a point of the sampler."""
        self._build_sampler(trial)
        enqueued = trial < len(self._search.enqueue) and self._search.sampler.name != "grid"  # which begins with them
        enqueued_values = self._search.enqueue[trial] if enqueued else {}
        if self._search.suggests:  # what an objective asks for is not drawn where the job has it among its fixed parameters
            enqueued_values = {**self.job.params, **enqueued_values}
        if enqueued or (self._search.suggests and enqueued_values):
            self._study.enqueue_trial(samplers.coded(self.job, enqueued_values))
        with self._drawing(), self._of_class(trial), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # optuna on experimental features and fixed values, which the job's check allows
            drawn = self._study.ask()
            sampled = samplers.suggest(drawn, self.job, self._space_function, enqueued_values)
        if self._search.duplicates == "redraw" and not enqueued:
            drawn, sampled = self._redrawn(trial, drawn, sampled)
        if self._is_replayed:
            self._memory.set_trial_system_attr(drawn._trial_id, replaying.TOLD, self._untold)
            self._untold = []
        self._next += 1
        return self._attempt(drawn, trial, 1, None, sampled, self._segment(trial))

    def _redrawn(
        self, trial: int, drawn: optuna.trial.Trial, sampled: dict[str, Any]
    ) -> tuple[optuna.trial.Trial, dict[str, Any]]:
        """A trial with other parameters if an earlier one has its own: first by the sampler, and then at random.

        After that many attempts, the space probably has no other point, and the trial keeps those that it has.
        """
        lasting = not samplers.is_optunas(self._study.sampler)
        for attempt in range(_REDRAWS):
            if self._point(sampled) not in self._points:
                break
            self._memory.replace(drawn._trial_id, optuna.trial.create_trial(state=TrialState.RUNNING))
            if attempt < _BY_SAMPLER and not lasting:
                before = attempt + 1
                sampler = samplers.build_sampler(self.job, trial, self._code, drawn_before=before, earlier=self._earlier)
            else:
                seed = samplers.derived_seed(samplers.derived_seed(self.job.seed, trial), attempt)
                sampler = optuna.samplers.RandomSampler(seed=seed)
            own_sampler, self._study.sampler = self._study.sampler, sampler
            with self._drawing(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                drawn = optuna.trial.Trial(self._study, drawn._trial_id)
                sampled = samplers.suggest(drawn, self.job, self._space_function)
            self._study.sampler = own_sampler
        return drawn, sampled

    def _point(self, sampled: Mapping[str, Any]) -> str:
        """The parameters of a trial as one text."""
        return earlier.key({**self.job.params, **sampled})

    def answer(self, request: TrialRequest) -> TrialOutcome | None:
        """The result of an earlier trial with the same parameters, which counts for a new one; None if there is none."""
        result = self._answers.get(earlier.key(request.params))
        if result is None or (request.segment is not None and request.segment.done):  # it has begun to train
            return None
        now = time.time()
        return TrialOutcome(
            number=request.number,
            state=State.COMPLETE,
            metrics=result.metrics,
            returned=result.returned,
            message=f"answered by trial {result.trial} of {result.run}, which has the same parameters",
            started=now,
            ended=now,
            step=result.step,
            answered_by=f"{result.run}:{result.trial}",
        )

    @property
    def _is_replayed(self) -> bool:
        """Whether the sampler may keep what it has learned in its own memory."""
        return bool(self._search.sampler.of_class) and not self._search.suggests

    def _build_sampler(self, trial: int) -> None:
        """The sampler of a new trial. One that keeps what it has learned sees the study once more, if it is new."""
        before = self._study.sampler
        self._study.sampler = samplers.build_sampler(self.job, trial, self._code, before, earlier=self._earlier)
        if not self._is_replayed or not trial or samplers.is_optunas(self._study.sampler) or self._study.sampler is before:
            return
        trials = [self._frozen(number) for number in range(trial)]
        with self._of_class(trial):
            memory = history.History(self.job, self._earlier)
            replaying.replay(self.job, memory, self._study.sampler, trials, self._untold, self._bad, self._space_function)

    @contextlib.contextmanager
    def _of_class(self, trial: int) -> Iterator[None]:
        """Maps errors of a sampler that is not Optuna's to ours."""
        seed = samplers.derived_seed(self.job.seed, trial)
        try:
            with points.seeded_globally(seed) if self._is_replayed else contextlib.nullcontext():
                yield
        except Exception as error:
            name = self._search.sampler.of_class
            if not name or isinstance(error, errors.TrialplaneError):
                raise
            text = f"{type(error).__name__}: {errors.first_line(error)}"
            raise errors.EntrypointError(f"the sampler {name} failed to draw trial {trial}: {text}") from error

    def _continue(self, stretch: Stretch) -> _Attempt:
        """A promotion: the paused trial with its checkpoint, up to the next rung."""
        assert stretch.trial is not None
        before, outcome = self._attempts[self.newest[stretch.trial].number]
        assert outcome is not None
        digest = "" if outcome.checkpoints is None else outcome.checkpoints.digest
        parent = Parent(stretch.trial, outcome.step, digest)
        segment = dataclasses.replace(self._segment_of(stretch), parent=parent, series=before.series)
        return self._repeat(before, segment)

    def _segment(self, trial: int) -> Segment | None:
        """The first segment of a trial; None where trials are not paused."""
        return None if self.promotion is None else self._segment_of(self.promotion.new(trial))

    def _segment_of(self, stretch: Stretch) -> Segment:
        watched = self.job.watched_metric
        metrics = (watched,) if watched else tuple(objective.metric for objective in self.job.objectives)
        offset = None if stretch.trial is None else self._offsets.get(stretch.trial)
        return Segment(stretch.rung, metrics, stretch.done, offset)

    def _see(self, trial: int, step: int) -> None:
        """Take the step of a report, to know how its trial counts them."""
        self._offsets[trial] = max(self._offsets.get(trial, 0), int(step == 0))

    def _steps_done(self, request: TrialRequest, outcome: TrialOutcome) -> int:
        """The number of steps that a trial has done when an attempt has ended."""
        if outcome.answered_by:
            return 0
        if request.trial in self._offsets:
            return outcome.step + self._offsets[request.trial] if outcome.step or outcome.metrics else 0
        ladder = self._search.ladder
        return ladder.top if ladder is not None and outcome.state is State.COMPLETE else 0  # it reports nothing

    def _repeat(self, before: TrialRequest, segment: Segment | None = None) -> _Attempt:
        """A retry, or a promotion to another segment.

        It has the same parameters and sampler attributes, so it takes the place of the attempt before.
        """
        if segment is None and before.segment is not None:
            previous = before.segment  # its checkpoints may be newer by now, and its reports show the offset
            parent = None if previous.parent is None else dataclasses.replace(previous.parent, digest="")
            offset = self._offsets.get(before.trial, previous.offset)
            segment = dataclasses.replace(previous, parent=parent, offset=offset, series=None)
        frozen, trial_id = self._frozen(before.trial), self._trial_id(before.trial)
        again = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=frozen.params,
            distributions=frozen.distributions,
            system_attrs=self.pruning.replaced(trial_id, frozen),
        )
        self._memory.replace(trial_id, again)
        drawn = suggesting.resumed(optuna.trial.Trial(self._study, trial_id))
        return self._attempt(drawn, before.trial, before.attempt + 1, before.number, self._sampled(before.number), segment)

    def _attempt(
        self,
        drawn: optuna.trial.Trial,
        trial: int,
        attempt: int,
        retry_of: int | None,
        sampled: dict[str, Any],
        segment: Segment | None,
    ) -> _Attempt:
        request = TrialRequest(
            run=self.run,
            trial=trial,
            attempt=attempt,
            number=len(self._attempts),
            params={**self.job.params, **sampled},
            seed=samplers.derived_seed(self.job.seed, trial) ^ 0x5EED,  # not the sampler's own
            metrics=self.job.required_metrics,
            timeout=self.job.budget.timeout,
            prunable=self._search.pruner.name != "none" and self.promotion is None,
            resume=self.job.resume or "",
            retry_of=retry_of,
            reported=self._best_reports.metrics,
            stop=self._stop,
            objectives=len(self.job.objectives) if self._search.suggests else 0,
            segment=segment,
        )
        # Only drawn parameters are written to the database: the fixed ones are the job's.
        self._attempts[request.number] = dataclasses.replace(request, params=sampled), None
        self._points.add(self._point(sampled))
        return _Attempt(request, drawn, time.time())

    # Ending

    def _tell_memory(self, attempt: _Attempt, outcome: TrialOutcome) -> None:
        trial = attempt.trial
        state, values = samplers.state_and_values(self.job, outcome)
        if values is not None:
            for constraint in self._search.constraints:
                trial.set_constraint(constraint.metric, constraint.excess(outcome.metrics[constraint.metric]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study.tell(trial, values, state)
        self._end_in_memory(trial.number, outcome)

    def _end_in_memory(self, trial: int, outcome: TrialOutcome) -> None:
        is_bad = samplers.is_bad(self.job, outcome)
        self._memory.ended(self._frozen(trial), is_bad)
        if not outcome.retried:
            self._untold.append(trial)
            self._bad = self._bad | {trial} if is_bad else self._bad - {trial}

    def _count(self, request: TrialRequest, sampled: dict[str, Any], outcome: TrialOutcome) -> None:
        """Count the end of an attempt."""
        if outcome.checkpoints is not None:
            self.saved[request.trial] = outcome.checkpoints
        self.counts.add(request.trial, outcome)
        self.pruning.ended(outcome)
        self._again.ended(request, outcome)
        self._best_reports.ended(request.trial, outcome)
        if self._search.duplicates == "answer" and outcome.state is State.COMPLETE and not outcome.answered_by:
            params = {**self.job.params, **sampled}
            trial = EarlierTrial(self.run, request.trial, params, (), outcome.metrics, outcome.step, False, outcome.returned)
            self._answers.setdefault(earlier.key(params), trial)
        if self.promotion is not None and not outcome.retried:
            self.promotion.ended(request.trial, outcome.state, self._steps_done(request, outcome), self._losses(outcome))
        self._show(rows.row(self.job, request, sampled, outcome))

    def _raise_top(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Decide up to which rung trials are promoted, as an attribute of the study, which is written with the end."""
        if self.promotion is None or outcome.retried:
            return
        top = self.promotion.top_after(request.trial, self._steps_done(request, outcome), self._losses(outcome))
        if top != self.promotion.top:
            self.promotion.top = top
            self._memory.set_study_system_attr(self._study_id, _TOP, top)

    def _count_start(self, request: TrialRequest) -> None:
        """Count the start of an attempt, also under a former controller."""
        self._best_reports.begun(request.trial)
        segment = request.segment
        if self.promotion is None or segment is None:
            return
        if request.retry_of is not None:
            _, before = self._attempts[request.retry_of]
            self.counts.paused -= before is not None and before.state is State.PAUSED
        self.promotion.begun(Stretch(request.trial, segment.rung, segment.done))

    def _losses(self, outcome: TrialOutcome) -> tuple[float, ...]:
        """The values by which trials are compared at a rung; smaller is better, and missing ones are worst."""
        objectives = self.job.objectives
        watched = (self._search.watched(objectives[0]),) if self.job.watched_metric else objectives
        signs = (-1.0 if objective.direction == "maximize" else 1.0 for objective in watched)
        values = (outcome.metrics.get(objective.metric, math.nan) for objective in watched)
        return tuple(sign * value if math.isfinite(value) else math.inf for sign, value in zip(signs, values, strict=True))

    def _drop(self, trials: Iterable[int]) -> None:
        """End paused trials that will not continue, as pruned."""
        assert self.promotion is not None
        for trial in trials:
            number = self.newest[trial].number
            request, outcome = self._attempts[number]
            assert outcome is not None
            assert request.segment is not None
            message = f"not promoted at the rung of {errors.counted(request.segment.rung, 'step')}"
            outcome = dataclasses.replace(outcome, state=State.PRUNED, message=message)
            self._attempts[number] = request, outcome
            self._write(self.storage.finish, number)
            self.promotion.drop(trial)
            self.counts.paused -= 1
            self.counts.pruned += 1
            self._dropped.append((dataclasses.replace(request, params={**self.job.params, **request.params}), outcome))
            self._show(rows.row(self.job, request, dict(request.params), outcome))

    def _show(self, row: TrialRow) -> None:
        self.newest[row.trial] = row
        if row.state is State.COMPLETE and row.feasible:
            row = rows.shorten(row)
            self.best = rows.best_trial(self.job, [row] if self.best is None else [self.best, row])

    # Memory and database

    def _opened(self, url: str, lock: Path) -> Store:
        directions = tuple(objective.direction for objective in self.job.objectives)
        seconds, give_up = self._patiently.lock_seconds, self._patiently.give_up
        if url.startswith(remote.SCHEMES):
            return remote.Storage(url, self.run, directions, lock_patience=seconds, give_up=give_up)
        return study.Storage(url, self.run, directions, lock, lock_patience=seconds, give_up=give_up)

    def _memory_study(self) -> _Study:
        self._study_id = self._memory.create_new_study(self._memory.directions, self.run)
        return _Study(
            self.run,
            self._memory,
            sampler=optuna.samplers.RandomSampler(seed=0),
            pruner=self.pruning.pruner,
        )

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        self._memory.drawing = True
        try:
            yield
        finally:
            self._memory.drawing = False

    def _trial_id(self, trial: int) -> int:
        """The id in memory of a logical trial."""
        return self._memory.get_trial_id_from_study_id_trial_number(self._study_id, trial)

    def _frozen(self, trial: int) -> FrozenTrial:
        return self._memory.get_trial(self._trial_id(trial))

    def _sampled(self, number: int) -> dict[str, Any]:
        """The sampled parameters of an attempt, as the user knows them; Optuna may have them in another form."""
        return dict(self._attempts[number][0].params)

    def _write(self, write: Callable[..., None], number: int) -> None:
        """Write one attempt to the database, waiting for it while it is away."""
        request, outcome = self._attempts[number]
        attempt = Attempt(request, outcome, optuna=history.document(self._frozen(request.trial), self.pruning.sign))
        attributes = self._memory.get_study_system_attrs(self._study_id)
        changed = None if attributes == self._saved_attributes else dict(attributes)
        self._patiently(lambda: write(attempt, changed))
        self._saved_attributes = changed or self._saved_attributes

    def _load(self) -> None:
        """Fill memory from the database, and end the attempts that a former controller left running."""
        gc.disable()  # thousands of objects are made and none is garbage: the collector would take half of the time
        try:
            self._fill()
        finally:
            gc.enable()

    def _fill(self) -> None:
        attempts, attributes = self.storage.load()
        described = self.storage.described(labels.LEDGER_STATUS)
        if described is not None:
            self._go_on_from(described)
        for key, value in attributes.items():
            self._memory.set_study_system_attr(self._study_id, key, value)
        self._saved_attributes = attributes
        self.pruning.restore(attributes)
        if self.promotion is not None and _TOP in attributes:
            self.promotion.top = attributes[_TOP]
        curves, unfinished = self._load_reports({stored.request.number for stored in attempts if stored.outcome is None})
        interrupted = []
        for attempt in attempts:
            request, outcome = attempt.request, attempt.outcome
            frozen = samplers.in_space(self.job, history.trial(request.number, attempt.optuna, self.pruning.sign))
            self._attempts[request.number] = request, outcome
            self._points.add(self._point(request.params))
            curve = curves.get(request.number, {})
            self.pruning.has_come = self.pruning.has_come or bool(curve)
            if request.trial > self._next:
                raise errors.LedgerCorrupt(
                    f"trial {self._next} of the study {self.run} is missing from its ledger, so the others cannot be "
                    "counted; put a good copy in its place, or give the run another name"
                )
            if request.trial < self._next:
                trial_id = self._trial_id(request.trial)
                self.pruning.replaced(trial_id, self._memory.get_trial(trial_id))
                frozen.intermediate_values = self.pruning.restored(trial_id, curve)
                self._memory.replace(trial_id, frozen)
            else:
                frozen.intermediate_values = curve
                self._study.add_trial(frozen)
                self._next += 1
            if not samplers.fits(self.job, frozen):
                self._memory.hide(request.trial)
            self._again.begun(request)
            self._count_start(request)
            if outcome is None:
                interrupted.append(request)
                continue
            self._end_in_memory(request.trial, outcome)
            self._count(request, dict(request.params), outcome)
        told_numbers = {
            number for trial in range(self._next) for number in self._frozen(trial).system_attrs.get(replaying.TOLD, ())
        }
        ends = {number: self.newest[number].ended or 0.0 for number in self._untold if number not in told_numbers}
        self._untold = sorted(ends, key=lambda number: (ends[number], number))
        for request in interrupted:
            self._end_left(request, unfinished.get(request.number, []))
        self._again.reopen(self.job.retries.failed_before)
        samplers.stop_if_exhausted(self.job, self._study, self._code)

    def _load_reports(self, running: Collection[int]) -> tuple[dict[int, dict[int, float]], dict[int, list[ReportRow]]]:
        """The reports in the database.

        Args:
            running: numbers of the attempts that have not ended.

        Returns:
            By number of the attempt: of those that have ended the first value of each step, as Optuna compares it; and the
            reports of the others.
        """
        curves: dict[int, dict[int, float]] = {}
        unfinished: dict[int, list[ReportRow]] = {}
        mark, has_more = 0, True
        while has_more:
            page = self.storage.reports(mark)
            for row in page.rows:
                self._see(row.trial, row.step)
                if row.number in running:
                    unfinished.setdefault(row.number, []).append(row)
                elif self.job.watched_metric in row.metrics:
                    value = self.pruning.sign * row.metrics[self.job.watched_metric]
                    curves.setdefault(row.number, {}).setdefault(row.step, value)
                mark = row.mark
            has_more = page.more
        self._curves.resume(mark)
        return curves, unfinished

    def _go_on_from(self, described: Mapping[str, Any]) -> None:
        """Restore the last status in the database, which has how long the run has worked."""
        try:
            self.status = records.from_dict(RunStatus, described)
        except ValueError as error:
            raise errors.LedgerCorrupt(
                f"the status of the study {self.run} in its ledger cannot be read ({error}); resume it with the version of "
                f"trialplane that wrote it, or delete it: `platform delete {self.run}`"
            ) from error

    def _end_left(self, request: TrialRequest, reports: list[ReportRow]) -> None:
        drawn = optuna.trial.Trial(self._study, self._trial_id(request.trial))
        self._open[request.number] = attempt = _Attempt(request, drawn, time.time())
        self.counts.running += 1
        for report in reports:  # again, as a retry that continues from a checkpoint has its rungs
            self._compare(attempt, report.step, report.metrics)
        self.tell(
            TrialOutcome(
                number=request.number,
                state=State.FAILED,
                failure=FailureClass.LOST,
                message="the controller ended while this attempt ran",
                ended=time.time(),
                step=max((report.step for report in reports), default=0),
            )
        )


def _bare(status: RunStatus) -> RunStatus:
    """A status without what a trial's code can make large."""
    reason = errors.shortened(status.reason, _LONGEST_REASON)
    progress = type(status.progress)()
    return dataclasses.replace(status, reason=reason, best=None, mlflow="", warnings=(), progress=progress)
