"""Live display of a run for a Python program that waits for it: in a notebook, on a terminal, or as plain lines.

It is the same for all kinds of run. The command line shows more of each kind (`cli.display`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trialplane import errors
from trialplane.wire import escapes
from trialplane.wire.records import RunStatus, TrialRow

Update = Callable[[RunStatus], None]


@contextlib.contextmanager
def display(console: Console | None = None) -> Iterator[Update]:
    """Yield a function that shows a status in place of the previous one.

    Args:
        console: Console to draw on. Default: the output of the process, or of the notebook's cell.
    """
    console = console or Console(highlight=False, markup=False, emoji=False)
    if console.is_jupyter:
        yield _cell_updater()
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda status: live.update(draw(status), refresh=True)
    else:
        yield _line_updater(console)


def draw(status: RunStatus) -> Table:
    """Return a status as a table that rich can draw on a terminal and in a notebook."""
    share = min(1.0, status.ended_trials / status.trials) if status.trials else 0.0
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(status.run, "bold"), _visible_text(status.state.value), _visible_text(status.reason))
    counts = Text(f"{status.ended_trials}/{status.trials} ended")
    table.add_row(counts, ProgressBar(total=1.0, completed=share, width=36), _visible_text(_counts_text(status)))
    if status.best is not None:
        best_params = ", ".join(f"{name}={_value_text(value)}" for name, value in status.best.params.items())
        best_text = _best_text(status.objectives, status.best)
        table.add_row(Text("best"), _visible_text(best_text), _visible_text(best_params))
    for warning in status.warnings:
        table.add_row(Text("warning", "yellow"), _visible_text(warning))
    return table


def _cell_updater() -> Update:
    """Return a function that replaces the output of a notebook's cell. Rich would need ipywidgets for this."""
    from IPython import display as ipython_display  # is installed wherever a notebook runs

    handle: Any = None

    def update(status: RunStatus) -> None:
        """Show a status: the first in a new output of the cell, the others in its place."""
        nonlocal handle
        if handle is None:
            handle = ipython_display.display(draw(status), display_id=True)
        else:
            handle.update(draw(status))

    return update


def _line_updater(console: Console) -> Update:
    """Return a function that prints a line for each change, for output to a file."""
    last = ""

    def update(status: RunStatus) -> None:
        """Print a status, unless its line would be the same as the last one."""
        nonlocal last
        text = f"{status.run} {status.state}: {status.ended_trials}/{status.trials} ended, {_counts_text(status)}"
        if status.best is not None:
            text += f", best {_best_text(status.objectives, status.best)}"
        if text != last:
            last = text
            console.print(_visible_text(text), soft_wrap=True)

    return update


def _counts_text(status: RunStatus) -> str:
    """Return the numbers of trials by state: "2 running, 5 complete, 0 pruned, 1 failed"."""
    counts = f"{status.running} running, {status.complete} complete, {status.pruned} pruned, {status.failed} failed"
    return counts + (f", {errors.counted(status.retried, 'attempt')} retried" if status.retried else "")


def _best_text(objectives: Sequence[str], best: TrialRow) -> str:
    """Return the values of the best trial with the names of their objectives: "loss 0.03 (trial 7)"."""
    pairs = zip(objectives, best.values, strict=False)
    return ", ".join(f"{name} {_value_text(value)}" for name, value in pairs) + f" (trial {best.trial})"


def _value_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _visible_text(text: str) -> Text:
    """Return a text as an object of rich. Control characters, which a job's messages may contain, are made visible."""
    return Text(escapes.escape_controls(text))
