"""Compares a run with a changed job: changes for a resume, and differences to a new submission under the same name. Pure.

Also explains why an ended run cannot continue, and what to type to extend it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.errors import Issue, SpecError
from trialplane.job import document, draft, fixed_params, space, verdict
from trialplane.job.draft import Draft, Origin
from trialplane.job.kinds import Job
from trialplane.job.kinds.ranked import Ranked
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.plan.plan import Plan
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

# Fields that no author of a job compares: one has no effect on a run, and the other is set by `platform retry`.
_IGNORED: dict[str, Any] = {"description": True, "retries": {"failed_before": True}}


def apply_changes(old: Job, changes: Mapping[str, Any], sets: Sequence[str], started: int) -> Job:
    """Return the job of a run with the changes for a resume.

    Args:
        old: Job of the run.
        changes: Dotted field → value, from flags. None for a flag that was not used.
        sets: Assignments `field=value`, from `--set`.
        started: Number of trials that the run has started. A new number of trials must not be lower.

    Raises:
        SpecError: A field cannot change, or a value is invalid. The error contains all issues.
    """
    # A job with a script has the default entrypoint too. The validation would take it for one that the author has written.
    unused = {"entrypoint"} if isinstance(old, Ranked) and (old.script or old.command) else set()
    edited = Draft(old.model_dump(mode="json", exclude=unused), origins={})
    # Field, value, and for messages the flag or assignment. The flag of `budget.gpu_hours` is `--gpu-hours`.
    requested = [
        (field, value, "--" + field.rpartition(".")[2].replace("_", "-"))
        for field, value in changes.items()
        if value is not None
    ]
    issues: list[Issue] = []
    for assignment in sets:
        try:
            requested.append(document.assignment(assignment))
        except SpecError as error:
            issues += error.issues
    for field, value, source in requested:
        if not _can_change(field, old):
            issues.append(Issue((field,), _unchangeable_message(old), source=source))
            continue
        edited.set(draft.path(field, fixed_params.parameter_names(edited.data)), value, Origin(source))
    judgment = verdict.judge(edited)
    issues += judgment.issues
    if judgment.job is not None:
        issues += [*_count_issues(old, judgment.job, started), *judgment.job.resume_issues(old)]
    if issues or judgment.job is None:
        raise SpecError(issues)
    return judgment.job


def _count_issues(old: Job, new: Job, started: int) -> Iterator[Issue]:
    """Yield the issue of a changed number of trials that is lower than the number of those that have already started."""
    if new.trials != old.trials and new.trials < started:
        flag = f"--{old.count_field.rpartition('.')[2]}"
        yield Issue((old.count_field,), f"{started} have already started; set at least this number", source=flag)


def _unchangeable_message(old: Job) -> str:
    """Return the message for a changed field that cannot change when a run with the job `old` is resumed."""
    allowed = ", ".join(old.changeable)
    return f"cannot change when a run is resumed; only {allowed} can. Submit another {old.title} under another name"


def resume_issues(old: Job, new: Job) -> list[Issue]:
    """Return an issue for each changed field that cannot change when a run is resumed.

    Args:
        old: Job of the run.
        new: Job with the changes.
    """
    fields = [line.partition(": ")[0] for line in changed_fields(old, new)]
    names = fixed_params.parameter_names(new.model_dump(mode="json"))
    issues = [Issue(draft.path(field, names), _unchangeable_message(old)) for field in fields if not _can_change(field, old)]
    # Each kind of job has further rules, for two jobs of this kind.
    return [*issues, *new.resume_issues(old)] if new.kind == old.kind else issues


def changes_by_time(old: Job, new: Job, started: int) -> dict[str, list[str]]:
    """Return a line for each changed field, grouped by the time at which it can change.

    Args:
        old: Job of the run.
        new: Job with the changes.
        started: Number of trials that the run has started.

    Returns:
        Lines as of `changed_fields`, by the time in words: "while it runs", "when it is resumed", "in a new run".
    """
    groups: dict[str, list[str]] = {"while it runs": [], "when it is resumed": [], "in a new run": []}
    refused = {issue.field for issue in (*resume_issues(old, new), *_count_issues(old, new, started))}
    for line in changed_fields(old, new):
        field = line.partition(": ")[0]
        if field == old.width_field:
            groups["while it runs"].append(line)
        # An issue may be about a part of the field, or about the section that contains it.
        elif any(_is_at_or_below(field, name) or _is_at_or_below(name, field) for name in refused):
            groups["in a new run"].append(line)
        else:
            groups["when it is resumed"].append(line)
    return groups


def _can_change(field: str, job: Job) -> bool:
    """Whether a dotted field of a job can change when its run is resumed."""
    return any(_is_at_or_below(field, name) for name in job.changeable)


def _is_at_or_below(field: str, section: str) -> bool:
    """Whether a dotted field is a section or a field in it."""
    return field == section or field.startswith(f"{section}.")


def differences(job: Job, facts: Mapping[str, Any], code: Mapping[str, bytes], plan: Plan) -> list[str]:
    """Return a line for each field and each file in which a new submission differs from a run. Empty if it is the same.

    Args:
        job: Job of the run.
        facts: Facts about the run's submission; see `Plan.submission`.
        code: Contents of the files of the run's code, by path.
        plan: Plan of the new submission.
    """
    lines = changed_fields(job, plan.job)
    if planning.sources_hash(facts) != (plan.sources or plan.pack.sha256):
        file_lines = planning.code_difference(code, contents(plan.pack.data))
        lines += [f"code: {line}" for line in file_lines] or ["code: modes of files changed"]  # the hash includes the modes
    return lines


def contents(packed: bytes) -> dict[str, bytes]:
    """Return the contents of the files in packed code, by path.

    Raises:
        InputError: The packed code is damaged.
    """
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        root = Path(scratch) / "code"
        packing.unpack(packed, root)
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def refusal(run: str, lines: Sequence[str]) -> str:
    """Return the error message for a submission under the name of a run that differs.

    Args:
        run: Name of the run.
        lines: Differences: see `differences`.
    """
    indented = "\n".join(f"  {line}" for line in lines)
    return (
        f"the run {run} exists with another spec (existing → new):\n{indented}\n"
        f"`platform resume {run}` continues it unchanged, {other_name_advice(run)}"
    )


def other_name_advice(run: str) -> str:
    """Return advice to submit under another name, as the end of a sentence."""
    return f"or give this one another name with --name; see it with `platform status {run}`"


def completed_message(status: RunStatus, old: Job, job: Job, target_flags: str = "") -> str:
    """Return the message for an ended run that would end again at once if it was resumed, with the command that extends it.

    Budgets and the target are checked first, because they have their own commands, and end a run even if trials are left.

    Args:
        status: Status of the run, with exact counts.
        old: Job of the run.
        job: Job with the requested changes.
        target_flags: Flags for a submission to the same target: " --local".

    Returns:
        The message. "" if the run would continue.
    """
    can_extend = old.count_field in old.changeable  # no change can extend a training
    if not can_extend and status.ended_trials >= job.trials and not status.failed:
        return _finished_message(status, job, target_flags)
    resume = f"`platform resume {status.run}"
    counts = f"{status.ended_trials} of {errors.counted(job.trials, job.noun)}"
    exhausted = _exhausted_budget(status, job)
    if exhausted is not None and status.state in (RunState.SUCCEEDED, RunState.FAILED):
        field, limit = exhausted
        return (
            f"the run {status.run} has {status.state.lower()}: {field} ({limit:g}) is used up, after "
            f"{counts}. {resume} --set {field}={2 * limit:.15g}` raises the limit, and `--set {field}=null` removes it"
        )
    if status.state is not RunState.SUCCEEDED:  # a run that has failed or was stopped continues
        return ""
    message_start = f"the {job.title} {status.run} has succeeded"
    if _is_target_reached(status, job):
        return (
            f"{message_start}: it reached budget.target ({job.budget.target:g}) after {counts}; "
            f"{resume} --set budget.target=null` continues without a target, or set a better one"
        )
    if job != old:  # the changes let the run continue
        return ""
    if status.ended_trials >= job.trials:
        return _finished_message(status, job, target_flags)
    if job.budget.steps is not None:
        return (
            f"{message_start}: budget.steps ({job.budget.steps}) is used up, after {counts}. "
            f"{resume} --set budget.steps={2 * job.budget.steps}` raises the limit of all steps"
        )
    return (
        f"{message_start}: all points of the space were tried, in {counts}. To search a larger space, submit another study. "
        f"{resume} --trials N` searches for more points anyway"
    )


def extension(status: RunStatus, job: Job) -> dict[str, Any] | None:
    """Return the changes with which `platform resume` continues a study that is not active. None if nothing can extend it.

    Args:
        status: Status of the run, with exact counts.
        job: Job of the run.

    Returns:
        Dotted field → value; empty if trials are left.
    """
    if not completed_message(status, job, job):
        return {}
    exhausted = _exhausted_budget(status, job)
    if exhausted is not None:
        field, limit = exhausted
        return {field: 2 * limit}
    if _is_target_reached(status, job):
        return {"budget.target": None}
    if status.ended_trials >= job.trials:
        if job.search.population is not None:
            return None
        is_enumerated = job.search.sampler.name in ("grid", "bruteforce") and not job.search.is_code
        points = space.count_points(job.search.parameters) if is_enumerated else None  # None if there is no limit
        trials = 2 * job.trials if points is None else min(2 * job.trials, points)
        return {"trials": trials} if trials > job.trials else None
    # Otherwise the steps of all trials are used up, or all points of the space were tried.
    return {"budget.steps": 2 * job.budget.steps} if job.budget.steps is not None else None


def can_retry(status: RunStatus, job: Job) -> bool:
    """Return whether `platform retry --failed` could continue a study that is not active and has failed trials."""
    is_stopped = status.state is RunState.SUCCEEDED and _is_target_reached(status, job)
    return job.search.population is None and _exhausted_budget(status, job) is None and not is_stopped


def _finished_message(status: RunStatus, job: Job, target_flags: str) -> str:
    """Return the message for a run whose trials have all ended; see `completed_message`."""
    advice = job.continuation_advice(status.run, target_flags)
    return f"the {job.title} {status.run} has succeeded, and nothing is left to do; {advice}"


def _is_target_reached(status: RunStatus, job: Job) -> bool:
    """Whether the best trial of a run has reached the target of its budget."""
    if job.budget.target is None or status.best is None or not status.best.values:
        return False
    value = status.best.values[0]
    return value >= job.budget.target if job.objectives[0].direction == "maximize" else value <= job.budget.target


def _exhausted_budget(status: RunStatus, job: Job) -> tuple[str, float] | None:
    """Return the field and the limit of the first budget of time, GPU hours or cost that a run has used up.

    None if there is none, or if all of its trials have ended.
    """
    budget, usage = job.budget, status.usage
    if status.ended_trials >= job.trials:
        return None
    if budget.time is not None and status.worked > budget.time:
        return "budget.time", budget.time
    if budget.gpu_hours is not None and usage.gpu_hours >= budget.gpu_hours:
        return "budget.gpu_hours", budget.gpu_hours
    if budget.cost is not None and usage.cost is not None and usage.cost >= budget.cost:
        return "budget.cost", budget.cost
    return None


def changed_fields(old: Job, new: Job) -> list[str]:
    """Return a line for each field that differs: "trials: 24 → 800". The part before the first ": " is the dotted field."""
    old_fields, new_fields = _flatten(old), _flatten(new)
    return [
        f"{field}: {_value_text(old_fields, field)} → {_value_text(new_fields, field)}"
        for field in dict.fromkeys([*old_fields, *new_fields])
        if not _is_same(field, old_fields, new_fields)
    ]


def _is_same(field: str, old_fields: Mapping[str, Any], new_fields: Mapping[str, Any]) -> bool:
    """Return whether no line is needed for a field: it has the same value, or the lines of the fields in it say all."""
    if field in old_fields and field in new_fields:
        return space.is_same(old_fields[field], new_fields[field])
    # One job has only the field, such as `keep: null`, and the other only fields in it, such as `keep.best: 2`.
    value, other_fields = (old_fields[field], new_fields) if field in old_fields else (new_fields[field], old_fields)
    return not value and any(_is_at_or_below(other, field) for other in other_fields)


def _flatten(job: Job) -> dict[str, Any]:
    """Return the fields of a job by their dotted paths: `{"budget.time": 60.0, "enqueue.0.lr": 0.1}`."""
    fields: dict[str, Any] = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        """Add a value, or if it is a mapping or a list of mappings, the fields in it."""
        if isinstance(value, dict) and value:
            for key, item in value.items():
                # As in a job file, the options of a sampler or pruner are beside its name.
                is_options = path in (("sampler",), ("pruner",)) and key == "options"
                walk(item, path if is_options else (*path, key))
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                walk(item, (*path, str(index)))
        elif not (isinstance(value, dict) and path):  # an empty mapping has no fields
            fields[".".join(path)] = value

    walk(job.model_dump(mode="json", exclude=_IGNORED), ())
    return fields


def _value_text(fields: dict[str, Any], field: str) -> str:
    """Return the value of a field as JSON, for a message. A missing field is "(not set)"."""
    return json.dumps(fields[field], ensure_ascii=False) if field in fields else "(not set)"
