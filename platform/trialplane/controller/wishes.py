"""What the user wants of a run that goes on: by signals on a laptop, by the study's `wish` in a cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from trialplane import errors
from trialplane.controller.ledger import Ledger
from trialplane.controller.loop import Ending
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import Wish
from trialplane.wire.states import RunState

log = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds between looks into the database
AWAY_INTERVAL = 5.0  # the same while it is away; each look may then wait for a connection


class Wishes:
    """Asked by the loop all the time, so it looks into the database only now and then.

    Args:
        run: the run's files.
        stopped: numbers of the signals received so far.
        ledger: has the wish; None on a laptop.
        parallel: the job's.
    """

    def __init__(self, run: RunPaths, stopped: Sequence[int], ledger: Ledger | None, parallel: int) -> None:
        self._run = run
        self._stopped = stopped
        self._ledger = ledger
        self._job_parallel = parallel
        self._wish = Wish()
        self._next = 0.0
        self._paused = 0  # signals that were about a pause when the run had not been cancelled yet

    def ending(self) -> Ending | None:
        """How the user wants the run to end, or None."""
        self._look()
        signals = len(self._stopped)
        if self._wish.state is RunState.CANCELLED or (signals and self._run.cancelled.exists()):
            # A second signal is impatience, but not the one of a cancel that comes after a pause.
            return Ending(RunState.CANCELLED, "cancelled by the user", kill=True, hurry=signals - self._paused > 1)
        self._paused, hurry = min(signals, 1), signals > 1
        again = f"`platform resume {self._run.root.name}` goes on"
        if self._wish.state is RunState.PAUSED:
            return Ending(RunState.PAUSED, f"paused by the user; {again}", kill=True, hurry=hurry)
        return Ending(RunState.PAUSED, f"stopped; {again}", kill=True, hurry=hurry) if self._stopped else None

    def parallel(self) -> int:
        """How many slots the user wants."""
        self._look()
        return self._wish.parallel or self._job_parallel

    def _look(self) -> None:
        now = time.monotonic()
        if self._ledger is None or now < self._next:
            return
        self._next = now + INTERVAL
        try:
            wish = self._ledger.wish()
        except errors.LedgerUnavailable as error:
            self._next = time.monotonic() + AWAY_INTERVAL
            log.warning("the user's wish cannot be read now: %s", errors.first_line(error))
            return
        if wish != self._wish:
            log.info("the user wants the run %s with %d slots", wish.state.value, wish.parallel or self._job_parallel)
        self._wish = wish
