"""The ledger of a study: selects its next attempts, and writes their starts, reports and ends to the database.

The study exists twice: in memory (`History`), where samplers and pruners work without delay, and in the database
(`storages.Store`). A trial with its parameters is written before it starts, and its reports a few times a second. Its end is
written after its last report, and before the next decision. When a ledger is opened, memory is filled from the database.
Attempts that were running are recorded as lost, with their reports, and retried.

Logical trials are numbered 0 to `trials` - 1. Each attempt at a trial is a row in the database. A retry has the same
parameters, and its request names the attempt that it repeats. In Optuna's memory it replaces that attempt. `drawing` draws
new trials.

With promotion, and in a population, trials are paused at rungs: numbers of steps at which they are compared. A trial then
consists of segments, each up to the next rung, and the first attempt at each further segment names the last attempt at the
one before, as a retry does. `promotion` and `population` decide which paused trial continues.

With `reuse`, a trial may take over from a trial of an earlier run that has the same parameters: its result, or its newest
checkpoint, which is called the trial's beginning. `reuse` finds both.
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
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from trialplane import errors
from trialplane.controller import history, points, replaying, samplers, suggesting
from trialplane.controller.counts import BestReports, Counts, Repeats, SavedCheckpoints
from trialplane.controller.curves import Curves
from trialplane.controller.drawing import Drawing
from trialplane.controller.hours import Hours
from trialplane.controller.patience import Patience
from trialplane.controller.population import Members
from trialplane.controller.promotion import Promotion, Stretch
from trialplane.controller.pruning import Pruning
from trialplane.controller.reuse import Reuse
from trialplane.job.kinds import Job, Study
from trialplane.job.population import Intervals
from trialplane.ledger import storages
from trialplane.ledger.attempts import Attempt
from trialplane.wire import earlier, labels, messages, records, rows, system_metrics
from trialplane.wire.costs import JobDemand, Prices, Usage
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import (
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
from trialplane.wire.states import FailureClass, TrialState

log = logging.getLogger(__name__)

_LONGEST_REASON = 1000  # characters of the reason in a status, after the database has refused a longer one
_REPORT_SECONDS = 0.25  # between two writes of reports
_REPORT_PAUSE = 5.0  # seconds before the next write of reports after one that failed
_AHEAD = 1800.0  # seconds by which the clock of a trial may be ahead of this machine's
_TOP = "trialplane:top"  # attribute of a study that holds `Promotion.top`, if it was raised
_WatchedCurve = dict[int, float]  # step → value of the watched metric, with the sign with which Optuna compares it


@dataclasses.dataclass
class _RunningAttempt:
    """A running attempt, with its trial in Optuna's memory, and whether it has reported the step at which it started."""

    request: TrialRequest
    trial: optuna.trial.Trial
    has_reported_start: bool = False


class _Study(optuna.Study):
    """A study that is driven by ask and tell. Optuna's own class refuses `stop` in this case; this one records the call."""

    is_exhausted = False

    def stop(self) -> None:
        """Record that every point was drawn. Optuna's samplers call this."""
        self.is_exhausted = True


