"""What the user sees of an error: ours as a message, others with the place of the traceback. Nothing in here can fail."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import traceback

import click

import trialplane
from trialplane import errors
from trialplane.wire import escapes

LONGEST_LINE = 1000  # characters: a message may name what was typed, or a value of a file, whatever their size


def show(error: Exception) -> int:
    """Prints an error on stderr and gives the exit code."""
    if isinstance(error, errors.TrialplaneError):
        _say(f"platform: {error}")
        return error.exit_code
    text = "".join(traceback.format_exception(error))
    head = f"platform {trialplane.__version__}, Python {sys.version.split()[0]}\n{' '.join(sys.argv)}\n\n"
    last = traceback.format_exception_only(error)[-1].strip()  # also of an error that cannot be printed
    said = f"platform: this should not have happened: {last}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="platform-", suffix=".txt", delete=False
        ) as file:
            file.write(head + text)
    except OSError:
        _say(f"{said}\n{head}{text}")
        return errors.EXIT_PLATFORM
    _say(f"{said}\nThe traceback is in {file.name}; please report it with that file.")
    return errors.EXIT_PLATFORM


def unwritten(error: OSError) -> int:
    """Says that the output could not be written, and gives the exit code."""
    _say(f"platform: the output cannot be written: {error.strerror}; nothing else is lost, a run that was started goes on")
    return errors.EXIT_PLATFORM


def _say(text: str) -> None:
    shown = "\n".join(errors.shortened(line, LONGEST_LINE) for line in text.splitlines())
    with contextlib.suppress(OSError, ValueError):  # a full disk, a closed pipe or a closed stream: the exit code is left
        click.echo(escapes.visible(shown), err=True)
