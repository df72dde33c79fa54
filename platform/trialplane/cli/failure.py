"""Output of errors: those of the platform as messages, others with a file that has the traceback.

Nothing in this module can fail.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import traceback

import click

import trialplane
from trialplane import errors
from trialplane.wire import escapes

MAX_LINE = 1000  # characters; a message may quote input of any length


def show(error: Exception) -> int:
    """Print an error on stderr and return the exit code."""
    if isinstance(error, errors.TrialplaneError):
        _print(f"platform: {error}")
        return error.exit_code
    trace = "".join(traceback.format_exception(error))
    head = f"platform {trialplane.__version__}, Python {sys.version.split()[0]}\n{' '.join(sys.argv)}\n\n"
    error_text = traceback.format_exception_only(error)[-1].strip()  # works even if str(error) fails
    summary = f"platform: internal error: {error_text}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="platform-", suffix=".txt", delete=False
        ) as file:
            file.write(head + trace)
    except OSError:
        _print(f"{summary}\n{head}{trace}")
        return errors.EXIT_PLATFORM
    _print(f"{summary}\nThe traceback is in {file.name}; please report it with that file.")
    return errors.EXIT_PLATFORM


def report_unwritable_output(error: OSError) -> int:
    """Print that stdout cannot be written, and return the exit code."""
    _print(f"platform: the output cannot be written: {error.strerror}; nothing else is lost, and a started run continues")
    return errors.EXIT_PLATFORM


def _print(text: str) -> None:
    visible_text = "\n".join(errors.shortened(line, MAX_LINE) for line in text.splitlines())
    with contextlib.suppress(OSError, ValueError):  # stderr cannot be written; the exit code still reports the error
        click.echo(escapes.escape_controls(visible_text), err=True)
