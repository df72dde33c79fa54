"""The values of a chart in place of a cluster, for `submit --dry-run --values FILE`: checks what they decide, no more.

Contacts nothing. Only the values that a check needs are read. As for Helm, a file holds what differs from the chart's own.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from trialplane.errors import Issue, SpecError
from trialplane.job import document, values
from trialplane.job.kinds import Job
from trialplane.kube import preflight
from trialplane.plan import run as runs
from trialplane.plan import saving
from trialplane.plan.plan import Plan
from trialplane.plan.site import CheckpointDefaults

UNCHECKED = (
    "without a cluster it was not checked whether the run's name is free, whether it fits the nodes, the quota, its "
    "PriorityClass and its queue, and whether the run of --resume has a checkpoint"
)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


_P = TypeVar("_P", bound=_Part)


class _Claim(_Part):
    enabled: bool = False
    existingClaim: str = ""


class _CheckpointDefaults(_Claim):
    url: str = ""
    secret: str = ""
    grace: values.Duration = 120.0


class _Install(_Part):
    enabled: bool = False


class _Studies(_Part):
    install: _Install = _Install()


class _Team(_Part):
    """What is laid over the others for one team."""

    namespace: str
    data: _Claim = _Claim()
    checkpoints: _CheckpointDefaults = _CheckpointDefaults()
    studies: _Studies = _Studies()


class _Values(_Part):
    """The values that are read; the defaults are the chart's."""

    data: _Claim = _Claim()
    checkpoints: _CheckpointDefaults = _CheckpointDefaults()
    studies: _Studies = _Studies()
    teams: list[_Team] = []

    def of(self, namespace: str) -> tuple[_Claim, _CheckpointDefaults, bool]:
        """What a namespace's team has of data and checkpoints, and whether its pods may install packages."""
        for team in self.teams:
            if team.namespace == namespace:
                install = _over(self.studies.install, team.studies.install)
                return _over(self.data, team.data), _over(self.checkpoints, team.checkpoints), install.enabled
        return self.data, self.checkpoints, self.studies.install.enabled


def _over(values: _P, more: _P) -> _P:
    return values.model_copy(update=more.model_dump(exclude_unset=True))


@dataclasses.dataclass(frozen=True)
class Offline:
    """What is known of a chart without its cluster.

    Attributes:
        has_data: whether it has a volume of data sets.
        checkpoints: where trials save themselves.
        namespace: where the objects are to be; "" leaves it to `kubectl`.
        may_install: whether trial pods may install packages.
    """

    has_data: bool
    checkpoints: CheckpointDefaults
    namespace: str = ""
    may_install: bool = False

    @classmethod
    def read(cls, file: Path, namespace: str) -> Offline:
        """Of a file of values, as they are for the team of a namespace.

        Raises:
            SpecError: it cannot be read, a value that is needed is of the wrong type, or it lists teams and this is none of
                theirs; holds all issues.
        """
        found = document.read(file, f"--values {file}")
        try:
            given = _Values.model_validate(found.data)
        except ValidationError as error:
            places = [(tuple(each["loc"]), each["msg"].removeprefix("Value error, ")) for each in error.errors()]
            raise SpecError(
                [Issue(place, text, found.source, found.lines.get(place, 0)) for place, text in places]
            ) from error
        teams = [team.namespace for team in given.teams]
        if namespace and teams and namespace not in teams:
            known = ", ".join(teams)
            text = f"no team has the namespace {namespace}; choose one with --namespace: {known}; see `platform docs gitops`"
            raise SpecError([Issue(("teams",), text, found.source, found.lines.get(("teams",), 0))])
        data, saves, may_install = given.of(namespace)
        claim = saves.existingClaim or "checkpoints" if saves.enabled else ""
        there = CheckpointDefaults(claim=claim, url=saves.url, secret=saves.secret, grace=saves.grace)
        return cls(data.enabled, there, namespace, may_install)

    def check(self, job: Job | None) -> tuple[list[Issue], list[str]]:
        """As `Target.check`, as far as the values decide it; what is not checked is a warning."""
        if job is None:
            return [], []
        issues = [
            *preflight.install(job, self.may_install),
            *preflight.data(job, "data" if self.has_data else ""),
            *preflight.shards(job, bool(self.checkpoints.claim)),
        ]
        return issues, [*saving.warnings(job, self.checkpoints), UNCHECKED]

    def describe(self, plan: Plan) -> dict[str, Any]:
        """As `Target.describe`."""
        return {"apiVersion": "v1", "kind": "List", "items": runs.manifests(plan, self.namespace, time.time())}
