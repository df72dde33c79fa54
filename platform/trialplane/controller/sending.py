"""Sends the files of a study's best trials to their runs in MLflow, at the end of a study with `keep.files`.

At the end and not before, as only then it is certain which trials are the best: MLflow gets no file that would have to be
removed again. Slots send them, as they reach the folder or URL of the checkpoints. The run waits for `PATIENCE` at most, of
which each trial has a share for each of its `TRIES`, and no longer than the user lets it continue. A warning names what
MLflow lacks then; it stays beside the checkpoints.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Mapping

from trialplane import errors
from trialplane.controller.pool import Pool, SlotCall
from trialplane.wire import messages

log = logging.getLogger(__name__)

PATIENCE = 120.0  # seconds in all
TRIES = 3  # of each trial
PAUSE = 5.0  # seconds after a try in vain


class Sending:
    """Sends the files of trials from slots, one trial after the other.

    Args:
        slots: of the run.
        attempts: trial → number of the attempt in the ledger that began its series, the best trial first.
    """

    def __init__(self, slots: Pool, attempts: Mapping[int, int]) -> None:
        self._slots = slots
        self._attempts = attempts
        self._waiting = collections.deque(attempts)
        self._tries: collections.Counter[int] = collections.Counter()
        self._lacks: dict[int, str] = {}
        self._under_way: tuple[SlotCall[messages.FilesSent], int] | None = None  # the answer that is due, and the trial
        self._again = 0.0  # when the next one may be sent

    def run(self, goes_on: Callable[[], bool], show: Callable[[str], None]) -> list[str]:
        """Send until MLflow has all files, or no more is to be tried.

        Args:
            goes_on: whether the user lets the run continue.
            show: shows the user what the run waits for.

        Returns:
            A sentence on each trial of which MLflow lacks files.
        """
        deadline = time.monotonic() + PATIENCE
        problem = ""
        try:
            while self._waiting or self._under_way is not None:
                problem = "" if goes_on() else "the run was to end before"
                problem = problem or ("" if time.monotonic() < deadline else f"they were not there within {PATIENCE:.0f} s")
                if problem:
                    break
                self._step(deadline)
                progress = f"{len(self._attempts) - self._unsent} of {len(self._attempts)} trials are done"
                show(f"sending the files that keep.files names to MLflow, for {PATIENCE:.0f} s at most: {progress}")
                for _ in self._slots.events(0.1):  # slots that get ready
                    pass
        except (errors.SlotError, errors.EntrypointError) as error:  # no slot starts
            problem = f"no slot could send them: {errors.first_line(error)}"
        for trial in (*self._waiting, *(() if self._under_way is None else self._under_way[1:])):
            self._lacks[trial] = "; ".join(filter(None, (problem, self._lacks.get(trial))))
        return [
            f"keep.files: MLflow lacks files of trial {trial}, which are beside its checkpoints: {text}"
            for trial, text in sorted(self._lacks.items())
        ]

    @property
    def _unsent(self) -> int:
        return len(self._waiting) + (self._under_way is not None)

    def _step(self, deadline: float) -> None:
        """Take the answer that has arrived, or send the next trial's files, if a slot is ready."""
        if self._under_way is not None:
            call, trial = self._under_way
            if not call.done():
                return
            self._under_way = None
            try:
                result = call.result()
            except errors.SlotError as error:
                result = messages.FilesSent(f"the slot that sent them was lost: {errors.first_line(error)}", again=True)
            except Exception as error:  # noqa: BLE001  the boundary: any error of the call; the run itself is finished
                result = messages.FilesSent(f"the sending failed: {errors.first_line(error)}", again=True)
            self._take(trial, result)
        now = time.monotonic()
        if self._waiting and self._again <= now < deadline:
            # A trial with more files than there is time for leaves time for the others; its next tries come after theirs.
            sharing = sum(not self._tries[trial] for trial in self._waiting) or len(self._waiting)
            message = messages.SendFiles(self._waiting[0], self._attempts[self._waiting[0]], (deadline - now) / sharing)
            if (sending := self._slots.send_files(message)) is not None:
                self._under_way = sending, self._waiting.popleft()

    def _take(self, trial: int, result: messages.FilesSent) -> None:
        self._lacks.pop(trial, None)
        if not result.lacks:
            return
        self._lacks[trial] = errors.shortened(result.lacks, 400)
        self._tries[trial] += 1
        if result.again and self._tries[trial] < TRIES:
            self._waiting.append(trial)  # behind the others
            self._again = time.monotonic() + PAUSE
        log.info("files of trial %d were not sent to MLflow: %s", trial, self._lacks[trial])
