"""The lineage of trials that are paused and continued: their segments as one trial, the rungs they reached, their ancestors.

An attempt of such a trial is a segment of its training. In a population, a segment may continue from the checkpoint of
another trial, which is then an ancestor.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trialplane.wire.records import ReportRow, TrialRow
from trialplane.wire.states import TrialState

if TYPE_CHECKING:  # pydantic, which `platform --help` need not wait for
    from trialplane.job.kinds import Job


@dataclasses.dataclass(frozen=True)
class Lineage:
    """A trial, whose attempts may be segments of one training.

    Attributes:
        row: Newest attempt of the trial, with the seconds of all segments.
        pauses: Steps at which the trial was paused and then promoted, in ascending order. In a population, the steps at
            which it took over the state of another trial.
        rungs: Rungs that the trial has reached, in ascending order. Empty if trials are not paused.
    """

    row: TrialRow
    pauses: tuple[int, ...] = ()
    rungs: tuple[int, ...] = ()

    @property
    def stop_rung(self) -> int:
        """The rung at which the trial is paused or was pruned. 0 if it was promoted from every rung that it has reached."""
        is_stopped = self.row.state in (TrialState.PAUSED, TrialState.PRUNED)
        return self.rungs[-1] if is_stopped and self.rungs else 0


@dataclasses.dataclass(frozen=True)
class RungCount:
    """The numbers of trials at a rung.

    Attributes:
        step: Number of steps at which the rung is.
        reached: Number of trials that have reached it.
        promoted, paused, dropped: Numbers of these trials that were promoted from it, are paused at it, were pruned at it.
    """

    step: int
    reached: int
    promoted: int
    paused: int
    dropped: int


def lineages(job: Job, attempts: Sequence[TrialRow]) -> list[Lineage]:
    """Return the lineage of each trial, ordered by trial, from all attempts of a run in any order."""
    by_trial: dict[int, list[TrialRow]] = collections.defaultdict(list)
    for attempt in sorted(attempts, key=lambda attempt: attempt.number):
        by_trial[attempt.trial].append(attempt)
    trial_lineages = [_lineage(job, by_trial[trial]) for trial in sorted(by_trial)]
    if job.search.population is None:
        return trial_lineages
    copies = _copy_steps(attempts)
    return [dataclasses.replace(lineage, pauses=copies.get(lineage.row.trial, ())) for lineage in trial_lineages]


def segments(attempts: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the attempts that are segments, in the order of their starts: those that were not replaced by a retry."""
    ordered = sorted(attempts, key=lambda attempt: attempt.number)
    return [row for row in ordered if row.state is not TrialState.LOST and not _was_stopped_with_run(row)]


def donors(attempts: Sequence[TrialRow]) -> dict[int, int]:
    """Return the trial whose checkpoint each segment continues, by the segment's number. First segments are missing."""
    trials = {attempt.number: attempt.trial for attempt in attempts}
    return {row.number: trials[row.parent] for row in attempts if row.parent is not None and row.parent in trials}


def ancestors(attempts: Sequence[TrialRow], row: TrialRow) -> list[TrialRow]:
    """Return the ancestors of a segment, from the first one, and the segment itself at the end.

    An ancestor saved the checkpoint from which the next one continued. It may be a segment of another trial.
    """
    by_number = {attempt.number: attempt for attempt in attempts}
    line = [row]
    while (parent := line[-1].parent) is not None and parent in by_number:
        line.append(by_number[parent])
    return line[::-1]


def schedule(attempts: Sequence[TrialRow], row: TrialRow) -> list[TrialRow]:
    """Return the segments at which the parameters changed on the way to this one, in order.

    These are the first ancestor, and each later segment with other parameters than the one before it, or after a restart.
    """
    line = ancestors(attempts, row)
    pairs = itertools.pairwise(line)
    return [line[0], *(after for before, after in pairs if after.restart or after.params != before.params)]


