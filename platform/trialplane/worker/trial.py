"""Run one trial in its process, from the process's start to its last message.

`run_and_end` is called in a fork of the template, or by `python -m trialplane.worker.roles FD PARENT` in a new interpreter.
It reads the request from the channel, runs the job's function, sends one outcome and ends the process. This module must not
import anything heavy: the template or the job imports what the job needs.

Some studies pause trials at rungs, numbers of steps at which trials are compared. There an attempt does one segment of a
trial: the training from one rung to the next.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import functools
import importlib
import math
import multiprocessing.util  # noqa: F401  its exit function waits for workers without limit; imported early, `end_after` removes it
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors, policies
from trialplane.job import program
from trialplane.training import mlflow_runs, process, progress
from trialplane.training.steps import folders, record, stores
from trialplane.wire import env, messages, paths, records
from trialplane.wire.states import TrialState
from trialplane.worker import advice, context, environment, outcomes, pausing, programs, stopping
from trialplane.worker.channel import Channel, TrialChannel
from trialplane.worker.shims import capture, objective, tune

# The work of a trial's process between its request and its outcome; see `roles`.
RoleFunction = Callable[[context.JobFunction | None, messages.RunTrial, TrialChannel], records.TrialOutcome]
# A way to call the job's function, with the fields of its context.
CallJob = Callable[[Callable[..., Any], Mapping[str, Any]], context.Result]


def import_job(config: records.SlotConfig) -> context.JobFunction:
    """Import everything in `preload` and the job's module; return the job's function, or a function that runs its program.

    An objective of Optuna is returned unchanged; `run_job` wraps it in a function of the context.

    Raises:
        Any exception of the job's code at import, or of its functions in `preload`.
        AttributeError: The module has no such function.
    """
    if config.code not in sys.path:
        sys.path.insert(0, config.code)
    for preload in config.preload:  # MODULE, or MODULE:FUNCTION
        module, _, function = preload.partition(":")
        imported = importlib.import_module(module)
        if function:  # which may load data once for all trials
            getattr(imported, function)(dict(config.params), Path(config.cache))
    if config.program is not None:
        return programs.load(config, config.program)
    style, entrypoint = program.split_style(config.entrypoint)
    module, _, function = entrypoint.partition(":")
    # Code in the style of another tool opens files by paths relative to its folder, also when it is imported.
    with contextlib.chdir(config.code) if style else contextlib.nullcontext():
        if style == "ray":
            return tune.load(entrypoint)
        return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def run_and_end(
    job_function: context.JobFunction | None,
    channel: TrialChannel,
    parent: int,
    role_function: Callable[[records.SlotConfig], RoleFunction],
) -> None:
    """Run one trial and end the process, regardless of threads and processes that the job left behind.

    Args:
        job_function: Function of the job in a fork of the template; None in a new interpreter, which imports it.
        channel: Channel to the slot.
        parent: Pid of the template.
        role_function: Selects the work of a slot's processes: `roles.role_function`.
    """
    end_after(lambda: _serve(job_function, channel, role_function), parent, leader=True)


def end_after(serve: Callable[[], int], parent: int, leader: bool = False) -> None:
    """Call `serve` and end this process, which was just started, with the exit code that `serve` returns; 1 if it raises.

    Args:
        serve: Work of the process.
        parent: Pid of the parent process, with which this one dies.
        leader: Whether the process becomes the leader of a new session.
    """
    exit_code = 1
    atexit._clear()  # handlers that were registered before are not the job's, and torch's take 40 ms
    try:
        process.die_with_parent(parent)
        if leader:
            with contextlib.suppress(PermissionError):  # started as a session leader already
                os.setsid()
        exit_code = serve()
    except BaseException:  # noqa: BLE001  nothing may unwind into the loop of the process that forked
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # handlers that the job has registered
        process.flush()
        os._exit(exit_code)


def _serve(
    job_function: context.JobFunction | None,
    channel: TrialChannel,
    role_function: Callable[[records.SlotConfig], RoleFunction],
) -> int:
    """Read the request, run the job and send the outcome; return the exit code."""
    message = channel.receive()
    assert isinstance(message, messages.RunTrial), "a slot sends RunTrial first"
    config, request = message.config, message.request
    _set_up_process(config, request, Path(message.workdir))
    programs.report_size_at_exit(config, channel)
    started = time.time()
    perform_role = role_function(config)
    outcome = perform_role(job_function, message, channel)
    outcome = dataclasses.replace(outcome, started=started, ended=time.time(), pid=os.getpid())
    process.flush()
    send_end(channel, request, outcome)
    return 0


def perform(
    job_function: context.JobFunction | None, message: messages.RunTrial, channel: TrialChannel
) -> records.TrialOutcome:
    """Perform the role of a trial of one process: call the job's function and return its outcome."""
    return run_role_job(job_function, message, channel, stopping.Stop(message.config.grace), call_with_context)


