"""A run as a live handle: what it does now, and what can be done to it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.client import exporting
from trialplane.client.target import Target
from trialplane.errors import InputError, RunDamaged, RunNotFound, TargetError
from trialplane.wire import rows
from trialplane.wire.progress import TrainingProgress
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

if TYPE_CHECKING:
    from trialplane.spec.jobs import Job

_PATIENCE = 60.0
_GRACE = 300.0  # more than a chart gives, as a rule


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

    def status(self) -> RunStatus:
        """The newest status."""
        return self.target.status(self.name)

    def is_active(self) -> bool:
        """Whether a controller works on it."""
        return self.target.is_active(self.name)

    def watch(self) -> Iterator[RunStatus]:
        """The status a few times a second, whether it changed or not, until nobody works on the run any more."""
        while True:
            status, active = self.target.look(self.name)
            yield status
            if not active:
                return
            time.sleep(self.target.poll)

    def wait(self, timeout: float | None = None) -> RunStatus:
        """The status once nobody works on the run any more: ended, or paused.

        Raises:
            TimeoutError: it took longer than `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for status in self.watch():
            last = status
            if deadline is not None and time.monotonic() > deadline and self.is_active():
                raise TimeoutError(f"the run {self.name} is {status.state} after {timeout:g} s")
        return last

    def logs(
        self, trial: int | None = None, attempt: int | None = None, *, follow: bool = False, worker: int | None = None
    ) -> Iterator[str]:
        """Lines of the controller's log, or of a trial's newest attempt, or of the attempt named, or of a producer."""
        return self.target.log(self.name, trial, attempt, follow, worker)

    def attempts(self) -> list[TrialRow]:
        """Every attempt, in the order they started."""
        return self.target.attempts(self.name)

    def rows(self) -> list[TrialRow]:
        """The newest attempt of each trial, best first."""
        return rows.ranked(self.job, rows.newest(self.attempts()))

    def best(self) -> list[TrialRow]:
        """The best trial, or with several objectives those that no other beats; empty while none has a result."""
        job = self.job
        found = rows.newest(self.attempts())
        if len(job.objectives) > 1:
            return rows.ranked(job, rows.front(job, found))
        best = rows.best(job, found)
        return [] if best is None else [best]

    def export(self, url: str) -> None:
        """Writes every attempt as a trial of an Optuna study, which has the run's name, into the database of `url`.

        Args:
            url: as of SQLAlchemy: `sqlite:///study.db`, `postgresql+psycopg2://user:password@host/database`.

        Raises:
            InputError: there is such a study, the URL leads nowhere, or Optuna is not installed here.
            TargetError: the database cannot be written.
        """
        exporting.write(self.target, self.name, url)

    def stop(self, *, now: bool = False) -> None:
        """Ends the controller cleanly, so that `resume` goes on; `now` kills it and its trials."""
        self.target.stop(self.name, now=now)

    def pause(self, *, now: bool = False, patience: float | None = None) -> RunStatus:
        """`stop`, and waits until nobody works on the run and nothing is held for it.

        Raises:
            InputError: nobody works on it.
            TargetError: it has not stopped after `patience` seconds (None: enough for a training to save itself).
        """
        before = self.status()
        if not self.is_active():
            raise InputError(f"nobody works on {self.name}, which is {before.state}; `platform resume {self.name}` goes on")
        patience = patience or self._patience(before)  # while it is known for sure
        self.target.stop(self.name, now=now)
        return self._ended(dataclasses.replace(before, state=RunState.PAUSED), "pause", patience)

    def cancel(self, *, now: bool = False, patience: float | None = None) -> RunStatus:
        """Ends the run as CANCELLED and waits until it has, and nothing is held for it.

        Raises:
            TargetError: it has not ended after `patience` seconds (None: enough for a training to save itself).
        """
        before = self.status()
        patience = patience or self._patience(before)
        self.target.cancel(self.name, now=now)
        return self._ended(dataclasses.replace(before, state=RunState.CANCELLED), "cancel", patience)

    def _patience(self, status: RunStatus) -> float:
        """Seconds that a run may take to end: what a training gets to save itself is the job's to say, or the chart's."""
        if not isinstance(status.progress, TrainingProgress):
            return _PATIENCE
        with contextlib.suppress(RunDamaged):  # its controller has read the job and works all the same
            return _PATIENCE + (self.job.checkpoints.grace or _GRACE)
        return _PATIENCE + _GRACE

    def _ended(self, otherwise: RunStatus, verb: str, patience: float) -> RunStatus:
        """The last status; `otherwise` for a run that had not started, or of which a file is damaged."""
        try:
            last = self.wait(patience)
            self.target.release(self.name)
            return last
        except TimeoutError as error:
            raise TargetError(f"{error}; `platform {verb} {self.name} --now` kills it") from error
        except RunNotFound:
            return dataclasses.replace(otherwise, reason="it had not started; nothing of it is left", running=0)
        except RunDamaged as error:
            if self.is_active():
                raise
            return dataclasses.replace(otherwise, reason=errors.first_line(error), running=0)

    def scale(self, parallel: int, *, now: bool = False) -> Iterator[RunStatus]:
        """Changes how many trials run at a time; gives statuses until that is done.

        With fewer than before it waits for trials to end, unless `now`: then those are tried again.

        Raises:
            InputError: it is a training.
        """
        job = self.job
        if not job.width_option:
            first = f"`platform cancel {self.name}`, then " if self.is_active() else ""
            others = "--nodes N" if self.target.remote else "--ranks N --local"
            raise InputError(
                f"{self.name} is one training, whose ranks are fixed; {first}"
                f"`platform submit train {job.name} --resume {self.name} {others}` goes on with others"
            )
        done = self.target.scale(self.name, parallel, now=now)
        while not done:
            yield self.status()
            time.sleep(self.target.poll)
            done = self.target.scaled(self.name, parallel, now=now)

    def delete(self) -> None:
        """Cancels the run if somebody works on it, and forgets it; what is in MLflow stays there."""
        if self.is_active():
            self.cancel()
        with contextlib.suppress(RunNotFound):  # it had never started
            self.target.delete(self.name)

    def submitter_log(self, *, follow: bool = False) -> Iterator[str]:
        """Lines of what the place itself said while it started the controller."""
        return self.target.submitter_log(self.name, follow)

    def resume(self, *, changes: Mapping[str, Any] | None = None, sets: Sequence[str] = ()) -> None:
        """Goes on with a run that stopped, longer or wider when `changes` (dotted field → value) say so."""
        self.target.resume(self.name, changes or {}, sets)

    @property
    def exit_code(self) -> int:
        """How it ended, as an exit code of `errors`."""
        return self.target.exit_code(self.name)

    def log_place(self) -> str:
        """Where its logs are."""
        return self.target.log_place(self.name)
