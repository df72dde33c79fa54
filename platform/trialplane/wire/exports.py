"""The messages between an exporter and the process that started it: one line of JSON each.

The exporter first receives an `Order`. Later, an empty line means that the ledger has new records, and an `End` means that
there will be no more. The exporter sends its `Progress`, and exits when MLflow has all records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trialplane.wire.ledger import StoredAttempt
from trialplane.wire.records import ReportRow, RunStatus
from trialplane.wire.states import RunState


@dataclasses.dataclass(frozen=True)
class End:
    """State of a run that has ended or is paused.

    Attributes:
        state: State of the run.
        reason: Reason for it.
        time: Time of the end, in seconds since the epoch.
        status: Status of the run, if the exporter is to store the run's page in MLflow; otherwise None.
    """

    state: RunState
    reason: str
    time: float
    status: RunStatus | None = None


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
        copy: Content of the ledger. The exporter then needs no URL.
        keeps_folder: Whether the run's folder outlives the exporter. If not, MLflow gets all logs.
        end: End of the run. None while the run is active.
    """

    ledger: str = ""
    copy: Copy | None = None
    keeps_folder: bool = True
    end: End | None = None


@dataclasses.dataclass(frozen=True)
class Registration:
    """A version to add to MLflow's model registry.

    Attributes:
        model: Name in the registry.
        identity: Tags by which the runs of these trials are found; see `labels.identity`.
        number: Number of the attempt whose model it is.
        numbers: Numbers of all attempts with the same parameters and other seeds.
        description: Description of the version.
        tags: Tags of the version.
    """

    model: str
    identity: Mapping[str, str]
    number: int
    numbers: tuple[int, ...]
    description: str
    tags: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Progress:
    """Position of an exporter.

    Attributes:
        ended: Number of ended attempts that MLflow has.
        trials: Number of ended trials that MLflow has.
        files: Number of files that are being uploaded.
        trouble: Reason why MLflow lacks files, or "".
        away: Reason why MLflow or the ledger is unavailable, or "".
    """

    ended: int = 0
    trials: int = 0
    files: int = 0
    trouble: str = ""
    away: str = ""
