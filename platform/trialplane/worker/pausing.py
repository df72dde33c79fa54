"""Decide when a trial has reached its rung, where it is paused, and saved the checkpoint that this needs.

A segment of a trial ends at a rung: a number of training steps. Steps in reports are the job's own. A job whose first report
has step 0 has done one step by then, so its step 3 is the fourth one.
"""

from __future__ import annotations

from collections.abc import Iterable

from trialplane.wire.records import Segment


class Pause:
    """The progress of an attempt toward the end of its segment.

    Args:
        segment: Segment of the attempt; None if the study does not pause trials.

    Attributes:
        done: Number of steps that earlier segments have trained, and after which the trial must continue.
        metrics: Metrics of the segment, by which trials are compared at the rung.
        is_requested: Whether the trial has reported all metrics of the segment at the rung, so that it must be paused.
        pause_step: Step of the report that requested the pause; until then, of the newest report at the rung or beyond it.
            -1 before such a report.
        saved_step: Last step with a saved checkpoint; -1 before the first.
        parent_digest: Digest of the checkpoint that the trial has continued from; "" without one.
    """

    def __init__(self, segment: Segment | None) -> None:
        segment = segment or Segment()
        self._rung = segment.rung  # in training steps; 0 without a rung
        self._top = segment.top  # number of training steps of a whole trial; 0 without one
        # Without a parent the trial starts over, as if `reuse` does not find the checkpoint that it has selected.
        self.done = 0 if segment.parent is None else segment.done
        self._missing = set(segment.metrics)  # metrics that were not reported at the rung yet
        self.metrics = frozenset(segment.metrics)
        self._offset = segment.offset  # steps done, less the job's number of the last one; None before the first step
        self.is_requested = False
        self.saved_step = -1
        self.parent_digest = "" if segment.parent is None else segment.parent.digest
        self.pause_step = -1

    def report(self, step: int, metrics: Iterable[str]) -> None:
        """Record a report. The pause is requested once all of the segment's metrics were reported at or beyond the rung."""
        if self.reaches(step) and not self.is_requested:
            self._missing.difference_update(metrics)
            self.is_requested = not self._missing
            self.pause_step = step

    def is_first_again(self, step: int) -> bool:
        """Return whether a step is a first one although the trial must continue after more, so the job has started over.

        Any other step that was trained before may be right: a job may continue from a checkpoint before its rung.
        """
        return self.done > 1 and self._done_steps(step) <= 1

    def restart_message(self, step: int) -> str:
        """Return the message of the failure of a job that has started over, and reported a step."""
        return (
            f"the trial was to continue after its {self.done} steps, and the job has started over and reported step {step}: "
            "first load the checkpoint (ctx.restored, an integration's callback, or what the program has saved in "
            "{checkpoints}), and count steps from there"
        )

    def is_past(self, step: int) -> bool:
        """Return whether a step is beyond the one at which the trial should have been paused."""
        return self.is_requested and step > self.pause_step

    def reaches(self, step: int) -> bool:
        """Return whether a step is at the rung or beyond it."""
        done_steps = self._done_steps(step)
        return self._rung > 0 and done_steps >= self._rung

    def is_last(self, step: int) -> bool:
        """Return whether a step is the last one of a whole trial."""
        done_steps = self._done_steps(step)
        return self._top > 0 and done_steps == self._top

    @property
    def is_saved(self) -> bool:
        """Whether the trial can be paused now: it has reported the rung's step, and has saved a checkpoint of it."""
        return self.is_requested and self.saved_step >= self.pause_step

    def _done_steps(self, step: int) -> int:
        """Return the number of training steps that are done at a step of the job.

        The first step shows whether the job counts from 0 or from 1, unless an earlier segment has shown it.
        """
        if self._offset is None:
            self._offset = 1 if step == 0 else 0
        return step + self._offset
