"""The life cycle of a run, independent of its place: submissions under a taken name, and live handles of runs.

The operations of a place are the primitives of `target`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.client import changes as changing
from trialplane.client import exporting, target
from trialplane.client.target import Log, Observed, Target
from trialplane.errors import InputError, RunDamaged, RunExists, RunNotFound, SpecError, TargetError
from trialplane.plan.plan import Plan
from trialplane.spec.jobs import Job
from trialplane.wire import rows
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

if TYPE_CHECKING:
    import optuna
    import pandas

    from trialplane.client.events import Event, Moment

_PATIENCE = 60.0
_GRACE = 300.0  # usually more than a chart's grace period


class Submitted(enum.Enum):
    """The outcome of a submission."""

    NEW = "new"
    REPLACED = "replaced"  # also new; an earlier run of that name ended before its first trial, and was deleted
    RESUMED = "resumed"  # the same spec under the same name was unfinished: it continues
    RUNNING = "running"  # it is running already
    FINISHED = "finished"  # it has succeeded before; nothing was started


def submit(place: Target, plan: Plan) -> Submitted:
    """Starts a run, or continues the one of that name and spec.

    Raises:
        RunExists: the name belongs to a run with another spec or other code, or to one that failed or was cancelled.
    """
    name = plan.run
    try:
        seen = place.observe(name)
        lines = None if seen is None else place.differences(plan)
    except TargetError as error:
        raise type(error)(f"{error}; nothing was started") from error
    if seen is None or lines is None:
        place.apply(plan)
        return Submitted.NEW
    if not (seen.is_active or seen.status.ended_trials or place.rows(name)[1]):
        place.remove(name, forget=True)
        place.apply(plan)
        return Submitted.REPLACED
    if lines:
        raise RunExists(changing.refusal(name, lines))
    if seen.is_active:
        return Submitted.RUNNING
    state = seen.status.state
    if state is RunState.SUCCEEDED:
        return Submitted.FINISHED
    if state.is_ended:
        ended = "failed" if state is RunState.FAILED else "was cancelled"
        raise RunExists(f"the run {name} {ended}; `platform resume {name}` continues it, {changing.other_name(name)}")
    RunHandle(name, place).resume()
    return Submitted.RESUMED


@dataclasses.dataclass(frozen=True)
class RunHandle:
    """One run at one target.

    Attributes:
        name: the run's name.
        target: where it lives.
    """

    name: str
    target: Target

    @property
    def job(self) -> Job:
        """The job as resolved."""
        return self.target.job(self.name)

    def observe(self) -> Observed:
        """Its status, and whether a controller works on it, at the same moment.

        Raises:
            RunNotFound: it does not exist.
        """
        seen = self.target.observe(self.name)
        if seen is None:
            raise target.unknown(self.target, self.name)
        return seen

    def status(self) -> RunStatus:
        """The newest status."""
        return self.observe().status

    def is_active(self) -> bool:
        """Whether a controller works on it."""
        return self.target.is_active(self.name)

    def watch(self) -> Iterator[RunStatus]:
        """The status a few times a second, changed or not, until the run is no longer active."""
        while True:
            seen = self.observe()
            yield seen.status
            if not seen.is_active:
                return
            time.sleep(self.target.poll)

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> RunStatus:
        """The status once the run is no longer active: ended, or paused.

        Args:
            timeout: seconds; None for as long as it takes.
            progress: whether to show the run meanwhile, in a notebook or on a terminal.

        Raises:
            TimeoutError: it took longer than `timeout` seconds. The run goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.ExitStack() as stack:
            if progress:
                from trialplane.client import live  # rich, 40 ms

                update = stack.enter_context(live.shown())
            for status in self.watch():
                last = status
                if progress:
                    update(status)
                if deadline is not None and time.monotonic() > deadline and self.is_active():
                    raise TimeoutError(f"the run {self.name} is {status.state} after {timeout:g} s")
        return last

    def events(self) -> AsyncIterator[Event]:
        """What happens in the run, as events of `client.events`, from its beginning to `RunEnded`.

        Each call makes an iterator of its own, which may be abandoned or cancelled at any moment: `async for event in
        run.events()`. Attempts that started and ended between two looks are told with both events.

        Raises:
            RunNotFound: it does not exist, or was deleted meanwhile.
        """
        from trialplane.client import events  # asyncio, 20 ms

        return events.follow(self.target, self.name)

    def history(self) -> list[Moment]:
        """What has happened so far, in the order of time, and on a cluster who changed what the run is to be.

        Raises:
            RunNotFound: it does not exist.
        """
        from trialplane.client import events  # asyncio, 20 ms

        return events.history(self.target, self.name)

    def logs(
        self, trial: int | None = None, attempt: int | None = None, *, follow: bool = False, worker: int | None = None
    ) -> Iterator[str]:
        """Lines of the controller's log, or of a trial's newest or given attempt, or of a worker."""
        return self.target.log(self.name, Log(trial, attempt, worker), follow)

    def attempts(self) -> list[TrialRow]:
        """Every attempt, in the order they started."""
        return self.target.rows(self.name)[1]

    def rows(self) -> list[TrialRow]:
        """The newest attempt of each trial, best first."""
        return rows.ranked(self.job, rows.newest(self.attempts()))

    def trials(self) -> pandas.DataFrame:
        """`rows` as a table, with the columns of `platform results --output csv`.

        Returns:
            A row for each trial, the best first: `trial`, `state`, `seconds` and the like, `params.NAME`, `metrics.NAME` and
            `returned.NAME`.

        Raises:
            InputError: pandas is not installed.
        """
        exporting.check("pandas", extra="notebook")
        import pandas  # half a second, and laptops that only submit have none

        header, lines = rows.flat(self.rows())
        return pandas.DataFrame(lines, columns=header)

    @property
    def best(self) -> TrialRow:
        """The best trial: its `params`, its `value`, its number `trial`.

        Raises:
            InputError: no trial has a result, or there are several objectives.
        """
        job = self.job
        if len(job.objectives) > 1:
            raise InputError(f"{self.name} has {len(job.objectives)} objectives; front() lists its Pareto-optimal trials")
        found = self.front()
        if not found:
            yet = " yet" if self.is_active() else ""
            raise InputError(f"{self.name} has no result{yet}; `platform results {self.name}` shows its trials")
        return found[0]

    def front(self) -> list[TrialRow]:
        """The Pareto-optimal trials, or with one objective the best alone; empty while none has a result."""
        job = self.job
        found = rows.newest(self.attempts())
        if len(job.objectives) > 1:
            return rows.ranked(job, rows.front(job, found))
        best = rows.best(job, found)
        return [] if best is None else [best]

    def study(self) -> optuna.Study:
        """Every attempt as a trial of an Optuna study in memory, for `optuna.visualization` and `optuna.importance`.

        The study is a copy of this moment: what is done with it does not change the run.

        Raises:
            InputError: Optuna is not installed.
        """
        return exporting.read(self.target, self.name)

    def export(self, url: str) -> None:
        """Writes every attempt as a trial of an Optuna study, which has the run's name, into the database of `url`.

        Args:
            url: as of SQLAlchemy: `sqlite:///study.db`, `postgresql+psycopg2://user:password@host/database`.

        Raises:
            InputError: the study exists already, the URL is not usable, or Optuna is not installed here.
            TargetError: the database cannot be written.
        """
        exporting.write(self.target, self.name, url)

    def stop(self, *, now: bool = False) -> None:
        """Has the controller end cleanly, so that `resume` can continue; `now` kills it and its trials instead."""
        if self.is_active():
            self.target.desire(self.name, RunState.PAUSED, now=now)

    def pause(self, *, now: bool = False, patience: float | None = None) -> RunStatus:
        """`stop`, and waits until the run is inactive and holds no resources.

        Raises:
            InputError: it is not active.
            TargetError: it has not stopped after `patience` seconds (None: enough for its trials to save themselves).
        """
        seen, name = self.observe(), self.name
        if not seen.is_active:
            raise InputError(f"{name} is not active but {seen.status.state}; `platform resume {name}` continues it")
        return self._end(seen.status, RunState.PAUSED, now, patience)

    def cancel(self, *, now: bool = False, patience: float | None = None) -> RunStatus:
        """Ends the run as CANCELLED and waits until it has ended and holds no resources.

        Raises:
            InputError: it has ended already.
            TargetError: it has not ended after `patience` seconds (None: enough for its trials to save themselves).
        """
        seen = self.observe()
        if seen.status.state.is_ended and not seen.is_active:
            raise InputError(f"the run {self.name} has ended already ({seen.status.state}); nothing was changed")
        return self._end(seen.status, RunState.CANCELLED, now, patience)

    def _patience(self) -> float:
        """Seconds that a run may take to end, with the time that its trials have to save themselves."""
        with contextlib.suppress(RunDamaged, RunNotFound):  # its controller has read the job and keeps working
            job = self.job
            return _PATIENCE + (job.checkpoints.grace or _GRACE if job.keeps_checkpoints else 0.0)
        return _PATIENCE + _GRACE

    def _end(self, before: RunStatus, state: RunState, now: bool, patience: float | None) -> RunStatus:
        """Ends a run and returns its last status; that of an unstarted or damaged run is derived from `before`."""
        patience = patience or self._patience()  # before the run ends, while it is known
        self.target.desire(self.name, state, now=now)
        otherwise = dataclasses.replace(before, state=state, running=0)
        try:
            last = self.wait(patience)
            self.target.remove(self.name, forget=False)
            return last
        except TimeoutError as error:
            verb = "pause" if state is RunState.PAUSED else "cancel"
            raise TargetError(f"{error}; `platform {verb} {self.name} --now` kills it") from error
        except RunNotFound:
            return dataclasses.replace(otherwise, reason="it had not started; nothing of it remains")
        except RunDamaged as error:
            if self.is_active():
                raise
            return dataclasses.replace(otherwise, reason=errors.first_line(error))

    def scale(self, parallel: int, *, now: bool = False) -> Iterator[RunStatus]:
        """Changes how many trials run at a time; yields statuses until that is done.

        With fewer than before it waits for trials to end, unless `now`: then those are retried.

        Raises:
            InputError: it is a training, it is not active (any more), the place cannot scale it, or it has been scaled to
                another number since.
        """
        job = self.job
        if not job.width_option:
            first = f"`platform cancel {self.name}`, then " if self.is_active() else ""
            others = "--nodes N" if self.target.remote else "--ranks N --local"
            raise InputError(
                f"{self.name} is one training, whose ranks are fixed; {first}"
                f"`platform submit train {job.name} --resume {self.name} {others}` continues with others"
            )
        seen = self._active(job, parallel)
        self.target.desire(self.name, parallel=parallel, now=now)
        while not self.target.fit(self.name, parallel, now=now):
            yield seen.status
            time.sleep(self.target.poll)
            seen = self._active(job, parallel)
            newest = seen.desired.parallel
            if newest not in (None, parallel):
                raise InputError(f"{self.name} was scaled to {newest} in the meantime; scaling to {parallel} was abandoned")

    def _active(self, job: Job, parallel: int) -> Observed:
        """The state of an active run that is to be scaled."""
        seen = self.observe()
        if not seen.is_active:
            again = f"`platform resume {self.name} {job.width_option} {parallel}` continues with that many at a time"
            raise InputError(f"{self.name} is not active; {again}")
        return seen

    def delete(self) -> None:
        """Cancels the run if it is active, and deletes it; its records in MLflow stay."""
        if self.is_active():
            self.cancel()
        with contextlib.suppress(RunNotFound):  # it had never started
            self.target.remove(self.name, forget=True)

    def resume(self, *, changes: Mapping[str, Any] | None = None, sets: Sequence[str] = ()) -> None:
        """Continues a run that stopped, with `changes` (dotted field → value) of its length or width.

        Raises:
            InputError: it is active, or has succeeded with nothing left.
            SpecError: a change is not among those allowed, or the run does not fit its place.
        """
        name, seen = self.name, self.observe()
        if seen.is_active:
            raise InputError(
                f"the run {name} is running; `platform status {name}` shows it, `platform cancel {name}` ends it"
            )
        old = self.job
        old = old.widened(seen.desired.parallel or seen.status.parallel or old.width)  # as it was scaled
        job = changing.changed(old, changes or {}, sets, started=len({row.trial for row in self.attempts()}))
        found, _ = self.target.check(job)
        if found:
            raise SpecError(found)
        where = "" if self.target.remote else " --local"
        why = "" if seen.status.unrecorded else changing.nothing_to_do(seen.status, old, job, where)
        if why:
            raise InputError(why)
        self.target.restart(name, job, seen.status)

    @property
    def exit_code(self) -> int:
        """How it ended, as an exit code of `errors`; the controller's own if that did not end cleanly."""
        seen = self.observe()
        if seen.exit_code in (errors.EXIT_BAD_INPUT, errors.EXIT_PLATFORM):
            return seen.exit_code
        state, code = seen.status.state, seen.exit_code or 0
        if state is RunState.PAUSED and code > 0 and code != state.exit_code:
            return errors.EXIT_PLATFORM  # not stopped by a user: it broke
        return state.exit_code

    def log_place(self) -> str:
        """Where its logs are."""
        return self.target.where(self.name)
