"""A run in the foreground, which is shown until it ends.

On this machine, the first Ctrl-C stops the run cleanly, and the second kills it. On a cluster, Ctrl-C only ends the display.
A run never depends on the terminal: it continues if the terminal closes, as with `--detach`. Therefore, a terminal does not
wait until MLflow has the last results of an ended run. A script does, because it may read MLflow next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.cli import output, progress
from trialplane.cli import status as status_verb

if TYPE_CHECKING:  # imports pydantic, which would delay `--help`
    from trialplane.client.run import RunHandle
    from trialplane.wire.records import RunStatus

_MLFLOW_WAIT = 0.5  # seconds that a terminal waits for MLflow after the last trial of a run on this machine


def attend(handle: RunHandle, output_format: str, stop_signals: Sequence[int]) -> int:
    """Show a run until it ends and return its exit code.

    Args:
        handle: Handle of the run.
        output_format: Output format. With json or yaml, the last status is printed on stdout.
        stop_signals: Signals received so far, from `signals`. Its context began before the start of the run.
    """
    stream = sys.stdout if output_format == "table" else sys.stderr
    try:
        with progress.view(stream) as view:
            handled_signals = 0
            wait_start: float | None = None  # time of the first status in which only MLflow lacked results
            continues_in_background = False
            for status in progress.follow(handle, view):
                if stream.isatty() and _only_mlflow_lacks_results(status):
                    wait_start = time.monotonic() if wait_start is None else wait_start
                    if handle.target.remote or time.monotonic() - wait_start >= _MLFLOW_WAIT:
                        continues_in_background = True
                        break
                if stop_signals and handle.target.remote:
                    return _leave(handle, view)
                while handled_signals < len(stop_signals):
                    handled_signals += 1
                    _stop(handle, view, handled_signals)
    except BrokenPipeError:
        output.note(f"the output was closed; the run {handle.name} continues: `platform status {handle.name}`")
        raise
    final_state = status.final_state
    # The controller sets this state once MLflow has the results, for which the loop did not wait.
    if final_state is not None:
        status = dataclasses.replace(status, state=final_state)
    progress.summary(handle, status, stream)
    if continues_in_background:
        output.note(f"MLflow gets the last results in the background: `platform status {handle.name}`")
    if output_format != "table":
        status_verb.show(status, output_format)
    return handle.exit_code if final_state is None else final_state.exit_code


def _only_mlflow_lacks_results(status: RunStatus) -> bool:
    """Return whether all trials have ended, but MLflow lacks results, which the controller still sends."""
    return status.final_state is not None or (status.unrecorded and not status.state.is_active)


def detach(handle: RunHandle, output_format: str) -> int:
    """Print the commands for a run that continues in the background. Return the exit code."""
    name = handle.name
    if output_format != "table":
        status_verb.show(handle.status(), output_format)
        return 0
    location = "on the cluster" if handle.target.remote else "in the background"
    output.note(f"{name} runs {location}: `platform status {name} --watch`, `platform logs {name} -f`,")
    output.note(f"`platform cancel {name}`. Its logs are in {handle.log_location()}")
    return 0


def _leave(handle: RunHandle, view: progress.View) -> int:
    """Print how to return to a run on a cluster, which continues. Return the exit code."""
    name = handle.name
    view.message(f"{name} continues in {handle.log_location()}: `platform status {name} --watch` shows it again,")
    view.message(f"`platform pause {name}` and `platform cancel {name}` end it")
    return errors.EXIT_INTERRUPTED


def _stop(handle: RunHandle, view: progress.View, signal_count: int) -> None:
    """Stop a local run at the first signal, and kill it at the next ones."""
    if signal_count == 1:
        view.message(
            f"stopping {handle.name}; `platform resume {handle.name}` continues it. Press Ctrl-C again to kill it at once"
        )
        handle.stop()
    else:
        view.message(f"killed; completed work is kept, `platform resume {handle.name}` continues it")
        handle.stop(now=True)


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Yield a list to which received SIGINT and SIGTERM are appended, instead of raising exceptions at arbitrary points.

    The context must begin before the start of a run. Otherwise a Ctrl-C could leave a run whose name was never printed.
    """
    numbers: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    old_handlers: dict[int, Any] = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield numbers
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
