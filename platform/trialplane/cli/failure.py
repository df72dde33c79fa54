"""Output of errors: the platform's as messages, others with a file that has the traceback. Nothing in here can fail."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import traceback

import click

import trialplane
from trialplane import errors
from trialplane.wire import escapes

LONGEST_LINE = 1000  # characters: a message may quote user input or a value from a file, of any size


def show(error: Exception) -> int:
    """Print an error on stderr and return the exit code."""
    if isinstance(error, errors.TrialplaneError):
        _print(f"platform: {error}")
        return error.exit_code
    text = "".join(traceback.format_exception(error))
    head = f"platform {trialplane.__version__}, Python {sys.version.split()[0]}\n{' '.join(sys.argv)}\n\n"
    last = traceback.format_exception_only(error)[-1].strip()  # also of an error that cannot be printed
    summary = f"platform: internal error: {last}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="platform-", suffix=".txt", delete=False
        ) as file:
            file.write(head + text)
    except OSError:
        _print(f"{summary}\n{head}{text}")
        return errors.EXIT_PLATFORM
    _print(f"{summary}\nThe traceback is in {file.name}; please report it with that file.")
    return errors.EXIT_PLATFORM


def unwritten(error: OSError) -> int:
    """Report that the output could not be written, and return the exit code."""
    _print(f"platform: the output cannot be written: {error.strerror}; nothing else is lost, and a started run continues")
    return errors.EXIT_PLATFORM


def _print(text: str) -> None:
    shown = "\n".join(errors.shortened(line, LONGEST_LINE) for line in text.splitlines())
    with contextlib.suppress(OSError, ValueError):  # a full disk, a closed pipe or stream: only the exit code remains
        click.echo(escapes.escape_controls(shown), err=True)
