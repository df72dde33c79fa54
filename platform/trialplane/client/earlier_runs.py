"""Trials of earlier runs for a new study: its history, and results and checkpoints to reuse.

They are read with the submitting user's rights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from trialplane import errors
from trialplane.client.target import Target
from trialplane.errors import InputError, Issue, LedgerError, RunDamaged, RunNotFound, TargetError
from trialplane.job.kinds import Job, Study
from trialplane.plan import datasets, earlier, pack
from trialplane.plan.earlier import FollowableRun
from trialplane.plan.plan import Plan
from trialplane.wire import earlier as keys
from trialplane.wire import rows, system_metrics
from trialplane.wire.earlier import Beginning, Earlier, EarlierAttempt, EarlierTrial
from trialplane.wire.records import ReportRow, TrialOutcome, TrialRequest

MAX_TRIALS = 20_000  # of the history, which is sent with the code
MAX_REPORTS = 50_000  # of a run whose attempts are sent with the code
MAX_VALUES = 300_000  # in these reports: 3 MiB packed
MAX_RUNS = 100  # newest runs that are searched for results
_MAX_DIFFERENCES = 5  # that a note names
_MAX_DIFFERENCE = 80  # characters of each
_PAGE = 1000  # reports that are read at once


@dataclasses.dataclass(frozen=True)
class GatheredTrials:
    """Trials of earlier runs for a new run.

    Attributes:
        earlier: The trials.
        issues: Issues of the field `history`, which prevent the submission.
        notes: Notes for the user.
    """

    earlier: Earlier
    issues: list[Issue] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def gather(target: Target, plan: Plan) -> GatheredTrials:
    """Return the trials of earlier runs of a target for the run of a plan."""
    job = plan.job
    if not isinstance(job, Study):
        return GatheredTrials(Earlier())
    issues: list[Issue] = []
    notes: list[str] = []
    history: list[EarlierTrial] = []
    for index, run in enumerate(job.history):
        try:
            old_job = target.job(run)
            reason = earlier.refusal(old_job, job)  # why the sampler cannot learn from its trials, or ""
            if reason:
                issues.append(Issue(("history", index), f"{run} {reason}"))
                continue
            mapper = _history_mapper(target, run, old_job, plan, job)
        except (RunNotFound, RunDamaged, LedgerError) as error:
            issues.append(Issue(("history", index), str(error)))
            continue
        history += mapper.trials
        notes += mapper.notes()
    if len(history) > MAX_TRIALS:
        issues.append(Issue(("history",), f"has {len(history):,} trials, and {MAX_TRIALS:,} are the most; name fewer runs"))
    reusable = _reusable(target, plan, job, notes) if job.reuse else Earlier()
    return GatheredTrials(earlier=dataclasses.replace(reusable, history=tuple(history)), issues=issues, notes=notes)


def _history_mapper(target: Target, run: str, old_job: Job, plan: Plan, job: Study) -> earlier.HistoryMapper:
    """Return the mapper of the trials of a run that the job's `history` names to trials of the new run.

    Args:
        target: Target of both runs.
        run: Name of the earlier run.
        old_job: Its job.
        plan: Plan of the new run.
        job: Its job.
    """
    # Trials that were out of memory would be again with the same code, fields and GPUs (`cluster`), whatever the seed.
    has_same_code = target.submission(run).get("identity") == plan.pack.identity
    old_job_with_seed = old_job.model_copy(update={"seed": job.seed})
    has_same_fields = earlier.training_digest(old_job_with_seed) == earlier.training_digest(job)
    trains_alike = has_same_code and has_same_fields and old_job.cluster == job.cluster
    out_of_memory = _trials_out_of_memory(target, run) if job.avoid_oom else ()
    trials = rows.newest_attempts(target.rows(run))
    return earlier.HistoryMapper(run, old_job, new=job, rows=trials, out_of_memory=out_of_memory, trains_alike=trains_alike)


def _trials_out_of_memory(target: Target, run: str) -> set[int]:
    """Return the numbers of the trials of a run that had an attempt out of memory."""
    attempts, _ = target.attempts(run, after=0)
    return {
        attempt.request.trial
        for attempt in attempts
        if attempt.outcome is not None and rows.is_out_of_memory(attempt.outcome)
    }


def _reusable(target: Target, plan: Plan, job: Study, notes: list[str]) -> Earlier:
    """Return what the plan's run takes over from earlier runs instead of training it again, and add to `notes`.

    These are of the newest `MAX_RUNS` runs that have the same code, data, seed and other fields that affect results.
    """
    unreadable = [name for name, digest in plan.data.items() if digest == datasets.UNREADABLE]
    if unreadable:
        notes.append(
            f"reuse: nothing, because the data in {unreadable[0]} cannot be read here to check it for changes, or has too "
            "many files"
        )
        return Earlier()
    search = _ReuseSearch(target, plan, job, notes)
    for run in target.runs()[:MAX_RUNS]:
        if run == plan.run:
            continue
        try:
            search.add(run)
        except (RunNotFound, LedgerError, TargetError):
            continue  # the run was deleted in the meantime, or is damaged, which `platform list` shows
    return search.reusable()


class _ReuseSearch:
    """A search in earlier runs for what a new run takes over instead of training it again.

    Args:
        target: Target of the earlier runs.
        plan: Plan of the new run.
        job: Its job.
        notes: List to which notes for the user are added.
    """

    def __init__(self, target: Target, plan: Plan, job: Study, notes: list[str]) -> None:
        self._target, self._plan, self._job, self._notes = target, plan, job, notes
        self._training_digest = earlier.training_digest(job)
        self._results: list[EarlierTrial] = []
        self._beginnings: list[Beginning] = []
        self._followable_runs: list[FollowableRun] = []  # the newest first

    def add(self, run: str) -> None:
        """Add the results, checkpoints and attempts of an earlier run, if it has the same code and data and trains alike.

        Raises:
            RunNotFound, LedgerError, TargetError: The run cannot be read.
        """
        submission = self._target.submission(run)
        # Compared first, because reading the job takes longer, and most runs differ here.
        if submission.get("identity") != self._plan.pack.identity:
            return
        old_job = self._target.job(run)
        if not isinstance(old_job, Study) or earlier.training_digest(old_job) != self._training_digest:
            return
        if parameter := _parameter_of_changed_data(submission.get("data") or {}, self._plan.data):
            self._notes.append(f"reuse: nothing of {run}, because the data in {parameter} has changed since")
            return
        self._results += earlier.results(run, old_job, rows.newest_attempts(self._target.rows(run)), self._job)
        attempts, is_active = self._target.attempts(run, after=0)
        requests_and_outcomes = [(attempt.request, attempt.outcome) for attempt in attempts]
        followable = earlier.followable_run(run, old_job, requests_and_outcomes, self._job)
        self._followable_runs.append(followable)
        if self._job.population is None:  # members of a population start from checkpoints of each other instead
            self._beginnings += self._new_beginnings(followable, old_job, requests_and_outcomes, is_active)

    def reusable(self) -> Earlier:
        """Return what the new run takes over from the added runs, and add notes for the user."""
        self._notes.append(
            f"reuse: {errors.counted(len(self._results), 'result')} of earlier runs with the same code, data and seed"
        )
        saves_training = self._results or self._beginnings or any(run.answered_count for run in self._followable_runs)
        followed = self._attempts_to_follow() if saves_training else ()
        if not (self._results or self._beginnings or followed):
            note = _difference_note(self._target, self._plan)
            self._notes += [note] if note else []
            return Earlier()
        self._notes += [
            f"reuse: a change of what {name} names ({errors.shortened(text, _MAX_DIFFERENCE)}) is not detected; if it has "
            "changed, submit with `--set reuse=false`"
            for name, text in datasets.uncompared(self._job, self._plan.data, self._plan.pack.files).items()
        ]
        beginnings = self._longest_beginnings()
        if beginnings:
            self._notes.append(
                f"reuse: {errors.counted(len(beginnings), 'checkpoint')} of earlier runs to start trials from"
            )
        self._add_repeated_note(followed)
        return Earlier(history=(), results=tuple(self._results), beginnings=beginnings, followed=followed)

    def _longest_beginnings(self) -> tuple[Beginning, ...]:
        """Return the checkpoint of the most steps for each set of parameters (and seed, with promotion)."""
        longest: dict[tuple[str, int | None], Beginning] = {}
        for beginning in sorted(self._beginnings, key=lambda beginning: beginning.step, reverse=True):
            # With promotion, a trial may have begun in the new run, so it can only continue one with the same seed.
            seed = beginning.seed if self._job.pruner.promotes else None
            longest.setdefault((keys.params_key(beginning.params), seed), beginning)
        return tuple(longest.values())

    def _new_beginnings(
        self,
        followable: FollowableRun,
        old_job: Job,
        attempts: Iterable[tuple[TrialRequest, TrialOutcome | None]],
        is_active: bool,
    ) -> list[Beginning]:
        """Return the checkpoints of an earlier run from which trials of the new run can start, and add notes.

        Args:
            followable: Attempts of the earlier run that the new one may follow.
            old_job: Job of the earlier run.
            attempts: Its attempts.
            is_active: Whether its controller works.
        """
        run, job = followable.run, self._job
        offset = 1 if _counts_from_0(self._target, run) else 0  # then its checkpoint of step 3 is of four steps
        beginnings, lacking_count = earlier.beginnings(run, old_job, attempts, job, offset, followable.answered)
        if lacking_count:
            trials = errors.counted(lacking_count, "unfinished trial")
            self._notes.append(f"reuse: {trials} of {run} cannot be continued, because no checkpoint is left or recorded")
        if not beginnings:
            return []
        if is_active:
            obstacle = "it is active, and its checkpoints may change"
        else:
            obstacle = self._target.checkpoint_obstacle(run, old_job, job)
        if obstacle:
            self._notes.append(f"reuse: no checkpoints of {run}: {obstacle}")
            return []
        return beginnings

    def _add_repeated_note(self, followed: Iterable[EarlierAttempt]) -> None:
        """Add notes that say how many attempts of the earlier run need no training, and how many of these have failed."""
        ended_attempts = [attempt for attempt in followed if attempt.outcome is not None]
        if not ended_attempts:
            return
        attempts, run = errors.counted(len(ended_attempts), "attempt"), ended_attempts[0].run
        self._notes.append(f"reuse: {attempts} of {run} repeated without training, as long as the search decides the same")
        failed_count = sum(attempt.outcome.failure is not None for attempt in ended_attempts if attempt.outcome)
        if failed_count:
            self._notes.append(
                f"reuse: {failed_count} of them failed, and fail again without training; if the cause was not the code, run "
                f"`platform retry {run} --failed` first"
            )

    def _attempts_to_follow(self) -> tuple[EarlierAttempt, ...]:
        """Return the attempts of the earlier run to follow, with their reports; add a note if these are too many.

        The run that saves the most training is followed: the one with the most attempts whose ends can be repeated. One
        whose search makes the same decisions as the new run's goes before all others.
        """
        chosen = max(
            self._followable_runs,
            key=lambda run: (run.decides_alike and run.answered_count > 0, run.answered_count),
            default=None,
        )
        if chosen is None or not chosen.attempts:
            return ()
        try:
            reports = _reports_to_send(self._target, chosen.run)
        except (RunNotFound, LedgerError, TargetError):
            return ()  # the run was deleted in the meantime, or is damaged
        if reports is None:
            limits = f"{MAX_REPORTS:,} reports, or {MAX_VALUES:,} values in them"
            self._notes.append(f"reuse: the decisions of {chosen.run} are not repeated: it has more than {limits}")
            return ()
        return earlier.add_reports(chosen, reports)


def _reports_to_send(target: Target, run: str) -> list[ReportRow] | None:
    """Return the reports of a run, without samples of system metrics; None if they are too many to send.

    Raises:
        RunNotFound, LedgerError, TargetError: The run cannot be read.
    """
    reports: list[ReportRow] = []
    mark, value_count = 0, 0
    while page := target.curves(run, mark, _PAGE):
        mark = page[-1].mark
        new_reports = system_metrics.without_samples(page)
        reports += new_reports
        value_count += sum(len(report.metrics) for report in new_reports)
        if len(reports) > MAX_REPORTS or value_count > MAX_VALUES:
            return None
    return reports


def _difference_note(target: Target, plan: Plan) -> str:
    """Return a note that says in what the plan's run differs from the newest run of the same job; "" without one.

    Differences that do not prevent the reuse of results are left out.
    """
    for run in target.runs()[:MAX_RUNS]:
        try:
            if run == plan.run or target.job(run).name != plan.job.name:
                continue
            lines = target.differences(dataclasses.replace(plan, run=run)) or []
        except (InputError, LedgerError, TargetError):
            continue  # the run was deleted in the meantime, or is damaged
        differences = [errors.shortened(line, _MAX_DIFFERENCE) for line in lines if _affects_results(line)]
        if not differences:
            return ""
        shown = "; ".join(differences[:_MAX_DIFFERENCES])
        more = f"; and {len(differences) - _MAX_DIFFERENCES} more" if len(differences) > _MAX_DIFFERENCES else ""
        return f"reuse: nothing of {run}, which differs (then → now): {shown}{more}"
    return ""


def _affects_results(difference: str) -> bool:
    """Return whether a difference of two runs prevents that one takes results of the other.

    Args:
        difference: Line of `Target.differences`: "code: FILE: …", or a field of the job and its values.
    """
    field = difference.partition(": ")[0]  # of "params.lr: 0.1 → 0.2", or "code"
    if field == "code":
        # The job's file and the modes of files are no part of the code's identity; see `Pack.identity`.
        return not difference.startswith((f"code: {pack.JOB}:", "code: modes"))
    section = field.partition(".")[0]
    is_image = field == "cluster.image"  # the only field of `cluster` that affects results
    return is_image or section == "params" or section not in earlier.IGNORED_FIELDS


def _counts_from_0(target: Target, run: str) -> bool:
    """Return whether the code of a run counts steps from 0: whether one of its first reports is of step 0."""
    mark = 0
    while page := target.curves(run, mark, _PAGE):
        if reports := system_metrics.without_samples(page):
            return any(report.step == 0 for report in reports)
        mark = page[-1].mark
    return False


def _parameter_of_changed_data(old_digests: Mapping[str, str], digests: Mapping[str, str]) -> str:
    """Return the first parameter whose data has another digest than before; "" if there is none."""
    return next((name for name in sorted({*old_digests, *digests}) if old_digests.get(name) != digests.get(name)), "")
