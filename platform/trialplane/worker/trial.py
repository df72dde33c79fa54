"""One trial process, from its start to its last message.

`run_and_end` is called in a fork of the template; `python -m trialplane.worker.roles FD PARENT` does the same in a new
interpreter. Both read their request from the channel, run the job's function, send one outcome and end. Must not import
anything heavy: the template or the job imports what the job needs.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import importlib
import math
import multiprocessing.util  # noqa: F401  here, so that `end_after` clears its exit function, which waits for workers without limit
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trialplane import errors, policies
from trialplane.job import program
from trialplane.training import mlflow_runs, process, progress
from trialplane.training.steps import folders
from trialplane.wire import env, messages, paths, records
from trialplane.wire.states import TrialState
from trialplane.worker import advice, context, environment, outcomes, pausing, programs, stopping
from trialplane.worker.channel import Channel, TrialChannel
from trialplane.worker.shims import capture, objective, tune

# The work of a trial's process between its request and its outcome; see `roles`.
Role = Callable[[context.Run | None, messages.RunTrial, TrialChannel], records.TrialOutcome]
# A way to call the job's function, with the fields of its context.
CallJob = Callable[[Callable[..., Any], Mapping[str, Any]], context.Result]
_UNREAD = (
    "the checkpoint of {run} has no effect: the job has read neither ctx.restored nor ctx.resume_from, so it started from "
    "scratch"
)


def import_job(config: records.SlotConfig) -> context.Run:
    """Import the job's module and everything in `preload`; return the job's function, or a function that runs its program.

    An objective of Optuna is returned as it is; `run_job` makes a function of the context of it.

    Raises:
        Any exception of the job's code at import, or of its functions in `preload`.
        AttributeError: The module has no such function.
    """
    if config.code not in sys.path:
        sys.path.insert(0, config.code)
    for name in config.preload:
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)(dict(config.params), Path(config.cache))
    if config.program is not None:
        return programs.load(config, config.program)
    style, entrypoint = program.split_style(config.entrypoint)
    if style == "ray":
        return tune.load(entrypoint)
    module, _, function = entrypoint.partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def run_and_end(
    run: context.Run | None, channel: TrialChannel, parent: int, role_of: Callable[[records.SlotConfig], Role]
) -> None:
    """Run one trial and end the process, regardless of threads and processes that the job left behind.

    Args:
        run: Function of the job in a fork of the template; None in a new interpreter, which imports it.
        channel: Channel to the slot.
        parent: Pid of the template.
        role_of: Selects the work of a slot's processes: `roles.role_function`.
    """
    end_after(lambda: _serve(run, channel, role_of), parent, leader=True)


def end_after(serve: Callable[[], int], parent: int, leader: bool = False) -> None:
    """Run `serve` in a new process and end the process, with the code that `serve` returns.

    Args:
        serve: Work of the process.
        parent: Pid of the parent process, with which this one dies.
        leader: Whether the process becomes the leader of a new session.
    """
    code = 1
    atexit._clear()  # handlers registered before are not the job's, and torch's take 40 ms
    try:
        process.die_with_parent(parent)
        if leader:
            with contextlib.suppress(PermissionError):  # started as a session leader already
                os.setsid()
        code = serve()
    except BaseException:  # noqa: BLE001  nothing may unwind into the loop of the process that forked
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # handlers that the job has registered
        process.flush()
        os._exit(code)


def _serve(run: context.Run | None, channel: TrialChannel, role_of: Callable[[records.SlotConfig], Role]) -> int:
    """Read the request, run the job and send the outcome; return the exit code."""
    message = channel.receive()
    assert isinstance(message, messages.RunTrial), "a slot sends RunTrial first"
    config, request, workdir = message.config, message.request, Path(message.workdir)
    _set_up_process(config, request, workdir)
    programs.report_size_at_exit(config, channel)
    started = time.time()
    outcome = role_of(config)(run, message, channel)
    outcome = dataclasses.replace(outcome, started=started, ended=time.time(), pid=os.getpid())
    process.flush()
    send_end(channel, request, outcome)
    return 0


def perform(run: context.Run | None, message: messages.RunTrial, channel: TrialChannel) -> records.TrialOutcome:
    """Perform the role of a trial of one process: call the job's function and return its outcome."""
    return run_role_job(run, message, channel, stopping.Stop(message.config.grace), call_with_context)


