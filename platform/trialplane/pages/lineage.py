"""The lineage of trials that are paused and continue: their segments as one trial, the rungs they reached, and ancestors."""

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
        pauses: Steps at which the trial was paused and from which it was promoted, in ascending order; in a population,
            those at which it took over the state of another trial.
        rungs: Rungs that the trial has reached, in ascending order; empty without promotion.
    """

    row: TrialRow
    pauses: tuple[int, ...] = ()
    rungs: tuple[int, ...] = ()

    @property
    def stop_rung(self) -> int:
        """The rung at which the trial is paused or was dropped; 0 if it was promoted from each rung that it reached."""
        is_stopped = self.row.state in (TrialState.PAUSED, TrialState.PRUNED)
        return self.rungs[-1] if is_stopped and self.rungs else 0


@dataclasses.dataclass(frozen=True)
class RungCount:
    """The number of trials that have reached a rung, and of those promoted from it, paused at it and dropped at it."""

    step: int
    reached: int
    promoted: int
    paused: int
    dropped: int


def lineages(job: Job, attempts: Sequence[TrialRow]) -> list[Lineage]:
    """Return the lineage of each trial, ordered by trial."""
    by_trial: dict[int, list[TrialRow]] = collections.defaultdict(list)
    for attempt in sorted(attempts, key=lambda attempt: attempt.number):
        by_trial[attempt.trial].append(attempt)
    trial_lineages = [_lineage(job, by_trial[trial]) for trial in sorted(by_trial)]
    if job.search.population is None:
        return trial_lineages
    copies = {trial: tuple(sorted({row.done for row in copied})) for trial, copied in _copies(attempts).items()}
    return [dataclasses.replace(lineage, pauses=copies.get(lineage.row.trial, ())) for lineage in trial_lineages]


def segments(attempts: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the attempts that no retry has replaced, in the order they started: one for each segment."""
    return [
        row
        for row in sorted(attempts, key=lambda attempt: attempt.number)
        if row.state is not TrialState.LOST and not (row.state is TrialState.PAUSED and row.failure)
    ]


def donors(attempts: Sequence[TrialRow]) -> dict[int, int]:
    """Return the trial whose checkpoint a segment continues, by number of the attempt; a first segment has none."""
    trials = {attempt.number: attempt.trial for attempt in attempts}
    return {row.number: trials[row.parent] for row in attempts if row.parent is not None and row.parent in trials}


def ancestors(attempts: Sequence[TrialRow], row: TrialRow) -> list[TrialRow]:
    """Return the segments whose checkpoints a segment continues, from the first to itself; of other trials too."""
    by_number = {attempt.number: attempt for attempt in attempts}
    line = [row]
    while (parent := line[-1].parent) is not None and parent in by_number:
        line.append(by_number[parent])
    return line[::-1]


def schedule(attempts: Sequence[TrialRow], row: TrialRow) -> list[TrialRow]:
    """Return those of a segment's ancestors, and itself, with other parameters than the segment before."""
    line = ancestors(attempts, row)
    return [line[0], *(after for before, after in itertools.pairwise(line) if after.params != before.params)]


def join_segments(job: Job, trial_lineages: Sequence[Lineage], reports: Sequence[ReportRow]) -> Sequence[ReportRow]:
    """Return reports that all have the number of their trial's newest attempt, so that its segments form one curve."""
    if job.search.ladder is None:
        return reports
    newest = {lineage.row.trial: lineage.row.number for lineage in trial_lineages}
    return [dataclasses.replace(report, number=newest.get(report.trial, report.number)) for report in reports]


def funnel(job: Job, trial_lineages: Sequence[Lineage]) -> list[RungCount]:
    """Return a count for each rung, from the lowest, and one for complete trials; empty without promotion."""
    ladder = job.search.ladder
    if ladder is None or job.search.population is not None:
        return []
    counts = []
    for step in sorted({rung for bracket in range(ladder.brackets) for rung in ladder.rungs(bracket)}):
        reaching = [lineage for lineage in trial_lineages if step in lineage.rungs]
        stop_states = [lineage.row.state for lineage in reaching if lineage.stop_rung == step]
        paused, dropped = stop_states.count(TrialState.PAUSED), stop_states.count(TrialState.PRUNED)
        promoted = len(reaching) - len(stop_states)
        counts.append(RungCount(step, reached=len(reaching), promoted=promoted, paused=paused, dropped=dropped))
    complete = sum(lineage.row.state is TrialState.COMPLETE for lineage in trial_lineages)
    return [*counts, RungCount(ladder.top, reached=complete, promoted=0, paused=0, dropped=0)]


def _copies(attempts: Sequence[TrialRow]) -> dict[int, list[TrialRow]]:
    """Return the segments that continue the checkpoint of another trial, by their own trial."""
    of_trial, copies = donors(attempts), collections.defaultdict(list)
    for row in segments(attempts):
        if of_trial.get(row.number, row.trial) != row.trial:
            copies[row.trial].append(row)
    return copies


def _lineage(job: Job, attempts: Sequence[TrialRow]) -> Lineage:
    """Return the lineage of the attempts of one trial, ordered by number."""
    ladder, newest = job.search.ladder, attempts[-1]
    if ladder is None:
        return Lineage(newest)
    earlier = [attempt for attempt in attempts[:-1] if attempt.state is TrialState.PAUSED and attempt.failure is None]
    segments = [attempt.seconds for attempt in (*earlier, newest) if attempt.seconds is not None]
    rungs = ladder.rungs(ladder.bracket(newest.trial))
    if newest.state is not TrialState.COMPLETE:
        is_at_rung = newest.state in (TrialState.PAUSED, TrialState.PRUNED) and newest.failure is None
        at_rungs = [*earlier, newest] if is_at_rung else earlier
        last_step = max((attempt.step or 0 for attempt in at_rungs), default=-1)
        rungs = tuple(rung for rung in rungs if rung <= last_step + 1)  # a job that counts from 0 ends rung N at step N-1
    return Lineage(
        dataclasses.replace(newest, seconds=sum(segments) if segments else None),
        tuple(attempt.step or 0 for attempt in earlier),
        rungs,
    )
