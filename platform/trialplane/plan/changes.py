"""Changes that `resume` allows, and differences between a run and a new submission under its name. Pure.

Also explains why an ended run cannot continue, and what to type to extend it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.errors import Issue, SpecError
from trialplane.job import document, draft, fixed, verdict
from trialplane.job.draft import Draft, Origin
from trialplane.job.kinds import Job
from trialplane.job.kinds.ranked import Ranked
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.plan.plan import Plan
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

# Descriptive fields change nothing in a run.
_IGNORED = ("description",)


def changed(old: Job, changes: Mapping[str, Any], sets: Sequence[str], started: int) -> Job:
    """Return a job with changes of its length, its width and its pods.

    Args:
        old: the run's job.
        changes: dotted field → value, from flags; None for a flag that was not used.
        sets: `field=value` each.
        started: trials that the run has started, the lowest number allowed.

    Raises:
        SpecError: a field that cannot change, or an invalid value; has all issues.
    """
    # A job without a function has the default entrypoint, which its author did not write.
    unused = {"entrypoint"} if isinstance(old, Ranked) and (old.script or old.command) else set()
    edited = Draft(old.model_dump(mode="json", exclude=unused), {})
    requested = {field: (value, "--" + field.rpartition(".")[2].replace("_", "-")) for field, value in changes.items()}
    issues: list[Issue] = []
    for text in sets:
        try:
            field, value, source = document.assignment(text)
        except SpecError as error:
            issues += error.issues
        else:
            requested[field] = (value, source)
    for field, (value, source) in requested.items():
        if value is None and not source.startswith("--set"):
            continue
        changeable = old.changeable
        if field.split(".")[0] not in changeable and field not in changeable:
            message = (
                f"cannot change when a run is resumed; only {', '.join(changeable)} can. "
                f"Submit another {old.title} under another name"
            )
            issues.append(Issue((field,), message, source))
            continue
        edited.set(draft.path(field, fixed.named(edited.data)), value, Origin(source))
    judged = verdict.judge(edited)
    issues += judged.issues
    if judged.job is not None and judged.job.trials != old.trials and judged.job.trials < started:
        flag = f"--{old.count_field.rpartition('.')[2]}"
        issues.append(Issue((old.count_field,), f"{started} have already started; set at least this number", flag))
    if judged.job is not None:
        issues += judged.job.unresumable(old)
    if issues or judged.job is None:
        raise SpecError(issues)
    return judged.job


def unchangeable(old: Job, new: Job) -> list[Issue]:
    """Return an issue for each changed field that cannot change when a run is resumed."""
    fields = [line.partition(": ")[0] for line in changed_fields(old, new)]
    allowed = ", ".join(old.changeable)
    message = f"cannot change when a run is resumed; only {allowed} can. Submit another {old.title} under another name"
    names = fixed.named(new.model_dump(mode="json"))
    return [
        Issue(draft.path(field, names), message)
        for field in fields
        if not any(field == name or field.startswith(f"{name}.") for name in old.changeable)
    ] + list(new.unresumable(old))


def when(old: Job, new: Job) -> dict[str, list[str]]:
    """Return the changed fields of a run's job by what they need: for people, in this order."""
    groups: dict[str, list[str]] = {"while it runs": [], "when it is resumed": [], "in a new run": []}
    refused = {".".join(map(str, issue.place)) for issue in unchangeable(old, new)}
    for line in changed_fields(old, new):
        field = line.partition(": ")[0]
        if field == old.width_field:
            groups["while it runs"].append(line)
        elif any(field == name or field.startswith(f"{name}.") or name.startswith(f"{field}.") for name in refused):
            groups["in a new run"].append(line)
        else:
            groups["when it is resumed"].append(line)
    return groups


def differences(job: Job, facts: Mapping[str, Any], code: Mapping[str, bytes], plan: Plan) -> list[str]:
    """Return the differences between a new submission and the run of the same name: fields of the job and files.

    Args:
        job: the run's job.
        facts: of the run's submission.
        code: files of the run's code, by path.
        plan: the new submission.
    """
    lines = changed_fields(job, plan.job)
    if planning.sources(facts) != (plan.sources or plan.pack.sha256):
        file_lines = planning.code_difference(code, contents(plan.pack.data))
        lines += [f"code: {line}" for line in file_lines] or ["code: modes of files changed"]
    return lines


