"""The plan of a run: a complete description of a run that does not exist yet, from a resolved job and its folder.

A plan is made without changing anything: the folder is only read, to pack it. `client.run.submit` starts the run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trialplane.errors import Issue, NotPackedError, SpecError
from trialplane.job import credentials, entrypoint, inputs, load, requirements
from trialplane.job.kinds import Job
from trialplane.job.requirements import Requirements
from trialplane.plan import datasets
from trialplane.plan import pack as packing
from trialplane.plan.pack import Pack
from trialplane.wire import cluster, earlier, progress
from trialplane.wire.earlier import Earlier
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

# KubeRay makes names of Kubernetes services from a run's name, which leaves 47 of the 63 characters of a DNS-1035 label.
LONGEST_NAME = 47
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Origin of a submission.

    Attributes:
        job_folder: Path of the job's folder on the user's machine.
        user: Login name of the user.
        version: Version of trialplane.
        command: Command line. Its secrets are not stored.
        git_revision: Commit of the job's folder; "" outside of a repository.
        git_dirty: Whether the folder has uncommitted changes.
    """

    job_folder: str
    user: str
    version: str
    command: Sequence[str] = ()
    git_revision: str = ""
    git_dirty: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that does not exist yet.

    Attributes:
        run: Name of the run.
        job: Resolved job.
        pack: Code of the job.
        provenance: Origin of the submission.
        sources: SHA-256 of the job's own files; "" if this is the hash of the pack.
        data: Digests of the job's data, by parameter; see `datasets`.
    """

    run: str
    job: Job
    pack: Pack
    provenance: Provenance
    sources: str = ""
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def without_code(cls, run: str, job: Job) -> Plan:
        """Return the plan of a run that is never submitted, to which its pods and their resources belong."""
        pack, provenance = Pack(data=b"", sha256="", files=()), Provenance(job_folder="", user="", version="")
        return cls(run, job, pack, provenance)

    @property
    def code_maps(self) -> tuple[str, ...]:
        """Names of the ConfigMaps with the code, one for each part."""
        return tuple(cluster.code_map(self.run, number) for number in range(len(self.pack.parts)))

    def submission(self, submitted: float) -> dict[str, Any]:
        """Return the facts about the submission, which the run's folder stores.

        Args:
            submitted: Time in seconds since the epoch.
        """
        return {
            "submitted": submitted,
            "user": self.provenance.user,
            "git_revision": self.provenance.git_revision,
            "git_dirty": self.provenance.git_dirty,
            "code_hash": self.pack.sha256,
            "identity": self.pack.identity,
            **({"sources": self.sources} if self.sources else {}),
            **({"data": dict(self.data)} if self.data else {}),
            "spec_hash": spec_hash(self.job),
            "version": self.provenance.version,
            "job_folder": self.provenance.job_folder,
            "command": credentials.mask(self.provenance.command),
        }


def plan(job: Job, folder: Path, run: str, provenance: Provenance) -> Plan:
    """Return the plan of a run, with the packed code of the job's folder and its packages.

    Args:
        job: The resolved job.
        folder: The job's folder.
        run: Name of the run.
        provenance: Origin of the submission.

    Raises:
        InputError: The folder cannot be packed.
    """
    pack = pack_job(job, folder)
    return Plan(run, job, pack, provenance, data=datasets.digests(job))


def pack_job(job: Job, folder: Path, additions: Mapping[str, bytes] = MappingProxyType({})) -> Pack:
    """Return the packed code of a job: its folder without its links, and its packages.

    Args:
        job: The job.
        folder: The job's folder.
        additions: Contents of further files, by name.

    Raises:
        InputError: The folder cannot be packed.
    """
    packages = entrypoint.packages(job, folder)
    return packing.pack(folder, packages=packages, additions=additions, ignored=packing.ignored_lines(job.links))


def add_earlier_trials(plan: Plan, folder: Path, content: Earlier) -> Plan:
    """Return a plan whose code also contains trials of earlier runs. If there are none, return the plan unchanged.

    Args:
        plan: The plan.
        folder: The job's folder.
        content: Trials of earlier runs.

    Raises:
        InputError: The code is too large with them.
    """
    packed_trials = content.pack()
    if not packed_trials:
        return plan
    try:
        pack = pack_job(plan.job, folder, {earlier.FILE: packed_trials})
    except NotPackedError:
        if not content.followed:
            raise
        # Without the attempts to follow: it is better to train them again than to refuse the submission.
        return add_earlier_trials(plan, folder, dataclasses.replace(content, followed=()))
    return dataclasses.replace(plan, pack=pack, sources=plan.pack.sha256)


def sources_hash(facts: Mapping[str, Any]) -> str:
    """Return the hash of a submission's own files, without trials of earlier runs.

    Args:
        facts: Facts about the submission; see `Plan.submission`.
    """
    return str(facts.get("sources") or facts.get("code_hash", ""))


def pending_status(run: str, job: Job, submitted: float) -> RunStatus:
    """Return the status of a run whose controller has not reported yet.

    Args:
        run: Name of the run.
        job: Job of the run.
        submitted: Time of the submission in seconds since the epoch.
    """
    return RunStatus(
        run=run,
        job=job.name,
        state=RunState.PENDING,
        trials=job.trials,
        parallel=job.width,
        slots_per_trial=job.roles()[0].nodes,
        progress=progress.initial_progress(job.kind),
        reason="the controller is starting",
        objectives=tuple(objective.metric for objective in job.objectives),
        created=submitted,
        updated=time.time(),
    )


def spec_hash(job: Job) -> str:
    """Return the SHA-256 of the resolved job, in hex."""
    return hashlib.sha256(job.model_dump_json().encode()).hexdigest()


def check_job(folder: Path, profile: str | None = None, sets: Sequence[str] = ()) -> tuple[Job, Requirements]:
    """Check a job as `platform submit` does before it starts a run, and return the job and its requirements.

    Args:
        folder: The job's folder.
        profile: Name of a profile in job.yaml. None without one.
        sets: Assignments `field=value`.

    Raises:
        SpecError: The job, its code or its data have issues.
        InputError: The folder cannot be packed.
    """
    resolved = load.load_job(folder, profile=profile, sets=sets, environ=os.environ)
    if issues := inputs.check_inputs(resolved, folder, pod_folder=cluster.DATA):
        raise SpecError(issues)
    pack_job(resolved, folder)  # raises InputError
    needed = requirements.job_requirements(resolved, folder, requirements.source_prefix(folder))
    if issues := packing.excluded_issues(folder, (name for name, _ in needed.files), packing.ignored_lines(resolved.links)):
        raise SpecError(issues)
    return resolved, needed


def check_name(run: str) -> list[Issue]:
    """Return the issue of a run's name, which is also the name of Kubernetes objects and folders. Empty if it is valid."""
    if len(run) > LONGEST_NAME:
        return [Issue(("name",), f"{run!r} has {len(run)} characters, {LONGEST_NAME} at most", source="--name")]
    if not _NAME.fullmatch(run):
        example = slug(run)
        message = f"{run!r} must be lower-case letters, digits and -, begin with a letter and not end in -: {example}"
        return [Issue(("name",), message, source="--name")]
    return []