def run_role_job(
    run: context.Run | None, message: messages.RunTrial, channel: TrialChannel, stop: stopping.Stop, call_job: CallJob
) -> records.TrialOutcome:
    """Run the job in the process of any role, and return its outcome.

    Args:
        run: Function of the job, or None to import it.
        message: Request from the slot.
        channel: Channel to the slot.
        stop: Stop of this process.
        call_job: Way to call the job's function in this role.
    """
    config, request, reporter = message.config, message.request, Reporter(message.request, channel)
    outcome = run_job(run, config, request, Path(message.workdir), reporter, call_job, _stop=stop)
    return outcomes.with_attributes(outcome, reporter.attributes)


def send_end(channel: Channel[Any, Any], request: records.TrialRequest, outcome: records.TrialOutcome) -> None:
    """Send the outcome; if it is too large for a message, an outcome that says so."""
    try:
        channel.send(messages.Ended(outcome))
    except errors.MessageError as error:
        channel.send(messages.Ended(outcomes.outcome_of_error(request, error, {})))


def _set_up_process(config: records.SlotConfig, request: records.TrialRequest, workdir: Path) -> None:
    """Set up this process for the trial: log, environment, folder, limits, random numbers."""
    log = paths.RunPaths(Path(config.root)).trial_log(request.trial, request.attempt, request.worker)
    log.parent.mkdir(parents=True, exist_ok=True)
    workdir.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        # Unbuffered as they are, a line and its end would be two writes, and another rank's line could come in between.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]  # a TextIOWrapper here
    faulthandler.enable()  # a crash or a time-out leaves its stacks in the log
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(
        {
            env.RUN: request.run,
            env.TRIAL: str(request.trial),
            env.ATTEMPT: str(request.attempt),
            env.SEED: str(request.seed),
            env.CACHE: config.cache,
            "TMPDIR": str(workdir),
            # joblib would use /dev/shm, where files of a killed process stay until the machine is restarted.
            "JOBLIB_TEMP_FOLDER": os.environ.get("JOBLIB_TEMP_FOLDER", str(workdir)),
            **request.env,
        }
    )
    enter_mlflow(config, request)
    tempfile.tempdir = None  # read TMPDIR again
    os.chdir(workdir)
    policies.apply_all()
    if not has_ranks(config):  # a supervisor forks, which the threads of numpy and torch would prevent
        environment.use_cores(config.cpus)
    process.seed_everything(request.seed)


def enter_mlflow(config: records.SlotConfig, request: records.TrialRequest) -> None:
    """Direct the MLflow calls of this process, a trial's or a rank's, to the trial's run."""
    store = paths.RunPaths(Path(config.root)).trial_store(request.number, request.worker if config.ship else None)
    mlflow_runs.enter({**config.env, **request.env}, request.series, store)


def call_with_context(run: context.Run, fields: Mapping[str, Any]) -> context.Result:
    """Call the function of a trial."""
    ctx = context.Context(**fields)
    with context.activate(ctx):
        return run(ctx)