def run_role_job(
    job_function: context.JobFunction | None,
    message: messages.RunTrial,
    channel: TrialChannel,
    stop: stopping.Stop,
    call_job: CallJob,
) -> records.TrialOutcome:
    """Run the job in the process of any role, and return its outcome; `call_job` calls the job's function in this role."""
    reporter, workdir = Reporter(message.request, channel), Path(message.workdir)
    outcome = run_job(job_function, message.config, message.request, workdir, reporter, call_job, _stop=stop)
    return outcomes.with_attributes(outcome, reporter.attributes)


def send_end(channel: Channel[Any, Any], request: records.TrialRequest, outcome: records.TrialOutcome) -> None:
    """Send the outcome; if it is too large for a message, send a failure that says so in its place."""
    try:
        channel.send(messages.Ended(outcome))
    except errors.MessageError as error:
        channel.send(messages.Ended(outcomes.outcome_of_error(request, error, {})))


def _set_up_process(config: records.SlotConfig, request: records.TrialRequest, workdir: Path) -> None:
    """Set up this process for the trial: log, environment, folder, limits, policies, random numbers."""
    _redirect_streams(paths.RunPaths(Path(config.root)).trial_log(request.trial, request.attempt, request.worker))
    workdir.mkdir(parents=True, exist_ok=True)
    faulthandler.enable()  # a crash or a time-out leaves its stacks in the log
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(
        {
            env.RUN: request.run,
            env.TRIAL: str(request.trial),
            env.ATTEMPT: str(request.attempt),
            env.SEED: str(request.seed),
            env.CACHE: config.cache,
            "TMPDIR": str(paths.short_path(workdir)),
            # joblib would use /dev/shm, where files of a killed process stay until the machine is restarted.
            "JOBLIB_TEMP_FOLDER": os.environ.get("JOBLIB_TEMP_FOLDER", str(workdir)),
            **request.env,
        }
    )
    enter_mlflow(config, request)
    tempfile.tempdir = None  # read TMPDIR again
    os.chdir(workdir)
    policies.apply_all()
    if not has_ranks(config):  # a supervisor forks ranks, which it cannot once numpy and torch have threads
        environment.use_cores(config.cpus)
    process.seed_everything(request.seed)


def _redirect_streams(log: Path) -> None:
    """Redirect this process's output to a log, by whole lines, and its input to nothing."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        # The template's streams are unbuffered, so `print` writes a line and its end separately, and another rank's line
        # could come in between.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]  # a TextIOWrapper here


def enter_mlflow(config: records.SlotConfig, request: records.TrialRequest) -> None:
    """Direct the MLflow calls of this process, a trial's or a rank's, to the trial's run."""
    store = paths.RunPaths(Path(config.root)).trial_store(request.number, request.worker if config.ship else None)
    mlflow_runs.enter({**config.env, **request.env}, request.series, store)


def call_with_context(job_function: context.JobFunction, fields: Mapping[str, Any]) -> context.Result:
    """Make a context from its fields, call the job's function with it, and return the result."""
    ctx = context.Context(**fields)
    with context.activate(ctx):
        return job_function(ctx)


