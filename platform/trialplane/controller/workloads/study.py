"""A study: independent trials, whose reports the pruner compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trialplane.controller import endings, sending
from trialplane.controller.counts import AlikeFailures
from trialplane.controller.endings import Ending
from trialplane.controller.keeping import CheckpointRemover
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import Pool, SlotEvent
from trialplane.controller.workloads.workload import Workload
from trialplane.job.kinds import Study
from trialplane.wire import messages
from trialplane.wire.progress import StudyProgress
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import RunState


class StudyWorkload(Workload):
    """The trials of a study.

    Args:
        ledger: Ledger of the run.
        slots: Slots in which its attempts run.
    """

    def __init__(self, ledger: Ledger, slots: Pool) -> None:
        super().__init__(ledger, slots)
        job, counts = ledger.job, ledger.counts
        self._remover: CheckpointRemover | None = None  # without it, no checkpoint is removed
        self._keeps_files = False
        if isinstance(job, Study) and (job.keep is not None or ledger.promotion is not None):
            # A trial that the user lets run again has failed, but needs the checkpoints that it will save.
            waiting = ledger.waiting_trials
            rows = [row for trial, row in ledger.newest.items() if trial not in waiting]
            self._remover = CheckpointRemover(job, slots, newest=rows)
            self._release_checkpoints(self._remover)
            self._keeps_files = bool(job.keep and job.keep.files)
        self._alike = AlikeFailures(job.budget.failed_alike, has_success=bool(counts.complete or counts.pruned))

    def _suggest(self, request: TrialRequest, parameter: messages.Suggest) -> messages.Suggested:
        """Draw a parameter that an attempt requests, and return the answer."""
        return self._ledger.suggest(request.number, parameter)

    def record_end(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Record the end of an attempt: for the detection of failures that are alike, and for the removal of checkpoints."""
        self._alike.record_end(request, outcome)
        if self._remover is not None:
            self._remover.record_end(self._ledger.newest[request.trial])
            self._release_checkpoints(self._remover)

    def _release_checkpoints(self, remover: CheckpointRemover) -> None:
        """Let the remover remove checkpoints that no member of a population needs, and stop counting all unwanted ones."""
        remover.release(self._ledger.take_released_folders())
        self._ledger.saved.forget(remover.unwanted)

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """Continue the removal of unneeded checkpoints, and then yield the attempts' events, see `Workload.events`."""
        if self._remover is not None:
            self._remover.advance()
        yield from super().events(timeout)

    def send_files(self, may_continue: Callable[[], bool], show: Callable[[str], None]) -> list[str]:
        """Send the files of the best trials, see `Workload.send_files`."""
        if self._remover is None or not self._keeps_files:
            return []
        first_attempts = {row.trial: row.first for row in self._remover.best}
        return sending.FileSender(self._slots, first_attempts).run(may_continue, show)

    def close(self) -> None:
        """End all slots, after they have removed the unneeded checkpoints."""
        if self._remover is not None:
            self._remover.finish()
        super().close()

    def failure_ending(self) -> Ending | None:
        """Return the run's ending if its first trials have failed alike; otherwise None."""
        requests = self._alike.find_fatal(self._ledger.running())
        return self._ending_of_alike_failures(requests) if requests else None

    def final_ending(self) -> Ending:
        """Return the run's ending when no trial runs and none can be started: a success if any trial is complete."""
        counts = self._ledger.counts
        if not counts.complete:
            classes = endings.failure_classes(counts) or "all pruned"
            return Ending(RunState.FAILED, f"none of {counts.ended} trials completed ({classes})", kill=False)
        promotion = self._ledger.promotion
        if promotion is not None and promotion.is_budget_spent:
            text = f"the budget of {self._ledger.job.budget.steps} steps is used, after {counts.ended} trials"
        elif counts.ended < self._ledger.job.trials:  # fewer than requested: the sampler had no new point
            text = f"every point of the space was tried, in {counts.ended} trials"
        else:
            failed = f", {counts.failed} of them failed" if counts.failed else ""
            text = f"all {counts.ended} trials ended{failed}"
        return Ending(RunState.SUCCEEDED, text, kill=False)

    @property
    def progress(self) -> StudyProgress:
        """The steps, rungs and checkpoints of the study; steps are counted only with promotion."""
        promotion = self._ledger.promotion
        return StudyProgress(
            steps=0 if promotion is None else promotion.used_steps,
            rungs=() if promotion is None else tuple(promotion.rung_progress()),
            checkpoints=self._ledger.saved.number,
            checkpoint_bytes=self._ledger.saved.bytes,
            answered=self._ledger.reuse.answered,
            begun=len(self._ledger.reuse.spared_steps),
            spared_steps=sum(self._ledger.reuse.spared_steps.values()),
            avoided=self._ledger.drawing.avoided,
        )

    def _ending_of_alike_failures(self, requests: Sequence[TrialRequest]) -> Ending:
        """Return the ending of a study because of failures that are alike, or of one that every trial would have.

        Args:
            requests: Requests of the attempts that failed, see `AlikeFailures.find_fatal`.
        """
        last_trial, ledger = requests[-1].trial, self._ledger
        advice = f"budget.failed_alike ({ledger.job.budget.failed_alike}) sets how many, null turns the check off"
        if self._alike.certain is not None:
            description = f"trial {last_trial} failed as every other would"
            advice = "budget.failed_alike: null tries them all"
        elif len(requests) > 1:
            description = f"{len(requests)} trials in a row failed in the same way and none has succeeded"
        else:
            description = "a trial failed and none has succeeded"
        message = f"{ledger.newest[last_trial].message}; `platform logs {ledger.run} {last_trial}` shows more; {advice}"
        return Ending(RunState.FAILED, f"{description}, so the study was stopped: {message}", kill=True)
