"""A run as an object of the cluster: a plan → a Run, and a Run → what it asks for. Pure data.

A Run holds the resolved job, which code it runs, and the desired state; its code is in ConfigMaps beside it, one for each
MiB. `submit` applies what `--dry-run` prints. The reconciler makes everything else, and writes the Run's status.
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
# `status.state`: what there is of `RunState`, and a Run that cannot be read or whose code does not fit.
State = Literal["Pending", "Running", "Paused", "Succeeded", "Failed", "Cancelled", "Unknown", "Invalid"]
# Types of conditions.
ACCEPTED = "Accepted"  # the Run can be read, and all of its code is there and is what the Run says
READY = "Ready"  # a controller works on it, with all of its pods
ENDED = "Ended"  # it has ended for good: its reason is the state
CODE_MISSING = "CodeMissing"  # a reason why it is not accepted; it is as soon as its code is there
# Of a run's RayCluster: the `resumes` of the Run that it was made for.
RESUMES = f"{cluster.GROUP}/resumes"


_UNOWNED = f"""\
# The cluster takes a Run that names who applies it, as `kubectl auth whoami` shows it; add that before you apply this:
#   metadata: {{annotations: {{{cluster.OWNER}: USERNAME}}}}
"""
_TIME: dict[str, Any] = {"format": "date-time"}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Reported(BaseModel):
    # A newer operator may have written fields that this one, after a rollback, or this laptop does not know.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Code(_Part):
    """The packed code: the ConfigMaps with its parts, and the SHA-256 in hex of the tar in the parts joined.

    Attributes:
        config_maps: names; the first has the key `code.tar.gz`, further ones `code.tar.gz.1`, `code.tar.gz.2`, …
        sha256: of the tar.
    """

    config_maps: tuple[Annotated[str, Field(max_length=63)], ...] = Field(
        alias="configMaps",
        min_length=1,
        max_length=packing.MAX_BYTES // packing.PART,
        description="ConfigMaps with the packed code, at most 1 MiB in each: NAME-code with the key code.tar.gz, then "
        "NAME-code-1 with code.tar.gz.1, NAME-code-2 with code.tar.gz.2, …",
    )
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the joined and decompressed code.tar.gz, in hex.")


class Asked(_Part):
    """A Run's spec.

    Attributes:
        job: as resolved; checked by `read`.
        nulls: JSON pointers of the job's fields that are null and must not be left out; see `job_fields`.
        code: what it runs.
        submission: where it came from: user, revision, folder, command, time; see `Plan.submission`.
        state: what it is to be: `Running`, `Paused` or `Cancelled`.
        parallel: trials at a time, or workers of a collection; None for what the job says.
        resumes: how often an ended or paused run was asked to go on; a higher number than `status.resumes` starts it again.
        now: whether a pause or cancel kills what runs, instead of letting it end cleanly.
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
    """One condition, as Kubernetes has them."""

    type: str = Field(description="Accepted, Ended or Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Status of the condition.")
    reason: str = Field(description="Reason in one word.")
    message: str = Field(description="Reason in a sentence, and the next command to type.")
    lastTransitionTime: str = Field(description="Time of the last change of `status`.", json_schema_extra=_TIME)
    observedGeneration: int = Field(description="Generation of the Run that the condition refers to.")


class Image(_Reported):
    """An image of a run's pods, and a digest that they have run of it."""

    image: str = Field(description="Name in the job or in the chart's values.")
    digest: str = Field(description="Digest in the repository: sha256:…")