def run_job(
    job_function: context.JobFunction | None,
    config: records.SlotConfig,
    request: records.TrialRequest,
    workdir: Path,
    reporter: Reporter,
    call_job: CallJob = call_with_context,
    **rank_fields: Any,
) -> records.TrialOutcome:
    """Run the job's function and return its outcome. An error of the job, of whatever kind, is an outcome too.

    Args:
        job_function: Function of the job, or None to import it.
        config: Configuration of the slot.
        request: Request of the trial.
        workdir: Scratch folder of the trial.
        reporter: Receiver of the reports.
        call_job: Makes the context from its fields and calls the function with it.
        **rank_fields: Fields of the context that differ between ranks, and `_stop`.
    """
    reporter.is_quiet = config.program is not None
    saving = context.Saving()
    fields = {
        **_request_fields(config, request, workdir),
        "_saving": saving,
        "_reporter": reporter,
        "_confirm": None if request.segment is None else reporter.confirm,  # only trials with rungs wait for the ledger
        **rank_fields,
    }
    try:
        outcome = _run_to_outcome(job_function, config, request, reporter, call_job, fields)
        return dataclasses.replace(outcome, remark="; ".join(filter(None, (outcome.remark, saving.remark))))
    except BaseException as error:  # noqa: BLE001  every error of the job is an outcome, KeyboardInterrupt too
        # Trials are compared at a rung by the newest value of each metric; a failure has the metrics of the last report.
        metrics = reporter.newest if isinstance(error, context.Paused) else reporter.last
        outcome = outcomes.outcome_of_error(request, error, metrics)
        return dataclasses.replace(outcome, remark=saving.remark)


def _run_to_outcome(
    job_function: context.JobFunction | None,
    config: records.SlotConfig,
    request: records.TrialRequest,
    reporter: Reporter,
    call_job: CallJob,
    fields: Mapping[str, Any],
) -> records.TrialOutcome:
    """Prepare the job, call its function and return the outcome, with a remark about files that could not be copied.

    The arguments are those of `run_job`; `fields` are all fields of the context but the origin.

    Raises:
        BaseException: Any error of the job.
    """
    imports = advice.LateImports()
    # If this process imports the function itself, all of its imports would count as late.
    is_imported_in_template = job_function is not None and config.program is None
    origin = _prepare_origin(config, request, fields["checkpoints"], reporter)
    job_folder = _enter_job_folder(config, fields["workdir"])
    job_function = _prepare_function(job_function, config, request, reporter)
    with imports.watch() if is_imported_in_template else contextlib.nullcontext():
        end = _call_to_end(lambda: call_job(job_function, {**fields, "_origin": origin}), reporter)
    if fields.get("rank", 0) > 0:  # only the result of rank 0 counts
        return records.TrialOutcome(number=request.number, state=TrialState.COMPLETE)
    copy_remark = outcomes.copy_kept_files(fields["checkpoints"], job_folder, config.keep)
    if config.program is not None:
        outcome = _program_outcome(request, reporter, end)
    else:
        outcome = _function_outcome(config, request, fields["workdir"], reporter, imports, end)
    return dataclasses.replace(outcome, remark=copy_remark)


def _prepare_origin(
    config: records.SlotConfig, request: records.TrialRequest, own_location: str, reporter: Reporter
) -> context.Origin:
    """Return the checkpoints from which the trial starts, and let the reporter tell whether the job has used them.

    Raises:
        CheckpointError: As in `_check_parent_checkpoint` and `_find_origin`.
    """
    _check_parent_checkpoint(config, request)
    origin = _find_origin(config, request, own_location)
    # Later attempts have checkpoints of their own, unless `reuse` lets them continue an earlier run's trial.
    may_start_there = request.attempt == 1 or origin.is_reused
    if request.resume and may_start_there and config.role == "trial":  # a collection need not start there
        reporter.warning = lambda: _origin_warning(request, origin)
    if origin.is_reused:
        reporter.start_step = functools.partial(_start_step, origin)
    return origin


def _prepare_function(
    job_function: context.JobFunction | None, config: records.SlotConfig, request: records.TrialRequest, reporter: Reporter
) -> context.JobFunction:
    """Return the function to call with the context, imported if it is None, and begin to capture what libraries log."""
    if config.role != "worker":  # a worker has no reports
        capture.begin(config, request)
    if job_function is None:
        job_function = import_job(config)
        process.seed_everything(request.seed)  # once more: the job may have imported numpy or torch only now
    if request.directions:  # an objective of Optuna, which requests its parameters by the reporter
        return objective.trial_function(job_function, request.metrics, request.directions, controller=reporter)
    return job_function


