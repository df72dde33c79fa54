"""The job's interface to the platform: `run(ctx)` receives a `Context`; other code calls `report`, `params` and the like.

A study may pause its trials at rungs, numbers of steps at which trials are compared, and continue only the best. In a
population, a trial may continue there from the checkpoint of another trial.

Must not import anything heavy: it is loaded in the template before the job's own libraries.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from trialplane import errors
from trialplane.wire import env, records
from trialplane.worker import pausing, stopping

if TYPE_CHECKING:  # numpy, which a job may not need
    from trialplane.training import optimizers
    from trialplane.training.states import Restored, States

Result = Mapping[str, Any] | Sequence[float] | float
JobFunction = Callable[["Context"], Result]
Pulse = Callable[[int, float], None]


class Pruned(Exception):
    """Raised by `Context.report` if the pruner ends the trial. Do not catch it."""


class Finished(Exception):
    """Raised by `Context.report` if the job's `stop` ends the trial as complete. Do not catch it."""


class Stopped(Exception):
    """Raised by the job, from `Context.stopped`, to end the attempt. The trial continues in another attempt."""


class Paused(Stopped):
    """Raised at a rung, once the trial has saved a checkpoint. Do not catch it."""


class Invalid(Exception):
    """A violation of the job's contract that raised no exception in the job itself."""


class NotResumable(Invalid):
    """An error of a job whose trial must be paused at a rung and continue, and has saved no checkpoint, or not read it."""


class ArgumentsRefused(Invalid):
    """An error of the job's program about its arguments.

    Args:
        message: Message of the program.
        certain: Whether the program would refuse the arguments of every trial of the study.
    """

    def __init__(self, message: str, *, certain: bool) -> None:
        super().__init__(message)
        self.certain = certain


class Reporter(Protocol):
    """A receiver of reports."""

    def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        """Send the metrics of one step; return whether the trial must end as pruned.

        Args:
            step: Step of the report.
            metrics: Metrics by name.
            waits: Whether to wait for the answer. Without it, False is returned, and the slot ends a pruned trial.

        Raises:
            Finished: A stop rule ends the trial as complete. Only with `waits`.
        """


@dataclasses.dataclass
class Origin:
    """The checkpoints of another run or trial, from which the trial starts as long as it has none of its own.

    Attributes:
        location: Location of another run's checkpoints, or of another trial's in a population. None for a trial that starts
            from scratch.
        was_read: Whether the job has read the location, or a checkpoint at it.
        step: Step of the checkpoint. None for the newest.
        must_be_read: Whether the trial takes over the state of another trial, and has none of its own yet.
        has_other_params: Whether the trial has other parameters than those with which that checkpoint was trained.
        needs_newest: Whether only the newest checkpoint there may be used, even if it is damaged. An older one has fewer
            steps of training than the segment that continues it expects.
        is_restart: Whether a population restarts with this checkpoint.
        is_reused: Whether it is a checkpoint that `reuse` has selected, and the trial has none of its own yet. The trial
            starts at step 0 if it is missing.
        restored_step: Step of the checkpoint that `reuse` has selected, once `restored` has read it; -1 if it is unusable,
            and None before.
    """

    location: str | None = None
    was_read: bool = False
    must_be_read: bool = False
    step: int | None = None
    has_other_params: bool = False
    needs_newest: bool = False
    is_restart: bool = False
    is_reused: bool = False
    restored_step: int | None = None


