"""Settings of a run's pods on a Kubernetes cluster. Local runs ignore them.

Every field is optional. The installed chart has the defaults of most, such as the images and the queue.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo, field_validator, model_validator
from pydantic_core import CoreSchema, core_schema

from trialplane.errors import Issue
from trialplane.job import models, values

_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DNS = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_KEY = rf"(?:{_DNS}/)?{_LABEL}"
# These labels mark the objects of a run, and KubeRay's service selects the head by them: they must not be overridden.
_RESERVED_PREFIXES = ("trialplane.io/", "ray.io/", "app.kubernetes.io/", "kueue.x-k8s.io/")


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """The pattern of a string, as an annotation for pydantic.

    Attributes:
        pattern: Regular expression.
        description: Description of valid strings, for errors.
    """

    pattern: str
    description: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{self.pattern}$"}

    def _check(self, value: str) -> str:
        """Return a string that matches the pattern, unchanged.

        Raises:
            ValueError: The string does not match.
        """
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"{value!r} is not {self.description}")
        return value


Switch = Annotated[bool, Field(strict=True)]
Image = Annotated[str, _Pattern(r"[^\s@:]\S*", "an image; write name:tag or name@sha256:…")]
Object = Annotated[str, _Pattern(_DNS, "the name of a Kubernetes object: lower-case letters, digits, - and .")]
Key = Annotated[str, _Pattern(_KEY, "a label's key; write name or domain.org/name")]
Label = Annotated[str, _Pattern(rf"(?:{_LABEL})?", "a label's value: at most 63 letters, digits, -, _ and ., in quotes")]
Resource = Annotated[
    str, _Pattern(rf"{_DNS}/{_LABEL}", "a resource of a node; write nvidia.com/gpu or nvidia.com/mig-1g.10gb")
]


class Toleration(models.Model):
    """A taint that trial pods tolerate, in Kubernetes format."""

    key: Key | None = Field(default=None, description="Key of the taint. Default: all keys, which needs `operator: Exists`.")
    operator: Literal["Equal", "Exists"] = Field(
        default="Equal", description="Equal: key and value must match. Exists: the key must match."
    )
    value: Label | None = Field(default=None, description="Value of the taint. Only with `operator: Equal`.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint. Default: all effects."
    )
    tolerationSeconds: values.Integer | None = Field(  # the name is Kubernetes's
        default=None, ge=0, description="Seconds that a pod stays after a NoExecute taint appears. Default: it stays."
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Toleration:
        """Check that the fields do not contradict each other. Kubernetes would refuse the pods otherwise."""
        issues = []
        if self.key is None and self.operator != "Exists":
            issues.append(Issue(("key",), "is missing; only operator: Exists does not need it"))
        if self.operator == "Exists" and self.value is not None:
            issues.append(Issue(("value",), "cannot be combined with operator: Exists"))
        if self.tolerationSeconds is not None and self.effect != "NoExecute":
            issues.append(Issue(("tolerationSeconds",), "needs effect: NoExecute"))
        models.refuse(issues)
        return self


class Topology(models.Model):
    """Placement of trial pods. Both fields are preferences: no pod waits for them."""

    spread: Key | None = Field(
        default=None, description="Node label to spread trial pods over evenly: topology.kubernetes.io/zone."
    )
    pack: Key | None = Field(
        default=None,
        description="Node label to pack trial pods by: kubernetes.io/hostname fills one node after another.",
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Topology:
        """Check that there are one or two different labels."""
        if self.spread is None and self.pack is None:
            models.refuse([Issue((), "needs spread or pack or both")])
        elif self.spread == self.pack:
            models.refuse([Issue(("pack",), f"cannot be the label of spread too ({self.spread})")])
        return self


class ControllerPod(models.Model):
    """Size of the head pod, which runs the controller and Ray's head."""

    cpus: values.Cores | None = Field(
        default=None, description="CPU cores: 2, 0.5 or 500m. Default: the chart's `studies.controller.cpus`."
    )
    memory: values.Quantity | None = Field(
        default=None, description="Memory: 2Gi, 4Gi. Default: the chart's `studies.controller.memory`."
    )


class Cluster(models.Model):
    """Settings of a run's pods on a cluster."""

    image: Image | None = Field(
        default=None,
        description="Image of the trial pods, based on trialplane's trial image. Default: the chart's `image.trial`.",
    )
    autoscale: Switch | None = Field(
        default=None,
        description="Create trial pods while trials wait, and remove idle ones: a study starts with the pods it gets. "
        "With false, it waits for all of its pods. A training always does. Default: the chart's `studies.autoscale`; false "
        "in a queue.",
    )
    idle: values.Duration = Field(
        default=60.0, description="Time after which autoscaling removes an idle trial pod: seconds, or 90s, 5m."
    )
    node_selector: dict[Key, Label] = Field(
        default_factory=dict,
        description="Node labels that trial pods require, in addition to the chart's, which win.",
    )
    tolerations: tuple[Toleration, ...] = Field(
        default=(),
        description="Taints that trial pods tolerate. The chart must allow them (`studies.allowed`).",
    )
    topology: Topology | None = Field(default=None, description="Spread trial pods over zones, or pack them on nodes.")
    priority_class: Object | None = Field(
        default=None,
        description="PriorityClass of all pods. The chart must allow it (`studies.allowed`). Default: the chart's "
        "`studies.priorityClass`.",
    )
    queue: Object | None = Field(
        default=None,
        description="LocalQueue of Kueue, which starts the run when there is room. Default: the team's, or the chart's "
        "`studies.queue`.",
    )
    deadline: values.Duration | None = Field(
        default=None,
        description="Maximum duration of the run, including the time it waits. Then it ends as failed: seconds, or 12h, 3d.",
    )
    pending_deadline: values.Duration | None = Field(
        default=None,
        description="Maximum time until a first trial starts. Then the run ends as failed: seconds, or 30m, 1h. Default: "
        "no limit.",
    )
    controller: ControllerPod = Field(default_factory=ControllerPod, description="Size of the head pod.")
    gpu_resource: Resource = Field(
        default="nvidia.com/gpu",
        description="GPU resource of the nodes: nvidia.com/gpu, nvidia.com/mig-1g.10gb.",
    )
    ttl: values.Duration = Field(
        default=10.0,
        description="Time to keep the pods after the run's end, for inspection: seconds, or 10m. They hold their GPUs.",
    )
    labels: dict[Key, Label] = Field(
        default_factory=dict,
        description="Labels of all pods, for example a cost center. The chart must allow the keys (`studies.allowed`).",
    )
    annotations: dict[Key, str] = Field(
        default_factory=dict,
        description="Annotations of all pods, for example for a service mesh. The chart must allow the keys "
        "(`studies.allowed`).",
    )

    @field_validator("labels", "annotations")
    @classmethod
    def _refuse_reserved(cls, value_by_key: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        """Check that no key is reserved for the platform."""
        noun = str(info.field_name).removesuffix("s")  # label or annotation
        reserved = [key for key in value_by_key if key.startswith(_RESERVED_PREFIXES)]
        models.refuse([Issue((key,), f"this {noun} is set by the platform; leave it out") for key in reserved])
        return value_by_key
