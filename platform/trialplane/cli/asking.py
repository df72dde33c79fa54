"""The question before a verb ends or takes away what a user may still want; `--yes` is the answer of who is not there."""

from __future__ import annotations

import sys

import click

from trialplane.errors import InputError

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def confirm(question: str, nobody: str) -> None:
    """Asks on the terminal.

    Args:
        question: what is about to happen, to which run and where.
        nobody: what is asked, for a process without a terminal: "nobody is there to ask `nobody`".

    Raises:
        InputError: nobody is there to ask.
        click.Abort: the answer is no.
    """
    if sys.stdin is None or not sys.stdin.isatty():  # None where it was closed before the start
        raise InputError(f"nobody is there to ask {nobody}; --yes says so")
    click.confirm(question, abort=True, err=True)
