"""Trials of earlier runs for a new study: its history, and results and checkpoints to reuse.

They are read with the submitting user's rights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from trialplane import errors
from trialplane.client.target import Target
from trialplane.errors import InputError, Issue, LedgerError, RunDamaged, RunNotFound, TargetError
from trialplane.job.kinds import Job, Study
from trialplane.plan import datasets, earlier, pack
from trialplane.plan.plan import Plan
from trialplane.wire import earlier as keys
from trialplane.wire import rows, system_metrics
from trialplane.wire.earlier import Beginning, Earlier, EarlierAttempt, EarlierTrial
from trialplane.wire.records import ReportRow, TrialOutcome, TrialRequest

MAX_TRIALS = 20_000  # of the history, which is sent with the code
MAX_REPORTS = 50_000  # of a run whose attempts are sent with the code
MAX_VALUES = 300_000  # in these reports: 3 MiB packed
# Fields by which a study decides. An earlier run that has the same ones is followed rather than another.
_DECIDING_FIELDS = ("sampler", "space", "enqueue", "history", "duplicates", "constraints", "objectives")
MAX_RUNS = 100  # newest runs that are searched for results
_MAX_DIFFERENCES = 5  # that a note names
_MAX_DIFFERENCE = 80  # characters of each
_PAGE = 1000  # reports that are read at once


def gather(target: Target, plan: Plan) -> tuple[Earlier, list[Issue], list[str]]:
    """Return the trials of earlier runs for a plan's run, issues of the field `history`, and notes for the user.

    Args:
        target: Target of the earlier runs and of the new one.
        plan: Plan of the new run.
    """
    job = plan.job
    if not isinstance(job, Study):
        return Earlier(), [], []
    issues: list[Issue] = []
    notes: list[str] = []
    history: list[EarlierTrial] = []
    training_digest = earlier.training_digest(job)
    for index, run in enumerate(job.history):
        try:
            old_job = target.job(run)
            if reason := earlier.refusal(old_job, job):
                issues.append(Issue(("history", index), f"{run} {reason}"))
                continue
            trains_alike = (  # on the same GPUs too, as `avoid_oom` needs it
                target.submission(run).get("identity") == plan.pack.identity
                and (old_job.cluster, old_job.requirements) == (job.cluster, job.requirements)
                and earlier.training_digest(old_job.model_copy(update={"seed": job.seed})) == training_digest
            )
            mapper = earlier.HistoryMapper(
                run,
                old_job,
                job,
                rows.newest_attempts(target.rows(run)),
                _out_of_memory(target, run) if job.avoid_oom else (),
                trains_alike,
            )
        except (RunNotFound, RunDamaged, LedgerError) as error:
            issues.append(Issue(("history", index), str(error)))
            continue
        history += mapper.trials
        notes += mapper.notes()
    if len(history) > MAX_TRIALS:
        issues.append(Issue(("history",), f"has {len(history):,} trials, and {MAX_TRIALS:,} are the most; name fewer runs"))
    reusable = _reusable(target, plan, job, notes) if job.reuse else Earlier()
    return dataclasses.replace(reusable, history=tuple(history)), issues, notes


def _out_of_memory(target: Target, run: str) -> set[int]:
    """Return the trials of a run that had an attempt out of memory."""
    attempts, _ = target.attempts(run, 0)
    ends = ((attempt.request.trial, attempt.outcome) for attempt in attempts)
    return {trial for trial, outcome in ends if outcome is not None and rows.is_out_of_memory(outcome)}


def _reusable(target: Target, plan: Plan, job: Study, notes: list[str]) -> Earlier:
    """Return what the plan's run takes over from earlier runs, newest run first, instead of training it again.

    These are of the newest `MAX_RUNS` runs that have the same code, data, seed and other fields that affect results.

    Args:
        target: Target of the earlier runs.
        plan: Plan of the new run.
        job: Its job.
        notes: List to which this adds notes for the user.

    Returns:
        The complete trials, whose results are reused; the checkpoints from which trials start, one for the same parameters:
        that of the most steps; and the attempts to follow, which are those of one run.
    """
    unreadable = [name for name, digest in plan.data.items() if digest == datasets.UNREADABLE]
    if unreadable:
        notes.append(
            f"reuse: nothing, because the data in {unreadable[0]} cannot be read here to check it for changes, or has too "
            "many files"
        )
        return Earlier()
    training_digest, code_digest = earlier.training_digest(job), plan.pack.identity
    results: list[EarlierTrial] = []
    beginnings: list[Beginning] = []
    followable: list[tuple[bool, str, list[EarlierAttempt], dict[int, int]]] = []  # see `_followed`
    for run in target.runs()[:MAX_RUNS]:
        if run == plan.run:
            continue
        try:
            submission = target.submission(run)
            # Compared first, because reading the job takes longer, and most runs differ here.
            if submission.get("identity") != code_digest:
                continue
            old_job = target.job(run)
            if not _trains_alike(old_job, training_digest):
                continue
            if parameter := _changed_data(submission.get("data") or {}, plan.data):
                notes.append(f"reuse: nothing of {run}, because the data in {parameter} has changed since")
                continue
            results += earlier.results(run, old_job, rows.newest_attempts(target.rows(run)), job)
            attempts, is_active = target.attempts(run, 0)
            pairs = [(attempt.request, attempt.outcome) for attempt in attempts]
            if not job.pruner.promotes:  # rungs count from step 0
                beginnings += _beginnings(target, run, old_job, pairs, is_active, job, notes)
            decides_alike = all(getattr(old_job, field) == getattr(job, field) for field in _DECIDING_FIELDS)
            followable.append((decides_alike, run, *earlier.attempts_to_follow(run, old_job, pairs, job)))
        except (RunNotFound, LedgerError, TargetError):
            continue  # the run was deleted in the meantime, or is damaged, which `platform list` shows
    notes.append(f"reuse: {errors.counted(len(results), 'result')} of earlier runs with the same code, data and seed")
    followed = _followed(target, followable, notes)
    if not results and not beginnings and not followed:
        notes += _reasons(target, plan)
        return Earlier()
    notes += [
        f"reuse: a change of what {name} names ({errors.shortened(text, _MAX_DIFFERENCE)}) is not detected; if it has "
        "changed, submit with `--set reuse=false`"
        for name, text in datasets.uncompared(job, plan.data, plan.pack.files).items()
    ]
    longest: dict[str, Beginning] = {}
    for beginning in sorted(beginnings, key=lambda beginning: beginning.step, reverse=True):
        longest.setdefault(keys.key(beginning.params), beginning)
    if longest:
        notes.append(f"reuse: {errors.counted(len(longest), 'checkpoint')} of earlier runs to start trials from")
    if followed:
        ends = errors.counted(sum(attempt.outcome is not None for attempt in followed), "attempt")
        notes.append(f"reuse: {ends} of {followed[0].run} repeated without training, as long as the search decides the same")
    return Earlier((), tuple(results), tuple(longest.values()), followed)


def _followed(
    target: Target, followable: list[tuple[bool, str, list[EarlierAttempt], dict[int, int]]], notes: list[str]
) -> tuple[EarlierAttempt, ...]:
    """Return the attempts of one earlier run, with their reports, and add notes for the user.

    It is one whose search decides alike, if there is one, and of several the one with the most results.

    Args:
        target: Target of the earlier runs.
        followable: Earlier runs, the newest first: whether their search decides alike, their names, their attempts, and the
            positions of these.
        notes: List to which this adds notes for the user.
    """
    _, run, attempts, positions = max(
        followable,
        key=lambda entry: (entry[0], sum(attempt.outcome is not None for attempt in entry[2])),
        default=(False, "", [], {}),
    )
    if not any(attempt.outcome is not None for attempt in attempts):
        return ()
    reports: list[ReportRow] = []
    mark, values = 0, 0
    try:
        while page := target.curves(run, mark, _PAGE):
            mark = page[-1].mark
            new_reports = list(system_metrics.without_samples(page))
            reports += new_reports
            values += sum(len(report.metrics) for report in new_reports)
            if len(reports) > MAX_REPORTS or values > MAX_VALUES:
                limits = f"{MAX_REPORTS:,} reports, or {MAX_VALUES:,} values in them"
                notes.append(f"reuse: the decisions of {run} are not repeated: it has more than {limits}")
                return ()
    except (RunNotFound, LedgerError, TargetError):
        return ()  # as in `_reusable`
    return earlier.add_reports(attempts, positions, (report for report in reports if report.number in positions))


def _reasons(target: Target, plan: Plan) -> Iterator[str]:
    """Yield a note that says in what the plan's run differs from the newest run of the same job, if that prevents reuse.

    Args:
        target: Target of the earlier runs.
        plan: Plan of the new run.
    """
    for run in target.runs()[:MAX_RUNS]:
        try:
            if run == plan.run or target.job(run).name != plan.job.name:
                continue
            lines = target.differences(dataclasses.replace(plan, run=run)) or []
        except (InputError, LedgerError, TargetError):
            continue  # see `_reusable`
        if reasons := [errors.shortened(line, _MAX_DIFFERENCE) for line in lines if _affects_results(line)]:
            more = f"; and {len(reasons) - _MAX_DIFFERENCES} more" if len(reasons) > _MAX_DIFFERENCES else ""
            yield f"reuse: nothing of {run}, which differs (then → now): {'; '.join(reasons[:_MAX_DIFFERENCES])}{more}"
        return


def _affects_results(difference: str) -> bool:
    """Return whether a difference of two runs, see `Target.differences`, prevents that one takes results of the other."""
    section = difference.partition(": ")[0].partition(".")[0]
    if section == "code":
        return not difference.startswith((f"code: {pack.JOB}:", "code: modes"))  # as in `Pack.identity`
    return section == "params" or section not in earlier.IGNORED_FIELDS


def _beginnings(
    target: Target,
    run: str,
    old_job: Job,
    attempts: Iterable[tuple[TrialRequest, TrialOutcome | None]],
    is_active: bool,
    job: Study,
    notes: list[str],
) -> list[Beginning]:
    """Return the checkpoints of an earlier run from which trials of a new one can start, and add notes for the user.

    Args:
        target: Target of both runs.
        run: Name of the earlier run.
        old_job: Its job.
        attempts: Its attempts.
        is_active: Whether its controller works.
        job: Job of the new run.
        notes: List to which this adds notes for the user.
    """
    beginnings, lacking_count = earlier.beginnings(run, old_job, attempts, job, int(_counts_from_0(target, run)))
    if lacking_count:
        trials = errors.counted(lacking_count, "unfinished trial")
        notes.append(f"reuse: {trials} of {run} cannot be continued, because no checkpoint is left or recorded")
    obstacle = "it is active, and its checkpoints may change" if is_active else target.checkpoint_obstacle(run, old_job, job)
    if beginnings and obstacle:
        notes.append(f"reuse: no checkpoints of {run}: {obstacle}")
        return []
    return beginnings


def _counts_from_0(target: Target, run: str) -> bool:
    """Whether the code of an earlier run counts steps from 0, by its first reports."""
    mark = 0
    while page := target.curves(run, mark, _PAGE):
        if reports := system_metrics.without_samples(page):
            return any(report.step == 0 for report in reports)
        mark = page[-1].mark
    return False


def _trains_alike(job: Job, digest: str) -> bool:
    """Whether a job trains like the one with this digest: the same parameters give the same results."""
    return isinstance(job, Study) and earlier.training_digest(job) == digest


def _changed_data(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return the first parameter whose data has another digest; "" if there is none."""
    return next((name for name in sorted({*old, *new}) if old.get(name) != new.get(name)), "")
