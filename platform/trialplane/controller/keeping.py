"""Removes the checkpoints of a study's trials that are not needed any more.

The checkpoints of a trial that has not ended stay. Of the trials that have ended, the best ones keep theirs if the job has
`keep`; otherwise all complete ones do. The others' checkpoints are unwanted: those of trials that have failed or were
pruned, and those of trials that are worse than enough complete ones. No later end makes such a trial one of the best again,
so the decision depends on the ledger alone.

A slot removes the checkpoints, as it can reach their folder or URL. A controller that was killed may have removed only some
of them, so each controller first removes all unwanted ones again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable

from trialplane import errors
from trialplane.controller.pool import Pool, SlotCall
from trialplane.job.kinds import Study
from trialplane.wire import rows
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds to wait for removals at the end of a run
_MOST_FOLDERS = 1000  # in one removal
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED)  # states after which no attempt follows


class CheckpointRemover:
    """Removes the checkpoints of a study's worse trials, in slots.

    Args:
        job: Study with `keep`, with promotion, or with a population.
        slots: Slots of the run.
        newest: Newest attempts of the trials so far.

    Attributes:
        best: Complete trials whose checkpoints stay, the best one first.
        unwanted: Folders of checkpoints that will be removed.
    """

    def __init__(self, job: Study, slots: Pool, newest: Iterable[TrialRow]) -> None:
        self._job = job
        self._most_kept = None if job.keep is None else job.keep.best  # None: all complete trials keep their checkpoints
        self._slots = slots
        self.best: list[TrialRow] = []
        self.unwanted: set[TrialFolder] = set()
        self._removal: tuple[SlotCall[None], tuple[TrialFolder, ...]] | None = None  # the pending call, and its folders
        for row in newest:
            self.record_end(row)

    def record_end(self, row: TrialRow) -> None:
        """Compare a trial that has ended with the best ones so far; the checkpoints of those that are beaten are unwanted.

        Args:
            row: Newest attempt at the trial, as in the ledger. If its trial has not ended, nothing changes.
        """
        if row.state not in _ENDED:
            return
        ranked = rows.ranked(self._job, [*self.best, row])
        complete = [candidate for candidate in ranked if candidate.state is TrialState.COMPLETE]
        if self._most_kept is None:
            self.best = complete
        else:
            self.best = [candidate for candidate in complete if candidate.feasible][: self._most_kept]
        beaten = {candidate.trial for candidate in ranked} - {candidate.trial for candidate in self.best}
        self.unwanted |= {TrialFolder(trial) for trial in beaten}

    def release(self, folders: Collection[TrialFolder]) -> None:
        """Let folders of checkpoints be removed, such as those that a population does not need any more."""
        self.unwanted |= set(folders)

    def advance(self) -> None:
        """Record the result of a removal that has ended, and start the next one if a slot is ready."""
        if self._removal is not None:
            pending_call, removed_folders = self._removal
            if not pending_call.done():
                return
            self._removal = None
            try:
                pending_call.result()
            except errors.SlotError as error:
                # The folders stay unwanted, so the next removal includes them.
                log.info("a slot was lost while it removed checkpoints; another one will remove them: %s", error)
            except errors.CheckpointError as error:
                self.unwanted -= set(removed_folders)  # a second removal would fail too
                log.warning("checkpoints that are not needed any more are left where they are: %s", error)
            else:
                self.unwanted -= set(removed_folders)
        folders = tuple(sorted(self.unwanted)[:_MOST_FOLDERS])
        call = self._slots.remove_checkpoints(folders) if folders else None
        if call is not None:  # otherwise no slot is ready
            self._removal = call, folders

    def finish(self) -> None:
        """Wait for at most `PATIENCE` seconds until all unwanted checkpoints are removed."""
        deadline = time.monotonic() + PATIENCE
        self.advance()
        with contextlib.suppress(errors.SlotError, errors.EntrypointError):  # no slot starts: the run's ending reports that
            while self.unwanted and time.monotonic() < deadline:
                for _ in self._slots.events(0.1):  # lets starting slots become ready
                    pass
                self.advance()