def _enter_job_folder(config: records.SlotConfig, workdir: Path) -> Path:
    """Enter the folder in which the job runs, and return it.

    A program enters it by itself. A function in the style of another tool gets a copy of the code, for the files that it
    opens by relative paths.
    """
    if config.program is not None:
        return programs.folder(config.program, workdir)
    style, _ = program.split_style(config.entrypoint)
    if style:
        return programs.enter_copy(Path(config.code), workdir)
    return workdir


def _request_fields(config: records.SlotConfig, request: records.TrialRequest, workdir: Path) -> dict[str, Any]:
    """Return the fields of the context that follow from the slot's configuration, the request and the scratch folder."""
    return {
        "params": dict(request.params),  # a copy, to which an objective of Optuna adds its values
        "seed": request.seed,
        "run": request.run,
        "trial": request.trial,
        "attempt": request.attempt,
        "cpus": config.cpus,
        "gpus": config.gpus,
        "code": Path(config.code),
        "cache": Path(config.cache),
        "workdir": workdir,
        "checkpoints": checkpoint_folder(config, request.run, request.trial, request.folder),
        "_pause": pausing.Pause(request.segment),
    }


class _JobEnd(NamedTuple):
    """The end of the job's function.

    Attributes:
        result: Returned value; the newest value of each reported metric if the function has not returned.
        how_ended: How the function ended without returning, in words for a message; "" if it returned.
        stop_text: Description of the stop rule that ended the trial; "" without one.
    """

    result: context.Result
    how_ended: str = ""
    stop_text: str = ""


def _call_to_end(call: Callable[[], context.Result], reporter: Reporter) -> _JobEnd:
    """Call the job's function, and return its end. A stop rule and `sys.exit(0)` are ends too, and not errors."""
    try:
        return _JobEnd(call())
    except (SystemExit, context.Finished) as error:
        cause = outcomes.error_behind_exit(error)
        if isinstance(cause, context.Finished):
            return _JobEnd(reporter.newest, f"was {cause}", stop_text=str(cause))
        if is_clean_exit(cause):
            return _JobEnd(reporter.newest, "ended by sys.exit(0)")
        raise


def _program_outcome(request: records.TrialRequest, reporter: Reporter, end: _JobEnd) -> records.TrialOutcome:
    """Return the outcome of a program that has ended. The slot adds the metrics that it has read, and checks them."""
    return records.TrialOutcome(
        request.number,
        TrialState.COMPLETE,
        metrics=reporter.newest,
        early=bool(end.stop_text),
        message=end.stop_text,
        advice=advice.pool_advice(),
    )


def _function_outcome(
    config: records.SlotConfig,
    request: records.TrialRequest,
    workdir: Path,
    reporter: Reporter,
    imports: advice.LateImports,
    end: _JobEnd,
) -> records.TrialOutcome:
    """Return the outcome of the job's function that has ended, with remarks in its message, and with advice if complete."""
    outcome = outcomes.outcome_of_result(request, end.result, workdir, how_ended=end.how_ended, newest=reporter.newest)
    if outcome.state is not TrialState.COMPLETE:
        return dataclasses.replace(outcome, message="; ".join(filter(None, (outcome.message, reporter.warning()))))
    remarks = (end.stop_text, reporter.warning(), *stopping.unreported_remarks(request.stop, reporter.newest))
    return dataclasses.replace(
        outcome,
        early=bool(end.stop_text),
        message="; ".join(filter(None, remarks)),
        advice="; ".join(filter(None, (imports.advice(config), advice.pool_advice()))),
    )


def _check_parent_checkpoint(config: records.SlotConfig, request: records.TrialRequest) -> None:
    """Check that the checkpoint from which a segment continues, if any, has not changed since the trial was paused.

    Raises:
        CheckpointDamaged: It is missing, or cannot be read.
        CheckpointError: It was changed.
    """
    parent = None if request.segment is None else request.segment.parent
    if parent is None:
        return
    location = checkpoint_folder(config, request.run, parent.trial, parent.folder)
    owner = "its" if parent.trial == request.trial else f"trial {parent.trial}'s"
    text = f"trial {request.trial} was to continue after step {parent.step}, and {owner} checkpoint at {location}"
    try:
        summary = folders.summary(location)
    except errors.CheckpointError as error:
        raise errors.CheckpointDamaged(f"{text} cannot be read: {error.__cause__}") from error
    if summary is None:
        raise errors.CheckpointDamaged(f"{text} is missing")
    if parent.digest and parent.digest != summary.digest:
        raise errors.CheckpointError(f"{text} was changed since the trial was paused")


