"""The live display and pages of the documentation on a terminal, drawn by rich, which only this module imports."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trialplane.cli import kinds, output
from trialplane.wire import escapes
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

_STYLES = {
    RunState.RUNNING: "green",
    RunState.SUCCEEDED: "bold green",
    RunState.FAILED: "bold red",
    RunState.CANCELLED: "red",
    RunState.PAUSED: "yellow",
}


class Display:
    """A view that redraws a bar, the counts and the best trial in place; see `progress.View`."""

    def __init__(self, stream: Any) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._live.stop()

    def update(self, status: RunStatus) -> None:
        """Draw a status in place of the previous one."""
        self._live.update(draw(status), refresh=True)

    def message(self, text: str) -> None:
        """Print a line above the display."""
        self._console.print(_visible_text(text))


def draw(status: RunStatus) -> Group:
    """Return a status as an object that rich can draw."""
    head = Text.assemble((status.run, "bold"), "  ", (status.state.value, _STYLES.get(status.state, "")))
    if status.reason:
        head.append_text(_visible_text(f"  {status.reason}", "dim"))
    presenter = kinds.of(status)
    live = presenter.live(status)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=1.0, completed=live.share, width=36), *map(_visible_text, live.bar_labels))
    parts: list[Any] = [head, bar]
    lines = [[_visible_text(text, style) for text, style in line if text] for line in live.lines]
    parts += [Text("  ").join(line) for line in lines if line]
    if (workers := presenter.workers(status)) is not None:
        header, rows = workers
        table = Table(*header, box=None, pad_edge=False, header_style="dim")
        for row in rows:
            table.add_row(*(output.cell(value) for value in row))
        parts.append(table)
    return Group(*parts)


def _visible_text(text: str, style: str = "") -> Text:
    """Return a text for rich. Control characters, which a job's messages may contain, are made visible."""
    return Text(escapes.escape_controls(text), style)


def markdown(text: str) -> str:
    """Return Markdown as text for a terminal, with colors, at most 110 columns wide."""
    console = Console(force_terminal=True, width=min(Console().width, 110))
    with console.capture() as capture:
        console.print(Markdown(text, hyperlinks=False))
    return capture.get()