class MetricSources:
    """A filter of reported metrics that counts each metric from one source, so that no value is recorded twice.

    Sources are the job's own reports, and libraries whose calls are captured. A metric counts from the source that reports
    it first. If the job itself reports it later, it counts from the job from then on; the job's first value is left out if
    it equals the library's newest value, which was recorded already.

    Attributes:
        newest_step: Newest step that the job itself has reported; -1 before the first.
        ignores_libraries: Whether metrics that libraries log are left out now.
        lock: Held until a report or a request is answered, because libraries log from threads of their own.
    """

    def __init__(self) -> None:
        self.newest_step = -1
        self.ignores_libraries = False
        self.lock = threading.RLock()
        self._sources: dict[str, tuple[str, float]] = {}  # metric → the source from which it counts, and its newest value

    def counted_metrics(self, source: str, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of a report that count from its source, and record this source and their values.

        Args:
            source: Library that logs them; "" for the job's own reports.
            metrics: Metrics by name.
        """
        counted = {}
        for name, value in metrics.items():
            counted_source, newest_value = self._sources.get(name, (source, math.nan))
            has_other_source = counted_source != source
            is_from_library = source != ""
            if is_from_library and (has_other_source or self.ignores_libraries):
                continue
            self._sources[name] = source, value
            is_recorded_already = has_other_source and newest_value == value  # as the library's value
            if not is_recorded_already:
                counted[name] = value
        return counted


class Saving:
    """The states that `Context.save` writes and `Context.restored` reads.

    Attributes:
        states: Store of the states; None before the first use.
        saved_at: Time at which the last state was written, by the monotonic clock. At first the start of the trial.
        taken_over_values: Values of the optimizer, such as its learning rate, in a state that was taken over from another
            trial with other parameters; None once they are compared, or if there was no such state.
        remark: Remark for the user on such values that the trial still trains with, though its own parameters differ; "" if
            there are none.
        is_restart: Whether the state that was read is the one with which a population restarts.
        is_lost: Whether `Context.restored` has found no usable state, so that the trial starts over.
    """

    def __init__(self) -> None:
        self.states: States | None = None
        self.saved_at = time.monotonic()
        self.taken_over_values: optimizers.Values | None = None
        self.remark = ""
        self.is_restart = False
        self.is_lost = False

    def check_optimizer(self, state: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """In a population, set the remark if the first new state still has the optimizer's values of the other trial."""
        if self.taken_over_values is not None:
            from trialplane.training import optimizers  # only a population's trial needs it

            saved_values = optimizers.values_of_params(state, params)
            self.remark = optimizers.stale_value_message(self.taken_over_values, saved_values, params)
            self.taken_over_values = None


@dataclasses.dataclass(frozen=True)
class Context:
    """A trial, as passed to the job's `run(ctx)`.

    Attributes:
        params: Fixed and sampled parameters, by name. For an Optuna objective: those suggested so far and, in a retry, all
            those of earlier attempts.
        seed: Seed of the trial. The generators of Python, NumPy and torch are already seeded with it, equally in all ranks,
            so that models start equal. Use `seed + rank` for what must differ between ranks, as Accelerate's
            `set_seed(seed, device_specific=True)` does.
        run: Name of the run.
        trial: Number of the trial, from 0.
        attempt: Number of the attempt, from 1. More than 1 is a retry.
        cpus: Number of cores for the trial's ranks on this node. All of the machine's for a training's script run alone.
        gpus: Number of GPUs for the trial on this node; 1 for a share of one. `CUDA_VISIBLE_DEVICES` lists them; it is empty
            in a training, or in ranks, without GPUs.
        code: Folder with the job's files.
        cache: Folder shared by all trials of all runs. It may not exist yet.
        workdir: Scratch folder of this rank, deleted when the trial ends.
        rank: Number of this rank among all ranks of the trial, from 0. Rank 0 reports, and its result counts.
        local_rank: Number of this rank among those on this node, from 0. It is the index of its GPU.
        world_size: Number of ranks of the trial, over all nodes.
        checkpoints: Folder or fsspec URL for the checkpoints of the trial, shared by all of its attempts. It may not exist
            yet.
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
    _metric_sources: MetricSources = dataclasses.field(default_factory=MetricSources, repr=False)
    _pause: pausing.Pause = dataclasses.field(default_factory=lambda: pausing.Pause(None), repr=False)
    _saving: Saving = dataclasses.field(default_factory=Saving, repr=False)
    _confirm: Callable[[], None] | None = dataclasses.field(default=None, repr=False)

    if not TYPE_CHECKING:  # or every name would be an attribute for a type checker

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an AttributeError, with the right entrypoint for an objective of Optuna."""
            advice = (
                "; an objective of Optuna needs `entrypoint: optuna:MODULE:FUNCTION`" if name.startswith("suggest_") else ""
            )
            raise AttributeError(f"'Context' object has no attribute {name!r}{advice}", name=name, obj=self)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0. Only rank 0 should write shared files."""
        return self.rank == 0

    @property
    def resume_from(self) -> str | None:
        """Checkpoints to start from while `checkpoints` is empty: of the run that `--resume` names, or of another trial.

        None without any. A member of a population continues from another trial's. If the job does not read this property,
        the trial starts from scratch: the user gets a warning, and a member of a population fails.

        Raises:
            CheckpointError: The trial is to start from the checkpoint of a given step, which only `restored` reads.
        """
        if self._origin.step is not None:
            raise errors.CheckpointError(
                f"the trial is to start from the checkpoint of step {self._origin.step} at {self._origin.location}, and "
                "only ctx.restored reads that of a step. This job would take the newest: submit with --set "
                "start.step=null for that one, or without --checkpoint to start from step 0"
            )
        self._origin.was_read = True
        return self._origin.location

    @property
    def stopping(self) -> bool:
        """Whether a stop is requested, or the trial is paused at a rung. Then save a checkpoint and raise `stopped(step)`.

        Reading this property makes SIGTERM a request. A job that never reads it is ended by SIGTERM at once.

        Ranks receive the signal at different times. Ranks that work in lockstep must agree to stop at the same step, or some
        wait for the others forever: reduce this flag over all ranks.
        """
        self._stop.handle_sigterm()
        return self._stop.is_requested or self._pause.is_requested

    def stopped(self, step: int | None = None) -> Stopped | NotResumable:
        """Return the exception that ends the attempt: `raise ctx.stopped(step)`. The trial continues in another attempt.

        Args:
            step: Step of the checkpoint just saved. None without a checkpoint.
        """
        is_stop_requested = self._stop.is_requested
        if self._pause.is_requested and not is_stop_requested:
            return Paused(f"paused after step {step}") if step is not None else self._not_saved_error()
        cause = "stopped by SIGTERM" if is_stop_requested else "stopped by itself"
        return Stopped(f"{cause} {'without a checkpoint' if step is None else f'after step {step}, with a checkpoint'}")

    def save(self, step: int, state: Mapping[str, Any], *, every: float = 30.0) -> None:
        """Offer a state to continue from. It is written if it is needed.

        That is at a rung, where the trial is paused; at the last step of a trial with rungs; if a stop is requested; and
        after `every` seconds, in case the process or its machine is lost. The states of the random generators of Python,
        NumPy and torch are saved with it. With several ranks, call it in all of them at the same steps.

        Args:
            step: Step of the last report, or of the next one if this is called before `report`.
            state: Tensors, NumPy arrays, numbers, strings, and lists and mappings of them. A job that has imported torch
                saves tensors and no NumPy arrays.
            every: Time between two checkpoints, in seconds. 0 writes each state.

        Raises:
            Stopped: A stop is requested. Do not catch it.
            Paused: The trial is at a rung. Do not catch it.
            CheckpointError: The state could not be written.
            InputError: There are several ranks, and `torch.distributed` is not initialized.
            TypeError: The state has values that cannot be saved.
        """
        from trialplane.training.states import SaveChoice  # imports numpy

        states, pause = self._states(), self._pause
        self._stop.handle_sigterm()
        self._saving.check_optimizer(state, self.params)

        def reasons_to_save() -> SaveChoice:
            # A job may save before it reports. So a state at the rung is written even if its report, which requests the
            # pause, is still missing.
            is_due = pause.reaches(step) or time.monotonic() - self._saving.saved_at >= every
            return SaveChoice(
                stops=self._stop.is_requested, pauses=pause.is_requested, is_due=is_due, is_last=pause.is_last(step)
            )

        choice = states.agree(reasons_to_save)  # those of rank 0 count in all ranks
        if not any(choice):  # there is no reason to save
            return
        self.confirm_reports(step)
        states.save(step, state, wait=choice.stops or choice.pauses or choice.is_last)
        self._saving.saved_at, pause.saved_step = time.monotonic(), step
        if choice.stops:
            raise Stopped(f"stopped by SIGTERM after step {step}, with a checkpoint")
        if choice.pauses:
            raise Paused(f"paused after step {step}")

    @property
    def restored(self) -> dict[str, Any] | None:
        """State of the newest checkpoint that `save` has written, and its step as `step`. None without a checkpoint.

        Read it just before the training loop: this also restores the random generators. With several ranks, read it in
        all of them, after `init_process_group`: rank 0 selects the checkpoint. If a training has no checkpoint, it is the
        state of the run that `--resume` names. In a population it may be the state of another trial: set values of the
        optimizer that are parameters, such as the learning rate, after you have loaded its state.

        Raises:
            CheckpointDamaged: All checkpoints are damaged, or that of the other trial is.
            CheckpointError: The run that `--resume` names, or the other trial, has no checkpoint.
        """
        self._stop.handle_sigterm()
        restored = self._states().restore(self.is_usable)
        self._origin.was_read = True
        self._saving.is_restart = restored is None and self._origin.is_restart
        if restored is None and self._origin.location is not None:
            restored = self._restore_other(self._origin.location)
        self._saving.is_lost = restored is None
        return None if restored is None else {**restored.state, "step": restored.step}

    @property
    def is_restart(self) -> bool:
        """Whether a population with `growth` restarts with the state that `restored` has returned. Read `restored` before.

        Then load the weights, and let the optimizer begin anew. It is False for a state that was saved after the restart, so
        that a trial that is lost loads its optimizer again.
        """
        return self._saving.is_restart

    def _restore_other(self, location: str) -> Restored | None:
        """Return the state at the location of another run or trial, and restore the random generators.

        Returns:
            The state and its step. None without a usable checkpoint that `reuse` has selected: the trial starts at step 0.

        Raises:
            CheckpointDamaged: The checkpoint is damaged.
            CheckpointError: There is none, or none of the given step.
        """
        from trialplane.training.states import States  # imports numpy

        states = States(location, self.rank, self.world_size)
        if self._origin.is_reused:
            return self._restore_reused(states)
        requested_step = self._origin.step
        if self._origin.needs_newest:  # of another member of a population, which was compared at its newest step
            restored = states.restore_newest()
        else:
            restored = states.restore(lambda step: requested_step is None or step == requested_step)
        if restored is None:
            of_step = "" if requested_step is None else f" of step {requested_step}"
            advice = "" if self._origin.must_be_read else ". To start from step 0, submit without --resume or --checkpoint"
            raise errors.CheckpointError(
                f"there is no checkpoint of ctx.save{of_step} at {location} to continue from{advice}"
            )
        if self._origin.must_be_read and self._origin.has_other_params:
            from trialplane.training import optimizers  # only a population's trial needs it

            self._saving.taken_over_values = optimizers.values_of_params(restored.state, self.params)
        return restored

    def _restore_reused(self, states: States) -> Restored | None:
        """Return the state that `reuse` has selected, and record its step; None if it is unusable."""
        try:
            restored = states.restore(self.is_usable)
        except errors.CheckpointDamaged:
            restored = None
        self._origin.restored_step = -1 if restored is None else restored.step
        return restored

    def is_usable(self, step: int) -> bool:
        """Return whether the trial can continue from its checkpoint of a step.

        A lost attempt may leave a checkpoint at its rung or beyond it. A retry that continued from it would never report the
        rung's step, where the trial must be paused. In the same way, a checkpoint of the last step would leave nothing to
        report. Such checkpoints are not usable, and the retry continues from an earlier one.
        """
        return not self._pause.reaches(step) and not self._pause.is_last(step)

    def is_last(self, step: int) -> bool:
        """Return whether a step is the last one of a trial with rungs. Its state is always saved."""
        return self._pause.is_last(step)

    def rung_metrics(self, step: int) -> frozenset[str]:
        """Return the metrics whose report at a step pauses the trial: those of its rung, or none before it."""
        return self._pause.metrics if self._pause.reaches(step) else frozenset()

    @property
    def needs_newest(self) -> bool:
        """Whether only the newest checkpoint at `resume_from` may be used, because it is of another trial in a population.

        The members were compared at its step. So an older checkpoint must not replace it, even if it is damaged.
        """
        return self._origin.needs_newest

    def check_optimizer(self, groups: Iterable[Mapping[str, Any]], remedy: str = "") -> None:
        """Warn of values of an optimizer that are not the trial's, if the state of another trial was restored.

        Args:
            groups: Parameter groups of the optimizers, just after their states were restored.
            remedy: Advice of a library whose optimizers have no `param_groups`.
        """
        if self._origin.must_be_read and self._origin.has_other_params:
            from trialplane.training import optimizers  # only a population's trial needs it

            self._saving.remark = optimizers.mismatch_message(groups, self.params, remedy)

    def confirm_reports(self, step: int) -> None:
        """Wait until the reports so far are in the ledger, if a retry may continue from a checkpoint of a step.

        Otherwise the retry of a lost trial could continue behind reports that were lost with it, and its curve would have a
        gap. Trials without rungs do not wait. Neither do those that must stop: time is short, and the slot may be gone.
        """
        may_be_continued = self.is_usable(step) and not self._stop.is_requested
        if self._confirm is not None and self.is_main and may_be_continued:
            with self._metric_sources.lock:
                self._confirm()

    def saved(self, step: int) -> None:
        """Record a complete checkpoint that was not saved by `save`, so that the trial can be paused at its step."""
        self._pause.saved_step = max(self._pause.saved_step, step)

    def _states(self) -> States:
        """Return the store of the trial's own states; create it at the first call."""
        if self._saving.states is None:
            from trialplane.training.states import States  # imports numpy

            self._saving.states = States(location=self.checkpoints, rank=self.rank, world_size=self.world_size)
        return self._saving.states

    def _pause_error(self) -> Paused | NotResumable:
        """Return the exception for a job that reports a step after its rung's, and so has not ended at the pause.

        It is Paused if the job has saved a checkpoint in a way of its own, from which it can continue; NotResumable
        otherwise.
        """
        from trialplane.training.steps import folders  # only a paused trial needs it

        saved = folders.summary(self.checkpoints)
        if saved is not None and saved.digest != self._pause.parent_digest:
            return Paused(f"paused after step {self._pause.pause_step}")
        return self._not_saved_error()

    def _not_saved_error(self) -> NotResumable:
        """Return the exception for a trial that is at its rung and has saved no checkpoint."""
        return NotResumable(
            "the trial is at a rung, where it is paused (pruner.promote or population), and has saved no checkpoint to "
            "continue from: call ctx.save(step, state) after each ctx.report, and continue from ctx.restored; or drop "
            "promote or population"
        )

    def pulse(self, step: int, seconds: float) -> None:
        """Report the duration of a step in this rank, to detect ranks that slow down the others.

        Args:
            step: Optimizer step.
            seconds: Duration, in seconds, without the time that the rank waits for others in collectives.
        """
        if self._pulse is not None:
            self._pulse(int(step), float(seconds))

    def report(self, step: int | None = None, **metrics: float) -> None:
        """Report metrics of a step. The controller records them and asks the pruner.

        Only rank 0 reports. In other ranks this does nothing.

        Args:
            step: Epoch or optimizer step, greater than in the report before. Default: one more than in the report before, or
                0 in the first report of an attempt. A job that continues from a checkpoint must give the step.
            **metrics: Metrics by name. The pruner compares the objective, or the job's `pruner.metric`.

        Raises:
            Pruned: The pruner ends the trial. Do not catch it.
            Finished: The job's `stop` ends the trial. Do not catch it.
            Paused: The trial is at a rung, and has saved a checkpoint of it. Do not catch it.
            NotResumable: The trial has trained on after its rung without a checkpoint, or has started over after a pause.
            ValueError: The step is negative, or 2**31 or more.
        """
        step = self._metric_sources.newest_step + 1 if step is None else step
        if not 0 <= step <= records.MAX_STEP:
            raise ValueError(f"ctx.report(step={step}): a step is a whole number from 0 to {records.MAX_STEP}")
        self._send("", int(step), {name: float(value) for name, value in metrics.items()})

    def note(self, source: str, step: int, metrics: Mapping[str, float], *, waits: bool = False) -> None:
        """Report metrics that the job logs with another library, except those already reported in another way.

        Args:
            source: Name of the library. "" for the job's own reports.
            step: Step as in `report`. A step outside the valid range is replaced by the nearest valid one.
            metrics: Metrics by name.
            waits: Wait for the pruner, and raise its answer. Otherwise a pruned trial gets SIGTERM.

        Raises:
            Pruned: The pruner ends the trial, with `waits`.
            Finished: The job's `stop` ends the trial, with `waits`.
        """
        self._send(source, min(max(0, int(step)), records.MAX_STEP), metrics, waits=waits)

    @contextlib.contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Context manager in which metrics that libraries log are not reported."""
        sources = self._metric_sources
        ignored_before, sources.ignores_libraries = sources.ignores_libraries, True
        try:
            yield
        finally:
            sources.ignores_libraries = ignored_before

    @contextlib.contextmanager
    def lock_reports(self) -> Iterator[None]:
        """Context manager in which no other thread of the trial reports."""
        with self._metric_sources.lock:
            yield

    def add_suggestion(self, name: str, value: Any) -> None:
        """Add a suggested parameter of an Optuna objective, a JSON value, to `params`."""
        assert isinstance(self.params, dict), "an objective's parameters are added one by one"
        self.params[name] = value

    def _send(self, source: str, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> None:
        """Send the metrics of a report that count from its source, and raise the answer as an exception.

        Args:
            source: Library that logs them; "" for the job's own reports.
            step: Step, in the valid range.
            metrics: Metrics by name. The report is dropped if it has some and none of them counts.
            waits: Whether to wait for the answer. Without it only Invalid is raised, and the slot ends a pruned trial.

        Raises:
            Pruned, Finished, Paused, NotResumable: As in `report`.
            Invalid: The trial must continue from a checkpoint, and has trained without reading it.
        """
        with self._metric_sources.lock:
            is_own_report = not source
            if is_own_report:
                self._metric_sources.newest_step = step
            counted = self._metric_sources.counted_metrics(source, metrics)
            if metrics and not counted:
                return
            self._check_continuation(step, counted, is_own_report=is_own_report)
            if waits and self._pause.is_past(step):
                raise self._pause_error()
            is_pruned = self._reporter(step, counted, waits=waits)
            if waits:
                self._pause.report(step, counted)
        if is_pruned:
            raise Pruned(f"pruned at step {step}")
        if waits and self._pause.is_saved:
            self._states().wait()
            raise Paused(f"paused after step {step}")

    def _check_continuation(self, step: int, metrics: Collection[str], *, is_own_report: bool) -> None:
        """Check that a job that must continue from its own checkpoint or that of another trial has not started over.

        Args:
            step: Step of a report.
            metrics: Names of its metrics.
            is_own_report: Whether the job itself reports them, and not a library.

        Raises:
            NotResumable: It has reported its first step again, although it has a state to continue from.
            Invalid: It has not read the state of the other trial.
        """
        # Something may be logged before the training. Only the segment's metrics show that the job has trained.
        has_trained = not self._pause.metrics.isdisjoint(metrics)
        lacks_state = self._origin.must_be_read and not self._origin.was_read
        if lacks_state and (has_trained or is_own_report):
            raise Invalid(
                f"the trial takes over the state at {self._origin.location}, and the job has trained without reading "
                "it: begin with ctx.restored, or with an integration's callback"
            )
        if has_trained and self._pause.is_first_again(step) and not self._saving.is_lost:
            raise NotResumable(self._pause.restart_message(step))

    def path(self, name: str) -> Path:
        """Return the parameter `name` as a path. Relative paths are relative to the job's folder.

        Raises:
            InputError: The parameter is null or a list.
            KeyError: There is no such parameter.
        """
        if isinstance(self.params[name], list):
            raise errors.InputError(f"params.{name} is a list, and this job reads one file: name one path")
        return self.paths(name)[0]

    def paths(self, name: str) -> list[Path]:
        """Return the parameter `name`, a path or a list of paths. Relative paths are relative to the job's folder.

        Raises:
            InputError: The parameter is null.
            KeyError: There is no such parameter.
        """
        value = self.params[name]
        if value is None:
            raise errors.InputError(f"params.{name} is null, and must be a path")
        names = value if isinstance(value, list) else [value]
        return [self.code / Path(str(name)).expanduser() for name in names]


# The trial of this process, with the pid of the process: a process that the job forks has no trial, because the channel to
# the slot belongs to its parent. It is a global, because all threads of a process belong to its one trial.
_active: list[tuple[int, Context]] = []


@contextlib.contextmanager
def activate(ctx: Context) -> Iterator[None]:
    """Make a context the current one of this process within the block."""
    _active.append((os.getpid(), ctx))
    try:
        yield
    finally:
        _active.pop()


def current() -> Context | None:
    """Return the trial of this process, for code without `ctx`. None outside of a trial."""
    pid, ctx = _active[-1] if _active else (0, None)
    return ctx if pid == os.getpid() else None


def report(step: int | None = None, **metrics: float) -> None:
    """Report metrics of the current trial, as `Context.report`. Does nothing outside of a trial.

    Args:
        step: Epoch or optimizer step. Default: one more than in the report before, or 0 in the first report of an attempt. A
            job that continues from a checkpoint must give the step.
        **metrics: Metrics by name: `trialplane.report(accuracy=0.93)`.

    Raises:
        Pruned, Finished, Paused, NotResumable, ValueError: As `Context.report`.
    """
    if (ctx := current()) is not None:
        ctx.report(step, **metrics)


def note(source: str, step: int, metrics: Mapping[str, float], *, waits: bool = False) -> None:
    """Report metrics of the current trial, as `Context.note`. Does nothing outside of a trial."""
    if (ctx := current()) is not None and metrics:
        ctx.note(source, step, metrics, waits=waits)


def params() -> Mapping[str, Any]:
    """Return the fixed and sampled parameters of the current trial, by name. Empty outside of a trial.

    A process that the trial's script or command starts gets the same.
    """
    ctx = current()
    return json.loads(os.environ.get(env.PARAMS, "{}")) if ctx is None else ctx.params


def checkpoints() -> str | None:
    """Return the folder or fsspec URL for checkpoints of the current trial. None outside of a trial."""
    ctx = current()
    return None if ctx is None else ctx.checkpoints
