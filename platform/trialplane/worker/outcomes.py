"""Make the outcome of a trial from the value that the job's function returned, or the exception that it raised.

`trial.run_job` calls these functions in the trial's process; the slot calls some of them for a process that has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import reprlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trialplane import errors
from trialplane.policies import transport
from trialplane.training.steps import folders
from trialplane.wire import paths, records
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import context

# Files of trialplane and of Python's library, and generated code (`<frozen …>`, and `<string>` of dataclasses). The location
# of an error is the last frame of its traceback that is in none of these.
_FOREIGN_CODE = (str(Path(__file__).parent.parent), str(Path(os.__file__).parent), "<")
MAX_RETURNED = 4096  # characters of JSON for each trial; the controller has those of all trials in memory
_MAX_NAMED_FILES = 3  # in a remark
_MAX_TRACEBACK = 20_000  # characters at the end of a traceback that the outcome has
_MAX_DESCRIPTION = 1000  # characters of an error's description
_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = 60


def outcome_of_result(
    request: records.TrialRequest,
    result: Any,
    workdir: Path,
    *,
    how_ended: str = "",
    newest: Mapping[str, float] = MappingProxyType({}),
) -> records.TrialOutcome:
    """Return the outcome for a result: COMPLETE, or FAILED if a metric that the job needs is missing or not finite.

    Values that are too large for the ledger are written to the trial's arrays file.

    Args:
        request: Request of the trial.
        result: Metrics and other values by name; one number if there is one metric; or the metrics in the order of
            `request.metrics`, as an objective of Optuna returns them. None stands for the reported metrics.
        workdir: Scratch folder of the trial.
        how_ended: How the job ended without returning, in words for a message; `result` then has its reported metrics. "" if
            it returned.
        newest: Newest value of each metric in its reports.

    Raises:
        TransportError: The arrays file cannot be written, or a value cannot be packed.
    """
    has_reports_alone = result is None and bool(newest)
    if has_reports_alone and request.metrics:
        result, how_ended = newest, "returned nothing"
    metrics, other_values = _split_metrics(_values_by_name(request, result))
    for name in request.reported:  # for these the controller takes the best of all reports, so a returned NaN does no harm
        is_finite = math.isfinite(metrics.get(name, math.nan))
        if name in newest and not is_finite:
            metrics[name] = newest[name]
    defects = _defects(request.metrics, metrics)
    if defects:
        verb = f"{how_ended}, after reports of" if how_ended else "returned"
        return _defective_outcome(request, metrics, defects, f"it {verb} {_result_text(request, result, metrics)}")
    returned, large = _split_by_size(other_values)
    size = _write_arrays(large, paths.trial_arrays(workdir)) if large else 0
    return records.TrialOutcome(
        number=request.number, state=TrialState.COMPLETE, metrics=metrics, returned=returned, arrays=size
    )


def _defective_outcome(
    request: records.TrialRequest, metrics: Mapping[str, float], defects: Sequence[str], result_text: str
) -> records.TrialOutcome:
    """Return the outcome for a result that lacks metrics, or whose metrics are not finite; its message describes both."""
    message = f"{'; '.join(defects)}: run(ctx) must return a finite number for each objective and constraint"
    return records.TrialOutcome(
        number=request.number,
        state=TrialState.FAILED,
        failure=FailureClass.INVALID,
        metrics=metrics,
        message=f"{message}; {result_text}",
        fingerprint="; ".join(defects),  # without the result, which differs between trials with the same defects
    )


def _defects(names: Sequence[str], metrics: Mapping[str, float]) -> list[str]:
    """Describe the metrics that are missing or not finite, for a message; an empty list if there are none."""
    missing = [name for name in names if name not in metrics]
    # An infinite value counts as a defect too: Optuna accepts it, and would take it as the best.
    not_finite = [name for name in names if name in metrics and not math.isfinite(metrics[name])]
    return [
        *(f"{name} is missing" for name in missing),
        *(f"{name} is {'NaN' if math.isnan(metrics[name]) else 'infinite'}" for name in not_finite),
    ]


def _write_arrays(values: Mapping[str, Any], file: Path) -> int:
    """Write values to a trial's arrays file; return its size in bytes.

    Raises:
        TransportError: The file cannot be written, or a value cannot be packed.
    """
    packed = transport.pack(values)
    try:
        file.write_bytes(packed.data)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise errors.TransportError(
            f"the arrays of its result ({packed.nbytes / 1e6:,.1f} MB) cannot be written to {file}: "
            f"{error.strerror or error}; make room there, or return smaller ones"
        ) from error
    return packed.nbytes


def _values_by_name(request: records.TrialRequest, result: Any) -> Mapping[str, Any]:
    """Return a result's values by name: {"loss": 0.1} for 0.1; an empty mapping for a list of more values than metrics."""
    if isinstance(result, Mapping):
        return result
    values = result if isinstance(result, (list, tuple)) else [result]
    return dict(zip(request.metrics, values, strict=False)) if len(values) <= len(request.metrics) else {}