def run_job(
    run: context.Run | None,
    config: records.SlotConfig,
    request: records.TrialRequest,
    workdir: Path,
    reporter: Reporter,
    call_job: CallJob = call_with_context,
    **rank_fields: Any,
) -> records.TrialOutcome:
    """Run the job's function and return its outcome, also for errors.

    Args:
        run: Function of the job, or None to import it.
        config: Configuration of the slot.
        request: Request of the trial.
        workdir: Scratch folder of the trial.
        reporter: Receiver of the reports.
        call_job: Makes the context from its fields and calls the function with it.
        **rank_fields: Fields of the context that differ between ranks.
    """
    reporter.is_quiet = config.program is not None
    location = checkpoints(config, request.run, request.trial, request.folder)
    origin, saving = _origin(config, request, location), context.Saving()
    is_first = request.attempt == 1 and config.role == "trial"  # later attempts have checkpoints of their own
    if request.resume and is_first:
        reporter.remark = lambda: "" if origin.was_read else _UNREAD.format(run=request.resume)
    imports = advice.LateImports()
    # A script's imports are done before the fork, and a command's are not in this process.
    watches_imports = run is not None and config.program is None
    try:
        _check_parent_checkpoint(config, request)
        if config.role != "worker":  # a worker has no reports
            capture.begin(config, request)
        if run is None:
            run = import_job(config)
            process.seed_everything(request.seed)  # again, as numpy and torch may have been loaded by the imports
        if request.objectives:
            run = objective.trial_function(run, request.metrics, request.objectives, reporter)
        fields = {
            "params": dict(request.params),  # to which an objective of Optuna adds its values
            "seed": request.seed,
            "run": request.run,
            "trial": request.trial,
            "attempt": request.attempt,
            "cpus": config.cpus,
            "gpus": config.gpus,
            "code": Path(config.code),
            "cache": Path(config.cache),
            "workdir": workdir,
            "checkpoints": location,
            "_origin": origin,
            "_saving": saving,
            "_reporter": reporter,
            "_pause": pausing.Pause(request.segment),
            **rank_fields,
        }
        ended, early = "", ""
        try:
            with imports.watch() if watches_imports else contextlib.nullcontext():
                result = call_job(run, fields)
        except (SystemExit, context.Finished) as error:
            if isinstance(cause := outcomes.cause(error), context.Finished):
                early = str(cause)
            elif not is_clean_exit(cause):
                raise
            result, ended = reporter.newest, f"was {early}" if early else "ended by sys.exit(0)"
        if rank_fields.get("rank", 0) > 0:  # rank 0's outcome counts
            return records.TrialOutcome(number=request.number, state=TrialState.COMPLETE)
        runs_in = workdir if config.program is None else programs.folder(config.program, workdir)
        remark = outcomes.copy_kept_files(location, runs_in, config.keep)
        remark = "; ".join(filter(None, (remark, saving.remark)))
        if config.program is not None:  # the slot adds the metrics that it has read, and checks that they are complete
            outcome = records.TrialOutcome(request.number, TrialState.COMPLETE, metrics=reporter.newest)
            return dataclasses.replace(outcome, early=bool(early), message=early, remark=remark, advice=advice.pool_advice())
        outcome = outcomes.outcome_of_result(request, result, workdir, ended=ended, newest=reporter.newest)
        return _with_remarks(dataclasses.replace(outcome, remark=remark), config, request, reporter, imports, early)
    except BaseException as error:  # noqa: BLE001  the boundary: every error of the job is an outcome, KeyboardInterrupt too
        last = reporter.newest if isinstance(error, context.Paused) else reporter.last
        return dataclasses.replace(outcomes.outcome_of_error(request, error, last), remark=saving.remark)


def _with_remarks(
    outcome: records.TrialOutcome,
    config: records.SlotConfig,
    request: records.TrialRequest,
    reporter: Reporter,
    imports: advice.LateImports,
    early: str,
) -> records.TrialOutcome:
    """Add remarks to the outcome of a function's result, and advice if it is complete.

    Args:
        outcome: Outcome of the result.
        config: Configuration of the slot.
        request: Request of the trial.
        reporter: Receiver of the reports.
        imports: Imports of this trial.
        early: Description of the stop rule that ended the trial; "" without one.
    """
    if outcome.state is not TrialState.COMPLETE:
        return dataclasses.replace(outcome, message="; ".join(filter(None, (outcome.message, reporter.remark()))))
    remarks = (early, reporter.remark(), *stopping.unreported_remarks(request.stop, reporter.newest))
    return dataclasses.replace(
        outcome,
        early=bool(early),
        message="; ".join(filter(None, remarks)),
        advice="; ".join(filter(None, (imports.advice(config), advice.pool_advice()))),
    )


def _check_parent_checkpoint(config: records.SlotConfig, request: records.TrialRequest) -> None:
    """Check that the checkpoint from which a segment continues is the one that was saved.

    Raises:
        CheckpointError: It is missing, or another one.
    """
    parent = None if request.segment is None else request.segment.parent
    if parent is None:
        return
    location = checkpoints(config, request.run, parent.trial, parent.folder)
    summary = folders.summary(location)
    if summary is None or parent.digest not in ("", summary.digest):
        problem = "is missing" if summary is None else "was changed since the trial was paused"
        owner = "its" if parent.trial == request.trial else f"trial {parent.trial}'s"
        raise errors.CheckpointError(
            f"trial {request.trial} was to continue after step {parent.step}, and {owner} checkpoint at {location} {problem}"
        )


