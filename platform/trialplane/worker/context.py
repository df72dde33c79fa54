"""The job's interface to the platform: `run(ctx)` receives a `Context`; code without one calls `report` and its like.

Imports nothing heavy and must not: it is loaded in the template before the job's own libraries.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from trialplane import errors
from trialplane.wire import records
from trialplane.worker import stopping

Result = Mapping[str, Any] | Sequence[float] | float
Run = Callable[["Context"], Result]
Pulse = Callable[[int, float], None]


class Pruned(Exception):
    """The pruner ended this trial; raised by `Context.report`. Let it pass."""


class Finished(Exception):
    """The job's `stop` ended this trial, as complete with what it has reported; raised by `Context.report`. Let it pass."""


class Stopped(Exception):
    """The attempt ends early and the trial continues in another one; made by `Context.stopped`, raised by the job."""


class Invalid(Exception):
    """The job violated its contract, without an exception of its own."""


class Refused(Invalid):
    """The job's program does not take its arguments.

    Args:
        message: what it said.
        certain: whether it refuses those of every trial.
    """

    def __init__(self, message: str, *, certain: bool) -> None:
        super().__init__(message)
        self.certain = certain


class Reporter(Protocol):
    """A receiver of reports."""

    def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        """Sends the metrics of one step; True when the trial is to end as pruned, which only one that waits can know.

        Raises:
            Finished: the trial is complete, and one that waits is told so.
        """


@dataclasses.dataclass
class Origin:
    """The checkpoints of another run to start from, or None, and whether the job has read that."""

    place: str | None = None
    was_read: bool = False


class Points:
    """Which points of a trial's metrics count, where the same metric comes by several ways: each is recorded once.

    A metric counts as it comes first, by the job's own reports or by a library whose calls are captured. The job's own
    reports take a metric over, but for a first point that has come already.

    Attributes:
        newest: the newest step that the job itself has reported; -1 before the first.
        is_paused: whether what libraries log does not count now.
        lock: held until a report or a request is answered, as libraries log from threads of their own.
    """

    def __init__(self) -> None:
        self.newest = -1
        self.is_paused = False
        self.lock = threading.RLock()
        self._sources: dict[str, tuple[str, float]] = {}  # metric → by which way it counts, and its newest value

    def counted(self, source: str, metrics: Mapping[str, float]) -> dict[str, float]:
        """Those metrics of a report that count.

        Args:
            source: the library that logs them; "" for the job's own reports.
            metrics: by name.
        """
        counted = {}
        for name, value in metrics.items():
            before, newest = self._sources.get(name, (source, math.nan))
            if source and (before != source or self.is_paused):
                continue
            self._sources[name] = source, value
            if before == source or newest != value:
                counted[name] = value
        return counted


