"""A study: independent trials, whose reports the pruner compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trialplane.controller import endings, keeping, sending
from trialplane.controller.counts import Alike
from trialplane.controller.endings import Ending
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import Pool, SlotEvent
from trialplane.controller.workloads.workload import Workload
from trialplane.job.kinds import Study
from trialplane.wire import messages
from trialplane.wire.progress import RungProgress, StudyProgress
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import RunState


class StudyWorkload(Workload):
    """The trials of a study."""

    def __init__(self, ledger: Ledger, slots: Pool) -> None:
        super().__init__(ledger, slots)
        counts = ledger.counts
        job, self._keeping = ledger.job, None
        if isinstance(job, Study) and (job.keep is not None or ledger.promotion is not None):
            self._keeping = keeping.Keeping(job, slots, ledger.newest.values())
            self.keeps_files = bool(job.keep and job.keep.files)
        self._alike = Alike(ledger.job.budget.failed_alike, bool(counts.complete or counts.pruned))

    def _suggested(self, request: TrialRequest, parameter: messages.Suggest) -> messages.Suggested:
        return self._ledger.suggest(request.number, parameter)

    def ended(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Compare a failure with those before it, and release the checkpoints of trials that are not among the best."""
        self._alike.ended(request, outcome)
        if self._keeping is not None:
            self._keeping.ended(self._ledger.newest[request.trial])

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """The attempts' events, as of any workload; checkpoints are removed in between."""
        if self._keeping is not None:
            self._keeping.remove()
        yield from super().events(timeout)

    def send_files(self, goes_on: Callable[[], bool], show: Callable[[str], None]) -> list[str]:
        """Send the files of the best trials, see `Workload.send_files`."""
        if self._keeping is None or not self.keeps_files:
            return []
        best = {row.trial: row.first for row in self._keeping.best}
        return sending.Sending(self._slots, best).run(goes_on, show)

    def close(self) -> None:
        """End all slots, once the checkpoints that are to go are gone."""
        if self._keeping is not None:
            self._keeping.settle()
        super().close()

    def failed(self) -> Ending | None:
        """The run's ending, if the first trials have failed alike."""
        alike = self._alike.failures(self._ledger.running())
        return self._failed_alike(alike) if alike else None

    def finished(self) -> Ending:
        """A success if any trial completed."""
        counts = self._ledger.counts
        if not counts.complete:
            classes = endings.classes(counts) or "all pruned"
            return Ending(RunState.FAILED, f"none of {counts.ended} trials completed ({classes})", kill=False)
        promotion = self._ledger.promotion
        if promotion is not None and promotion.is_spent:
            text = f"the budget of {self._ledger.job.budget.steps} steps is used, after {counts.ended} trials"
        elif counts.ended < self._ledger.job.trials:
            text = f"every point of the space was tried, in {counts.ended} trials"
        else:
            text = f"all {counts.ended} trials ended"
        return Ending(RunState.SUCCEEDED, text, kill=False)

    @property
    def progress(self) -> StudyProgress:
        """Rungs and checkpoints: the counts of trials are in the status itself."""
        unwanted = set() if self._keeping is None else self._keeping.unwanted
        saved = [summary for trial, summary in self._ledger.saved.items() if trial not in unwanted]
        promotion = self._ledger.promotion
        return StudyProgress(
            0 if promotion is None else promotion.used,
            () if promotion is None else tuple(RungProgress(*counts) for counts in promotion.counts()),
            sum(summary.number for summary in saved),
            sum(summary.bytes for summary in saved),
        )

    def _failed_alike(self, requests: Sequence[TrialRequest]) -> Ending:
        """The ending of a study whose first trials failed alike while none succeeded."""
        last_trial, ledger = requests[-1].trial, self._ledger
        limit = f"budget.failed_alike ({ledger.job.budget.failed_alike}) sets how many, null turns the check off"
        if self._alike.certain is not None:
            description, limit = (
                f"trial {last_trial} failed as every other would",
                "budget.failed_alike: null tries them all",
            )
        elif len(requests) > 1:
            description = f"{len(requests)} trials in a row failed in the same way and none has succeeded"
        else:
            description = "a trial failed and none has succeeded"
        shown = f"{ledger.newest[last_trial].message}; `platform logs {ledger.run} {last_trial}` shows more; {limit}"
        return Ending(RunState.FAILED, f"{description}, so the study was stopped: {shown}", kill=True)
