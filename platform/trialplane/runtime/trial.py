"""One trial process, from the moment it exists to its last message.

`run_and_end` is called in a child of the template; `python -m trialplane.runtime.trial FD PARENT` is the same by
spawn. Both read their request from the channel, run the job's function, send one outcome and end. Must not import anything
heavy: what the job needs is imported by the template or by the job.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import faulthandler
import importlib
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trialplane import policies
from trialplane.policies import transport
from trialplane.runtime import context
from trialplane.wire import env, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.states import FailureClass, TrialState

_PR_SET_PDEATHSIG = 1
# Code of ours, and of Python's library: an error's place is the last line of the job's own before it.
_NOT_THE_JOBS = (str(Path(__file__).parent.parent), str(Path(os.__file__).parent), "<frozen ")


def import_job(config: records.SlotConfig) -> context.Run:
    """The job's function, with its module and everything in `preload` imported.

    Raises:
        whatever the job's code raises at import; AttributeError when it lacks the function.
    """
    if config.code not in sys.path:
        sys.path.insert(0, config.code)
    for name in config.preload:
        importlib.import_module(name)
    module, _, function = config.entrypoint.partition(":")
    run: context.Run = getattr(importlib.import_module(module), function)
    return run


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends, so that no orphan holds a GPU."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def run_and_end(run: context.Run | None, channel: Connection, parent: int) -> None:
    """Runs one trial and ends the process, whatever threads and processes the job has forgotten.

    Args:
        run: the job's function in a fork of the template; None in a new interpreter, which imports it.
        channel: to the slot.
        parent: pid of the template.
    """
    code = 1
    atexit._clear()  # what was registered so far is not the job's; torch's alone takes 40 ms
    try:
        die_with_parent(parent)
        with contextlib.suppress(PermissionError):  # started as a session leader already
            os.setsid()
        code = _serve(run, channel)
    except BaseException:  # noqa: BLE001  nothing may unwind into the template's loop
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # what the job itself registered
        _flush()
        os._exit(code)


def _serve(run: context.Run | None, channel: Connection) -> int:
    """Reads the request, runs the job and sends the outcome; returns the exit code."""
    message = json.loads(channel.recv_bytes())
    config = records.from_dict(records.SlotConfig, message["config"])
    request = records.from_dict(records.TrialRequest, message["request"])
    workdir = Path(message["workdir"])
    _enter(config, request, workdir)
    started = time.time()
    outcome, arrays = _run_job(run, config, request, workdir, channel)
    outcome = dataclasses.replace(outcome, started=started, ended=time.time(), pid=os.getpid())
    _flush()
    channel.send_bytes(json.dumps({"outcome": records.to_dict(outcome), "arrays": arrays}).encode())
    return 0


def _enter(config: records.SlotConfig, request: records.TrialRequest, workdir: Path) -> None:
    """Makes this process the trial's own: log, environment, folder, limits, random numbers."""
    log = RunPaths(Path(config.root)).trial_log(request.trial, request.attempt)
    log.parent.mkdir(parents=True, exist_ok=True)
    workdir.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper here
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
            **request.env,
        }
    )
    tempfile.tempdir = None  # read TMPDIR again
    os.chdir(workdir)
    policies.apply_all()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(config.cpus)
    context.seed_everything(request.seed)


def _run_job(
    run: context.Run | None,
    config: records.SlotConfig,
    request: records.TrialRequest,
    workdir: Path,
    channel: Connection,
) -> tuple[records.TrialOutcome, str | None]:
    """The outcome of the job's function, whatever it does, and the file of the result's arrays."""
    reporter = _ChannelReporter(request, channel)
    try:
        if run is None:
            run = import_job(config)
            context.seed_everything(request.seed)  # again: the imports may just have loaded numpy and torch
        result = run(
            context.Context(
                params=request.params,
                seed=request.seed,
                run=request.run,
                trial=request.trial,
                attempt=request.attempt,
                cpus=config.cpus,
                gpus=config.gpus,
                code=Path(config.code),
                cache=Path(config.cache),
                workdir=workdir,
                _reporter=reporter,
            )
        )
        return _complete(request, result, workdir)
    except (Exception, SystemExit) as error:  # noqa: BLE001  this is the border: every error of the job is an outcome
        return _raised(request, error, reporter.last), None


def _complete(
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


def _raised(request: records.TrialRequest, error: BaseException, last: Mapping[str, float]) -> records.TrialOutcome:
    """The outcome for what the job raised."""
    if isinstance(error, context.Pruned) or _is_optuna_pruned(error):
        return records.TrialOutcome(number=request.number, state=TrialState.PRUNED, metrics=last, message=str(error))
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced its streams
        traceback.print_exception(error)
    torch = sys.modules.get("torch")
    failure = FailureClass.ERROR
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        failure = FailureClass.OOM
    elif isinstance(error, MemoryError):
        failure = FailureClass.CRASHED
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


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk must not change the outcome
            stream.flush()


class _ChannelReporter:
    """Sends reports to the slot, and waits for its answer when the study prunes."""

    def __init__(self, request: records.TrialRequest, channel: Connection) -> None:
        self._request = request
        self._channel = channel
        self.last: Mapping[str, float] = {}

    def __call__(self, step: int, metrics: Mapping[str, float]) -> bool:
        self.last = metrics
        shown = "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced its streams
            print(f"step {step}: {shown}", flush=True)  # noqa: T201  into the trial's log
        report = records.TrialReport(self._request.number, step, metrics, time.time())
        self._channel.send_bytes(json.dumps({"report": records.to_dict(report)}).encode())
        if not self._request.prunable:
            return False
        return bool(json.loads(self._channel.recv_bytes())["prune"])


if __name__ == "__main__":
    policies.apply_all()
    run_and_end(None, Connection(int(sys.argv[1])), int(sys.argv[2]))