class Status(_Reported):
    """A Run's status, which the reconciler alone writes.

    Attributes:
        state: of the run.
        reason: why, in words; where pods hang.
        ended: trials, or iterations, that will not run again.
        total: trials or iterations in all.
        progress: both as one text: 7/24.
        best: objective and value of the best trial, or "".
        since: when it came into its state.
        started: when it was started last: its first start, or that of its last resume.
        resumes: of the spec, when it was started last.
        observedGeneration: of the spec that was seen.
        images: that its pods have run, each once for each digest.
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
class Read:
    """What was read of a Run: its spec and its job, or the issues that prevent it."""

    asked: Asked | None = None
    job: Job | None = None
    issues: tuple[Issue, ...] = ()


def manifests(plan: Plan, namespace: str, submitted: float, owner: str = "") -> list[dict[str, Any]]:
    """The Run, then the ConfigMaps with its code, of which there is one for each MiB.

    Args:
        plan: of the run.
        namespace: where it is to be; "" leaves it out.
        submitted: seconds since the epoch.
        owner: username, as the API server knows who applies it; "" leaves it to that.
    """
    names = plan.code_maps
    spec = {
        "state": "Running",
        **job_fields(plan.job),
        "code": {"configMaps": list(names), "sha256": plan.pack.sha256},
        "submission": plan.submission(submitted),
    }
    made: list[dict[str, Any]] = [
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": _metadata(plan, plan.run), "spec": spec}
    ]
    for number, (name, part) in enumerate(zip(names, plan.pack.parts, strict=True)):
        code = {packing.part_name(cluster.CODE_KEY, number): base64.b64encode(part).decode("ascii")}
        made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(plan, name), "binaryData": code})
        made[-1]["immutable"] = True
    if owner:
        made[0]["metadata"]["annotations"] = {cluster.OWNER: owner}
    if namespace:
        for one in made:
            one["metadata"]["namespace"] = namespace
    return made


def as_yaml(made: Sequence[dict[str, Any]]) -> str:
    """The manifests as one stream for `kubectl apply -f -`, with what to add to a Run without an owner."""
    whole = all(cluster.OWNER in (one["metadata"].get("annotations") or {}) for one in made if one["kind"] == KIND)
    return ("" if whole else _UNOWNED) + yaml.dump_all(
        made, Dumper=_Dumper, sort_keys=False, allow_unicode=True, explicit_start=True, width=120
    )


class _Dumper(yaml.SafeDumper):
    """Writes repeated values in full: no anchors, which would confuse readers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def parts(maps: Sequence[Mapping[str, Any] | None]) -> list[bytes | None]:
    """The packed code in a Run's ConfigMaps, in the order in which the Run names them: None for what is not there."""
    held = [(one or {}).get("binaryData") or {} for one in maps]
    found = [each.get(packing.part_name(cluster.CODE_KEY, number)) for number, each in enumerate(held)]
    return [None if text is None else base64.b64decode(text) for text in found]


def owner(name: str, uid: str) -> dict[str, Any]:
    """What an object says that goes with a Run."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,  # which would need a right over finalizers
    }


def word(state: RunState) -> str:
    """How `spec.state` names a desired state."""
    return next(word for word, desired in STATES.items() if desired is state)


def job_fields(job: Job) -> dict[str, Any]:
    """A job as the fields `job` and `nulls` of a Run's spec, for manifests and for patches, which drop nulls too."""
    whole = job.model_dump(mode="json")
    if any(role.program is not None for role in job.roles()):
        del whole["entrypoint"]  # the default, which in a Run would be taken for its author's
    paths = list(_nulls(whole, ()))
    left: Any = kinds.read(_without_nulls(whole)).model_dump(mode="json")
    kept = [path for path in paths if _at(left, path) is not None or path[0] == "params"]
    return {"job": whole, "nulls": ["".join(f"/{_escaped(key)}" for key in path) for path in kept]}


def read(run: Mapping[str, Any]) -> Read:
    """The spec and the job of a Run, as the API server has it; it may have been written by hand."""
    name = str(run["metadata"]["name"])
    issues = [dataclasses.replace(issue, source="") for issue in planning.check_name(name)]
    for field, value in (run.get("spec") or {}).items():
        if _is_deeper(value, document.MAX_DEPTH):  # than a job file may be; what follows is recursive
            issues.append(Issue(("spec", field), f"is nested more than {document.MAX_DEPTH} levels deep"))
            return Read(issues=tuple(issues))
    try:
        asked = Asked.model_validate(run.get("spec") or {})
    except ValidationError as error:
        issues += [Issue(("spec", *each["loc"]), each["msg"]) for each in error.errors()]
        return Read(issues=tuple(issues))
    for number, given in enumerate(asked.code.config_maps):
        if given != (mounted := cluster.code_map(name, number)):
            issues.append(Issue(("spec", "code", "configMaps", number), f"must be {mounted}, which the pods mount"))
    job: Job | None = None
    try:
        job = kinds.read(_with_nulls(asked.job, asked.nulls))
        found = list(job.check(frozenset()))
    except ValidationError as error:
        found = wording.translate(error, asked.job)
    issues += [issue.below("spec", "job") for issue in found]
    if job is not None and asked.parallel is not None and not job.width_option:
        issues.append(Issue(("spec", "parallel"), "is for studies and collections: the ranks of a training are fixed"))
    return Read(asked, None if issues else job, tuple(issues))


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and mappings are nested in it more than that many levels deep; without recursion."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            below
            for one in level
            if isinstance(one, (Mapping, list))
            for below in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return False
    return True


def _nulls(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of the fields that are null; lists keep theirs."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from [(*path, key)] if below is None else _nulls(below, (*path, key))


def _without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: below for key, below in value.items() if below is not None}
    return {key: _without_nulls(below) if isinstance(below, Mapping) else below for key, below in kept.items()}


def _with_nulls(job: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The job with null at those of the paths where it has nothing."""
    made: dict[str, Any] = copy.deepcopy(dict(job))
    for path in paths:
        *above, last = (key.replace("~1", "/").replace("~0", "~") for key in path.removeprefix("/").split("/"))
        place: Any = made
        for key in above:
            place = place.setdefault(key, {}) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.setdefault(last, None)
    return made


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _at(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _metadata(plan: Plan, name: str) -> dict[str, Any]:
    return {"name": name, "labels": pods.labels(plan)}
