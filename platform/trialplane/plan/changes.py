"""Changes that `resume` allows, and differences between a run and a new submission under its name. Pure.

Also why an ended run has nothing left to do, and what to type to extend it.
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
    """A job with changes of its length, its width and its pods.

    Args:
        old: the run's job.
        changes: dotted field → value, of flags; None stands for a flag that was not given.
        sets: `field=value` each.
        started: trials that the run has started, the lowest number allowed.

    Raises:
        SpecError: a field that would make it another study, or an invalid value; holds all issues.
    """
    # A job that has no use for a function has the default's name all the same, which nobody wrote.
    unused = {"entrypoint"} if isinstance(old, Ranked) and (old.script or old.command) else set()
    whole = Draft(old.model_dump(mode="json", exclude=unused), {})
    given = {field: (value, "--" + field.rpartition(".")[2].replace("_", "-")) for field, value in changes.items()}
    issues: list[Issue] = []
    for text in sets:
        try:
            field, value, source = document.assignment(text)
        except SpecError as error:
            issues += error.issues
        else:
            given[field] = (value, source)
    for field, (value, source) in given.items():
        if value is None and not source.startswith("--set"):
            continue
        changeable = old.changeable
        if field.split(".")[0] not in changeable and field not in changeable:
            message = (
                f"cannot change when a run is resumed, as it would be another {old.title} ({', '.join(changeable)} can); "
                "submit it under another name"
            )
            issues.append(Issue((field,), message, source))
            continue
        whole.set(draft.path(field, fixed.named(whole.data)), value, Origin(source))
    judged = verdict.judge(whole)
    issues += judged.issues
    if judged.job is not None and judged.job.trials != old.trials and judged.job.trials < started:
        flag = f"--{old.count_field.rpartition('.')[2]}"
        issues.append(Issue((old.count_field,), f"{started} were started already; set at least that many", flag))
    if issues or judged.job is None:
        raise SpecError(issues)
    return judged.job


def unchangeable(old: Job, new: Job) -> list[Issue]:
    """The fields in which a run's job was changed and that may not change when it is resumed."""
    fields = [line.partition(": ")[0] for line in changed_fields(old, new)]
    allowed = ", ".join(old.changeable)
    message = (
        f"cannot change when a run is resumed, as it would be another {old.title} ({allowed} can); give it another name"
    )
    names = fixed.named(new.model_dump(mode="json"))
    return [
        Issue(draft.path(field, names), message)
        for field in fields
        if not any(field == name or field.startswith(f"{name}.") for name in old.changeable)
    ]


def differences(job: Job, code_hash: str, code: Mapping[str, bytes], plan: Plan) -> list[str]:
    """The fields of the job and files of the code in which a new submission differs from the run of its name.

    Args:
        job: the run's.
        code_hash: of its packed code.
        code: its files, by their path inside.
        plan: the new submission.
    """
    found = changed_fields(job, plan.job)
    if code_hash != plan.pack.sha256:
        lines = planning.code_difference(code, contents(plan.pack.data))
        found += [f"code: {line}" for line in lines] or ["code: modes of files changed"]
    return found


def contents(packed: bytes) -> dict[str, bytes]:
    """The files in packed code, by their path inside."""
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        root = Path(scratch) / "code"
        packing.unpack(packed, root)
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def refusal(run: str, lines: Sequence[str]) -> str:
    """Why a submission under a name that is taken is refused."""
    shown = "\n".join(f"  {line}" for line in lines)
    return (
        f"the run {run} exists with another spec (there → here):\n{shown}\n"
        f"`platform resume {run}` continues it unchanged, {other_name(run)}"
    )


def other_name(run: str) -> str:
    """The advice that always applies."""
    return f"or give this one another name with --name; see it with `platform status {run}`"


def nothing_to_do(status: RunStatus, old: Job, job: Job, where: str = "") -> str:
    """Why a resumed run would end again at once, and what to type; "" when it would continue.

    Args:
        status: of the run, with exact counts.
        old: its job.
        job: its job with the requested changes.
        where: flags for a submission to the same place: " --local".
    """
    if old.count_field not in old.changeable and status.ended_trials >= job.trials and not status.failed:
        return _done(status, job, where)  # a training: no change can extend it
    resume = f"`platform resume {status.run}"
    counts = f"{status.ended_trials} of {errors.counted(job.trials, job.noun)}"
    used = _used_up(status, job)
    if used is not None and status.state in (RunState.SUCCEEDED, RunState.FAILED):
        return (
            f"the run {status.run} has {status.state.lower()}: budget.time ({used:g} s) was used up after "
            f"{counts}; {resume} --set budget.time={2 * used:g}` continues until it has worked that long in all, "
            "budget.time=null without a limit"
        )
    if status.state is not RunState.SUCCEEDED:
        return ""
    done = f"the {job.title} {status.run} has succeeded"
    if _is_reached(status, job):
        return (
            f"{done}: it reached budget.target ({job.budget.target:g}) after {counts}; "
            f"{resume} --set budget.target=null` continues without a target, or set a better one"
        )
    if job != old:
        return ""
    if status.ended_trials >= job.trials:
        return _done(status, job, where)
    return (
        f"{done}: every point of the space was tried, in {counts}; a larger space is another study, under another name. "
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
    """The time budget, in seconds, when it was used up before all trials had ended."""
    limit = job.budget.time
    return limit if limit is not None and status.worked > limit and status.ended_trials < job.trials else None


def changed_fields(old: Job, new: Job) -> list[str]:
    """One line for each field that differs: `trials: 24 → 800`."""
    before, after = _flat(old), _flat(new)
    return [
        f"{field}: {_show(before, field)} → {_show(after, field)}"
        for field in dict.fromkeys([*before, *after])
        if field not in before or field not in after or not _equal(before[field], after[field])
    ]


def _flat(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict) and value:
            for key, below in value.items():
                # Options are beside the name in a job file.
                walk(below, path if path in (("sampler",), ("pruner",)) and key == "options" else (*path, key))
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                walk(item, (*path, str(index)))
        elif not (isinstance(value, dict) and path):
            found[".".join(path)] = value

    walk(job.model_dump(mode="json", exclude=set(_IGNORED)), ())
    return found


def _equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; 1 is not true, but 1 is 1.0."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _show(fields: dict[str, Any], field: str) -> str:
    return json.dumps(fields[field], ensure_ascii=False) if field in fields else "(not there)"
