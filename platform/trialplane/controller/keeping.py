"""Removes checkpoints of a study's trials: those of trials that have not ended stay, and of the best, as `keep` says.

With promotion and without `keep`, those of all complete trials stay. Decided from the ledger alone, once an end is in it: a
trial's checkpoints are removed when it has failed, was pruned, or so many better ones are complete, and then no later end
makes it one of the best again. A slot removes them, as it reaches the folder or URL of the checkpoints. Each controller
first removes all unwanted ones again, so a killed one leaves nothing behind; removing twice does nothing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable

from trialplane import errors
from trialplane.controller.pool import Pool, SlotCall
from trialplane.job.kinds import Study
from trialplane.wire import rows
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds, at the end of a run, for what is still to be removed
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED)  # for good: no attempt follows


class Keeping:
    """Removes the checkpoints of a study's worse trials, in slots.

    Args:
        job: with `keep`, or with promotion.
        slots: of the run.
        ended: the newest attempts of its trials so far.
    """

    def __init__(self, job: Study, slots: Pool, ended: Iterable[TrialRow]) -> None:
        self._job = job
        self._most = None if job.keep is None else job.keep.best
        self._slots = slots
        self._best: list[TrialRow] = []
        self._unwanted: set[int] = set()
        self._removed: set[int] = set()
        self._removal: tuple[SlotCall[None], frozenset[int]] | None = None  # the call, and what is being removed
        for row in ended:
            self.ended(row)

    def ended(self, row: TrialRow) -> None:
        """Take the end of an attempt, as it is in the ledger."""
        if row.state not in _ENDED:
            return
        best = rows.rank(self._job, [*self._best, row])
        complete = [other for other in best if other.state is TrialState.COMPLETE]
        self._best = complete if self._most is None else [other for other in complete if other.feasible][: self._most]
        self._unwanted |= {other.trial for other in best} - {other.trial for other in self._best}

    @property
    def best(self) -> tuple[TrialRow, ...]:
        """The trials whose checkpoints stay, from the best on."""
        return tuple(self._best)

    @property
    def unwanted(self) -> set[int]:
        """The trials whose checkpoints are removed, or are to be."""
        return self._removed | self._unwanted

    def remove(self) -> None:
        """Let a slot remove unwanted checkpoints, if one is ready and no removal is under way."""
        if self._removal is not None:
            call, trials = self._removal
            if not call.done():
                return
            self._removal = None
            try:
                call.result()
            except errors.SlotError as error:
                log.info("checkpoints are removed by another slot: %s", error)
            except errors.CheckpointError as error:  # the next one would fail as well
                self._unwanted -= trials
                log.warning("checkpoints that `keep` does not need are left where they are: %s", error)
            else:
                self._unwanted -= trials
                self._removed |= trials
        if self._unwanted and (removal := self._slots.remove(tuple(sorted(self._unwanted)))) is not None:
            self._removal = removal, frozenset(self._unwanted)

    def settle(self) -> None:
        """Wait until everything is removed; when no slot gets ready in time, the next controller goes on."""
        deadline = time.monotonic() + PATIENCE
        self.remove()
        with contextlib.suppress(errors.SlotError, errors.EntrypointError):  # no slot starts, which the run has ended with
            while self._unwanted and time.monotonic() < deadline:
                for _ in self._slots.events(0.1):  # slots that get ready
                    pass
                self.remove()
