"""The question before a verb ends or takes away what a user may still want; `--yes` is the answer of who is not there."""

from __future__ import annotations

import sys

import click

from trialplane.errors import InputError

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def confirm(question: str, deed: str) -> None:
    """Asks on the terminal.

    Args:
        question: what is about to happen, to which run and where.
        deed: the same in short, for a process without a terminal: "pass --yes to `deed`".

    Raises:
        InputError: there is no terminal to ask on.
        click.Abort: the answer is no.
    """
    if sys.stdin is None or not sys.stdin.isatty():  # None where it was closed before the start
        raise InputError(f"there is no terminal to ask on; pass --yes to {deed}")
    click.confirm(question, abort=True, err=True)