@dataclasses.dataclass(frozen=True)
class Context:
    """One trial, passed to the job's `run(ctx)`.

    Attributes:
        params: the job's fixed parameters and the sampled ones, merged; with an objective of Optuna, those it has been given
            so far, and in a retry all that an attempt before was given.
        seed: for the trial's random numbers. Python's, numpy's and torch's generators are seeded with it already, in all
            ranks equally, so that models start equal. Seed what must differ between ranks with `seed + rank`, as
            Accelerate's `set_seed(seed, device_specific=True)` does.
        run: name of the run.
        trial: number of the trial, from 0.
        attempt: 1, or more for a retry.
        cpus: cores this trial may use, all its ranks on this node together; of a training's script run alone, all there are.
        gpus: GPUs this trial may use; `CUDA_VISIBLE_DEVICES` names them, and is empty in a training, or ranks, without any.
        code: folder of the job's files.
        cache: folder shared by all trials of all runs; may not exist yet.
        workdir: scratch folder of this trial, of this rank alone; deleted when the trial ends.
        rank: number of this process among all of the trial, from 0; rank 0 reports, and its result counts.
        local_rank: the same among those on this node; the index of its GPU.
        world_size: how many processes run the trial.
        checkpoints: folder, or fsspec URL, for this trial's checkpoints. It outlives the attempt and is shared by the next;
            it may not exist yet.
    """

    params: Mapping[str, Any]
    seed: int
    run: str
    trial: int
    attempt: int
    cpus: int
    gpus: int
    code: Path
    cache: Path
    workdir: Path
    _reporter: Reporter = dataclasses.field(repr=False)
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    checkpoints: str = ""
    _origin: Origin = dataclasses.field(default_factory=Origin, repr=False)
    _stop: stopping.Stop = dataclasses.field(default_factory=stopping.Stop, repr=False)
    _pulse: Pulse | None = dataclasses.field(default=None, repr=False)
    _points: Points = dataclasses.field(default_factory=Points, repr=False)

    if not TYPE_CHECKING:  # or every name would be an attribute for a type checker

        def __getattr__(self, name: str) -> NoReturn:
            """Raises an AttributeError, with the right entrypoint for an objective of Optuna."""
            advice = (
                "; an objective of Optuna needs `entrypoint: optuna:MODULE:FUNCTION`" if name.startswith("suggest_") else ""
            )
            raise AttributeError(f"'Context' object has no attribute {name!r}{advice}", name=name, obj=self)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes shared files."""
        return self.rank == 0

    @property
    def resume_from(self) -> str | None:
        """A folder like `checkpoints` of another run, to start from while that holds none; or None.

        If the job does not read it, the trial starts from scratch, and the user gets a warning.
        """
        self._origin.was_read = True
        return self._origin.place

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested: save a checkpoint soon, and raise `stopped(step)`.

        Reading it makes SIGTERM a request: a job that never reads it is ended by SIGTERM at once.

        Ranks receive the signal at different moments. Ranks in lockstep must agree, or some wait for the others forever:
        reduce this flag over all ranks, along with what is reduced each step anyway.
        """
        return self._stop.requested

    def stopped(self, step: int | None = None) -> Stopped:
        """The exception to raise once the checkpoint is saved: the attempt ends, and the trial continues in another one.

        Args:
            step: of the checkpoint just saved; None when there is none.
        """
        with_it = "without a checkpoint" if step is None else f"after step {step}, with a checkpoint"
        return Stopped(f"{'stopped by SIGTERM' if self.stopping else 'stopped by itself'} {with_it}")

    def pulse(self, step: int, seconds: float) -> None:
        """Reports how long this rank took for one step, so that a rank that slows down the others is detected.

        Args:
            step: optimizer step.
            seconds: this rank's own, without the time it waited for others: data and computing, no collectives.
        """
        if self._pulse is not None:
            self._pulse(int(step), float(seconds))

    def report(self, step: int | None = None, **metrics: float) -> None:
        """Sends the metrics of one step to the controller, which records them and consults the pruner.

        Only rank 0 sends them; in the other ranks this does nothing.

        Args:
            step: epoch or optimizer step; must grow from report to report. One more than the one before when left out, and 0
                for the first of an attempt: a job that goes on from a checkpoint gives its steps itself.
            **metrics: by name; the pruner compares the study's objective, or the job's `pruner.metric`: report that one.

        Raises:
            Pruned: the pruner ends this trial. Do not catch it.
            Finished: the job's `stop` ends it. Do not catch it.
            ValueError: the step is negative, or too large for a database.
        """
        step = self._points.newest + 1 if step is None else step
        if not 0 <= step < records.STEPS:
            raise ValueError(f"ctx.report(step={step}): a step is a whole number from 0 to {records.STEPS - 1}")
        self._send("", int(step), {name: float(value) for name, value in metrics.items()})

    def note(self, source: str, step: int, metrics: Mapping[str, float], *, waits: bool = False) -> None:
        """Reports what the job has logged by another library, but for metrics that are reported in another way already.

        Args:
            source: the library; "" for the job's own reports.
            step: as of `report`, but one out of range is brought into it.
            metrics: by name.
            waits: whether the library's call may raise; otherwise a pruned trial gets SIGTERM.

        Raises:
            Pruned: as of `report`, if it waits.
            Finished: as of `report`, if it waits.
        """
        self._send(source, min(max(0, int(step)), records.STEPS - 1), metrics, waits=waits)

    @contextlib.contextmanager
    def uncaptured(self) -> Iterator[None]:
        """While this lasts nothing that libraries log is reported: it is in what the job itself reports."""
        before, self._points.is_paused = self._points.is_paused, True
        try:
            yield
        finally:
            self._points.is_paused = before

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts no other thread of the trial reports: one that waits for an answer could get another's."""
        with self._points.lock:
            yield

    def suggested(self, name: str, value: Any) -> None:
        """Adds to `params` what an objective of Optuna has been given, a JSON value."""
        assert isinstance(self.params, dict), "an objective's parameters are added one by one"
        self.params[name] = value

    def _send(self, source: str, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> None:
        with self._points.lock:
            if not source:
                self._points.newest = step
            counted = self._points.counted(source, metrics)
            if not counted and metrics:
                return
            pruned = self._reporter(step, counted) if waits else self._reporter(step, counted, waits=False)
        if pruned:
            raise Pruned(f"pruned at step {step}")

    def path(self, name: str) -> Path:
        """The parameter `name` as a path; a relative one is below the job's folder.

        Raises:
            InputError: it is null, or a list.
        """
        if isinstance(self.params[name], list):
            raise errors.InputError(f"params.{name} is a list, and this job reads one file: name one path")
        return self.paths(name)[0]

    def paths(self, name: str) -> list[Path]:
        """The parameter `name`, a path or a list of them, as paths; relative ones are below the job's folder.

        Raises:
            InputError: it is null.
        """
        value = self.params[name]
        if value is None:
            raise errors.InputError(f"params.{name} is null, and must be a path")
        return [self.code / Path(str(one)).expanduser() for one in (value if isinstance(value, list) else [value])]


# The trial of this process, with the pid that it was entered in: a process that the job forks is none, for the channel to
# the slot is its parent's. State of the module, since there is one trial to a process and its threads are the trial's too.
_entered: list[tuple[int, Context]] = []


@contextlib.contextmanager
def entered(ctx: Context) -> Iterator[None]:
    """Makes a context the one of this process, while the job's function runs."""
    _entered.append((os.getpid(), ctx))
    try:
        yield
    finally:
        _entered.pop()


def current() -> Context | None:
    """The trial that this process runs, for code that has no `ctx` at hand; None outside of a trial."""
    pid, ctx = _entered[-1] if _entered else (0, None)
    return ctx if pid == os.getpid() else None


def report(step: int | None = None, **metrics: float) -> None:
    """Reports metrics of the trial that runs, as `Context.report` does; does nothing outside of a trial.

    Args:
        step: epoch or optimizer step; one more than the one before when left out.
        **metrics: by name: `trialplane.report(accuracy=0.93)`.

    Raises:
        Pruned: the pruner wants this trial to end. Do not catch it.
        Finished: the job's `stop` ends it. Do not catch it.
        ValueError: the step is negative, or larger than a database keeps.
    """
    if (ctx := current()) is not None:
        ctx.report(step, **metrics)


def note(source: str, step: int, metrics: Mapping[str, float], *, waits: bool = False) -> None:
    """As `Context.note`, for the trial that runs; does nothing outside of a trial."""
    if (ctx := current()) is not None and metrics:
        ctx.note(source, step, metrics, waits=waits)


def params() -> Mapping[str, Any]:
    """The parameters of the trial that runs, fixed and sampled; empty outside of a trial."""
    ctx = current()
    return {} if ctx is None else ctx.params


def checkpoints() -> str | None:
    """The folder, or fsspec URL, for checkpoints of the trial that runs; None outside of a trial."""
    ctx = current()
    return None if ctx is None else ctx.checkpoints