def join_segments(job: Job, trial_lineages: Sequence[Lineage], reports: Sequence[ReportRow]) -> Sequence[ReportRow]:
    """Return reports with the number of their trial's newest attempt, so that all segments of a trial form one curve.

    If trials are not paused, the reports are unchanged.
    """
    if job.search.ladder is None:
        return reports
    newest = {lineage.row.trial: lineage.row.number for lineage in trial_lineages}
    return [dataclasses.replace(report, number=newest.get(report.trial, report.number)) for report in reports]


def funnel(job: Job, trial_lineages: Sequence[Lineage]) -> list[RungCount]:
    """Return the numbers of trials at each rung, from the lowest, and of complete trials at the end.

    Empty if trials are not paused, and for a population, which drops no trial.
    """
    ladder = job.search.ladder
    if ladder is None or job.search.population is not None:
        return []
    steps_of_rungs = {step for bracket in range(ladder.brackets) for step in ladder.rungs(bracket)}
    counts = []
    for step in sorted(steps_of_rungs):
        reaching = [lineage for lineage in trial_lineages if step in lineage.rungs]
        stop_states = [lineage.row.state for lineage in reaching if lineage.stop_rung == step]
        paused, dropped = stop_states.count(TrialState.PAUSED), stop_states.count(TrialState.PRUNED)
        promoted = len(reaching) - len(stop_states)
        counts.append(RungCount(step, reached=len(reaching), promoted=promoted, paused=paused, dropped=dropped))
    complete = sum(lineage.row.state is TrialState.COMPLETE for lineage in trial_lineages)
    return [*counts, RungCount(ladder.top, reached=complete, promoted=0, paused=0, dropped=0)]


def _copy_steps(attempts: Sequence[TrialRow]) -> dict[int, tuple[int, ...]]:
    """Return the steps at which members of a population took over the state of another one, by trial, in ascending order."""
    donor_by_number = donors(attempts)
    steps: dict[int, set[int]] = collections.defaultdict(set)
    for row in segments(attempts):
        donor = donor_by_number.get(row.number, row.trial)  # the trial itself at a first segment
        if donor != row.trial:
            steps[row.trial].add(row.done)  # the steps that the taken state had been trained
    return {trial: tuple(sorted(trial_steps)) for trial, trial_steps in steps.items()}


def _lineage(job: Job, attempts: Sequence[TrialRow]) -> Lineage:
    """Return the lineage of one trial from its attempts, ordered by number."""
    ladder, newest = job.search.ladder, attempts[-1]
    if ladder is None:  # trials are not paused, so that all earlier attempts were replaced by a retry
        return Lineage(newest)
    promoted = [row for row in attempts[:-1] if row.state is TrialState.PAUSED and not _was_stopped_with_run(row)]
    segment_seconds = [row.seconds for row in (*promoted, newest) if row.seconds is not None]
    rungs = ladder.rungs(ladder.bracket(newest.trial))  # each bracket, a share of the trials, has rungs at other steps
    if newest.state is not TrialState.COMPLETE:  # a complete trial has reached all of them
        is_at_rung = newest.state in (TrialState.PAUSED, TrialState.PRUNED) and newest.failure is None
        ended_at_rung = [*promoted, newest] if is_at_rung else promoted
        last_step = max((row.step or 0 for row in ended_at_rung), default=-1)
        # If a job counts its steps from 0, a trial ends at rung N after it has reported step N - 1.
        rungs = tuple(rung for rung in rungs if rung <= last_step + 1)
    return Lineage(
        row=dataclasses.replace(newest, seconds=sum(segment_seconds) if segment_seconds else None),
        pauses=tuple(row.step or 0 for row in promoted),
        rungs=rungs,
    )


def _was_stopped_with_run(row: TrialRow) -> bool:
    """Return whether an attempt was stopped because its run was. It is PAUSED as at a rung, but has a failure."""
    return row.state is TrialState.PAUSED and row.failure is not None
