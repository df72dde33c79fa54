"""The database of runs: all SQLAlchemy and SQL except the SELECTs in `ledger.attempts`, which the laptop shares.

`tables` creates the tables, `study` is one run as its controller writes it, `remote` the same through the gateway, which has
it `served`, `archive` all runs as the gateway shows them and the operator records them, `budget` what those of a namespace
may keep, `locking` ensures one controller per run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trialplane.ledger.attempts import Attempt, Reports
from trialplane.wire.records import ReportRow


class Store(Protocol):
    """One run, open for writing by this process alone: what a ledger needs of a database. Each write is one transaction.

    Any write may be repeated, as when its answer was lost: it then changes nothing. Every method raises LedgerUnavailable
    while the database is away, and LedgerFenced once another controller has taken over the run.
    """

    def close(self) -> None:
        """Release the run."""

    def load(self) -> tuple[list[Attempt], dict[str, Any]]:
        """All attempts in order of their numbers, and what samplers store beside them."""

    def reports(self, after: int) -> Reports:
        """A page of the reports with marks above `after`, 0 at first."""

    def report(self, reports: Sequence[ReportRow], deleted: Sequence[int]) -> None:
        """Write reports, and delete earlier ones by their marks."""

    def begin(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write an attempt that is about to start; `kept` is what samplers store beside the trials, None if unchanged."""

    def draw(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write what an attempt that runs has drawn so far."""

    def finish(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the end of an attempt."""

    def describe(self, described: Mapping[str, Any]) -> None:
        """Write facts about the run, by column name."""

    def described(self, name: str) -> Any:
        """The value in a column of the run, or None."""
