"""The values of a chart in place of a cluster, for `submit --dry-run --values FILE`: checks what they decide, no more.

Contacts nothing. Only the values that a check needs are read. As for Helm, a file holds what differs from the chart's own.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from trialplane.client import preflight
from trialplane.errors import Issue, SpecError
from trialplane.plan import run as runs
from trialplane.plan import saving
from trialplane.plan.plan import Plan
from trialplane.plan.site import Checkpoints
from trialplane.spec import document, values
from trialplane.spec.jobs import Job

UNCHECKED = (
    "without a cluster it was not checked whether the run's name is free, whether it fits the nodes, the quota, its "
    "PriorityClass and its queue, and whether the run of --resume has a checkpoint"
)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Claim(_Part):
    enabled: bool = False
    existingClaim: str = ""


class _Checkpoints(_Claim):
    url: str = ""
    secret: str = ""
    grace: values.Duration = 120.0


class _Values(_Part):
    """The values that are read; the defaults are the chart's."""

    data: _Claim = _Claim()
    checkpoints: _Checkpoints = _Checkpoints()


@dataclasses.dataclass(frozen=True)
class Offline:
    """What is known of a chart without its cluster.

    Attributes:
        has_data: whether it has a volume of data sets.
        checkpoints: where trials save themselves.
        namespace: where the objects are to be; "" leaves it to `kubectl`.
    """

    has_data: bool
    checkpoints: Checkpoints
    namespace: str = ""

    @classmethod
    def read(cls, file: Path, namespace: str) -> Offline:
        """Of a file of values.

        Raises:
            SpecError: it cannot be read, or a value that is needed is of the wrong type; holds all issues.
        """
        found = document.read(file, f"--values {file}")
        try:
            given = _Values.model_validate(found.data)
        except ValidationError as error:
            places = [(tuple(each["loc"]), each["msg"].removeprefix("Value error, ")) for each in error.errors()]
            raise SpecError(
                [Issue(place, text, found.source, found.lines.get(place, 0)) for place, text in places]
            ) from error
        saves = given.checkpoints
        claim = saves.existingClaim or "checkpoints" if saves.enabled else ""
        return cls(
            given.data.enabled, Checkpoints(claim=claim, url=saves.url, secret=saves.secret, grace=saves.grace), namespace
        )

    def check(self, job: Job | None) -> tuple[list[Issue], list[str]]:
        """As `Target.check`, as far as the values decide it; what is not checked is a warning."""
        if job is None:
            return [], []
        issues = [
            *preflight.data(job, "data" if self.has_data else ""),
            *preflight.shards(job, bool(self.checkpoints.claim)),
        ]
        return issues, [*saving.warnings(job, self.checkpoints), UNCHECKED]

    def describe(self, plan: Plan) -> dict[str, Any]:
        """As `Target.describe`."""
        return {"apiVersion": "v1", "kind": "List", "items": runs.manifests(plan, self.namespace, time.time())}
