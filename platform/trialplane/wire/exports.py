"""The messages between an exporter and the process that started it: one line of JSON each.

The exporter gets an `Order` first. After it, an empty line means that the ledger has grown, and an `End` that it grows no
more. It answers with `Progress`, and ends by itself once all is in MLflow.
"""

from __future__ import annotations

import dataclasses

from trialplane.wire.ledger import StoredAttempt
from trialplane.wire.records import ReportRow
from trialplane.wire.states import RunState


@dataclasses.dataclass(frozen=True)
class End:
    """State of a run that does not go on, or is paused.

    Attributes:
        state: State of the run.
        reason: Reason for it.
        time: Time of the end, in seconds since the epoch.
    """

    state: RunState
    reason: str
    time: float


@dataclasses.dataclass(frozen=True)
class Copy:
    """Attempts and reports of a run."""

    attempts: tuple[StoredAttempt, ...]
    reports: tuple[ReportRow, ...]


@dataclasses.dataclass(frozen=True)
class Order:
    """The ledger to export, and how.

    Attributes:
        ledger: URL of the database, or of the gateway with the run's token.
        copy: The ledger itself, in place of a URL.
        keeps_folder: Whether the run's folder outlives the exporter. If not, all logs go to MLflow.
        end: End of the run. None while it goes on.
    """

    ledger: str = ""
    copy: Copy | None = None
    keeps_folder: bool = True
    end: End | None = None


@dataclasses.dataclass(frozen=True)
class Progress:
    """Position of an exporter.

    Attributes:
        ended: Number of ends of attempts that are in MLflow.
        trials: Number of trials that have ended for good with them.
        files: Number of files that are on their way.
        trouble: Why MLflow lacks files, or "".
        away: Why MLflow, or the ledger, cannot be used now, or "".
    """

    ended: int = 0
    trials: int = 0
    files: int = 0
    trouble: str = ""
    away: str = ""
