"""The live display on a terminal, drawn by rich, whose only importer this is."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trialplane.cli import collecting, output, progress, training
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
    """A bar, the counts and the best trial, redrawn in place; see `progress.View`.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: Any) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._live.stop()

    def update(self, status: RunStatus) -> None:
        """See `progress.View`."""
        self._live.update(draw(status), refresh=True)

    def say(self, text: str) -> None:
        """See `progress.View`."""
        self._console.print(_text(text))


def draw(status: RunStatus) -> Group:
    """A status as what rich draws."""
    head = Text.assemble((status.run, "bold"), "  ", (status.state.value, _STYLES.get(status.state, "")))
    if status.reason:
        head.append_text(_text(f"  {status.reason}", "dim"))
    if status.is_training:
        return Group(head, *_training(status))
    if status.is_collection:
        return Group(head, *_collection(status))
    bar = Table.grid(padding=(0, 1))
    share = status.ended_trials / status.trials if status.trials else 0.0
    bar.add_row(
        ProgressBar(total=max(status.trials, 1), completed=status.ended_trials, width=36),
        f"{status.ended_trials}/{status.trials}",
        output.percent(share),
    )
    shown: list[Any] = [head, bar]
    marks = [
        (f"{status.complete} complete", "green" if status.complete else "dim"),
        (f"{status.running} running", "" if status.running else "dim"),
        (f"{status.pruned} pruned", "" if status.pruned else "dim"),
        (f"{status.failed} failed", "red" if status.failed else "dim"),
    ]
    if status.retried:
        marks.append((f"{status.retried} tried again", "yellow"))
    shown.append(Text("  ").join(Text(*mark) for mark in marks))
    speed = [
        "" if status.rate is None else f"{status.rate:.3g} trials/s",
        "" if status.eta is None else f"{output.duration(status.eta)} left",
        f"{status.slots_ready}/{status.slots} slots ready",
        status.recorder,
    ]
    shown.append(_text("  ".join(part for part in speed if part), "dim"))
    if status.best is not None and status.best.values:
        params = ", ".join(f"{name}={output.cell(value)}" for name, value in status.best.params.items())
        shown.append(_text(f"best {progress.best(status)}", "bold").append_text(_text(f"  {params}")))
    return Group(*shown)


def _text(text: str, style: str = "") -> Text:
    """Text that a job may have had a hand in."""
    return Text(escapes.visible(text), style)


def _training(status: RunStatus) -> list[Any]:
    done = 1.0 if status.complete else training.share(status)
    bar = Table.grid(padding=(0, 1))
    width = ProgressBar(total=1.0, completed=done or 0.0, width=36)
    bar.add_row(width, training.steps(status), "" if done is None else output.percent(done))
    left = training.left(status)
    line = [
        *training.measures(status),
        "" if left is None else f"{output.duration(left)} left",
    ]
    rest = [training.details(status), f"{status.slots_ready}/{status.slots} slots ready", status.recorder]
    shown: list[Any] = [bar, _text("  ".join(part for part in line if part))]
    shown.append(_text("  ".join(part for part in rest if part), "dim"))
    warned = [part for part in (training.slowest(status), training.again(status)) if part]
    if warned:
        shown.append(_text("  ".join(warned), "yellow"))
    return shown


def _collection(status: RunStatus) -> list[Any]:
    bar = Table.grid(padding=(0, 1))
    share = collecting.share(status)
    whole = (status.ended_trials + (share or 0.0)) / status.trials if status.trials else 0.0
    bar.add_row(ProgressBar(total=1.0, completed=min(1.0, whole), width=36), collecting.done(status))
    shown: list[Any] = [bar]
    now = [collecting.now(status), collecting.rates(status), collecting.moved(status)]
    if any(now):
        shown.append(_text("  ".join(part for part in now if part)))
    left = "" if status.eta is None else f"{output.duration(status.eta)} left"
    rest = [left, f"{status.slots_ready}/{status.slots} slots ready", status.recorder]
    shown.append(_text("  ".join(part for part in rest if part), "dim"))
    if status.workers:
        header, lines = collecting.workers(status)
        table = Table(*header, box=None, pad_edge=False, header_style="dim")
        for line in lines:
            table.add_row(*(output.cell(value) for value in line))
        shown.append(table)
    return shown
