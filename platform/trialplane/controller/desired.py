"""What the user wants of a run that goes on: by signals on a laptop, by the desired state in the ledger on a cluster."""

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

INTERVAL = 1.0  # seconds between looks into the database
AWAY_INTERVAL = 5.0  # the same while it is away; each look may then wait for a connection


class DesiredState:
    """Asked by the loop all the time, so it looks into the database only now and then.

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
        self._paused = 0  # signals that were about a pause when the run had not been cancelled yet

    def ending(self) -> Ending | None:
        """How the user wants the run to end, or None."""
        self._look()
        signals = len(self._stopped)
        if self._desired.state is RunState.CANCELLED or (signals and self._run.cancelled.exists()):
            # A second signal is impatience, but not the one of a cancel that comes after a pause.
            return Ending(RunState.CANCELLED, "cancelled by the user", kill=True, hurry=signals - self._paused > 1)
        self._paused, hurry = min(signals, 1), signals > 1
        again = f"`platform resume {self._run.root.name}` goes on"
        if self._desired.state is RunState.PAUSED:
            return Ending(RunState.PAUSED, f"paused by the user; {again}", kill=True, hurry=hurry)
        return Ending(RunState.PAUSED, f"stopped; {again}", kill=True, hurry=hurry) if self._stopped else None

    def parallel(self) -> int | None:
        """How many slots the user wants; None where that cannot change."""
        self._look()
        return None if self._ledger is None else self._desired.parallel or self._ledger.job.width

    def _look(self) -> None:
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
