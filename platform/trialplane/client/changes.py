"""What may change between two lives of a run, and what differs between a run and a new submission of its name. Pure."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane.errors import Complaint, SpecError
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.plan.plan import Plan
from trialplane.spec import difference, document, draft, verdict
from trialplane.spec.draft import Draft, Origin
from trialplane.spec.jobs import Job


def changed(old: Job, changes: Mapping[str, Any], sets: Sequence[str], started: int) -> Job:
    """A job with changes of how long, how wide and on what pods it goes.

    Args:
        old: the run's job.
        changes: dotted field → value, of flags; None stands for a flag that was not given.
        sets: `field=value` each.
        started: trials that the run has started; it cannot be asked for fewer.

    Raises:
        SpecError: a field that makes another study, or a wrong value; all complaints.
    """
    whole = Draft(old.model_dump(mode="json"), {})
    given = {field: (value, "--" + field.rpartition(".")[2].replace("_", "-")) for field, value in changes.items()}
    complaints: list[Complaint] = []
    for text in sets:
        field, equals, value = text.partition("=")
        source = f"--set {text}"
        if not equals:
            complaints.append(Complaint("--set", "write field=value: --set budget.max_failed=20", source))
            continue
        given[field.strip()] = (document.scalar(value, source), source)
    for field, (value, source) in given.items():
        if value is None and not source.startswith("--set"):
            continue
        changeable = old.changeable
        if field.split(".")[0] not in changeable and field not in changeable:
            message = (
                f"cannot change when a run is resumed, as it would be another {old.title} ({', '.join(changeable)} can); "
                "submit it under another name"
            )
            complaints.append(Complaint(field, message, source))
            continue
        whole.set(draft.path(field), value, Origin(source))
    judged = verdict.judge(whole)
    complaints += judged.complaints
    if judged.job is not None and judged.job.trials != old.trials and judged.job.trials < started:
        flag = f"--{old.count_field.rpartition('.')[2]}"
        complaints.append(Complaint(old.count_field, f"{started} were started already; ask for that many or more", flag))
    if complaints or judged.job is None:
        raise SpecError(complaints)
    return judged.job


def differences(job: Job, code_hash: str, code: Mapping[str, bytes], plan: Plan) -> list[str]:
    """What a new submission has otherwise than the run of its name: fields of the job, files of the code.

    Args:
        job: the run's.
        code_hash: of its packed code.
        code: its files, by their path inside.
        plan: the new submission.
    """
    found = difference.difference(job, plan.job)
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
        f"`platform resume {run}` goes on with it as it was, {other_name(run)}"
    )


def other_name(run: str) -> str:
    """The way out that is always open."""
    return f"or give this one another name with --name; see it with `platform status {run}`"
