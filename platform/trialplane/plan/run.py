"""The Run object of a run: `manifests` creates it from a plan, and `read` parses it. Pure.

A Run has the resolved job, a reference to the code, and the desired state. The code is in ConfigMaps, one for each MiB.
`submit` applies these objects, and `--dry-run` prints them. The reconciler creates all other objects of the run, and writes
the Run's status.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trialplane.errors import Issue
from trialplane.job import document, kinds, wording
from trialplane.job.kinds import Job
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.plan import pods
from trialplane.plan.plan import Plan
from trialplane.wire import cluster
from trialplane.wire.states import RunState

VERSION = "v1alpha1"
API_VERSION = f"{cluster.GROUP}/{VERSION}"
KIND = "Run"
# `spec.state` ↔ the desired state.
STATES = {"Running": RunState.RUNNING, "Paused": RunState.PAUSED, "Cancelled": RunState.CANCELLED}
# `status.state`: as `RunState`, and Invalid for a Run that cannot be read or whose code does not match.
State = Literal["Pending", "Running", "Paused", "Succeeded", "Failed", "Cancelled", "Unknown", "Invalid"]
# Types of conditions.
ACCEPTED = "Accepted"  # the Run is valid, and its code is complete and has the right hash
READY = "Ready"  # the controller and all pods are running
ENDED = "Ended"  # it has ended for good; the reason is its state
CODE_MISSING = "CodeMissing"  # reason for Accepted=False until all code exists
# Annotation of a RayCluster: `resumes` of the Run for which it was created.
RESUMES = f"{cluster.GROUP}/resumes"


_OWNER_COMMENT = f"""\
# The cluster only accepts a Run with your username, as `kubectl auth whoami` shows it. Add this before you apply it:
#   metadata: {{annotations: {{{cluster.OWNER}: USERNAME}}}}
"""
_TIME: dict[str, Any] = {"format": "date-time"}


class _Part(BaseModel):
    """Base of the parts of a Run that users write."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class _Reported(BaseModel):
    """Base of the parts of a Run that the operator writes."""

    # A newer operator may write fields that this version lacks: after a rollback, or on an old laptop.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Code(_Part):
    """The packed code: the ConfigMaps with its parts, and the SHA-256 in hex of the tar in the joined parts.

    Attributes:
        config_maps: Names of the ConfigMaps; the first has the key `code.tar.gz`, the next `code.tar.gz.1`, …
        sha256: SHA-256 of the tar.
    """

    config_maps: tuple[Annotated[str, Field(max_length=63)], ...] = Field(
        alias="configMaps",
        min_length=1,
        max_length=packing.MAX_BYTES // packing.PART,
        description="ConfigMaps with the packed code, at most 1 MiB in each: NAME-code with the key code.tar.gz, then "
        "NAME-code-1 with code.tar.gz.1, NAME-code-2 with code.tar.gz.2, …",
    )
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the joined and decompressed code.tar.gz, in hex.")


class RunSpec(_Part):
    """Spec of a Run.

    Attributes:
        job: Resolved job, checked by `read`.
        nulls: JSON pointers of the job's fields that are null and must not be left out; see `job_fields`.
        code: Packed code.
        submission: Facts about the submission; see `Plan.submission`.
        state: Desired state: `Running`, `Paused` or `Cancelled`.
        parallel: Number of trials at the same time, or of workers of a collection; None for the job's number.
        resumes: Number of resumes. A higher number than `status.resumes` starts the run again.
        now: Whether a pause or cancel kills running trials, instead of letting them end cleanly.
    """

    job: dict[str, Any] = Field(description="The resolved job, as `platform submit --dry-run` prints it.")
    nulls: tuple[str, ...] = Field(
        default=(),
        description="JSON pointers of the job's fields that are null and must not be left out. `kubectl apply` without "
        "--server-side drops nulls.",
    )
    code: Code = Field(description="The packed code.")
    submission: dict[str, Any] = Field(
        default_factory=dict, description="Origin of the run: user, revision, command and time."
    )
    state: Literal["Running", "Paused", "Cancelled"] = Field(default="Running", description="Desired state.")
    parallel: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Number of trials at the same time, or of workers of a collection. Default: the job's.",
    )
    resumes: int = Field(
        default=0, ge=0, description="Number of resumes. Increase it by one to continue a run that has ended or is paused."
    )
    now: bool = Field(
        default=False,
        description="Kill running trials at a pause, a cancel or a lower `parallel`, instead of letting them end.",
    )

    @property
    def desired(self) -> RunState:
        """The desired state."""
        return STATES[self.state]


class Condition(_Reported):
    """A condition in the form of the Kubernetes API."""

    type: str = Field(description="Accepted, Ended or Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Status of the condition.")
    reason: str = Field(description="Reason in one word.")
    message: str = Field(description="Reason in a sentence, and the next command to type.")
    lastTransitionTime: str = Field(description="Time of the last change of `status`.", json_schema_extra=_TIME)
    observedGeneration: int = Field(description="Generation of the Run that the condition refers to.")