class Ledger:
    """The ledger of one study, opened by this controller alone.

    Args:
        url: URL of the database; or of the gateway with the run's token, `http://:TOKEN@HOST:PORT`.
        job: Resolved job.
        run: Name of the run, which is also the name of the study.
        code: Folder of the job's code, for spaces and options that are given as functions.
        lock: File to lock if the database is SQLite.
        patience: Time to wait for a database that does not answer, or that another controller has open.
        last_alive: Time at which the previous controller last saw its trials, in seconds since the epoch.

    Attributes:
        counts: Numbers of trials by state.
        newest: Row of the newest attempt of each trial, by trial.
        best: Row of the best trial; None before one is complete.
        saved: Number and size of the checkpoints that are still needed.
        status: Last status of the run in the database when it was opened; None without one.
        promotion: Rule by which paused trials continue; None if trials are not paused.
        pruning: Pruner of the study.
        drawing: Draws new trials.
        reuse: Earlier trials, whose results and checkpoints trials may take over.
        storage: Connection to the database.

    Raises:
        LedgerError: The database cannot be opened, see `storages.open_store`.
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
        last_alive: float = 0.0,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.job = job
        self.run = run
        self._search = job.search
        self._code = samplers.JobCode(code)
        self._patience = patience or Patience()
        self._last_alive = last_alive
        self.status: RunStatus | None = None
        self._status_refusal = ""  # message of the last refusal of a status, so that it is logged only once
        # Attempts, and what is derived from them
        self._attempts: dict[int, Attempt] = {}  # number → attempt; its request has only drawn parameters
        self._running: dict[int, _RunningAttempt] = {}  # number → running attempt
        self._unwritten: _RunningAttempt | None = None  # a new attempt that is not in the database yet, as after LedgerFull
        self._next = 0  # number of the next new trial
        self._ended_since_start: list[int] = []  # numbers of attempts that have ended since the last start, in this order
        self.newest: dict[int, TrialRow] = {}
        self.best: TrialRow | None = None
        self.counts = Counts(keeps_checkpoints=job.keeps_checkpoints)
        self.saved = SavedCheckpoints()
        self._repeats = Repeats(self.counts)
        self._hours = Hours()
        self._demand = JobDemand.of(job)
        # Reports
        metrics = (*job.required_metrics, job.watched_metric, *(rule.metric for rule in job.stops))
        self._curves = Curves({metric for metric in metrics if metric})
        self._best_reports = BestReports(job.objectives, job.keeps_checkpoints)
        self._offsets: dict[int, int] = {}  # trial that has reported → 1 if it counts its steps from 0, otherwise 0
        self._next_write = 0.0  # when the next reports are written, by the monotonic clock
        self._reports_remark = ""  # remark that some reports are not in the database, and why
        # Paused trials
        self.promotion = _create_promotion(job)
        self._pauses: dict[tuple[int, int], int] = {}  # trial and rung → number of the attempt that was paused there
        self._dropped: list[tuple[TrialRequest, TrialOutcome]] = []  # attempts that `take_dropped` will return
        # The search
        earlier_trials = earlier.read(code)
        self.reuse = Reuse(job, run, earlier_trials, self._attempts)
        sampler_history = samplers.earlier_trials(job, earlier_trials.history)
        self._memory = history.History(job, sampler_history)
        self._study_id = self._memory.create_new_study(self._memory.directions, run)
        self.pruning = Pruning(job, self._code)
        sampler = optuna.samplers.RandomSampler(seed=0)  # until `drawing` sets the sampler of the first trial
        self._study = _Study(run, self._memory, sampler=sampler, pruner=self.pruning.pruner)
        self.drawing = Drawing(job, self._code, self._study, self._memory, sampler_history, self._past_events)
        self._states: dict[int, FrozenTrial] = {}  # number → its trial at the end of the attempt, for a replay
        for trial in earlier_trials.history:
            if trial.out_of_memory:
                self.drawing.record_out_of_memory(trial.params)
        self.storage = storages.open_store(
            url,
            run,
            directions=tuple(objective.direction for objective in job.objectives),
            lock=lock,
            lock_patience=self._patience.lock_seconds,
            should_give_up=self._patience.should_give_up,
        )
        self._saved_attributes: dict[str, Any] = {}  # attributes of the study in the database
        gc.disable()  # the restore creates many objects and no garbage, and the collector would take half of its time
        try:
            self._restore()
        except BaseException:
            self.storage.close()
            raise
        finally:
            gc.enable()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another controller open the study. Running attempts stay running in the database."""
        self.storage.close()

    @property
    def is_exhausted(self) -> bool:
        """Whether the sampler has drawn every point, and no attempt waits to be started or retried."""
        if self._repeats or self._unwritten:
            return False
        # Most samplers call `stop` on the study when they have drawn every point. The grid does not.
        return self._study.is_exhausted or samplers.grid_is_drawn(self.job, self._study)

    @property
    def is_done(self) -> bool:
        """Whether the study is over: every trial has ended, every point was drawn, or the budget of steps is spent.

        It is not over while an attempt runs, is paused or will be retried. `ask` drops paused trials that will not continue.
        """
        if self.counts.paused or self.counts.running or self._repeats:
            return False
        is_budget_spent = self.promotion is not None and self.promotion.is_budget_spent
        return self.counts.ended >= self.job.trials or self.is_exhausted or is_budget_spent

    @property
    def startable(self) -> int:
        """The number of attempts that may start now or later: retries, new trials, and paused trials.

        The sampler may draw fewer points than there are trials.
        """
        undrawn_count = self.job.trials - self._next
        unwritten_count = 0 if self._unwritten is None else 1
        return len(self._repeats) + unwritten_count + undrawn_count + self.counts.paused

    @property
    def waiting_trials(self) -> frozenset[int]:
        """The trials that wait for a retry."""
        return self._repeats.trials

    def ask(self, slot: int | None = None) -> TrialRequest | None:
        """Select or draw the next attempt and write it to the database; return None if there is none to start now.

        Args:
            slot: Number of the slot in which it will run.

        Raises:
            EntrypointError: The job's space function fails.
            LedgerError: The database cannot be written. After LedgerFull the next call writes the same attempt.
        """
        attempt = self._unwritten or self._select_attempt()
        if attempt is None:
            return None
        self._unwritten = attempt  # if the write fails, the next call tries it again
        number, begun = attempt.request.number, time.time()
        ended_before = tuple(self._ended_since_start)
        self._change_request(attempt, begun=begun, workers=self._hours.workers, slot=slot, ended_before=ended_before)
        self._write(self.storage.write_start, number)
        self._unwritten = None
        self._ended_since_start = []
        self._count_start(attempt.request)
        self._hours.start(number, begun)
        self._running[number] = attempt
        self.counts.running += 1
        self._update_newest(rows.row(self.job, attempt.request, self._attempts[number].request.params, outcome=None))
        return attempt.request

    def _change_request(self, attempt: _RunningAttempt, **changes: Any) -> None:
        """Change fields of the request of an attempt, also in `_attempts`, where the request has only drawn parameters."""
        attempt.request = dataclasses.replace(attempt.request, **changes)
        stored_request = self._attempts[attempt.request.number].request
        self._attempts[attempt.request.number] = Attempt(dataclasses.replace(stored_request, **changes))

    def _select_attempt(self) -> _RunningAttempt | None:
        """Select or draw the next attempt: a retry, a paused trial, or a new trial; None if there is none to start now."""
        if self._repeats:
            return self._repeat(self._repeats.take())
        if self.promotion is None:
            return self._draw_attempt() if self._can_draw else None
        stretch = self.promotion.next_stretch(self._next if self._can_draw else None)
        if stretch is not None:
            is_new = stretch.trial is None
            return self._draw_attempt() if is_new else self._continue(stretch)
        if not self.counts.running:  # no attempt will end, so no paused trial can be promoted any more
            self._drop(self.promotion.paused)
        return None

    @property
    def _can_draw(self) -> bool:
        """Whether a new trial may be drawn."""
        return self._next < self.job.trials and not self.is_exhausted

    def take_released_folders(self) -> Collection[TrialFolder]:
        """Return the folders of checkpoints that no member of a population needs any more, each folder once.

        Without a population there are none.
        """
        return self.promotion.take_released() if isinstance(self.promotion, Members) else ()

    def take_dropped(self) -> list[tuple[TrialRequest, TrialOutcome]]:
        """Return the paused trials that were dropped since the last call: the last attempt at each, with its outcome."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def suggest(self, number: int, parameter: messages.Suggest) -> messages.Suggested:
        """Draw a parameter that a running attempt requests, and return the answer to the attempt.

        The parameter is written to the database before it is answered, so a retry always gets the same value.

        Raises:
            LedgerError: The database cannot be written.
        """
        attempt = self._running.get(number)
        if attempt is None:
            return messages.Suggested(value=None, error="the trial has ended")
        with self._memory.sampler_view():
            answer = suggesting.suggest(attempt.trial, self.job, parameter, self._code)
        sampled = self._attempts[number].request.params
        is_new = parameter.name not in sampled  # otherwise the answer is the recorded value
        if answer.value is not None and is_new:
            sampled = {**sampled, parameter.name: suggesting.user_value(parameter, answer.value)}
            attempt.request = dataclasses.replace(attempt.request, params={**self.job.params, **sampled})
            self._attempts[number] = Attempt(dataclasses.replace(attempt.request, params=sampled))
            self._write(self.storage.write_draw, number)
            self._update_newest(rows.row(self.job, attempt.request, sampled, outcome=None))
        return answer

    def report(self, report: TrialReport) -> bool:
        """Record a report; return whether the pruner ends the trial.

        Reports come in the order in which they were made. A report of an attempt that is not running is ignored.
        """
        attempt = self._running.get(report.number)
        if attempt is None:
            return False
        now = time.time()
        if not 0 <= report.time <= now + _AHEAD:  # the trial's process sets the time, and could send any number
            report = dataclasses.replace(report, time=now)
        if report.start_step is not None:
            self._record_start_step(attempt, min(report.start_step, records.MAX_STEP), report.time)
        self._curves.add(attempt.request, report)
        if system_metrics.is_sample(report.metrics):
            return False
        self._update_offset(attempt.request.trial, report.step)
        return self._evaluate_report(attempt, report.step, report.metrics)

    def _evaluate_report(self, attempt: _RunningAttempt, step: int, metrics: Mapping[str, float]) -> bool:
        """Pass a report to the objectives with `of: best` and to the pruner; return whether the pruner ends the trial."""
        self._best_reports.add(attempt.request.trial, step, metrics)
        return self.pruning.report(attempt.trial, step, metrics)

    def _record_start_step(self, attempt: _RunningAttempt, step: int, report_time: float) -> None:
        """Record at which step an attempt has started that may start from its trial's beginning, see the module's docstring.

        The trial's process says that with its first report. It could also do so with others, which do not count. The step is
        written to the database, so that a later controller knows how many steps were spared.

        Args:
            attempt: Running attempt.
            step: Step of the checkpoint; -1 if the attempt has started at step 0 instead.
            report_time: Time of the report.
        """
        trial, start = attempt.request.trial, attempt.request.start
        # Only a checkpoint that `reuse` has found has a digest.
        if start is None or not start.digest or attempt.has_reported_start:
            return
        attempt.has_reported_start = True
        beginning = self.reuse.beginning(attempt.request) if step >= 0 else None
        # The trial has no checkpoint of its own yet, so no report of an earlier attempt at it counts.
        self._best_reports.take_over(trial, {} if beginning is None else beginning.best)
        if beginning is not None:
            self._offsets[trial] = beginning.offset
        if start.step != step:
            self._change_request(attempt, start=dataclasses.replace(start, step=step))
            with contextlib.suppress(errors.LedgerFull, errors.LedgerRefused):  # a missing number must not stop the run
                self._write(self.storage.write_draw, attempt.request.number)
        # The pruner compares whole curves, so it gets the reports of the earlier trial, too.
        for earlier_step, metrics in self.reuse.following.reports_until(attempt.request, step):
            self.report(TrialReport(attempt.request.number, earlier_step, metrics, time=report_time))

    def write_reports(self, *, patient: bool = False) -> None:
        """Write new reports to the database, unless the last write was less than `_REPORT_SECONDS` ago.

        If the database does not answer, the reports stay for a later call. If it refuses them, for example for lack of
        space, they are dropped and a remark says so, because reports must not stop the run.

        Args:
            patient: Whether to write at once, and to wait for a database that does not answer.

        Raises:
            LedgerUnavailable: The database did not answer in time, with `patient`.
        """
        if not patient and time.monotonic() < self._next_write:
            return
        self._next_write = time.monotonic() + _REPORT_SECONDS
        while (batch := self._curves.next_batch()) is not None:
            write = functools.partial(self.storage.write_reports, batch.reports, batch.deleted)
            try:
                if patient:
                    self._patience(write)
                else:
                    write()
            except errors.LedgerUnavailable:
                if patient:
                    raise
                self._next_write = time.monotonic() + _REPORT_PAUSE
                return
            except (errors.LedgerFull, errors.LedgerRefused) as error:
                remark = f"curves lack reports that the ledger does not take: {error}"
                self._reports_remark = self._reports_remark or remark
                self._next_write = time.monotonic() + _REPORT_PAUSE
                self._curves.record_refused()
            else:
                self._curves.record_written()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the user about reports that the curves in the database lack."""
        return tuple(filter(None, (self._curves.remark, self._reports_remark)))

    def tell(self, outcome: TrialOutcome) -> TrialOutcome | None:
        """Record the end of an attempt in memory and in the database.

        Returns:
            The outcome, with `retried` set if the attempt is retried. None if the attempt is not running, as its end is
            already recorded.
        """
        attempt = self._running.get(outcome.number)
        if attempt is None:
            return None
        request = attempt.request
        outcome = dataclasses.replace(outcome, step=max(outcome.step, self._curves.end(outcome.number)))
        self.write_reports(patient=True)  # a reader that sees the end in the database then sees all reports
        outcome = self._with_ledger_values(request, outcome)
        self._tell_memory(attempt, outcome)
        stored_request = self._attempts[outcome.number].request
        self._attempts[outcome.number] = Attempt(stored_request, outcome)
        self._update_top_rung(request, outcome)
        self._write(self.storage.write_end, outcome.number)
        del self._running[outcome.number]
        self.counts.running -= 1
        self._count_end(request, stored_request.params, outcome)
        if self.promotion is not None:
            self._drop(self.promotion.find_hopeless())
        return outcome

    def _with_ledger_values(self, request: TrialRequest, outcome: TrialOutcome) -> TrialOutcome:
        """Return the outcome of an attempt with the values that the ledger adds.

        These are its times, the mean number of its workers, whether it is retried, its best reports, and the checkpoint of
        an earlier run from which its trial has begun.
        """
        failure = outcome.failure
        retried = failure is not None and self.counts.may_retry(request.trial, failure, self.job.retries, step=outcome.step)
        started, ended = outcome.started or request.begun, outcome.ended or time.time()
        workers = self._hours.end(request.number, time.time())
        if workers is None:  # the attempt began under a controller that was killed, so the mean is not known
            workers = request.workers
        outcome = dataclasses.replace(outcome, retried=retried, started=started, ended=ended, workers=workers)
        return self.reuse.add_beginning(request, self._best_reports.add_to(outcome, request.trial))

    def reopen_failure(self, number: int | None = None) -> bool:
        """Let a training or an iteration that failed for good be retried, as the user has requested; return whether one did.

        The recorded outcome does not change. But the next attempt names the failed one as the attempt that it repeats, and a
        later controller sees from that that the failure was reopened.

        Args:
            number: Number of the attempt that failed; None for the newest one.
        """
        return self.job.is_sequential and self._repeats.reopen_failure(number)

    def usage(self, prices: Prices) -> Usage:
        """Return the hours that all attempts have used, including those that run, and their cost."""
        return Usage.of(self._hours.total(time.time()), self._demand, prices)

    def record_workers(self, number: int) -> None:
        """Record the number of workers that a collection has from now on. The hours of an attempt are counted with it."""
        self._hours.set_workers(number, time.time())

    def running(self) -> list[TrialRequest]:
        """Return the attempts that have started and not ended."""
        return [attempt.request for attempt in self._running.values()]

    def attempts(self) -> Iterator[tuple[TrialRequest, TrialOutcome | None]]:
        """Yield all attempts in the order of their numbers, each with its outcome, which is None while it runs."""
        for attempt in self._attempts.values():
            request = attempt.request
            yield dataclasses.replace(request, params={**self.job.params, **request.params}), attempt.outcome

    def write_facts(self, facts: Mapping[str, Any], *, patient: bool = True) -> None:
        """Write facts about the run to the database.

        Args:
            facts: JSON values by the name of a column.
            patient: Whether to wait for a database that does not answer. If not, the write is skipped then.
        """
        if patient:
            self._patience(lambda: self.storage.write_facts(facts))
        elif not self._patience.is_waiting:
            with contextlib.suppress(errors.LedgerUnavailable):
                self.storage.write_facts(facts)

    def record_status(self, status: RunStatus, *, patient: bool = True) -> None:
        """Write the run's status. If the database refuses it, write it without the texts of trials, which may be too large.

        A second refusal is only logged. It must not end the run, because each later controller would end in the same way.

        Args:
            status: Status of the run.
            patient: Whether to wait for the database, see `write_facts`.
        """
        for candidate in (status, _without_details(status)):
            try:
                self.write_facts({labels.LEDGER_STATUS: records.to_dict(candidate)}, patient=patient)
            except errors.LedgerRefused as error:
                if str(error) != self._status_refusal:
                    log.warning("the run's status is not recorded as it is, and the run goes on: %s", error)
                self._status_refusal = str(error)
            else:
                return

    def read_desired(self) -> Desired:
        """Return the desired state of the run, which the gateway writes.

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        return records.from_dict(Desired, self.storage.read_column(labels.LEDGER_DESIRED) or {})

    # Starting

    def _draw_attempt(self) -> _RunningAttempt:
        """Draw a new trial, and return its first attempt."""
        trial = self._next
        optuna_trial, sampled = self.drawing.draw(trial)
        self._next += 1
        segment = None if self.promotion is None else self._segment_of(self.promotion.first_stretch(trial))
        return self._create_attempt(optuna_trial, sampled, segment, retry_of=None)

    def answer(self, request: TrialRequest) -> bool:
        """Return whether an attempt takes over the end of an earlier one, and need not run. `take_answers` then ends it."""
        if self.reuse.following.repeated_attempt(request) is not None:
            self.reuse.following.hold(request)
            self._hours.end(request.number, time.time())  # it uses its slot for no work
            return True
        return self.reuse.answer(request)

    def take_answers(self, *, is_stuck: bool = False) -> Iterator[tuple[TrialRequest, TrialOutcome]]:
        """Yield attempts that take over the end of an earlier one and end now, with their outcomes. Record their reports.

        Those that the caller has not iterated over stay for the next call.

        Args:
            is_stuck: Whether nothing starts before one of them has ended.
        """
        for request, outcome, reports in self.reuse.take_answers(is_stuck):
            for step, metrics in reports:
                self.report(TrialReport(request.number, step, metrics, time=outcome.ended))
            yield request, outcome

    def _past_events(self) -> Iterator[replaying.Start | replaying.End]:
        """Yield the starts and ends of attempts so far, in order, for a replay. Attempts that were retried have no end."""
        for number, attempt in self._attempts.items():
            request = attempt.request
            yield from self._past_ends(request.ended_before)
            previous = self._previous_outcome(request)
            is_retry = previous is not None and previous.failure is not None  # for the sampler it is the same attempt
            if not is_retry:
                trial = self._states.get(number) or self._frozen(request.trial)  # at its end, or now if it has not ended
                yield replaying.Start(trial, is_drawn=previous is None)
        yield from self._past_ends(self._ended_since_start)

    def _previous_outcome(self, request: TrialRequest) -> TrialOutcome | None:
        """Return the outcome of the attempt that an attempt repeats or continues; None for the first one of a trial."""
        return None if request.retry_of is None else self._attempts[request.retry_of].outcome

    def _past_ends(self, numbers: Iterable[int]) -> Iterator[replaying.End]:
        """Yield the ends of these attempts, unless they were retried."""
        for number in numbers:
            outcome = self._attempts[number].outcome
            assert outcome is not None
            if not outcome.retried:
                yield replaying.End(self._states[number], samplers.is_bad(self.job, outcome))

    def _continue(self, stretch: Stretch) -> _RunningAttempt:
        """Return the attempt that continues a paused trial by its next segment.

        The segment starts from the trial's own checkpoint, or, in a population, from that of a better trial, the donor. Then
        the trial's parameters may change.

        Args:
            stretch: The decision: the trial, its next rung, and the checkpoint to start from.
        """
        assert stretch.trial is not None
        previous = self._attempts[self.newest[stretch.trial].number].request
        donor_number = previous.number if stretch.parent is None else self._pauses[stretch.parent]
        donor, donor_outcome = self._attempts[donor_number].request, self._attempts[donor_number].outcome
        assert donor_outcome is not None
        segment = self._segment_of(stretch)
        # If an earlier run has trained the donor and not this one, there is no checkpoint, so the trial trains from step 0.
        # That does not matter if the segment is not trained either.
        must_begin_anew = donor_outcome.answered_by and not self.reuse.following.may_repeat_next(stretch.trial, stretch.rung)
        if not must_begin_anew:
            digest = "" if donor_outcome.checkpoints is None else donor_outcome.checkpoints.digest
            parent = Parent(donor.trial, donor_outcome.step, digest, number=donor.number, folder=donor.folder)
            segment = dataclasses.replace(segment, parent=parent, series=previous.series)
        new_params = None  # the trial's parameters stay
        if isinstance(self.promotion, Members):
            new_params = self.promotion.params(stretch, self._search.parameters, donor.params)
        if new_params is not None:
            # Each series of attempts is a run in MLflow, where the parameters of a run never change. So begin a new series.
            segment = dataclasses.replace(segment, series=None, changed=new_params != donor.params)
        return self._repeat(previous, segment, new_params)

    def _segment_of(self, stretch: Stretch) -> Segment:
        """Return the segment that records a stretch, still without its parent and its series."""
        watched = self.job.watched_metric
        return Segment(
            rung=stretch.rung,
            metrics=(watched,) if watched else tuple(objective.metric for objective in self.job.objectives),
            done=stretch.done,
            offset=None if stretch.trial is None else self._offsets.get(stretch.trial),
            # Members of a population continue from checkpoints of others, so each segment has a folder of its own.
            folder=0 if self._search.population is None else stretch.rung,
            top=0 if self._search.ladder is None else self._search.ladder.top,
            restart=stretch.restart,
        )

    def _update_offset(self, trial: int, step: int) -> None:
        """Record whether a trial counts its steps from 0, which a report of step 0 shows, or from 1."""
        if step == 0:
            self._offsets[trial] = 1
        else:
            self._offsets.setdefault(trial, 0)

    def _steps_done(self, request: TrialRequest, outcome: TrialOutcome) -> int:
        """Return the number of steps that a trial has done in this run, at the end of an attempt."""
        is_complete = outcome.state is TrialState.COMPLETE
        is_answered = bool(outcome.answered_by) and self.reuse.following.repeated_attempt(request) is None
        ends_at_rung = request.segment is not None and request.segment.rung > 0
        if is_complete and is_answered and ends_at_rung:
            # It has the final result of an earlier trial, whose steps go beyond the rung: this run has done none of them.
            return 0
        if request.trial in self._offsets:
            has_reported = outcome.step > 0 or bool(outcome.metrics)
            return outcome.step + self._offsets[request.trial] if has_reported else 0
        # The trial has reported nothing. If it is complete, it has done all steps.
        return self._search.ladder.top if is_complete and self._search.ladder is not None else 0

    def _repeat(
        self, previous: TrialRequest, segment: Segment | None = None, new_params: Mapping[str, Any] | None = None
    ) -> _RunningAttempt:
        """Return the next attempt at a trial, which replaces the previous one in memory.

        Args:
            previous: Request of the previous attempt, whose sampler attributes it gets.
            segment: Next segment of a paused trial; None for a retry of the previous segment.
            new_params: New drawn parameters; None for those of the previous attempt.
        """
        if segment is None and previous.segment is not None:
            segment = self._retried_segment(previous, previous.segment)
        frozen, trial_id = self._frozen(previous.trial), self._trial_id(previous.trial)
        if new_params is None:
            sampled = self._attempts[previous.number].request.params
            optuna_params = frozen.params
            distributions = dict(frozen.distributions)  # a copy: many trials share the original
        else:
            sampled = new_params
            optuna_params = samplers.encode_point(self.job, new_params)
            distributions = {name: points.distribution(self._search.parameters[name]) for name in optuna_params}
        running = optuna.trial.create_trial(
            state=OptunaState.RUNNING,
            params=optuna_params,
            distributions=distributions,
            system_attrs=self.pruning.replace_attempt(trial_id, frozen),
        )
        self._memory.replace(trial_id, running)
        optuna_trial = suggesting.restore_joint_parameters(optuna.trial.Trial(self._study, trial_id))
        return self._create_attempt(optuna_trial, sampled, segment, retry_of=previous)

    def _retried_segment(self, previous: TrialRequest, failed: Segment) -> Segment:
        """Return the segment of a retry of an attempt whose segment failed. The failure ends its series."""
        parent = failed.parent
        outcome = self._attempts[previous.number].outcome
        assert outcome is not None
        if not outcome.retried:
            # The trial had failed for good, and the user has it tried again. Its checkpoints were removed, or an earlier
            # run has them and this one does not.
            parent = None
        elif parent is not None and not parent.folder:
            # The failed attempt may have written newer checkpoints into the same folder, from which the retry may continue.
            parent = dataclasses.replace(parent, digest="")
        # The reports of the failed attempt may show whether the trial counts its steps from 0 or 1.
        offset = self._offsets.get(previous.trial, failed.offset)
        return dataclasses.replace(failed, parent=parent, offset=offset, series=None)

    def _create_attempt(
        self,
        optuna_trial: optuna.trial.Trial,
        sampled: Mapping[str, Any],
        segment: Segment | None,
        *,
        retry_of: TrialRequest | None,
    ) -> _RunningAttempt:
        """Create an attempt, add it to the attempts of the study, and return it.

        Args:
            optuna_trial: The trial in Optuna's memory.
            sampled: Drawn parameters.
            segment: Segment of the trial; None if trials are not paused.
            retry_of: Attempt that it repeats or continues; None for the first attempt at a trial.
        """
        trial, population = optuna_trial.number, self._search.population
        # A replay of a schedule has the seeds of the members that it replays.
        seed_trial = trial if population is None else population.seed_trial(trial)
        # It differs from the seed of the trial's sampler, so that the job does not draw the numbers of its parameters again.
        seed = samplers.derived_seed(self.job.seed, seed_trial) ^ 0x5EED
        request = TrialRequest(
            run=self.run,
            trial=trial,
            attempt=1 if retry_of is None else retry_of.attempt + 1,
            number=len(self._attempts),
            params={**self.job.params, **sampled},
            seed=seed,
            metrics=self.job.required_metrics,
            timeout=self.job.budget.timeout,
            prunable=self._search.pruner.name != "none" and self.promotion is None,
            resume=self.job.origin or "",
            start=self._job_start(),
            retry_of=None if retry_of is None else retry_of.number,
            reported=self._best_reports.metrics,
            stop=tuple(records.StopRule(**rule.model_dump()) for rule in self.job.stops),
            directions=tuple(objective.direction for objective in self.job.objectives) if self._search.suggests else (),
            segment=segment,
        )
        request = self._with_beginning(request, retry_of)
        # Only drawn parameters are written to the database, as the job has the fixed ones.
        self._attempts[request.number] = Attempt(dataclasses.replace(request, params=sampled))
        self.drawing.add_point(sampled)
        return _RunningAttempt(request, optuna_trial)

    def _with_beginning(self, request: TrialRequest, retry_of: TrialRequest | None) -> TrialRequest:
        """Let a request start from a checkpoint of an earlier run if `reuse` has one; return the request."""
        beginning, segment = self.reuse.beginning(request), request.segment
        if beginning is None:
            return request
        start = Parent(beginning.trial, step=-1, digest=beginning.digest)  # -1 until the first report says the step
        if retry_of is not None:
            start = retry_of.start or start  # with the step from which the trial has begun
        if segment is not None:
            segment = dataclasses.replace(segment, offset=beginning.offset)
        # The trial continues the earlier one, so it has its seed, too: code may split its data by the seed.
        return dataclasses.replace(request, seed=beginning.seed, resume=beginning.run, start=start, segment=segment)

    def _job_start(self) -> Parent | None:
        """Return the checkpoint from which the job says that each trial starts, by its field `start`; None without one."""
        job_start = self.job.start if isinstance(self.job, Study) else None
        if job_start is None:
            return None
        newest = -1  # instead of the number of a step
        return Parent(job_start.trial, newest if job_start.step is None else job_start.step)

    # Ending

    def _tell_memory(self, attempt: _RunningAttempt, outcome: TrialOutcome) -> None:
        """Record the end of an attempt in Optuna's memory, and tell it to the sampler."""
        trial = attempt.trial
        state, values = samplers.state_and_values(self.job, outcome)
        if values is not None:
            for constraint in self._search.constraints:
                trial.set_constraint(constraint.metric, constraint.excess(outcome.metrics[constraint.metric]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna's warnings about trials without values are of no use to the user
            self._study.tell(trial, values, state)
        self._end_in_memory(trial.number, outcome)

    def _end_in_memory(self, trial: int, outcome: TrialOutcome) -> None:
        """Record for samplers that the newest attempt at a trial has ended."""
        frozen = self._frozen(trial)
        self._memory.record_end(frozen, samplers.is_bad(self.job, outcome))
        if self.drawing.is_replayed:
            self._states[outcome.number] = frozen

    def _count_end(self, request: TrialRequest, sampled: Mapping[str, Any], outcome: TrialOutcome) -> None:
        """Update all that depends on the ends of attempts, except Optuna's memory; the order of the updates does not matter.

        Args:
            request: Attempt that has ended, now or under an earlier controller when the ledger is opened.
            sampled: Its drawn parameters, without the fixed ones.
            outcome: Its end.
        """
        if outcome.checkpoints is not None:
            self.saved.add(TrialFolder(request.trial, request.folder), outcome.checkpoints)
        if rows.is_out_of_memory(outcome):
            self.drawing.record_out_of_memory(sampled)
        self._ended_since_start.append(request.number)
        self.reuse.record_end(request, sampled, outcome)
        self.counts.add_end(request.trial, outcome)
        self._hours.add(outcome.seconds or 0.0, outcome.workers)
        self.pruning.record_end(outcome)
        self._repeats.record_end(request, outcome)
        self._best_reports.record_end(request.trial, outcome)
        if request.segment is not None and outcome.state is TrialState.PAUSED:
            self._pauses[request.trial, request.segment.rung] = request.number
        if self.promotion is not None and not outcome.retried:  # the retry will end the segment
            done, losses = self._steps_done(request, outcome), self._losses(outcome)
            self.promotion.record_end(request.trial, outcome.state, done=done, losses=losses)
        self._update_newest(rows.row(self.job, request, sampled, outcome))

    def _update_top_rung(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """With `max: auto`, let the end of an attempt raise the top rung, from which no trial is promoted.

        `Promotion.raise_top` decides. The new top rung becomes an attribute of the study. `_write` writes it together with
        the end of the attempt, so this comes before `_write`.
        """
        if not isinstance(self.promotion, Promotion) or outcome.state is TrialState.FAILED:
            return
        done, losses = self._steps_done(request, outcome), self._losses(outcome)
        if self.promotion.raise_top(request.trial, done, losses):
            self._memory.set_study_system_attr(self._study_id, _TOP, self.promotion.top)

    def _count_start(self, request: TrialRequest) -> None:
        """Count the start of an attempt. It starts now, or has under an earlier controller when the ledger is opened."""
        self._best_reports.record_start(request.trial)
        # `_record_start_step` sets the step when the attempt has started from its beginning.
        has_started_there = request.start is not None and request.start.step >= 0
        if has_started_there and (beginning := self.reuse.beginning(request)) is not None:
            self._best_reports.begin_with(request.trial, beginning.best)
            self._offsets[request.trial] = beginning.offset
        previous = self._previous_outcome(request)
        all_params = {**self.job.params, **request.params}  # the database has only the drawn ones
        self.reuse.following.record_start(dataclasses.replace(request, params=all_params), previous)
        segment = request.segment
        if self.promotion is None or segment is None:
            return
        if previous is not None and previous.state is TrialState.PAUSED:  # not a retry: it continues a paused trial
            self.counts.paused -= 1
            self._take_over_best(request.trial, segment)
        self.promotion.record_start(Stretch(request.trial, rung=segment.rung, done=segment.done))

    def _take_over_best(self, trial: int, segment: Segment) -> None:
        """Take over the best reports of the trial from whose checkpoint a segment starts, if that is another trial."""
        parent = segment.parent
        if parent is not None and parent.trial != trial:
            assert parent.number is not None  # as it is a checkpoint of this run
            outcome = self._attempts[parent.number].outcome
            assert outcome is not None
            self._best_reports.take_over(trial, outcome.best)

    def _losses(self, outcome: TrialOutcome) -> tuple[float, ...]:
        """Return the losses (smaller is better) by which trials are compared at a rung.

        A value that is missing or not finite has the loss infinity.
        """
        objectives = self.job.objectives
        # With one objective, the pruner may name another metric by which trials are compared.
        compared = (self._search.watched_objective(objectives[0]),) if len(objectives) == 1 else objectives
        losses: list[float] = []
        for objective in compared:
            value = outcome.metrics.get(objective.metric, math.nan)
            loss = -value if objective.direction == "maximize" else value
            losses.append(loss if math.isfinite(value) else math.inf)
        return tuple(losses)

    def _drop(self, trials: Iterable[int]) -> None:
        """Record that these paused trials will not continue: they count as pruned."""
        assert self.promotion is not None
        for trial in trials:
            number = self.newest[trial].number
            request, outcome = self._attempts[number].request, self._attempts[number].outcome
            assert outcome is not None
            assert request.segment is not None
            message = f"not promoted at the rung of {errors.counted(request.segment.rung, 'step')}"
            outcome = dataclasses.replace(outcome, state=TrialState.PRUNED, message=message)
            self._attempts[number] = Attempt(request, outcome)
            self._write(self.storage.write_end, number)
            self.promotion.drop(trial)
            self.counts.paused -= 1
            self.counts.pruned += 1
            self._dropped.append((dataclasses.replace(request, params={**self.job.params, **request.params}), outcome))
            self._update_newest(rows.row(self.job, request, dict(request.params), outcome))

    def _update_newest(self, row: TrialRow) -> None:
        """Record the row of a trial's newest attempt, and update the best trial."""
        self.newest[row.trial] = row
        if row.state is TrialState.COMPLETE and row.feasible:
            row = rows.shorten(row)
            self.best = rows.best_trial(self.job, [row] if self.best is None else [self.best, row])

    # Memory and database

    def _trial_id(self, trial: int) -> int:
        """Return the id that a logical trial has in Optuna's memory."""
        return self._memory.get_trial_id_from_study_id_trial_number(self._study_id, trial)

    def _frozen(self, trial: int) -> FrozenTrial:
        """Return a logical trial as Optuna's memory holds it, so a change of it changes the memory."""
        return self._memory.get_trial(self._trial_id(trial))

    def _write(self, write: Callable[..., None], number: int) -> None:
        """Write an attempt to the database, and the attributes of the study if they have changed; wait for the database.

        Args:
            write: Method of the storage that writes a start, a drawn parameter, or an end.
            number: Number of the attempt.
        """
        attempt = self._attempts[number]
        document = history.trial_document(self._frozen(attempt.request.trial), self.pruning.sign)
        attempt = dataclasses.replace(attempt, optuna=document)
        attributes = self._memory.get_study_system_attrs(self._study_id)
        changed = dict(attributes) if attributes != self._saved_attributes else None  # None: the database has them already
        self._patience(lambda: write(attempt, changed))
        self._saved_attributes = dict(attributes)

    def _restore(self) -> None:
        """Fill memory from the database, and record the attempts that an earlier controller left running as lost."""
        attempts, attributes = self.storage.load()
        status_document = self.storage.read_column(labels.LEDGER_STATUS)
        if status_document is not None:
            self._restore_status(status_document)
        for key, value in attributes.items():
            self._memory.set_study_system_attr(self._study_id, key, value)
        self._saved_attributes = attributes
        self.pruning.restore(attributes)
        if isinstance(self.promotion, Promotion) and _TOP in attributes:
            self.promotion.top = attributes[_TOP]
        interrupted = [attempt.request for attempt in attempts if attempt.outcome is None]
        curves, interrupted_reports = self._load_reports({request.number for request in interrupted})
        for attempt in attempts:
            self._restore_attempt(attempt, curves.get(attempt.request.number, {}))
        self._restore_ended_since_start()
        for request in interrupted:  # after all others, as it writes ends, and decides on retries by the counts
            self._record_loss(request, interrupted_reports.get(request.number, []))
        self._repeats.reopen_failures_before(self.job.retries.failed_before)
        samplers.stop_if_exhausted(self.job, self._study, self._code)

    def _restore_attempt(self, attempt: Attempt, curve: _WatchedCurve) -> None:
        """Restore an attempt from the database in memory. A retry takes the place of the attempt that it repeats.

        This is called in the order of the attempts' numbers.

        Raises:
            LedgerCorrupt: An earlier trial is missing.
        """
        request, outcome = attempt.request, attempt.outcome
        frozen = samplers.adapt_to_space(self.job, history.restore_trial(request.number, attempt.optuna, self.pruning.sign))
        self._attempts[request.number] = Attempt(request, outcome)
        self.drawing.add_point(request.params)
        self.pruning.is_reported = self.pruning.is_reported or bool(curve)
        if request.trial > self._next:
            raise errors.LedgerCorrupt(
                f"trial {self._next} of the study {self.run} is missing from its ledger, so the others cannot be "
                "counted; put a good copy in its place, or give the run another name"
            )
        if request.trial < self._next:  # a retry, or a later segment
            trial_id = self._trial_id(request.trial)
            # `replace_attempt` returns attributes for a new attempt. This attempt already has its own, from the database.
            self.pruning.replace_attempt(trial_id, self._memory.get_trial(trial_id))
            frozen.intermediate_values = self.pruning.restore_reports(trial_id, curve)
            self._memory.replace(trial_id, frozen)
        else:
            frozen.intermediate_values = curve
            self._study.add_trial(frozen)
            self._next += 1
        if not samplers.fits(self.job, frozen):
            self._memory.hide(request.trial)
        self._repeats.record_start(request)
        self._count_start(request)
        if outcome is not None:
            self._end_in_memory(request.trial, outcome)
            self._count_end(request, dict(request.params), outcome)

    def _restore_ended_since_start(self) -> None:
        """Reduce `_ended_since_start` to the attempts whose ends no start has recorded, in the order of their ends."""
        recorded = {number for attempt in self._attempts.values() for number in attempt.request.ended_before}
        end_times = {
            number: attempt.outcome.ended
            for number, attempt in self._attempts.items()
            if attempt.outcome is not None and number not in recorded
        }
        self._ended_since_start = sorted(end_times, key=lambda number: (end_times[number], number))

    def _load_reports(self, unfinished: Collection[int]) -> tuple[dict[int, _WatchedCurve], dict[int, list[ReportRow]]]:
        """Read the reports in the database. Record their last mark, and which trials count their steps from 0.

        Args:
            unfinished: Numbers of the attempts that have not ended.

        Returns:
            The curve of each attempt that has ended, and all reports of each of the others, by number of the attempt.
        """
        curves: dict[int, _WatchedCurve] = {}
        unfinished_reports: dict[int, list[ReportRow]] = {}
        last_mark, has_more = 0, True
        while has_more:
            page = self.storage.reports(last_mark)
            for row in page.rows:
                last_mark = row.mark
                if system_metrics.is_sample(row.metrics):
                    continue
                self._update_offset(row.trial, row.step)
                if row.number in unfinished:
                    unfinished_reports.setdefault(row.number, []).append(row)
                elif self.job.watched_metric in row.metrics:
                    value = self.pruning.sign * row.metrics[self.job.watched_metric]
                    curves.setdefault(row.number, {}).setdefault(row.step, value)  # the first report of a step counts
            has_more = page.more
        self._curves.resume(last_mark)
        return curves, unfinished_reports

    def _restore_status(self, document: Mapping[str, Any]) -> None:
        """Restore the run's last status from its form in the database.

        Raises:
            LedgerCorrupt: It cannot be read.
        """
        try:
            self.status = records.from_dict(RunStatus, document)
            self._last_alive = max(self._last_alive, self.status.alive)
        except ValueError as error:
            raise errors.LedgerCorrupt(
                f"the status of the study {self.run} in its ledger cannot be read ({error}); resume it with the version of "
                f"trialplane that wrote it, or delete it: `platform delete {self.run}`"
            ) from error

    def _record_loss(self, request: TrialRequest, reports: list[ReportRow]) -> None:
        """Record an attempt that an earlier controller left running as lost."""
        optuna_trial = optuna.trial.Trial(self._study, self._trial_id(request.trial))
        self._running[request.number] = attempt = _RunningAttempt(request, optuna_trial)
        self.counts.running += 1
        for report in reports:  # if the retry continues from a checkpoint, the pruner needs these reports
            self._evaluate_report(attempt, report.step, report.metrics)
        self.tell(
            TrialOutcome(
                number=request.number,
                state=TrialState.FAILED,
                failure=FailureClass.LOST,
                message="the controller ended while this attempt ran",
                ended=min(time.time(), max(request.begun, self._last_alive, *(report.time for report in reports))),
                slot=request.slot,
                step=max((report.step for report in reports), default=0),
            )
        )


def _create_promotion(job: Job) -> Promotion | Members | None:
    """Return the rule by which paused trials continue; None for a job whose trials are not paused."""
    search = job.search
    if isinstance(search.ladder, Intervals):
        assert search.population is not None
        return Members(search.population, search.ladder, size=job.trials, seed=job.seed)
    return None if search.ladder is None else Promotion(search.ladder, job.trials, budget=job.budget.steps)


def _without_details(status: RunStatus) -> RunStatus:
    """Return a status without the parts whose size depends on the code of trials."""
    reason = errors.shortened(status.reason, _LONGEST_REASON)
    empty_progress = type(status.progress)()
    return dataclasses.replace(status, reason=reason, best=None, mlflow="", warnings=(), progress=empty_progress)
