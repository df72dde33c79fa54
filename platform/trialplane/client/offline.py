"""Checks of a job against the values of a chart instead of a cluster, for `submit --dry-run --values FILE`.

Nothing is contacted. Only the values that a check needs are read. As with Helm, a value that the file lacks is the chart's.
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
    """Values of a team, which override the general ones."""

    namespace: str
    data: _Claim = _Claim()
    checkpoints: _CheckpointDefaults = _CheckpointDefaults()
    studies: _Studies = _Studies()


class _Values(_Part):
    """The values that a check needs. Their defaults are those of the chart."""

    data: _Claim = _Claim()
    checkpoints: _CheckpointDefaults = _CheckpointDefaults()
    studies: _Studies = _Studies()
    teams: list[_Team] = []

    def for_namespace(self, namespace: str) -> tuple[_Claim, _CheckpointDefaults, bool]:
        """Return data, checkpoints, and whether pods may install packages, for the team of a namespace."""
        for team in self.teams:
            if team.namespace == namespace:
                install = _override(self.studies.install, team.studies.install)
                return _override(self.data, team.data), _override(self.checkpoints, team.checkpoints), install.enabled
        return self.data, self.checkpoints, self.studies.install.enabled


def _override(general_values: _P, team_values: _P) -> _P:
    """Return general values, replaced by those that a team sets."""
    return general_values.model_copy(update=team_values.model_dump(exclude_unset=True))


@dataclasses.dataclass(frozen=True)
class Offline:
    """The settings of a chart for one team, from a file of values.

    Attributes:
        has_data: Whether the chart has a volume for data sets.
        checkpoints: Location of checkpoints.
        namespace: Namespace of the objects; "" for the namespace that kubectl selects.
        may_install: Whether trial pods may install packages.
    """

    has_data: bool
    checkpoints: CheckpointDefaults
    namespace: str = ""
    may_install: bool = False

    @classmethod
    def read(cls, file: Path, namespace: str) -> Offline:
        """Read a file of values, for the team of a namespace.

        Raises:
            SpecError: The file cannot be read, a value has the wrong type, or the file lists teams but not this namespace.
        """
        values_file = document.read(file, f"--values {file}")
        try:
            chart_values = _Values.model_validate(values_file.data)
        except ValidationError as error:
            problems = [(tuple(item["loc"]), item["msg"].removeprefix("Value error, ")) for item in error.errors()]
            raise SpecError(
                [
                    Issue(field_path, text, values_file.source, values_file.lines.get(field_path, 0))
                    for field_path, text in problems
                ]
            ) from error
        teams = [team.namespace for team in chart_values.teams]
        if namespace and teams and namespace not in teams:
            namespaces = ", ".join(teams)
            text = f"no team has the namespace {namespace}; choose one of {namespaces}; see `platform docs gitops`"
            raise SpecError([Issue(("teams",), text, values_file.source, values_file.lines.get(("teams",), 0))])
        data, defaults, may_install = chart_values.for_namespace(namespace)
        claim = (defaults.existingClaim or "checkpoints") if defaults.enabled else ""
        checkpoints = CheckpointDefaults(claim=claim, url=defaults.url, secret=defaults.secret, grace=defaults.grace)
        return cls(data.enabled, checkpoints, namespace, may_install)

    def check(self, job: Job | None) -> tuple[list[Issue], list[str]]:
        """Check a job as `Target.check` does, as far as the values allow. A warning lists what is not checked."""
        if job is None:
            return [], []
        issues = [
            *preflight.install_issues(job, self.may_install),
            *preflight.data_issues(job, "data" if self.has_data else ""),
            *preflight.output_issues(job, bool(self.checkpoints.claim)),
            *preflight.promotion_issues(job, bool(self.checkpoints.claim or self.checkpoints.url)),
        ]
        return issues, [*saving.warnings(job, self.checkpoints), UNCHECKED]

    def describe(self, plan: Plan) -> dict[str, Any]:
        """Return the objects that `Target.apply` would write."""
        return {"apiVersion": "v1", "kind": "List", "items": runs.manifests(plan, self.namespace, time.time())}