class Image(_Reported):
    """An image of a run's pods, with a digest that they have run."""

    image: str = Field(description="Name in the job or in the chart's values.")
    digest: str = Field(description="Digest in the repository: sha256:…")


class Status(_Reported):
    """Status of a Run, which only the reconciler writes.

    Attributes:
        state: Current state of the run.
        reason: Reason for the state, or for which pods are pending.
        ended: Number of ended trials or iterations.
        total: Total number of trials or iterations.
        progress: Both numbers as text: 7/24.
        best: Objective and value of the best trial; "" if there is none.
        since: Time of the last change of `state`.
        started: Time of the last start or resume.
        resumes: `resumes` of the spec at the last start.
        observedGeneration: Last generation of the spec that the operator has seen.
        images: Images that the pods have run, one entry for each digest.
        conditions: `Accepted`, `Ended` and `Ready`.
    """

    state: State = Field(default="Pending", description="Current state.")
    reason: str = Field(default="", description="Reason for the state, for example why pods are pending.")
    ended: int = Field(default=0, description="Number of ended trials, or iterations.")
    total: int = Field(default=0, description="Total number of trials, or iterations.")
    progress: str = Field(default="", description="`ended` and `total` as text: 7/24.")
    best: str = Field(default="", description="Objective of the best trial and its value.")
    since: str | None = Field(default=None, description="Time of the last change of `state`.", json_schema_extra=_TIME)
    started: str | None = Field(default=None, description="Time of the last start or resume.", json_schema_extra=_TIME)
    resumes: int = Field(default=0, description="`resumes` of the spec at the last start.")
    observedGeneration: int = Field(default=0, description="Last generation of the spec that the operator has seen.")
    images: tuple[Image, ...] = Field(
        default=(),
        description="Images that the run's pods have run, and their digests. Two digests of one image mean that its tag "
        "was pushed again, or that nodes have different architectures.",
    )
    conditions: tuple[Condition, ...] = Field(default=(), description="Conditions: Accepted, Ended and Ready.")


@dataclasses.dataclass(frozen=True)
class ParsedRun:
    """The parsed spec of a Run.

    Attributes:
        spec: Spec of the Run. None if it is invalid.
        job: Job of the run. None if there are issues.
        issues: Issues of the Run's name, its spec and its job.
    """

    spec: RunSpec | None = None
    job: Job | None = None
    issues: tuple[Issue, ...] = ()


def manifests(plan: Plan, namespace: str, submitted: float, owner: str = "") -> list[dict[str, Any]]:
    """Return the Run, then the ConfigMaps with its code, one for each MiB.

    Args:
        plan: Plan of the run.
        namespace: Namespace of the objects; "" to leave it out.
        submitted: Time of the submission in seconds since the epoch.
        owner: Authenticated username of the person who applies the Run; "" to leave it out.
    """
    names = plan.code_maps
    spec = {
        "state": "Running",
        **job_fields(plan.job),
        "code": {"configMaps": list(names), "sha256": plan.pack.sha256},
        "submission": plan.submission(submitted),
    }
    run: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": _metadata(plan, plan.run), "spec": spec}
    if owner:
        run["metadata"]["annotations"] = {cluster.OWNER: owner}
    objects = [run]
    for number, (name, part) in enumerate(zip(names, plan.pack.parts, strict=True)):
        code = {packing.part_name(cluster.CODE_KEY, number): base64.b64encode(part).decode("ascii")}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(plan, name), "binaryData": code}
        objects.append({**config_map, "immutable": True})
    if namespace:
        for manifest in objects:
            manifest["metadata"]["namespace"] = namespace
    return objects


def as_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """Return manifests as YAML for `kubectl apply -f -`. If a Run has no owner, a comment says how to add one."""
    runs = [manifest for manifest in objects if manifest["kind"] == KIND]
    has_owner = all(cluster.OWNER in (run["metadata"].get("annotations") or {}) for run in runs)
    comment = "" if has_owner else _OWNER_COMMENT
    return comment + yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, explicit_start=True, width=120
    )


class _Dumper(yaml.SafeDumper):
    """Dumper that writes repeated values in full, because anchors and aliases would confuse readers."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: never write an alias."""
        return True


def parts(maps: Sequence[Mapping[str, Any] | None]) -> list[bytes | None]:
    """Return the parts of packed code from a Run's ConfigMaps, in order. A missing part is None.

    Args:
        maps: The ConfigMaps, in order. None for a missing one.
    """
    contents = [(config_map or {}).get("binaryData") or {} for config_map in maps]
    encoded = [content.get(packing.part_name(cluster.CODE_KEY, number)) for number, content in enumerate(contents)]
    return [None if part is None else base64.b64decode(part) for part in encoded]