def _origin(config: records.SlotConfig, request: records.TrialRequest, location: str) -> context.Origin:
    """Return where a trial's first state comes from: another run, or the checkpoint of a segment in another folder."""
    parent = None if request.segment is None else request.segment.parent
    if parent is None or (parent.trial, parent.folder) == (request.trial, request.folder):
        if not request.resume:
            return context.Origin()
        start = request.start or records.Parent(request.trial, -1)
        step = start.step if start.step >= 0 else None
        return context.Origin(checkpoints(config, request.resume, start.trial), step=step)
    return context.Origin(
        checkpoints(config, request.run, parent.trial, parent.folder),
        is_exact=True,
        is_changed=request.segment is not None and request.segment.changed,
        is_required=not _has_checkpoints(location),  # else a former attempt has read it, and saved a newer state
    )


def _has_checkpoints(location: str) -> bool:
    with contextlib.suppress(errors.CheckpointError):  # the job gets the error once it saves
        return folders.summary(location) is not None
    return False


def is_clean_exit(error: BaseException) -> bool:
    """Return whether an error is `sys.exit(0)` or `sys.exit()`, by which a script without a return value reports success."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def has_ranks(config: records.SlotConfig) -> bool:
    """Return whether a trial is more than one process."""
    return config.ranks * config.nodes > 1


def checkpoint_location(config: records.SlotConfig, run: str) -> str:
    """Return the folder or URL of the checkpoints of this run, or of another run in the same home folder."""
    root = Path(config.root) if run == config.run else Path(config.root).parent / run
    return config.checkpoints or str(paths.RunPaths(root).checkpoints)


def checkpoints(config: records.SlotConfig, run: str, trial: int, step: int = 0) -> str:
    """Return the folder or URL of the checkpoints of one trial, or of those at a step; see `paths.TrialFolder`."""
    return paths.trial_checkpoints(checkpoint_location(config, run), run, trial, step)


def remove_checkpoints(config: records.SlotConfig, outdated: Iterable[paths.TrialFolder]) -> None:
    """Remove folders of trials' checkpoints.

    Raises:
        CheckpointError: Some cannot be removed; the others have been.
    """
    folders.remove_each(checkpoints(config, config.run, folder.trial, folder.step) for folder in outdated)


class Reporter:
    """Send reports to the slot, and wait for its answer when the study prunes.

    Attributes:
        last: Metrics of the newest report.
        newest: Newest value of each metric, from any report.
        remark: Returns a warning about the trial, or ""; called at the first report.
        is_quiet: Whether reports are not printed, as the slot reads metrics from a program's output.
        attributes: Attributes that an objective of Optuna has set for its trial.
    """

    def __init__(self, request: records.TrialRequest, channel: Channel[Any, Any]) -> None:
        self._request = request
        self._channel = channel
        self.last: Mapping[str, float] = {}
        self.newest: dict[str, float] = {}
        self.remark: Callable[[], str] = str
        self.is_quiet = False
        self.attributes: dict[str, Any] = {}

    def suggest(self, request: messages.Suggest) -> messages.Suggested:
        """Request the value of a parameter from the controller."""
        self._channel.send(request)
        answer = self._channel.receive()
        assert isinstance(answer, messages.Suggested), "a request for a parameter is answered with Suggested"
        return answer

    def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        """Send the metrics of one step; return whether the trial is to end as pruned.

        Raises:
            Finished: A stop rule is met. Only with `waits`; without it the slot ends the trial.
        """
        remark = "" if self.newest else self.remark()
        self.last = metrics
        for name, value in metrics.items():
            # Where the best report counts, a training that diverges at the end keeps its last finite value.
            if math.isfinite(value) or name not in self.newest or name not in self._request.reported:
                self.newest[name] = value
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced its streams
            if remark:
                print(f"warning: {remark}")  # noqa: T201  into the trial's log
            if not self.is_quiet:
                print(progress.line(step, metrics), flush=True)  # noqa: T201  into the trial's log
        self._channel.send(messages.Reported(step, metrics, time.time(), time.monotonic(), remark, waits))
        if not waits:
            return False
        prune = False
        if self._request.prunable:
            answer = self._channel.receive()
            assert isinstance(answer, messages.AnswerReport), "a report is answered with AnswerReport"
            prune = answer.prune_at is not None
        if rule := stopping.met_rule(self._request.stop, step, metrics):
            raise context.Finished(f"stopped at step {step}: {rule}")
        return prune