def default_name(job: str, taken: Collection[str], time_of_day: time.struct_time) -> str:
    """Return a name for a run: `<job>-<YYYYmmdd-HHMMSS>`, with a numeric suffix if it is taken.

    Args:
        job: Name of the job.
        taken: Names of existing runs.
        time_of_day: Time for the name.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time_of_day)
    room = LONGEST_NAME - len(stamp) - len("--99")  # for the job's name, besides two hyphens and the suffix
    name = f"{slug(job)[:room].rstrip('-')}-{stamp}"
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def slug(text: str) -> str:
    """Return `text` as a valid name of a run: "My_Job.2" → "my-job-2", and "2nd" → "run-2nd"."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (name if name[:1].isalpha() else f"run-{name}".rstrip("-"))[:LONGEST_NAME].rstrip("-")


def code_difference(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[str]:
    """Return a line for each file that differs: "train.py: changed". The file with trials of earlier runs is ignored.

    Args:
        old: Contents of the files of a run's code, by path.
        new: Contents of the files of another run's code, by path.
    """
    lines = []
    for name in sorted({*old, *new} - {earlier.FILE}):
        if name not in new:
            lines.append(f"{name}: removed")
        elif name not in old:
            lines.append(f"{name}: added")
        elif old[name] != new[name]:
            lines.append(f"{name}: changed")
    return lines
