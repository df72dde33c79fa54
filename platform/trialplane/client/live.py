"""A run drawn while it goes on, for whoever waits for it in Python: in a notebook, on a terminal, or as plain lines.

What all kinds of run have in common; the command line shows each kind in its own way (`cli.display`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trialplane import errors
from trialplane.wire import escapes
from trialplane.wire.records import RunStatus

Update = Callable[[RunStatus], None]


@contextlib.contextmanager
def shown(console: Console | None = None) -> Iterator[Update]:
    """A function that shows each status in place of the one before.

    Args:
        console: where; the process's own output, or the notebook's cell, when None.
    """
    console = console or Console(highlight=False, markup=False, emoji=False)
    if console.is_jupyter:
        yield _in_cell()
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda status: live.update(draw(status), refresh=True)
    else:
        yield _in_lines(console)


def draw(status: RunStatus) -> Table:
    """A status as an object that rich can draw, on a terminal and in a notebook."""
    share = min(1.0, status.ended_trials / status.trials) if status.trials else 0.0
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(status.run, "bold"), _text(status.state.value), _text(status.reason))
    counts = Text(f"{status.ended_trials}/{status.trials} ended")
    table.add_row(counts, ProgressBar(total=1.0, completed=share, width=36), _text(_counts(status)))
    if status.best is not None and status.best.values:
        best_params = ", ".join(f"{name}={_shown(value)}" for name, value in status.best.params.items())
        table.add_row(Text("best"), _text(_best(status)), _text(best_params))
    for warning in status.warnings:
        table.add_row(Text("warning", "yellow"), _text(warning))
    return table


def _in_cell() -> Update:
    """One output of a notebook's cell that is replaced; rich's own way needs ipywidgets."""
    from IPython.display import display  # there in a notebook, and nowhere else

    handle: Any = None

    def update(status: RunStatus) -> None:
        nonlocal handle
        if handle is None:
            handle = display(draw(status), display_id=True)
        else:
            handle.update(draw(status))

    return update


def _in_lines(console: Console) -> Update:
    """A line for each change, as for a file."""
    last = ""

    def update(status: RunStatus) -> None:
        nonlocal last
        text = f"{status.run} {status.state}: {status.ended_trials}/{status.trials} ended, {_counts(status)}"
        if status.best is not None and status.best.values:
            text += f", best {_best(status)}"
        if text != last:
            last = text
            console.print(_text(text), soft_wrap=True)

    return update


def _counts(status: RunStatus) -> str:
    counts = f"{status.running} running, {status.complete} complete, {status.pruned} pruned, {status.failed} failed"
    return counts + (f", {errors.counted(status.retried, 'attempt')} retried" if status.retried else "")


def _best(status: RunStatus) -> str:
    if status.best is None:
        return ""
    pairs = zip(status.objectives, status.best.values, strict=False)
    return ", ".join(f"{name} {_shown(value)}" for name, value in pairs) + f" (trial {status.best.trial})"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _text(text: str) -> Text:
    """Text that may come from a job, without its control characters."""
    return Text(escapes.escape_controls(text))
