"""Database of runs: all uses of SQLAlchemy and all SQL.

- `tables`: tables, their creation, connections to PostgreSQL
- `attempts`: SELECTs of attempts and reports, without SQLAlchemy, because a laptop reads with them too
- `study`: one run, written by its controller
- `remote`: one run, written by its controller through the gateway
- `served`: one run, written by the gateway for its controller
- `archive`: all runs of a namespace, for the gateway and the operator
- `namespaces`: the archives of all namespaces
- `results`: one run, read on a laptop
- `run_status`: status of a run, from its row and the operator's view
- `budget`: limits on the bytes of a namespace
- `locking`: one controller per run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trialplane.ledger.attempts import Attempt, Reports
from trialplane.wire.records import ReportRow


class Store(Protocol):
    """Database of one run, open for writing by this process alone. Each write is one transaction.

    Repeating a write changes nothing, so it can be sent again if its answer was lost. Every method raises LedgerUnavailable
    while the database is unavailable, and LedgerFenced once another controller has taken over the run.
    """

    def close(self) -> None:
        """Release the run."""

    def load(self) -> tuple[list[Attempt], dict[str, Any]]:
        """Return all attempts in the order of their numbers, and the state of the samplers."""

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, which is 0 for the first page."""

    def write_reports(self, reports: Sequence[ReportRow], deleted: Sequence[int]) -> None:
        """Write reports, and delete earlier ones by their marks."""

    def write_start(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write an attempt that is about to start, and the state of the samplers; None leaves that unchanged."""

    def write_draw(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the parameters that a running attempt has drawn so far, and the state of the samplers, as `write_start`."""

    def write_end(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the end of an attempt, and the state of the samplers, as `write_start`."""

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Write facts about the run, by column name."""

    def read_column(self, name: str) -> Any:
        """Return the value in a column of the run; None if the column is empty."""