def owner_reference(name: str, uid: str) -> dict[str, Any]:
    """Return the owner reference of an object that belongs to a Run, by the Run's name and uid."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,  # true would need a right to update finalizers
    }


def state_name(state: RunState) -> str:
    """Return the value of `spec.state` for a desired state."""
    return next(name for name, desired in STATES.items() if desired is state)


def job_fields(job: Job) -> dict[str, Any]:
    """Return a job as the fields `job` and `nulls` of a Run's spec, for manifests and for patches.

    `kubectl apply` may drop nulls. So `nulls` has the JSON pointers of the nulls that differ from a missing field: the
    default of the field is not null, or it is a parameter. An example is `["/params/weights"]`.
    """
    fields = job.model_dump(mode="json")
    has_script = any(role.program is not None for role in job.roles())
    if has_script:
        del fields["entrypoint"]  # it is a default, but in a Run it would look like an entrypoint beside the script
    read_without_nulls: Any = kinds.read(_without_nulls(fields)).model_dump(mode="json")  # has defaults in their place
    pointers = []
    for path in _null_paths(fields, path=()):
        is_param = path[0] == "params"
        if is_param or _value_at(read_without_nulls, path) is not None:
            pointers.append("".join(f"/{_escape(key)}" for key in path))
    return {"job": fields, "nulls": pointers}


def read(run: Mapping[str, Any]) -> ParsedRun:
    """Return the parsed spec and job of a Run, with all issues: users may have written the Run by hand.

    Args:
        run: The object, as the API server returns it.
    """
    run_name = str(run["metadata"]["name"])
    # `check_name` names the option --name as the source, which a Run does not have.
    issues = [dataclasses.replace(issue, source="") for issue in planning.check_name(run_name)]
    for field, value in (run.get("spec") or {}).items():
        if _is_deeper(value, document.MAX_DEPTH):  # the limit of a job file; the code below is recursive
            issues.append(Issue(("spec", field), f"is nested more than {document.MAX_DEPTH} levels deep"))
            return ParsedRun(issues=tuple(issues))
    try:
        spec = RunSpec.model_validate(run.get("spec") or {})
    except ValidationError as error:
        issues += [Issue(("spec", *entry["loc"]), entry["msg"]) for entry in error.errors()]
        return ParsedRun(issues=tuple(issues))
    for number, name in enumerate(spec.code.config_maps):
        if name != (expected := cluster.code_map(run_name, number)):
            issues.append(Issue(("spec", "code", "configMaps", number), f"must be {expected}, which the pods mount"))
    job: Job | None = None
    try:
        job = kinds.read(_with_nulls(spec.job, spec.nulls))
        job_issues = list(job.check(broken=frozenset()))
    except ValidationError as error:
        job_issues = wording.translate(error, spec.job)
    issues += [issue.below("spec", "job") for issue in job_issues]
    if job is not None and spec.parallel is not None and not job.width_option:
        issues.append(Issue(("spec", "parallel"), "is for studies and collections: the ranks of a training are fixed"))
    return ParsedRun(spec, job=None if issues else job, issues=tuple(issues))


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and mappings in a value are nested more than `levels` deep.

    The function is not recursive, because the value may be nested too deeply for Python's stack.
    """
    values = [value]  # all values at one level
    for _ in range(levels + 1):
        children: list[Any] = []
        for container in values:
            if isinstance(container, Mapping):
                children += container.values()
            elif isinstance(container, list):
                children += container
        if not children:
            return False
        values = children
    return True


def _null_paths(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields that are null, except in lists, where kubectl does not drop nulls."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            if child is None:
                yield (*path, key)
            else:
                yield from _null_paths(child, (*path, key))


def _without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings without the fields that are null."""
    fields = {key: child for key, child in value.items() if child is not None}
    return {key: _without_nulls(child) if isinstance(child, Mapping) else child for key, child in fields.items()}


def _with_nulls(job: Mapping[str, Any], pointers: Sequence[str]) -> dict[str, Any]:
    """Return a job with the nulls that `kubectl apply` may have dropped; see `job_fields`.

    A pointer at which the job has a value is ignored.
    """
    restored: dict[str, Any] = copy.deepcopy(dict(job))
    for pointer in pointers:
        # "/params/a~1b" → ["params", "a/b"]
        *parents, last = (key.replace("~1", "/").replace("~0", "~") for key in pointer.removeprefix("/").split("/"))
        section: Any = restored
        for key in parents:
            section = section.setdefault(key, {}) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.setdefault(last, None)
    return restored


def _escape(key: str) -> str:
    """Return a key in the notation of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _value_at(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of nested mappings. None if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _metadata(plan: Plan, name: str) -> dict[str, Any]:
    """Return the metadata of an object of a run: its name and labels."""
    return {"name": name, "labels": pods.labels(plan)}