def contents(packed: bytes) -> dict[str, bytes]:
    """Return the files in packed code, by path."""
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        root = Path(scratch) / "code"
        packing.unpack(packed, root)
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def refusal(run: str, lines: Sequence[str]) -> str:
    """Return the error message for a submission under the name of another run."""
    shown = "\n".join(f"  {line}" for line in lines)
    return (
        f"the run {run} exists with another spec (existing → new):\n{shown}\n"
        f"`platform resume {run}` continues it unchanged, {other_name(run)}"
    )


def other_name(run: str) -> str:
    """Return the last part of `refusal`: how to submit under another name."""
    return f"or give this one another name with --name; see it with `platform status {run}`"


def nothing_to_do(status: RunStatus, old: Job, job: Job, where: str = "") -> str:
    """Return why a resumed run would end at once, and what to type; "" if it would continue.

    Args:
        status: status of the run, with exact counts.
        old: its job.
        job: its job with the requested changes.
        where: flags for a submission to the same target: " --local".
    """
    if old.count_field not in old.changeable and status.ended_trials >= job.trials and not status.failed:
        return _done(status, job, where)  # a training: no change can extend it
    resume = f"`platform resume {status.run}"
    counts = f"{status.ended_trials} of {errors.counted(job.trials, job.noun)}"
    used = _used_up(status, job)
    if used is not None and status.state in (RunState.SUCCEEDED, RunState.FAILED):
        return (
            f"the run {status.run} has {status.state.lower()}: budget.time ({used:g} s) is used up, after "
            f"{counts}. {resume} --set budget.time={2 * used:g}` raises the limit of its total time, and "
            "`--set budget.time=null` removes it"
        )
    if status.state is not RunState.SUCCEEDED:
        return ""
    message_start = f"the {job.title} {status.run} has succeeded"
    if _is_reached(status, job):
        return (
            f"{message_start}: it reached budget.target ({job.budget.target:g}) after {counts}; "
            f"{resume} --set budget.target=null` continues without a target, or set a better one"
        )
    if job != old:
        return ""
    if status.ended_trials >= job.trials:
        return _done(status, job, where)
    if job.budget.steps is not None:
        return (
            f"{message_start}: budget.steps ({job.budget.steps}) is used up, after {counts}. "
            f"{resume} --set budget.steps={2 * job.budget.steps}` raises the limit of all steps"
        )
    return (
        f"{message_start}: all points of the space were tried, in {counts}. To search a larger space, submit another study. "
        f"{resume} --trials N` searches for more points anyway"
    )


def _done(status: RunStatus, job: Job, where: str) -> str:
    return f"the {job.title} {status.run} has succeeded, and nothing is left to do; {job.further(status.run, where)}"


def _is_reached(status: RunStatus, job: Job) -> bool:
    if job.budget.target is None or status.best is None or not status.best.values:
        return False
    value = status.best.values[0]
    return value >= job.budget.target if job.objectives[0].direction == "maximize" else value <= job.budget.target


def _used_up(status: RunStatus, job: Job) -> float | None:
    """Return the time budget in seconds if it was used up before all trials ended."""
    limit = job.budget.time
    return limit if limit is not None and status.worked > limit and status.ended_trials < job.trials else None


def changed_fields(old: Job, new: Job) -> list[str]:
    """Return a line for each field that differs: `trials: 24 → 800`."""
    before, after = _flat(old), _flat(new)
    return [
        f"{field}: {_show(before, field)} → {_show(after, field)}"
        for field in dict.fromkeys([*before, *after])
        if field not in before or field not in after or not _equal(before[field], after[field])
    ]


def _flat(job: Job) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                # A job file has options beside the name of a sampler or pruner.
                walk(item, path if path in (("sampler",), ("pruner",)) and key == "options" else (*path, key))
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                walk(item, (*path, str(index)))
        elif not (isinstance(value, dict) and path):
            flat[".".join(path)] = value

    walk(job.model_dump(mode="json", exclude=set(_IGNORED)), ())
    return flat


def _equal(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal. 1 equals 1.0, but not true."""
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)


def _show(fields: dict[str, Any], field: str) -> str:
    return json.dumps(fields[field], ensure_ascii=False) if field in fields else "(not set)"
