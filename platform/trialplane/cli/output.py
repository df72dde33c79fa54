"""Printing of data: aligned tables for people, JSON, YAML and CSV for programs. Data goes to stdout, notes to stderr."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from trialplane import errors
from trialplane.errors import TrialplaneError
from trialplane.wire import escapes

_LONGEST_CELL, _LONGEST_LAST_CELL = 60, 1000  # characters of a value in a table
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*kinds: str) -> Decorator:
    """Return the option `--output`, whose first kind is the default."""
    return click.option(
        "--output",
        "-o",
        "kind",
        type=click.Choice(kinds),
        default=kinds[0],
        show_default=True,
        help="Output format.",
    )


def note(text: str) -> None:
    """Print a line for the user on stderr; a closed stderr is not an error."""
    with contextlib.suppress(OSError):
        click.echo(escapes.escape_controls(text), err=True)


def paint(text: str, **style: Any) -> str:
    """Style a text if colors are wanted: on a terminal, without NO_COLOR."""
    return click.style(text, **style) if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def emit(kind: str, data: Any, table: Callable[[], str]) -> None:
    """Print `data` (plain values) as JSON or YAML, or the table that `table` returns."""
    if kind == "json":
        click.echo(
            escapes.escape_controls(json.dumps(data, indent=2, ensure_ascii=False))
        )  # JSON itself escapes control characters
    elif kind == "yaml":
        click.echo(as_yaml(data), nl=False)
    else:
        click.echo(table())


def as_yaml(data: Any, *, flow: bool = False) -> str:
    """Return YAML that reads back to the same values, also by YAML 1.2: a string such as "1e-5" gets quotes.

    Args:
        data: plain values.
        flow: whether to write it in one line: {a: 1, b: [2, 3]}.
    """
    import yaml  # takes 15 ms, which most verbs avoid

    from trialplane.job import document

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        try:
            plain = "\n" in text or document.scalar(text, "") == text
        except TrialplaneError:
            plain = True  # PyYAML quotes what is not valid YAML
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')

    Dumper.add_representer(str, represent)
    width = sys.maxsize if flow else 100
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=width)


def as_csv(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return CSV with a header, numbers in full."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for line in (header, *lines):
        writer.writerow([escapes.escape_controls(value) if isinstance(value, str) else value for value in line])
    return buffer.getvalue().rstrip("\n")


def as_table(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return aligned columns, numbers to the right, cut to the width of a terminal.

    Long values are cut, as one would widen every line; the other formats have them in full. The last column, with messages,
    may be longer: it widens no other line.
    """
    longest = [*[_LONGEST_CELL] * (len(header) - 1), _LONGEST_LAST_CELL]
    shown = [
        [errors.shortened(cell(value), most) for value, most in zip(line, longest, strict=True)] for line in (header, *lines)
    ]
    widths = [max(len(text) for text in column) for column in zip(*shown, strict=True)]
    right = [
        all(isinstance(line[i], (int, float)) or line[i] is None for line in lines) and bool(lines)
        for i in range(len(header))
    ]
    table_lines = [
        "  ".join(
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in shown
    ]
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        table_lines = [line if len(line) <= columns else line[: columns - 1] + "…" for line in table_lines]
    return "\n".join([paint(table_lines[0], bold=True), *table_lines[1:]])


def as_fields(fields: Mapping[str, Any]) -> str:
    """Return one field per line, without empty ones."""
    shown = {name: cell(value) for name, value in fields.items() if value not in ("", None)}
    width = max((len(name) for name in shown), default=0)
    return "\n".join(f"{paint(name.ljust(width), bold=True)}  {text}" for name, text in shown.items())


def cell(value: Any) -> str:
    """Format a value for display: numbers with four digits, no line breaks, no terminal escapes."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return escapes.escape_controls(" ".join(str(value).split()))


def percent(share: float) -> str:
    """Format a share from 0 to 1 as `16%`, rounded down, so that 100% means done."""
    return f"{math.floor(100 * share + 1e-9)}%"


def duration(seconds: float | None) -> str:
    """Format seconds as `12 s`, `3 m 20 s`, `2 h 5 m`."""
    if seconds is None:
        return ""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} m"


def size(count: float) -> str:
    """Format bytes as `812 KiB`, `3.4 GiB`."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.0f} {units[0]}" if count >= 100 or units[0] == "bytes" else f"{count:.3g} {units[0]}"


def rate(value: float) -> str:
    """Format a rate per second: an integer from 100 on, else three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def moment(epoch: float | None) -> str:
    """Format seconds since the epoch as local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch)) if epoch else ""
    except (OverflowError, ValueError, OSError):  # outside the range of local time
        return f"{epoch:g}"
