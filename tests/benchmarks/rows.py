"""What a benchmark measured: samples of ours and of a peer's, the goal, and the table of them all. Measures nothing."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from rich.table import Table

Statistic = Literal["median", "p95"]


@dataclasses.dataclass(frozen=True)
class Goal:
    """What was promised: `value` at most so much, or `times` at least so many times better than the peer."""

    value: float | None = None
    times: float | None = None

    def text(self, unit: str) -> str:
        """The goal in words."""
        if self.value is not None:
            return f"≤ {_number(self.value)} {unit}"
        return f"≥ {self.times:g}×"


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure beside its peer's. Smaller is better, in every figure that has a peer or a goal.

    Attributes:
        figure: the benchmark it belongs to.
        what: what was measured.
        unit: of all samples.
        ours: samples of ours.
        peer: name of what it is compared with; "" for nothing.
        theirs: samples of the peer; empty when it did not run, which `note` explains.
        goal: None where a figure is for information.
        statistic: what the table shows and the goal is held against.
        words: what fewer and more than the peer is called.
        note: what a reader must know.
    """

    figure: str
    what: str
    unit: str
    ours: tuple[float, ...]
    peer: str = ""
    theirs: tuple[float, ...] = ()
    goal: Goal | None = None
    statistic: Statistic = "median"
    words: tuple[str, str] = ("faster", "slower")
    note: str = ""

    @property
    def value(self) -> float:
        """Ours, as the table shows it."""
        return _statistic(self.ours, self.statistic)

    @property
    def their_value(self) -> float | None:
        """The peer's, or None."""
        return _statistic(self.theirs, self.statistic) if self.theirs else None

    @property
    def ratio(self) -> float | None:
        """Peer's over ours: over 1 is better than the peer."""
        return None if self.their_value is None or self.value == 0 else self.their_value / self.value

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal, or where the peer it is about did not run."""
        if self.goal is None:
            return None
        if self.goal.value is not None:
            return self.value <= self.goal.value
        return None if self.ratio is None or self.goal.times is None else self.ratio >= self.goal.times

    def record(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        return {
            "figure": self.figure,
            "what": self.what,
            "unit": self.unit,
            "statistic": self.statistic,
            "ours": _summary(self.ours),
            "peer": {"name": self.peer, **_summary(self.theirs)} if self.peer else None,
            "ratio": self.ratio,
            "goal": self.goal.text(self.unit) if self.goal else None,
            "met": self.met,
            "note": self.note,
        }


def table(rows: Sequence[Row], title: str) -> Table:
    """All rows as a table for people."""
    made = Table(title=title, title_justify="left", caption_justify="left")
    for name in ("figure", "what", "ours", "peer", "peer's", "ratio", "goal", "met"):
        made.add_column(name, justify="right" if name in ("ours", "peer's", "ratio", "goal") else "left")
    before = ""
    for row in rows:
        if before and row.figure != before:
            made.add_section()
        theirs = "not run" if row.peer and not row.theirs else _shown(row.their_value, row.unit)
        met = {True: "[green]yes[/]", False: "[red]NO[/]", None: ""}[row.met]
        made.add_row(
            row.figure if row.figure != before else "",
            row.what + (f"\n  {row.note}" if row.note else ""),
            _shown(row.value, row.unit),
            row.peer,
            theirs,
            _ratio(row),
            row.goal.text(row.unit) if row.goal else "",
            met,
        )
        before = row.figure
    return made


def _ratio(row: Row) -> str:
    if row.ratio is None or row.ratio == 0:
        return ""
    return f"{_number(row.ratio)}× {row.words[0]}" if row.ratio >= 1 else f"{_number(1 / row.ratio)}× {row.words[1]}"


def _shown(value: float | None, unit: str) -> str:
    return "" if value is None else f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _statistic(samples: Sequence[float], which: Statistic) -> float:
    if which == "median" or len(samples) < 2:
        return statistics.median(samples)
    return statistics.quantiles(samples, n=20, method="inclusive")[-1]


def _summary(samples: Sequence[float]) -> dict[str, Any]:
    if not samples:
        return {"n": 0}
    return {
        "n": len(samples),
        "median": statistics.median(samples),
        "p95": _statistic(samples, "p95"),
        "min": min(samples),
        "max": max(samples),
        "samples": list(samples),
    }
