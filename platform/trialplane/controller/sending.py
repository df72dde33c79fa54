"""Sends the files of a study's best trials to their runs in MLflow, at the end of a study with `keep.files`.

Only at the end it is certain which trials are the best, so MLflow gets no file that would have to be removed again. Slots
send the files, because they can reach the folder or URL of the checkpoints. The run waits for at most `PATIENCE` seconds,
and no longer than the user lets it continue. Each trial gets an equal share of that time. A warning names the trials whose
files MLflow lacks at the end; these files stay beside the checkpoints.
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

PATIENCE = 120.0  # seconds for the files of all trials
TRIES = 3  # attempts to send the files of a trial
PAUSE = 5.0  # seconds after an attempt that failed


class FileSender:
    """Sends the files of trials from slots, one trial after the other.

    Args:
        slots: Slots of the run.
        attempts: For each trial, the number of the attempt that began its series, which names its run in MLflow. The best
            trial comes first.
    """

    def __init__(self, slots: Pool, attempts: Mapping[int, int]) -> None:
        self._slots = slots
        self._attempts = attempts
        self._waiting = collections.deque(attempts)
        self._tries: collections.Counter[int] = collections.Counter()
        self._problems: dict[int, str] = {}  # trial → the reason why MLflow lacks files of it
        self._pending: tuple[SlotCall[messages.FilesSent], int] | None = None  # the call that sends files, and the trial
        self._next_time = 0.0  # when the next files may be sent, by the monotonic clock

    def run(self, may_continue: Callable[[], bool], show: Callable[[str], None]) -> list[str]:
        """Send files until MLflow has all of them, the time is over, or the user ends the run.

        Args:
            may_continue: Returns whether the user lets the run continue.
            show: Shows the user a text on what the run waits for.

        Returns:
            A sentence on each trial whose files MLflow lacks.
        """
        try:
            problem = self._send_all(may_continue, show)
        except (errors.SlotError, errors.EntrypointError) as error:  # no slot starts
            problem = f"no slot could send them: {errors.first_line(error)}"
        unfinished = list(self._waiting)
        if self._pending is not None:
            _, sending_trial = self._pending
            unfinished.append(sending_trial)
        for trial in unfinished:
            self._problems[trial] = "; ".join(filter(None, (problem, self._problems.get(trial))))
        return [
            f"keep.files: MLflow lacks files of trial {trial}, which are beside its checkpoints: {text}"
            for trial, text in sorted(self._problems.items())
        ]

    def _send_all(self, may_continue: Callable[[], bool], show: Callable[[str], None]) -> str:
        """Send files until MLflow has all of them; return the reason why it ends before, or "". For the arguments see `run`.

        Raises:
            EntrypointError, SlotError: No slot starts.
        """
        deadline = time.monotonic() + PATIENCE
        while self._waiting or self._pending is not None:
            if not may_continue():
                return "the run was to end before"
            if time.monotonic() >= deadline:
                return f"they were not there within {PATIENCE:.0f} s"
            self._advance(deadline)
            unfinished_count = len(self._waiting) + (self._pending is not None)
            progress = f"{len(self._attempts) - unfinished_count} of {len(self._attempts)} trials are done"
            show(f"sending the files that keep.files names to MLflow, for {PATIENCE:.0f} s at most: {progress}")
            for _ in self._slots.events(0.1):  # lets starting slots become ready
                pass
        return ""

    def _advance(self, deadline: float) -> None:
        """Record the result of a call that has ended, and send the next trial's files if a slot is ready.

        Args:
            deadline: Time by the monotonic clock at which the run stops waiting.
        """
        if self._pending is not None:
            call, trial = self._pending
            if not call.done():
                return
            self._pending = None
            try:
                result = call.result()
            except errors.SlotError as error:
                result = messages.FilesSent(f"the slot that sent them was lost: {errors.first_line(error)}", again=True)
            except Exception as error:  # noqa: BLE001  the boundary: any error of the call; the run itself is finished
                result = messages.FilesSent(f"the sending failed: {errors.first_line(error)}", again=True)
            self._take_result(trial, result)
        now = time.monotonic()
        if self._waiting and self._next_time <= now < deadline:
            # The time left is shared by the trials that were not tried yet, or else by those that are tried again. So a
            # trial with too many files leaves time for the others.
            untried_count = sum(self._tries[trial] == 0 for trial in self._waiting)
            seconds = (deadline - now) / (untried_count or len(self._waiting))
            next_trial = self._waiting[0]
            message = messages.SendFiles(next_trial, number=self._attempts[next_trial], seconds=seconds)
            new_call = self._slots.send_files(message)
            if new_call is not None:  # otherwise no slot is ready
                self._waiting.popleft()
                self._pending = new_call, next_trial

    def _take_result(self, trial: int, result: messages.FilesSent) -> None:
        """Record the result of sending a trial's files, and let the trial wait again if another attempt may succeed."""
        self._problems.pop(trial, None)
        if not result.lacks:
            return
        self._problems[trial] = errors.shortened(result.lacks, 400)
        self._tries[trial] += 1
        if result.again and self._tries[trial] < TRIES:
            self._waiting.append(trial)
            self._next_time = time.monotonic() + PAUSE
        log.info("files of trial %d were not sent to MLflow: %s", trial, self._problems[trial])
