"""The command line as a user types it, in this process, with the home, the job and the runs of tests/client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from tests.client.conftest import closed, double, held, home, namespace, planned, runs, started, target, workplace

from trialplane.cli import main

__all__ = [
    "closed", "double", "held", "home", "namespace", "planned", "platform", "runs", "started", "target", "workplace",
]  # fmt: skip


@pytest.fixture
def platform(workplace) -> Callable[..., Result]:
    """Types `platform …` in the workplace; `.exit_code`, `.stdout` and `.stderr` are what the user's shell gets."""

    def type_(*words: str) -> Result:
        return CliRunner().invoke(_Whole(), list(words))

    return type_


class _Whole:
    """What CliRunner needs of a command, with main's own handling of errors inside."""

    name = "platform"

    def main(self, args, prog_name, **_):
        main.main(args)
