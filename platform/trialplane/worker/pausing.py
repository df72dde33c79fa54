"""When a trial is paused at a rung, and which checkpoints a retry continues from.

Steps are the job's own. A job whose first report is of step 0 has done one step by then, so its step 3 is the fourth one.
"""

from __future__ import annotations

from collections.abc import Iterable

from trialplane.wire.records import Segment


class Pause:
    """Whether a trial has come to the end of its segment.

    Args:
        segment: of the attempt; None where trials are not paused.

    Attributes:
        requested: whether the trial has reported the step at which it is paused.
        requested_at: that step.
        saved: the last step of which it has saved a checkpoint; -1 before.
        parent_digest: digest of the checkpoints that it has continued from; "" without any.
    """

    def __init__(self, segment: Segment | None) -> None:
        segment = segment or Segment()
        self._rung = segment.rung
        self._missing = set(segment.metrics)
        self._offset = segment.offset
        self.requested = False
        self.saved = -1
        self.parent_digest = "" if segment is None or segment.parent is None else segment.parent.digest
        self.requested_at = -1

    def report(self, step: int, metrics: Iterable[str]) -> None:
        """Take a report."""
        self._see(step)
        if not self.requested and self.reaches(step):
            self._missing.difference_update(metrics)
            self.requested, self.requested_at = not self._missing, step

    def is_past(self, step: int) -> bool:
        """Whether a report of this step is of a trial that trains on although it was to be paused."""
        return self.requested and step > self.requested_at

    def reaches(self, step: int) -> bool:
        """Whether this step is at the rung or beyond it."""
        self._see(step)
        return self._rung > 0 and step + (self._offset or 0) >= self._rung

    @property
    def is_saved(self) -> bool:
        """Whether the trial can be paused now: it is at the rung, and its checkpoint is of the step that it has reported."""
        return self.requested and self.saved >= self.requested_at

    def _see(self, step: int) -> None:
        if self._offset is None:
            self._offset = 1 if step == 0 else 0
