"""Output: aligned tables for people; JSON, YAML and CSV for programs. Data goes to stdout, notes to stderr."""

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

_MAX_CELL, _MAX_LAST_CELL = 60, 1000  # characters of a value in a table
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*formats: str) -> Decorator:
    """Return the option `--output`, whose first format is the default."""
    return click.option(
        "--output",
        "-o",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Output format.",
    )


def note(text: str) -> None:
    """Print a line for the user on stderr; a closed stderr is not an error."""
    with contextlib.suppress(OSError):
        click.echo(escapes.escape_controls(text), err=True)


def paint(text: str, **style: Any) -> str:
    """Return a text with a style, if stdout is a terminal and NO_COLOR is not set."""
    return click.style(text, **style) if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def emit(output_format: str, data: Any, table: Callable[[], str]) -> None:
    """Print data.

    Args:
        output_format: "json", "yaml", or any other format for the table.
        data: Plain values, to print as JSON or YAML.
        table: Function that returns the table.
    """
    if output_format == "json":
        # JSON escapes the ASCII control characters. `escape_controls` replaces the others, such as those of C1.
        click.echo(escapes.escape_controls(json.dumps(data, indent=2, ensure_ascii=False)))
    elif output_format == "yaml":
        click.echo(as_yaml(data), nl=False)
    else:
        click.echo(table())


def as_yaml(data: Any, *, flow: bool = False) -> str:
    """Return YAML that reads back to the same values, also by YAML 1.2: a string such as "1e-5" gets quotes.

    Args:
        data: Plain values.
        flow: Whether the result is one line, such as {a: 1, b: [2, 3]}.
    """
    import yaml  # takes 15 ms, and most verbs do not need it

    from trialplane.job import document

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        """Return the YAML of a string, with quotes if YAML 1.2 would read another value than this string without them."""
        try:
            # `document.scalar` reads a text without quotes as job.yaml does, by YAML 1.2.
            needs_quotes = flow if "\n" in text else document.scalar(text, "") != text
        except TrialplaneError:
            needs_quotes = False  # not valid YAML without quotes, so PyYAML adds them itself
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if needs_quotes else None)

    Dumper.add_representer(str, represent)
    width = sys.maxsize if flow else 100
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=width)


def as_csv(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return CSV with a header. Numbers have all digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for line in (header, *lines):
        writer.writerow([escapes.escape_controls(value) if isinstance(value, str) else value for value in line])
    return buffer.getvalue().rstrip("\n")


def as_table(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return a table with aligned columns, in which numbers are right-aligned. Lines are cut to the width of a terminal.

    Long values are cut, because a single one would widen all lines. The last column, with messages, may be longer, because
    it is not padded. The other output formats have all values in full.
    """
    limits = [*[_MAX_CELL] * (len(header) - 1), _MAX_LAST_CELL]
    text_rows = [
        [errors.shortened(cell(value), limit) for value, limit in zip(line, limits, strict=True)]
        for line in (header, *lines)
    ]
    padded_columns: list[list[str]] = []
    for index, texts in enumerate(zip(*text_rows, strict=True)):
        width = max(len(text) for text in texts)
        values = [line[index] for line in lines]
        is_numeric = bool(values) and all(value is None or isinstance(value, (int, float)) for value in values)
        padded_columns.append([text.rjust(width) if is_numeric else text.ljust(width) for text in texts])
    table_lines = ["  ".join(padded_texts).rstrip() for padded_texts in zip(*padded_columns, strict=True)]
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        table_lines = [line if len(line) <= columns else line[: columns - 1] + "…" for line in table_lines]
    return "\n".join([paint(table_lines[0], bold=True), *table_lines[1:]])


def as_fields(fields: Mapping[str, Any]) -> str:
    """Return a line for each field that is not empty, with aligned values."""
    texts = {name: cell(value) for name, value in fields.items() if value not in ("", None)}
    width = max((len(name) for name in texts), default=0)
    return "\n".join(f"{paint(name.ljust(width), bold=True)}  {text}" for name, text in texts.items())


def cell(value: Any) -> str:
    """Return a value as text for a table: floats with four digits, no line breaks, no control characters; "" for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return escapes.escape_controls(" ".join(str(value).split()))


def percent(share: float) -> str:
    """Return a share from 0 to 1 as a text such as `16%`. It is rounded down, so that 100% means done."""
    return f"{math.floor(100 * share + 1e-9)}%"  # the small number compensates for rounding errors, as in 100 * 0.29


def duration(seconds: float | None) -> str:
    """Return seconds as a text such as `12 s`, `3 m 20 s` or `2 h 5 m`; "" for None."""
    if seconds is None:
        return ""
    rounded_seconds = int(seconds + 0.5)
    if rounded_seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{rounded_seconds} s"
    if rounded_seconds < 3600:
        return f"{rounded_seconds // 60} m {rounded_seconds % 60} s"
    return f"{rounded_seconds // 3600} h {rounded_seconds % 3600 // 60} m"


def size(count: float) -> str:
    """Return a number of bytes as a text such as `812 KiB` or `3.4 GiB`."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.0f} {units[0]}" if count >= 100 or units[0] == "bytes" else f"{count:.3g} {units[0]}"


def rate(value: float) -> str:
    """Return a rate as text: a whole number from 100 on, otherwise three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def moment(epoch: float | None) -> str:
    """Return a time, in seconds since the epoch, as local time; "" for None."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch)) if epoch else ""
    except (OverflowError, ValueError, OSError):  # outside the range of local time
        return f"{epoch:g}"