def _result_text(request: records.TrialRequest, result: Any, metrics: Mapping[str, float]) -> str:
    """Describe a result for a message: its names, with the values of metrics that are not numbers."""
    if isinstance(result, Mapping):
        not_numbers = [name for name in result if name in request.metrics and name not in metrics]
        shown = [f"{name} = {_SHORT_REPR.repr(result[name])}" for name in not_numbers]
        shown += sorted(str(name) for name in result if name not in not_numbers)
        return ", ".join(shown) or "no metrics"
    if isinstance(result, (list, tuple)):
        expected = f"{', '.join(request.metrics)} {'are' if len(request.metrics) > 1 else 'is'} expected"
        return f"{_SHORT_REPR.repr(result)}, where {expected}"
    return _SHORT_REPR.repr(result)


def _split_metrics(result: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the values of a result that are single numbers, as metrics, and its other values."""
    metrics: dict[str, float] = {}
    other_values: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) > 0:  # float() would accept some of these
            other_values[str(name)] = value
            continue
        try:
            metrics[str(name)] = float(value)  # numpy's and torch's scalars too
        except (TypeError, ValueError, RuntimeError, OverflowError):
            other_values[str(name)] = value
    return metrics, other_values


def _split_by_size(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that are small enough for the outcome, as JSON values, and the others, unchanged.

    Each value in turn is small if, with the small ones before it, it has at most `MAX_RETURNED` characters of JSON.
    """
    returned: dict[str, Any] = {}
    large: dict[str, Any] = {}
    characters_left = MAX_RETURNED
    for name, value in values.items():
        size = _json_size(value, characters_left)
        if size is None:
            large[name] = value
        else:
            returned[name] = records.to_dict(value)
            characters_left -= size
    return returned, large


def copy_kept_files(location: str, folder: Path, patterns: Sequence[str]) -> str:
    """Copy the files of the job's `keep.files` beside the checkpoints of a trial that has ended.

    Files that are missing, or cannot be copied, are listed in the trial's log; they do not fail the trial. The patterns are
    of the files' paths in `folder`, in which the trial ran.

    Returns:
        A message for the user about files that could not be copied, with reasons; "" if all were.
    """
    uncopied = folders.put_files(location, folder, patterns)
    for pattern in uncopied.unmatched:
        sys.stderr.write(f"trialplane: keep.files: the trial has left no file {pattern}\n")
    for file, reason in uncopied.failed.items():
        sys.stderr.write(f"trialplane: keep.files: {file} could not be copied to {location}/files: {reason}\n")
    if not uncopied.failed:
        return ""
    shown = [f"{file} ({reason})" for file, reason in list(uncopied.failed.items())[:_MAX_NAMED_FILES]]
    more = len(uncopied.failed) - len(shown)
    named = ", ".join(shown) + (f" and {more} more" if more else "")
    return f"keep.files: could not copy {named}; the trial counts all the same"


def with_attributes(outcome: records.TrialOutcome, attributes: Mapping[str, Any]) -> records.TrialOutcome:
    """Return an outcome with the attributes that an objective of Optuna has set. Its message names too large ones."""
    if not attributes:
        return outcome
    small, large = _split_by_size(attributes)
    message = outcome.message
    if large:
        remark = (
            f"the trial's attributes {', '.join(sorted(large))} were not kept: together they have {MAX_RETURNED} characters "
            "of JSON at most; write larger ones into files, or log them to MLflow"
        )
        message = f"{message}; {remark}" if message else remark
    return dataclasses.replace(outcome, returned={**outcome.returned, **small}, message=message)


def _json_size(value: Any, limit: int) -> int | None:
    """Return the number of characters of a value as JSON; None if it is over the limit, or the value has no JSON form."""
    size = 0
    try:
        for piece in json.JSONEncoder().iterencode(value):  # stop at the limit: a list may have millions of items
            size += len(piece)
            if size > limit:
                return None
    except (TypeError, ValueError, RecursionError):
        return None
    return size


def outcome_of_error(
    request: records.TrialRequest, raised: BaseException, metrics: Mapping[str, float]
) -> records.TrialOutcome:
    """Return the outcome for an exception that ended the job's function, and print the traceback of a failure.

    The state is PRUNED or PAUSED if the exception says so, otherwise FAILED, with a class that depends on the exception. If
    the exception hides its cause (see `error_behind_exit`), the outcome is that of the cause.
    """
    error = error_behind_exit(raised)
    number = request.number
    if isinstance(error, context.Pruned) or _is_optuna_pruned(error):
        return records.TrialOutcome(number, TrialState.PRUNED, metrics=metrics, message=_error_text(error))
    if isinstance(error, context.Paused):
        return records.TrialOutcome(number, TrialState.PAUSED, metrics=metrics, message=_error_text(error))
    if isinstance(error, context.Stopped):
        return records.TrialOutcome(number, TrialState.FAILED, FailureClass.LOST, metrics=metrics, message=str(error))
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced its streams
        traceback.print_exception(raised)
    return records.TrialOutcome(
        number,
        TrialState.FAILED,
        _failure_class(request, error),
        metrics=metrics,
        message=describe(error),
        fingerprint="its arguments" if isinstance(error, context.ArgumentsRefused) else location(error),
        traceback="".join(traceback.format_exception(raised))[-_MAX_TRACEBACK:],
        certain=_is_certain(request, error),
    )


def _failure_class(request: records.TrialRequest, error: BaseException) -> FailureClass:
    """Return the class of the failure of an attempt that ended by an error."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return FailureClass.OOM
    if isinstance(error, MemoryError):
        return FailureClass.CRASHED
    if isinstance(error, context.Invalid):
        return FailureClass.INVALID
    if isinstance(error, errors.CheckpointDamaged) and request.segment is not None and request.segment.parent is not None:
        return FailureClass.LOST  # the checkpoint of a paused trial is the storage's fault, which may be back for a retry
    if isinstance(error, errors.TransportError) and request.worker is not None:
        return FailureClass.INVALID  # a worker's result that cannot be packed is a fault of the job
    return FailureClass.ERROR


def unsaved_outcome(outcome: records.TrialOutcome) -> records.TrialOutcome:
    """Return the outcome of a trial that was paused at a rung and has left no checkpoint."""
    message = (
        "the trial is at a rung, where it is paused (pruner.promote), and has left no checkpoint to continue from: save one "
        "after each report, in the folder that {checkpoints} and $TRIALPLANE_CHECKPOINTS name; or write pruner: asha"
    )
    return dataclasses.replace(
        outcome, state=TrialState.FAILED, failure=FailureClass.INVALID, message=message, fingerprint="a rung", certain=True
    )


def missing_result_text(code: int) -> str:
    """Describe the end of a process that has sent no outcome, for a message: "ended with …"."""
    return (
        f"ended with exit code {code} before it could send its result; see its log. A job that calls os._exit, or replaces "
        "itself (os.exec…), must return its result instead, or run that program with `command:`"
    )


def error_behind_exit(error: BaseException) -> BaseException:
    """Return the exception that made the job call `sys.exit` with a number other than 0; otherwise the error itself.

    Hydra, for one, catches every exception of a job and then calls `sys.exit(1)`, which hides it. It is the exception that
    was being handled, if the `except` block is in the function that called `sys.exit`. A block further up the stack does
    not count: a fallback for a missing import may run a whole program, which calls `sys.exit` much later for another
    reason. `raise SystemExit(1) from error` names its cause, and is returned itself.
    """
    handled_error = error.__context__
    has_exit_number = isinstance(error, SystemExit) and isinstance(error.code, int) and error.code != 0
    if not (has_exit_number and isinstance(handled_error, Exception) and not error.__suppress_context__):
        return error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    while frames and frames[-1].f_code.co_name == "exit":  # W&B replaces `sys.exit` by a Python function, which has a frame
        frames.pop()
    # The traceback of a handled error begins at the frame with the `except` block.
    handling_frame = next((frame for frame, _ in traceback.walk_tb(handled_error.__traceback__)), None)
    return handled_error if frames and frames[-1] is handling_frame else error


def describe(error: BaseException) -> str:
    """Describe an error in one line: its type, the first line of its text, and the user's code that raised it, if any."""
    code_line = location(error)
    suffix = f" ({code_line})" if code_line else ""
    text = _error_text(error).strip()
    if not text:
        return f"{type(error).__name__}{suffix}"
    return f"{type(error).__name__}: {text.splitlines()[0]}{suffix}"[:_MAX_DESCRIPTION]


def _error_text(error: BaseException) -> str:
    """Return the text of an error; "" if its `__str__`, which may be the job's code, raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  whatever the job's `__str__` raises
        return ""


def location(error: BaseException) -> str:
    """Return the file and line of the user's code that raised an error; "" if no frame of it is the user's code."""
    frames = _user_frames(error)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error's traceback that are the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign_parts = (*_FOREIGN_CODE, "/site-packages/")
    return [frame for frame in frames if not any(part in frame.filename for part in foreign_parts)]


def _is_certain(request: records.TrialRequest, error: BaseException) -> bool:
    """Return whether every trial of the study would fail in this way, because the error does not depend on parameters."""
    if isinstance(error, context.ArgumentsRefused):
        return error.certain
    if isinstance(error, context.NotResumable):
        return True
    if not isinstance(error, ImportError):
        return False
    # Parameters cannot change an import outside of functions and conditions. Numbers seldom change any import.
    is_unconditional = all(frame.name == "<module>" and frame.colno == 0 for frame in _user_frames(error))
    has_only_numbers = all(isinstance(value, float) or type(value) is int for value in request.params.values())
    return is_unconditional or has_only_numbers


def _is_optuna_pruned(error: BaseException) -> bool:
    """Return whether an error is Optuna's TrialPruned, recognized by name, because the worker does not import Optuna."""
    return any(f"{cls.__module__}.{cls.__name__}" == "optuna.exceptions.TrialPruned" for cls in type(error).__mro__)
