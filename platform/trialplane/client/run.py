"""Life cycle of a run, independent of its target: submissions, also under an existing name, and handles of runs.

The primitive operations are those of `target.Target`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.client import exporting, target
from trialplane.client.target import Log, Observation, Target
from trialplane.errors import InputError, RunDamaged, RunExists, RunNotFound, SpecError, TargetError
from trialplane.job.kinds import Job
from trialplane.ledger.attempts import NO_LIMIT
from trialplane.plan import changes as changing
from trialplane.plan.plan import Plan
from trialplane.wire import rows, states
from trialplane.wire.records import ReportRow, RunStatus, TrialRow
from trialplane.wire.states import RunState, TrialState

if TYPE_CHECKING:
    import optuna
    import pandas

    from trialplane.client.events import Event, Moment

_PATIENCE = 60.0  # seconds for a run to end, without saving checkpoints
_GRACE = 300.0  # seconds for saving them if the job sets no grace period; more than a chart usually grants
_LAST_POLL = 0.25  # seconds between two reads of a run that is about to end, so that its end is seen at once
_MAX_LAST_POLLS = 40  # such reads in all: the estimated end may be overdue for long


class SubmissionOutcome(enum.Enum):
    """Outcome of a submission."""

    NEW = "new"
    REPLACED = "replaced"  # the run is new; an earlier run of that name ended before its first trial, and was deleted
    RESUMED = "resumed"  # the run existed with the same spec, and was continued
    RUNNING = "running"  # the run existed with the same spec, and is still running
    FINISHED = "finished"  # the run existed with the same spec, and has succeeded


def submit(to_target: Target, plan: Plan) -> SubmissionOutcome:
    """Start a run, or continue the run with this name and spec.

    Raises:
        RunExists: The name belongs to a run with another spec or other code, or to one that failed or was cancelled.
    """
    name = plan.run
    try:
        existing = to_target.observe(name)
        differences = None if existing is None else to_target.differences(plan)
    except TargetError as error:
        raise type(error)(f"{error}; nothing was started") from error
    if existing is None or differences is None:  # there is no such run, or its submission is incomplete
        to_target.apply(plan)
        return SubmissionOutcome.NEW
    has_ended_without_trials = not (existing.is_active or existing.status.ended_trials or to_target.rows(name))
    if has_ended_without_trials:  # nothing is lost with it, so the name is free again even for another spec
        to_target.remove(name, forget=True)
        to_target.apply(plan)
        return SubmissionOutcome.REPLACED
    if differences:
        raise RunExists(changing.refusal(name, differences))
    if existing.is_active:
        return SubmissionOutcome.RUNNING
    return _continue(RunHandle(name, to_target), existing.status.state)


def _continue(run: RunHandle, state: RunState) -> SubmissionOutcome:
    """Resume an inactive run in this state, unless it has succeeded.

    Raises:
        RunExists: It failed or was cancelled.
    """
    if state is RunState.SUCCEEDED:
        return SubmissionOutcome.FINISHED
    if state.is_ended:
        how_ended = "failed" if state is RunState.FAILED else "was cancelled"
        raise RunExists(
            f"the run {run.name} {how_ended}; `platform resume {run.name}` continues it, "
            f"{changing.other_name_advice(run.name)}"
        )
    run.resume()
    return SubmissionOutcome.RESUMED


@dataclasses.dataclass(frozen=True)
class RunHandle:
    """A run, for reading and changing it.

    Attributes:
        name: Name of the run.
        target: Target of the run.
    """

    name: str
    target: Target

    @property
    def job(self) -> Job:
        """The resolved job."""
        return self.target.job(self.name)

    def observe(self) -> Observation:
        """Read the status, and whether a controller is running, in one step.

        Raises:
            RunNotFound: The run does not exist.
        """
        observed = self.target.observe(self.name)
        if observed is None:
            raise target.unknown_run_error(self.target, self.name)
        return observed

    def status(self) -> RunStatus:
        """Read the status.

        Raises:
            RunNotFound: The run does not exist.
        """
        return self.observe().status

    def is_active(self) -> bool:
        """Return whether a controller is running for this run."""
        return self.target.is_active(self.name)

    def watch(self) -> Iterator[RunStatus]:
        """Yield the status about once a second, more often near the end, until the run is no longer active."""
        last_polls = 0
        while True:
            observed = self.observe()
            yield observed.status
            if not observed.is_active:
                return
            seconds_left = observed.status.eta
            is_near_end = seconds_left is not None and seconds_left < 2 * self.target.poll
            pause = self.target.poll
            if is_near_end and last_polls < _MAX_LAST_POLLS:
                last_polls += 1
                pause = min(pause, _LAST_POLL)
            time.sleep(pause)

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> RunStatus:
        """Wait until the run has ended or is paused.

        Args:
            timeout: Maximum time, in seconds. Default: no limit.
            progress: Show the progress, in a notebook or a terminal.

        Returns:
            The last status.

        Raises:
            TimeoutError: The run took longer than `timeout`. It continues.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.ExitStack() as stack:
            if progress:
                from trialplane.client import live  # imports rich, which takes 40 ms

                update = stack.enter_context(live.display())
            for status in self.watch():
                last = status
                if progress:
                    update(status)
                if deadline is not None and time.monotonic() > deadline and self.is_active():
                    raise TimeoutError(f"the run {self.name} is {status.state} after {timeout:g} s")
        return last

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the events of the run, from its start to `RunEnded`: `async for event in run.events()`.

        Every call starts from the beginning. The iteration can be cancelled at any time. No event is missed, even if an
        attempt is very short.

        Raises:
            RunNotFound: The run does not exist, or was deleted.
        """
        from trialplane.client import events  # imports asyncio, which takes 20 ms

        return events.follow(self.target, self.name)

    def history(self) -> list[Moment]:
        """List what has happened so far, in order of time. On a cluster, this includes who changed the run.

        Raises:
            RunNotFound: The run does not exist.
        """
        from trialplane.client import events  # imports asyncio, which takes 20 ms

        return events.history(self.target, self.name)

    def logs(
        self, trial: int | None = None, attempt: int | None = None, *, follow: bool = False, worker: int | None = None
    ) -> Iterator[str]:
        """Iterate over the lines of a log.

        Args:
            trial: Number of a trial, or of an iteration of a collection. Default: the controller's log.
            attempt: Attempt of the trial, from 1. Default: the newest.
            follow: Continue until the run or the trial ends.
            worker: Worker of a collection, in iteration `trial`. Default: the learner.
        """
        return self.target.log(self.name, Log(trial, attempt, worker), follow)

    def attempts(self) -> list[TrialRow]:
        """List all attempts, in the order they started."""
        return self.target.rows(self.name)

    def rows(self) -> list[TrialRow]:
        """List the newest attempt of each trial, best first."""
        return rows.ranked(self.job, rows.newest_attempts(self.attempts()))

    def trials(self) -> pandas.DataFrame:
        """Return `rows` as a table, with the columns of `platform results --output csv`.

        Returns:
            One row per trial, best first, with `trial`, `state`, `seconds`, `params.NAME`, `metrics.NAME`, `returned.NAME`
            and others.

        Raises:
            InputError: Pandas is not installed.
        """
        exporting.check_installed("pandas", extra="notebook")
        import pandas  # takes half a second, and is missing on laptops that only submit

        header, lines = rows.table(self.rows())
        return pandas.DataFrame(lines, columns=header)

    def reports(self, after: int = 0, limit: int | None = None) -> list[ReportRow]:
        """List the reports of all attempts in the order they arrived, those of running attempts included.

        Args:
            after: `mark` of the last report that is known already.
            limit: Maximum number of reports. Default: all.
        """
        return self.target.curves(self.name, after, NO_LIMIT if limit is None else limit)

    def curves(self) -> pandas.DataFrame:
        """Return the reports as a table, those of running attempts included.

        Returns:
            One row per report and metric, in the order they arrived, with `trial`, `attempt`, `step`, `metric`, `value` and
            `time` (UTC). `curves().pivot_table("value", "step", "trial")` compares trials that report one metric.

        Raises:
            InputError: Pandas is not installed.
        """
        exporting.check_installed("pandas", extra="notebook")
        import pandas  # as in `trials`

        header, lines = rows.curve_table(self.reports())
        table = pandas.DataFrame(lines, columns=header)
        table["time"] = pandas.to_datetime(table["time"], unit="s", utc=True)
        return table

    @property
    def best(self) -> TrialRow:
        """The best trial, with its `params`, its `value` and its number `trial`.

        Raises:
            InputError: No trial has a result, or there are several objectives.
        """
        job = self.job
        if len(job.objectives) > 1:
            raise InputError(f"{self.name} has {len(job.objectives)} objectives; front() lists its Pareto-optimal trials")
        best_trials = self.front()
        if not best_trials:
            yet = " yet" if self.is_active() else ""
            raise InputError(f"{self.name} has no result{yet}; `platform results {self.name}` shows its trials")
        return best_trials[0]

    def front(self) -> list[TrialRow]:
        """List the Pareto-optimal trials, or with one objective the best trial. Empty if no trial has a result."""
        return rows.best_results(self.job, rows.newest_attempts(self.attempts()))

    def study(self) -> optuna.Study:
        """Copy all attempts to an Optuna study in memory, for `optuna.visualization` and `optuna.importance`.

        Changes to the study do not change the run.

        Raises:
            InputError: Optuna is not installed.
        """
        return exporting.read_study(self.target, self.name)

    def export(self, url: str) -> None:
        """Export all attempts as an Optuna study with the run's name, or bring an MLflow up to date with the run's records.

        Args:
            url: SQLAlchemy URL of the database: `sqlite:///study.db`, `postgresql+psycopg2://user:password@host/database`.
                `mlflow:` and a tracking URI for MLflow: `mlflow:sqlite:///mlflow.db`, `mlflow:http://localhost:5000`.

        Raises:
            InputError: The study exists already, the URL is not usable, or Optuna is not installed.
            TargetError: The database cannot be written.
        """
        exporting.export(self.target, self.name, url)

    def store_report(self, page: str, uri: str) -> None:
        """Export the run's records to MLflow, as `export` does, and add its report page.

        The page is the artifact `report.html` of the MLflow run that stands for the whole run.

        Args:
            page: HTML of the report.
            uri: Tracking URI of MLflow.

        Raises:
            InputError: The run is active, the URI is not usable, or MLflow is not installed.
            TargetError: MLflow cannot be written.
        """
        if self.is_active():
            raise InputError(f"{self.name} is active; store its report in MLflow when it has ended")
        exporting.export_to_mlflow(self.target, self.name, uri, page)

    def stop(self, *, now: bool = False) -> None:
        """Stop the run, for `resume` to continue it later. Does not wait, and does nothing if the run is not active.

        Args:
            now: Kill the controller and its trials instead of ending them cleanly.
        """
        if self.is_active():
            self.target.desire(self.name, RunState.PAUSED, now=now)

    def pause(self, *, now: bool = False, patience: float | None = None) -> RunStatus:
        """Stop the run, and wait until it is inactive and holds no resources.

        Args:
            now: Kill the controller and its trials instead of ending them cleanly.
            patience: Maximum time, in seconds. Default: enough for its trials to save checkpoints.

        Returns:
            The last status.

        Raises:
            InputError: The run is not active.
            TargetError: The run has not stopped after `patience` seconds.
        """
        observed, name = self.observe(), self.name
        if not observed.is_active:
            raise InputError(f"{name} is not active but {observed.status.state}; `platform resume {name}` continues it")
        return self._end(observed.status, RunState.PAUSED, now, patience)

    def cancel(self, *, now: bool = False, patience: float | None = None) -> RunStatus:
        """End the run as CANCELLED, and wait until it has ended and holds no resources.

        Args:
            now: Kill the controller and its trials instead of ending them cleanly.
            patience: Maximum time, in seconds. Default: enough for its trials to save checkpoints.

        Returns:
            The last status.

        Raises:
            InputError: The run has already ended.
            TargetError: The run has not ended after `patience` seconds.
        """
        observed = self.observe()
        if observed.status.state.is_ended and not observed.is_active:
            raise InputError(f"the run {self.name} has ended already ({observed.status.state}); nothing was changed")
        return self._end(observed.status, RunState.CANCELLED, now, patience)

    def _default_patience(self) -> float:
        """Return the seconds that a run may take to end, including the time to save checkpoints."""
        try:
            job = self.job
        except (RunDamaged, RunNotFound):  # the controller has read the job before, and may save checkpoints
            return _PATIENCE + _GRACE
        if not job.keeps_checkpoints:
            return _PATIENCE
        return _PATIENCE + (job.checkpoints.grace or _GRACE)

    def _end(self, old_status: RunStatus, state: RunState, now: bool, patience: float | None) -> RunStatus:
        """End the run, wait until it has ended, and return its last status.

        Args:
            old_status: Status before. The last status is derived from it if the run disappears because it never started, or
                if its folder is damaged.
            state: State in which the run ends.
            now: Kill the controller and its trials instead of ending them cleanly.
            patience: Maximum time, in seconds. None for `_default_patience`.

        Raises:
            TargetError: The run has not ended in time.
        """
        patience = patience or self._default_patience()  # read before the run ends, while its job can be read
        self.target.desire(self.name, state, now=now)
        derived_status = dataclasses.replace(old_status, state=state, running=0)
        try:
            last = self.wait(patience)
            self.target.remove(self.name, forget=False)
            return last
        except TimeoutError as error:
            verb = "pause" if state is RunState.PAUSED else "cancel"
            raise TargetError(f"{error}; `platform {verb} {self.name} --now` kills it") from error
        except RunNotFound:
            return dataclasses.replace(derived_status, reason="it had not started; nothing of it remains")
        except RunDamaged as error:  # its status cannot be read, but whether it still works can
            if self.is_active():
                raise
            return dataclasses.replace(derived_status, reason=errors.first_line(error))

    def scale(self, parallel: int, *, now: bool = False) -> Iterator[RunStatus]:
        """Change the number of parallel trials, or of workers of a collection, and yield the status until it is done.

        Iterate over the result: nothing changes before. With a lower number, this waits for trials to end.

        Args:
            parallel: New number.
            now: With a lower number, end trials at once. They are retried.

        Raises:
            InputError: The run is a training or not active, its target cannot scale it, or it was scaled to another number
                in the meantime.
            SpecError: The run is a collection with a budget of GPU-hours or money.
        """
        job = self.job
        if not job.width_option:
            cancel = f"`platform cancel {self.name}`, then " if self.is_active() else ""
            ranks = "--nodes N" if self.target.remote else "--ranks N --local"
            raise InputError(
                f"{self.name} is one training, whose ranks are fixed; {cancel}"
                f"`platform submit train {job.name} --resume {self.name} {ranks}` continues with others"
            )
        if issues := list(job.widened(parallel).resume_issues(job)):
            raise SpecError(issues)
        observed = self._active_observation(job, parallel)
        self.target.desire(self.name, parallel=parallel, now=now)
        while not self.target.fit(self.name, parallel, now=now):
            yield observed.status
            time.sleep(self.target.poll)
            observed = self._active_observation(job, parallel)
            newest = observed.desired.parallel
            if newest not in (None, parallel):
                raise InputError(f"{self.name} was scaled to {newest} in the meantime; scaling to {parallel} was abandoned")

    def _active_observation(self, job: Job, parallel: int) -> Observation:
        """Return a snapshot of the run, which must be active.

        Raises:
            InputError: The run is not active. The message explains how to continue it with `parallel` trials or workers.
        """
        observed = self.observe()
        if not observed.is_active:
            advice = f"`platform resume {self.name} {job.width_option} {parallel}` continues with that many at a time"
            raise InputError(f"{self.name} is not active; {advice}")
        return observed

    def delete(self) -> None:
        """Delete the run, and cancel it first if it is active. Records in MLflow are kept.

        Raises:
            InputError: Trials of an active run start from its checkpoints.
        """
        if users := self.target.checkpoint_users(self.name):
            raise InputError(
                f"{' and '.join(users)} may still start trials from checkpoints of {self.name}, so it is not deleted; "
                f"`platform cancel {users[0]}`, or wait for its end"
            )
        if self.is_active():
            self.cancel()
        with contextlib.suppress(RunNotFound):  # the run had never started
            self.target.remove(self.name, forget=True)

    def resume(self, *, changes: Mapping[str, Any] | None = None, sets: Sequence[str] = ()) -> None:
        """Continue a paused or ended run.

        Args:
            changes: Fields to change: dotted field → value, for example `{"trials": 100, "parallel": 8}`. The number of
                trials, iterations and workers, the budget, the retries and the cluster can change; of a study also its
                space, sampler and pruner.
            sets: Fields to change, as `field=value`.

        Raises:
            InputError: The run is active, or has succeeded and nothing is left to do.
            SpecError: A field cannot change, or the run does not fit its target.
        """
        name, observed = self.name, self.observe()
        if observed.is_active:
            raise InputError(
                f"the run {name} is running; `platform status {name}` shows it, `platform cancel {name}` ends it"
            )
        recorded_job = self.job
        # `scale` does not change the recorded job, so the newest number of parallel trials is in the state of the run.
        scaled_width = observed.desired.parallel or observed.status.parallel or recorded_job.width
        old_job = recorded_job.widened(scaled_width)
        new_job = self._changed_job(old_job, changes or {}, sets)
        if not observed.status.unrecorded:  # otherwise even a completed run has work left: to write its results to MLflow
            flag = "" if self.target.remote else " --local"
            completed = changing.completed_message(observed.status, old_job, new_job, flag)
            if completed:
                raise InputError(completed)
        self.target.resume(name, new_job, observed.status)

    def edit(self, sets: Sequence[str]) -> None:
        """Change fields of the run, and continue it. An active run is paused first.

        Args:
            sets: Fields to change, as `field=value`.

        Raises:
            SpecError: A field cannot change, or the run would not fit its target. The run is not paused.
            InputError: The run has succeeded, and nothing is left to do. Or it has started more trials before its pause than
                it would have; it continues unchanged.
        """
        if not self.is_active():
            self.resume(sets=sets)
            return
        self._changed_job(self.job, changes={}, sets=sets)  # only to raise before the pause; `resume` applies them
        is_paused = self.pause().state is RunState.PAUSED
        try:
            self.resume(sets=sets)
        except InputError as error:
            if not is_paused:  # its last trials have ended before the pause
                raise
            self.resume()
            reason = "; ".join(map(str, error.issues)) if isinstance(error, SpecError) else str(error)
            raise InputError(f"{self.name} continues unchanged: {reason}") from error

    def _changed_job(self, job: Job, changes: Mapping[str, Any], sets: Sequence[str]) -> Job:
        """Return the run's job with changes.

        Raises:
            SpecError: A field cannot change, or the changed run does not fit its target.
        """
        new_job = changing.apply_changes(job, changes, sets, started=len({row.trial for row in self.attempts()}))
        issues, _ = self.target.check(new_job)
        if issues:
            raise SpecError(issues)
        return new_job

    def retry_failed(self, sets: Sequence[str] = ()) -> int:
        """Try the failed trials of a study again, with the same parameters, and continue the run.

        Args:
            sets: Fields to change as well, as `field=value`.

        Returns:
            The number of trials.

        Raises:
            InputError: The run is active, no study or a population, or no trial has failed.
        """
        job = self.job
        if job.is_sequential:
            raise InputError(f"{self.name} is a {job.title}; `platform resume {self.name}` tries again what has failed")
        if job.search.population is not None:
            raise InputError(
                f"{self.name} is a population, and the checkpoints from which a failed member would continue are removed "
                "once the others have passed their step; submit another study"
            )
        attempts = self.attempts()
        failed = [row for row in rows.newest_attempts(attempts) if row.state is TrialState.FAILED]
        if not failed:
            raise InputError(f"no trial of {self.name} has failed; `platform results {self.name}` shows its trials")
        # The controller tries trials again that failed in an attempt with a number below this: in all attempts so far.
        next_number = max(row.number for row in attempts) + 1
        self.resume(changes={"retries.failed_before": next_number}, sets=sets)
        return len(failed)

    @property
    def exit_code(self) -> int:
        """Exit code of the run, as in `errors`: that of its state, or the controller's if the controller failed."""
        observed = self.observe()
        controller_code, state = observed.exit_code, observed.status.state
        if controller_code in (errors.EXIT_BAD_INPUT, errors.EXIT_PLATFORM):
            return controller_code
        # Without the controller's exit code (another process or a cluster started it), the reason says the same.
        if state is RunState.FAILED and observed.status.reason.startswith(states.NO_TRIAL):
            return errors.EXIT_BAD_INPUT
        # A run whose controller crashed counts as paused, but no user has paused it. A negative code is that of a signal,
        # such as the one of `pause --now`.
        has_crashed = controller_code is not None and controller_code > 0 and controller_code != errors.EXIT_INTERRUPTED
        return errors.EXIT_PLATFORM if state is RunState.PAUSED and has_crashed else state.exit_code

    def log_location(self) -> str:
        """Location of the logs."""
        return self.target.location(self.name)