def _find_origin(config: records.SlotConfig, request: records.TrialRequest, own_location: str) -> context.Origin:
    """Return the checkpoints of another trial or run from which a trial starts; an empty origin if there are none.

    There are three cases: a segment that continues from the checkpoint of another trial in its population; a checkpoint that
    `reuse` has selected, in another run; and the run that `--resume` names.

    Raises:
        CheckpointError: The checkpoints that `reuse` has selected, or the trial's own, cannot be read.
    """
    segment = request.segment or records.Segment()
    parent = segment.parent
    is_of_other_trial = parent is not None and (parent.trial, parent.folder) != (request.trial, request.folder)
    if parent is not None and is_of_other_trial:
        return context.Origin(
            checkpoint_folder(config, request.run, parent.trial, parent.folder),
            needs_newest=True,
            has_other_params=segment.changed,
            is_restart=segment.restart,
            # If the trial has checkpoints, an earlier attempt at the segment has read the origin and saved a newer state.
            must_be_read=not _has_checkpoints(own_location),
        )
    if not request.resume:
        return context.Origin()
    start = request.start or records.Parent(request.trial, -1)  # by default, the newest checkpoint of the same trial
    other_location = checkpoint_folder(config, request.resume, start.trial)
    if start.digest:  # only `reuse` gives one
        return _reused_origin(start, own_location, other_location)
    return context.Origin(other_location, step=start.step if start.step >= 0 else None)


def _reused_origin(start: records.Parent, own_location: str, other_location: str) -> context.Origin:
    """Return the checkpoint that `reuse` has selected in another run, unless it was changed or the trial has its own.

    Raises:
        CheckpointError: A location cannot be read. This is not caught: each rank decides for itself where to begin, and one
            that alone began at step 0 would mix steps.
    """
    if folders.summary(own_location) is not None:  # an earlier attempt has continued from the origin, if it was there
        return context.Origin()
    summary = folders.summary(other_location)
    is_unchanged = summary is not None and summary.digest == start.digest
    return context.Origin(other_location if is_unchanged else None, is_reused=True)


def _start_step(origin: context.Origin, first_step: int) -> int:
    """Return the step of the checkpoint that `reuse` has selected, from which the job has started; -1 if from step 0.

    Args:
        origin: The checkpoint.
        first_step: First step that the attempt has reported. If a library has read the checkpoint in a format of its own, so
            that its step is unknown, the step before the first one is returned.
    """
    if origin.location is None or not origin.was_read:
        return -1
    if origin.restored_step is not None:
        return origin.restored_step
    with contextlib.suppress(Exception):  # a file system's error in a report would fail the job
        checkpoint_names = stores.open_store(origin.location).complete()  # the newest last
        if checkpoint_names:
            return record.step_of(checkpoint_names[-1])
    return max(0, first_step - 1)


def _origin_warning(request: records.TrialRequest, origin: context.Origin) -> str:
    """Return a warning that the trial started from scratch and not from the checkpoint of another run; "" if it did not."""
    is_unusable = origin.location is None or origin.restored_step == -1
    if origin.is_reused and request.start is not None and is_unusable:
        return (
            f"the checkpoint of trial {request.start.trial} of {request.resume} is missing or was changed, so trial "
            f"{request.trial} has begun at step 0"
        )
    if origin.was_read:
        return ""
    return (
        f"the checkpoint of {request.resume} has no effect: the job has read neither ctx.restored nor ctx.resume_from, so "
        "it started from scratch"
    )


def _has_checkpoints(location: str) -> bool:
    """Return whether a location has checkpoints; False if it cannot be read."""
    with contextlib.suppress(errors.CheckpointError):  # the job gets the error when it saves
        return folders.summary(location) is not None
    return False


