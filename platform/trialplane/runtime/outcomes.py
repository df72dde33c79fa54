"""From what the job's function did, returned or raised, to the outcome of its trial."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.policies import transport
from trialplane.runtime import context
from trialplane.wire import records
from trialplane.wire.states import FailureClass, TrialState

# Code of ours, of Python's library, and made by it (`<frozen …>`, and `<string>` of dataclasses): an error's place is the
# last line of the job's own before it.
_NOT_THE_JOBS = (str(Path(__file__).parent.parent), str(Path(os.__file__).parent), "<")


def complete(
    request: records.TrialRequest, result: context.Result, workdir: Path
) -> tuple[records.TrialOutcome, str | None]:
    """The outcome for what the job returned."""
    if not isinstance(result, Mapping):
        result = {request.metrics[0]: result} if len(request.metrics) == 1 else {"": result}
    metrics, arrays = _split(result)
    missing = [name for name in request.metrics if name not in metrics]
    undefined = [name for name in request.metrics if math.isnan(metrics.get(name, 0.0))]
    if missing or undefined:
        said = [f"{name} is missing" for name in missing] + [f"{name} is NaN" for name in undefined]
        returned = ", ".join(sorted(metrics)) or "no metrics"
        message = f"{'; '.join(said)}: run(ctx) must return a number for each objective and constraint ({returned})"
        failed = records.TrialOutcome(
            number=request.number,
            state=TrialState.FAILED,
            failure=FailureClass.INVALID,
            metrics=metrics,
            message=message,
        )
        return failed, None
    file, size = None, 0
    if arrays:
        packed = transport.pack(arrays)
        file, size = str(workdir.with_suffix(".arrays")), packed.nbytes
        packed.tofile(file)
    complete = records.TrialOutcome(number=request.number, state=TrialState.COMPLETE, metrics=metrics, arrays=size)
    return complete, file


def _split(result: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """The result's scalars as metrics, and the rest."""
    metrics: dict[str, float] = {}
    arrays: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) > 0:  # float() would take some of these
            arrays[str(name)] = value
            continue
        try:
            metrics[str(name)] = float(value)  # numpy's and torch's scalars too
        except (TypeError, ValueError, RuntimeError):
            arrays[str(name)] = value
    return metrics, arrays


def raised(request: records.TrialRequest, error: BaseException, last: Mapping[str, float]) -> records.TrialOutcome:
    """The outcome for what the job raised."""
    if isinstance(error, context.Pruned) or _is_optuna_pruned(error):
        return records.TrialOutcome(number=request.number, state=TrialState.PRUNED, metrics=last, message=str(error))
    if isinstance(error, context.Stopped):
        return records.TrialOutcome(
            number=request.number, state=TrialState.FAILED, failure=FailureClass.LOST, metrics=last, message=str(error)
        )
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced its streams
        traceback.print_exception(error)
    torch = sys.modules.get("torch")
    failure = FailureClass.ERROR
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        failure = FailureClass.OOM
    elif isinstance(error, MemoryError):
        failure = FailureClass.CRASHED
    elif isinstance(error, context.Invalid) or (isinstance(error, errors.TransportError) and request.worker is not None):
        failure = FailureClass.INVALID  # a producer's result is what it is there for
    return records.TrialOutcome(
        number=request.number,
        state=TrialState.FAILED,
        failure=failure,
        metrics=last,
        message=describe(error),
        traceback="".join(traceback.format_exception(error))[-20_000:],
    )


def describe(error: BaseException) -> str:
    """An error in one line, with the file and line of the user's code it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    files = (*_NOT_THE_JOBS, "/site-packages/")
    own = [frame for frame in frames if not any(part in frame.filename for part in files)]
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}{where}"[:1000] if first else f"{type(error).__name__}{where}"


def _is_optuna_pruned(error: BaseException) -> bool:
    """Whether it is optuna's TrialPruned, from a script brought along; the runtime itself never imports optuna."""
    return any(f"{cls.__module__}.{cls.__name__}" == "optuna.exceptions.TrialPruned" for cls in type(error).__mro__)
