"""What the user sees of an error: ours as a message, others with the place of the traceback."""

from __future__ import annotations

import sys
import tempfile
import traceback

import click

import trialplane
from trialplane import errors


def show(error: Exception) -> int:
    """Prints an error on stderr and gives the exit code."""
    if isinstance(error, errors.TrialplaneError):
        click.echo(f"platform: {error}", err=True)
        return error.exit_code
    text = "".join(traceback.format_exception(error))
    head = f"platform {trialplane.__version__}, Python {sys.version.split()[0]}\n{' '.join(sys.argv)}\n\n"
    said = f"platform: this should not have happened: {type(error).__name__}: {error}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="platform-", suffix=".txt", delete=False) as file:
            file.write(head + text)
    except OSError:
        click.echo(f"{said}\n{head}{text}", err=True)
        return errors.EXIT_PLATFORM
    click.echo(f"{said}\nThe traceback is in {file.name}; please report it with that file.", err=True)
    return errors.EXIT_PLATFORM
