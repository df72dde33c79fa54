"""Make the outcome of a trial whose process has ended, and look up its checkpoints, in its slot.

The slot has the outcome that the process has sent, if any, the metrics that it has read from a program, the process's exit
code, and what it did to the process itself: signals to stop or kill it, and an end that it has decided.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
from pathlib import Path
from typing import NamedTuple

from trialplane import errors
from trialplane.training.steps import folders
from trialplane.wire import paths, records
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import outcomes, stopping, trial
from trialplane.worker.metrics.names import similar_name
from trialplane.worker.metrics.reader import Reader
from trialplane.worker.running import DecidedEnd, Failure, RunningTrial


def outcome_of(running: RunningTrial, code: int | None, loss_text: str) -> records.TrialOutcome:
    """Return the outcome of a trial, without the facts about the slot and the process.

    In this order: the end that the slot has decided; the outcome that the process has sent, even if the process was
    killed after it; for neither, a failure, or the result of a program that has exited with code 0.

    Args:
        running: The trial.
        code: Exit code of the process; None if it is unknown, because the template that reports it is gone.
        loss_text: Message of the outcome if the template is gone.
    """
    if running.decided_end is not None:
        return _decided_outcome(running, running.decided_end)
    if running.final_outcome is not None:
        return _sent_outcome(running, running.final_outcome)
    return _outcome_without_message(running, code, loss_text)


def _decided_outcome(running: RunningTrial, end: DecidedEnd) -> records.TrialOutcome:
    """Return the outcome of a trial whose end the slot has decided."""
    outcome = records.TrialOutcome(
        running.request.number, end.state, metrics=running.last_metrics, message=end.message, started=running.started_at
    )
    if end.state is TrialState.COMPLETE and running.reader is not None:
        return _completed_outcome(running, dataclasses.replace(outcome, early=True), running.reader)
    return outcome


def _sent_outcome(running: RunningTrial, outcome: records.TrialOutcome) -> records.TrialOutcome:
    """Return the outcome that the process has sent, with the metrics that were read from a program.

    Its message is extended if the process was killed because it still ran long after it, or if a stop was requested.
    """
    if running.reader is not None:
        if outcome.state is TrialState.COMPLETE:
            outcome = _completed_outcome(running, outcome, running.reader)
        else:
            outcome = dataclasses.replace(outcome, metrics={**running.last_metrics, **outcome.metrics})
    if running.is_overdue:
        remark = (
            f"its process had not ended {running.config.linger:g} s after run(ctx) and was killed (does an exit hook "
            "hang?), see budget.exit_timeout; its log ends with the stacks of its threads"
        )
        return dataclasses.replace(outcome, message="; ".join(filter(None, (outcome.message, remark))))
    if running.stop_reason and outcome.failure is FailureClass.LOST:  # the process only knows that it got SIGTERM
        return dataclasses.replace(outcome, message=f"{running.stop_reason}: {outcome.message}")
    return outcome


def _outcome_without_message(running: RunningTrial, code: int | None, loss_text: str) -> records.TrialOutcome:
    """Return the outcome of a trial whose process has sent none; for the arguments see `outcome_of`."""
    outcome = records.TrialOutcome(
        number=running.request.number, state=TrialState.FAILED, metrics=running.last_metrics, started=running.started_at
    )
    if running.kill_reason is not None:
        return dataclasses.replace(outcome, **running.kill_reason._asdict())
    if running.reader is not None and code == 0:
        # A script may end by `os._exit(0)`, or replace itself by another program. That counts like a command's end.
        return _completed_outcome(running, dataclasses.replace(outcome, state=TrialState.COMPLETE), running.reader)
    failure, message = _failure_by_code(code, running.config.grace, loss_text)
    if running.stop_reason and failure is FailureClass.LOST:
        message = f"{running.stop_reason}: {message}"
    return dataclasses.replace(outcome, failure=failure, message=message)


def _completed_outcome(running: RunningTrial, outcome: records.TrialOutcome, reader: Reader) -> records.TrialOutcome:
    """Return the outcome of a program that has ended well, with the metrics that were read.

    It is FAILED if a metric that the job needs is missing or not finite, and LOST if the program was stopped before its
    end, because it may not have done all of its work.
    """
    metrics = {**reader.newest, **outcome.metrics}
    renamings: list[str] = []
    for name in running.request.metrics:
        # Of a metric whose best report counts, the last value is not enough.
        needs_last_value = name not in metrics and name not in running.request.reported
        other_name = similar_name(name, metrics) if needs_last_value else ""
        if other_name:
            metrics[name] = metrics[other_name]
            renamings.append(f"{name} is the last {other_name}, a similar name")
    for name in running.request.reported:  # the best report counts, so a training that diverges at its end has a value
        if name in reader.finite and not _is_finite(metrics, name):
            metrics[name] = reader.finite[name]
    outcome = dataclasses.replace(outcome, metrics=metrics)
    has_ended_after_stop = running.final_outcome is None or running.stop_requested_at < running.final_outcome_at
    if running.stop_reason and has_ended_after_stop:
        text = "it ended after SIGTERM"
        return dataclasses.replace(outcome, state=TrialState.FAILED, failure=FailureClass.LOST, message=text)
    missing = [name for name in running.request.metrics if not _is_finite(metrics, name)]
    if missing:
        return dataclasses.replace(
            outcome,
            state=TrialState.FAILED,
            failure=FailureClass.INVALID,
            message=reader.missing_message(missing, metrics),
            fingerprint="; ".join(f"{name} is {'not finite' if name in metrics else 'missing'}" for name in missing),
        )
    remarks = (
        outcome.message,
        *renamings,
        *reader.remarks,
        *stopping.unreported_remarks(running.request.stop, metrics),
    )
    return dataclasses.replace(outcome, message="; ".join(filter(None, remarks)))


def _is_finite(metrics: dict[str, float], name: str) -> bool:
    return math.isfinite(metrics.get(name, math.nan))


def _failure_by_code(code: int | None, grace: float, loss_text: str) -> Failure:
    """Return the failure of a process that has sent no outcome and was not killed by the slot.

    Args:
        code: Exit code of the process, or the negative number of the signal that ended it; None if the template is gone.
        grace: Seconds that the process has after SIGTERM.
        loss_text: Message if the template is gone.
    """
    if code is None:
        return Failure(FailureClass.LOST, loss_text)
    if code == -signal.SIGTERM:  # no handler was installed yet, or the job installs none
        return Failure(FailureClass.LOST, "stopped by SIGTERM at once, without a checkpoint")
    if code == -signal.SIGALRM:  # by which `stopping.Stop` ends a process that has not ended by itself
        return Failure(FailureClass.LOST, f"stopped by SIGTERM; it had not ended after {grace:g} s, see ctx.stopping")
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (probably by the kernel, out of memory)" if -code == signal.SIGKILL else ""
        return Failure(FailureClass.CRASHED, f"the process was killed by {name}{hint}")
    failure = FailureClass.INVALID if code == 0 else FailureClass.CRASHED
    return Failure(failure, f"the process {outcomes.missing_result_text(code)}")


class CheckedOutcome(NamedTuple):
    """An outcome whose arrays have been checked.

    Attributes:
        outcome: The outcome.
        arrays: Path of the file with the arrays of its result; None without arrays.
    """

    outcome: records.TrialOutcome
    arrays: str | None = None


def check_arrays(outcome: records.TrialOutcome, file: Path) -> CheckedOutcome:
    """Return an outcome with the path of its arrays file; an INVALID outcome if there is no file of the size it names."""
    if not outcome.arrays:
        return CheckedOutcome(outcome)
    if not file.is_symlink() and file.is_file() and file.stat().st_size == outcome.arrays:
        return CheckedOutcome(outcome, str(file))
    text = f"the {outcome.arrays:,} bytes of arrays of its result are not in {file}"
    return CheckedOutcome(
        dataclasses.replace(outcome, state=TrialState.FAILED, failure=FailureClass.INVALID, message=text, arrays=0)
    )


def checkpoint_summary(config: records.SlotConfig, request: records.TrialRequest) -> records.CheckpointSummary | None:
    """Return the summary of a trial's checkpoints; None if there are none, they cannot be read, or it is a collection's."""
    if config.role != "trial":
        return None
    with contextlib.suppress(errors.CheckpointError):
        return folders.summary(trial.checkpoint_folder(config, config.run, request.trial, request.folder))
    return None


def has_saved(config: records.SlotConfig, request: records.TrialRequest) -> bool | None:
    """Return whether a trial has left a checkpoint, in this attempt or an earlier one.

    Returns:
        None for an object store, where the slot cannot tell, and for a folder that cannot be read.
    """
    root = paths.local_folder(trial.checkpoint_root(config, config.run))
    if root is None:
        return None
    number = request.trial if config.role == "trial" else 0  # all iterations of a collection have the folder of trial 0
    with contextlib.suppress(OSError):
        return paths.has_checkpoint(Path(paths.trial_checkpoints(str(root), config.run, number, request.folder)))
    return None