def is_clean_exit(error: BaseException) -> bool:
    """Return whether an error is `sys.exit(0)` or `sys.exit()`, by which a script without a return value reports success."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def has_ranks(config: records.SlotConfig) -> bool:
    """Return whether a trial is more than one process."""
    return config.ranks * config.nodes > 1


def checkpoint_root(config: records.SlotConfig, run: str) -> str:
    """Return the folder or URL below which a run has its checkpoints: this run, or another one in the same home folder."""
    root = Path(config.root) if run == config.run else Path(config.root).parent / run
    return config.checkpoints or str(paths.RunPaths(root).checkpoints)


def checkpoint_folder(config: records.SlotConfig, run: str, trial: int, step: int = 0) -> str:
    """Return the folder or URL of one trial's checkpoints; with a step other than 0, its folder for that step.

    Trials of a population have such folders, see `paths.TrialFolder`.
    """
    return paths.trial_checkpoints(checkpoint_root(config, run), run, trial, step)


def remove_checkpoints(config: records.SlotConfig, outdated: Iterable[paths.TrialFolder]) -> None:
    """Remove folders of trials' checkpoints.

    Raises:
        CheckpointError: Some cannot be removed. The others are removed.
    """
    folders.remove_each(checkpoint_folder(config, config.run, folder.trial, folder.step) for folder in outdated)


class Reporter:
    """A sender of reports to the slot, which waits for the answer if the study prunes.

    Attributes:
        last: Metrics of the newest report.
        newest: Newest value of each metric, from any report.
        warning: Returns a warning about the trial, or ""; called at the first report and at the end of the job's function.
        start_step: Returns the step from which the attempt has started, see `TrialReport`; called with the first report's
            step.
        is_quiet: Whether reports are not printed, because the slot reads metrics from a program's output.
        attributes: Attributes that an objective of Optuna has set for its trial.
    """

    def __init__(self, request: records.TrialRequest, channel: Channel[Any, Any]) -> None:
        self._request = request
        self._channel = channel
        self.last: Mapping[str, float] = {}
        self.newest: dict[str, float] = {}
        self.warning: Callable[[], str] = str  # `str()` is ""
        self.start_step: Callable[[int], int | None] = lambda _: None
        self.is_quiet = False
        self.attributes: dict[str, Any] = {}

    def suggest(self, request: messages.Suggest) -> messages.Suggested:
        """Request the value of a parameter from the controller, and return its answer."""
        self._channel.send(request)
        answer = self._channel.receive()
        assert isinstance(answer, messages.Suggested), "a request for a parameter is answered with Suggested"
        return answer

    def confirm(self) -> None:
        """Wait until the reports so far are in the ledger."""
        self._channel.send(messages.Confirm())
        answer = self._receive_answer()
        assert answer.prune_at is None, "no pruner prunes a trial with rungs"

    def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        """Print and send the metrics of one step; return whether the trial must end as pruned, False without `waits`.

        Raises:
            Finished: A stop rule is met. Only with `waits`; without it the slot ends the trial.
        """
        is_first_report = not self.newest
        warning = self.warning() if is_first_report else ""
        start_step = self.start_step(step) if is_first_report else None
        self._record(metrics)
        self._print(step, metrics, warning)
        report = messages.Reported(
            step, metrics, time=time.time(), sent=time.monotonic(), remark=warning, waits=waits, start_step=start_step
        )
        self._channel.send(report)
        if not waits:
            return False
        is_pruned = self._request.prunable and self._receive_answer().prune_at is not None
        rule = stopping.met_rule(self._request.stop, step, metrics)
        if rule:
            raise context.Finished(f"stopped at step {step}: {rule}")
        return is_pruned

    def _record(self, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a report as the last and the newest ones."""
        self.last = metrics
        for name, value in metrics.items():
            # Of a metric whose best report counts, the last finite value stays if the training diverges at the end.
            has_diverged = name in self._request.reported and name in self.newest and not math.isfinite(value)
            if not has_diverged:
                self.newest[name] = value

    def _print(self, step: int, metrics: Mapping[str, float], warning: str) -> None:
        """Print a warning, if there is one, and the report into the trial's log."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced its streams
            if warning:
                print(f"warning: {warning}")  # noqa: T201
            if not self.is_quiet:
                print(progress.log_line(step, metrics), flush=True)  # noqa: T201

    def _receive_answer(self) -> messages.AnswerReport:
        """Wait for the slot's answer to a report or a Confirm."""
        answer = self._channel.receive()
        assert isinstance(answer, messages.AnswerReport), "a report or Confirm is answered with AnswerReport"
        return answer
