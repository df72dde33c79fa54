"""Storages of one run: the protocols of its writer and its reader, and the choice of a storage by the scheme of its URL.

Another storage is a module with a `Store` and a `Source`, and is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from trialplane.ledger import remote, study
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


class Source(Protocol):
    """The ledger of a run, read in pages after a position. A page is empty if nothing follows.

    Attributes:
        pause: Shortest time in seconds between the starts of two rounds of reads.
        idle: Time in seconds after which the ledger is read again if no message has said that it has new records.
    """

    pause: float
    idle: float

    def running_attempts(self, after: int) -> list[Attempt]:
        """Return running attempts with numbers above `after`, in the order of their numbers; from the gateway one page."""

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with a number."""

    def ended_attempts(self, after: int) -> list[Attempt]:
        """Return a page of the attempts whose ends have numbers above `after`, in the order of their ends."""

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, in the order of their marks."""


def open_store(
    url: str,
    run: str,
    directions: tuple[Literal["minimize", "maximize"], ...],
    lock: Path,
    *,
    lock_patience: float,
    should_give_up: Callable[[], bool],
) -> Store:
    """Open a run for writing. For the arguments and the errors see `study.Storage`.

    The URL is that of a database, or of the gateway with the run's token: `http://:TOKEN@HOST:PORT/namespaces/NAMESPACE`.
    """
    if url.startswith(remote.SCHEMES):
        return remote.Storage(url, run, directions, lock_patience=lock_patience, should_give_up=should_give_up)
    return study.Storage(url, run, directions, lock, lock_patience=lock_patience, should_give_up=should_give_up)


def open_source(url: str, run: str) -> Source:
    """Open a run for reading. For `url` see `open_store`."""
    return remote.Reader(url, run) if url.startswith(remote.SCHEMES) else study.Reader(url, run)
