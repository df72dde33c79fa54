"""The desired state of an active run, from signals on a laptop and from the ledger on a cluster, as the loop needs it."""

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
AWAY_INTERVAL = 5.0  # seconds between queries while the database does not answer: each may wait long for a connection


class DesiredState:
    """The state that the user wants the run to have. The ledger is read at most once per `INTERVAL` seconds.

    Args:
        run: Paths of the run.
        signals: Numbers of the signals received so far; grows while the run continues.
        ledger: Ledger with the desired state; None on a laptop, where only signals count.
    """

    def __init__(self, run: RunPaths, signals: Sequence[int], ledger: Ledger | None) -> None:
        self._run = run
        self._signals = signals
        self._ledger = ledger
        self._desired = Desired()  # as read last from the ledger
        self._next_query = 0.0  # by the monotonic clock
        self._pause_signals = 0  # 1 if a signal paused the run before `platform cancel` sent another; otherwise 0

    def ending(self) -> Ending | None:
        """Return the ending that the user has requested, or that a deadline requires; None if the run continues.

        On a laptop a signal pauses the run, or cancels it if `platform cancel` has written a mark into the run's folder
        before. After a second signal, trials get no time to save a checkpoint.
        """
        self._refresh()
        signal_count = len(self._signals)
        has_cancel_signal = signal_count > 0 and self._run.cancelled.exists()
        if has_cancel_signal or self._desired.state is RunState.CANCELLED:
            hurry = signal_count - self._pause_signals > 1
            return Ending(RunState.CANCELLED, "cancelled by the user", kill=True, hurry=hurry)
        if self._desired.state is RunState.FAILED:
            limits = "cluster.deadline or cluster.pending_deadline"
            return Ending(RunState.FAILED, f"its deadline is over ({limits}); what runs was ended", kill=True)
        self._pause_signals = min(signal_count, 1)  # if the run is cancelled later, this signal does not hurry it
        hurry = signal_count > 1
        advice = f"`platform resume {self._run.root.name}` continues it"
        if self._desired.state is RunState.PAUSED:
            return Ending(RunState.PAUSED, f"paused by the user; {advice}", kill=True, hurry=hurry)
        if signal_count:
            return Ending(RunState.PAUSED, f"stopped; {advice}", kill=True, hurry=hurry)
        return None

    def parallel(self) -> int | None:
        """Return the desired number of trials or workers at a time; None on a laptop, where it cannot change."""
        self._refresh()
        if self._ledger is None:
            return None
        return self._desired.parallel or self._ledger.job.width  # the job's own number until the user has set another

    def _refresh(self) -> None:
        """Read the desired state from the ledger, unless the last query was less than `INTERVAL` seconds ago.

        While the database does not answer, the last state that was read stays.
        """
        now = time.monotonic()
        if self._ledger is None or now < self._next_query:
            return
        self._next_query = now + INTERVAL
        try:
            desired = self._ledger.read_desired()
        except errors.LedgerUnavailable as error:
            self._next_query = time.monotonic() + AWAY_INTERVAL
            log.warning("the desired state of the run cannot be read now: %s", errors.first_line(error))
            return
        if desired != self._desired:
            parallel = desired.parallel or self._ledger.job.width
            log.info("the desired state of the run is %s with %d slots", desired.state.value, parallel)
        self._desired = desired
