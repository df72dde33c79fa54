"""The desired state of an active run: from signals on a laptop, from the ledger on a cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from trialplane import errors
from trialplane.controller.endings import Ending
from trialplane.controller.ledger import Ledger
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import Desired
from trialplane.wire.states import RunState

log = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds between queries
AWAY_INTERVAL = 5.0  # the same while the database is away, when each query may wait for a connection


class DesiredState:
    """Polled by the loop; queries the database at most once per `INTERVAL`.

    Args:
        run: the run's files.
        stopped: numbers of the signals received so far.
        ledger: has the desired state; None on a laptop, where the number of slots is the job's.
    """

    def __init__(self, run: RunPaths, stopped: Sequence[int], ledger: Ledger | None) -> None:
        self._run = run
        self._stopped = stopped
        self._ledger = ledger
        self._desired = Desired()
        self._next = 0.0
        self._paused = 0  # signals that requested a pause, received before the run was cancelled

    def ending(self) -> Ending | None:
        """The ending that the user has requested, or None."""
        self._refresh()
        signals = len(self._stopped)
        if self._desired.state is RunState.CANCELLED or (signals and self._run.cancelled.exists()):
            # A second signal means haste, unless it is the cancel that follows a pause.
            return Ending(RunState.CANCELLED, "cancelled by the user", kill=True, hurry=signals - self._paused > 1)
        if self._desired.state is RunState.FAILED:
            limits = "cluster.deadline or cluster.pending_deadline"
            return Ending(RunState.FAILED, f"its deadline is over ({limits}); what runs was ended", kill=True)
        self._paused, hurry = min(signals, 1), signals > 1
        again = f"`platform resume {self._run.root.name}` continues it"
        if self._desired.state is RunState.PAUSED:
            return Ending(RunState.PAUSED, f"paused by the user; {again}", kill=True, hurry=hurry)
        return Ending(RunState.PAUSED, f"stopped; {again}", kill=True, hurry=hurry) if self._stopped else None

    def parallel(self) -> int | None:
        """The requested number of slots; None where that cannot change."""
        self._refresh()
        return None if self._ledger is None else self._desired.parallel or self._ledger.job.width

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._ledger is None or now < self._next:
            return
        self._next = now + INTERVAL
        try:
            desired = self._ledger.desired()
        except errors.LedgerUnavailable as error:
            self._next = time.monotonic() + AWAY_INTERVAL
            log.warning("the desired state of the run cannot be read now: %s", errors.first_line(error))
            return
        if desired != self._desired:
            parallel = desired.parallel or self._ledger.job.width
            log.info("the desired state of the run is %s with %d slots", desired.state.value, parallel)
        self._desired = desired
