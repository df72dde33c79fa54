"""Whose a record in MLflow is, by tags that the gateway sets when it is made and lets nobody change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trialplane.wire import labels
from trialplane.wire.mlflow import Scope

TAGS = (labels.NAMESPACE, labels.RUN, labels.RECORD)  # a name may be used in several namespaces, and again later


@dataclasses.dataclass(frozen=True)
class Run:
    """Whose door it is.

    Attributes:
        scope: of its namespace.
        name: of the run.
        job: that it is of, by which it names its experiment.
        record: the uid of the Run that its record began with; "" of one whose operator noted none, which owns nothing.
    """

    scope: Scope
    name: str
    job: str
    record: str

    @property
    def experiment(self) -> str:
        """The name of its experiment in MLflow."""
        return self.scope.experiment(self.job)

    @property
    def tags(self) -> dict[str, str]:
        """Those of everything that it makes, by which that is its own; nobody may change them."""
        return dict(zip(TAGS, (self.scope.namespace, self.name, self.record), strict=True))

    def owns(self, tags: Mapping[str, str]) -> bool:
        """Whether tags are those of something that the run made."""
        is_own = self.scope.has(tags) and tags.get(labels.RUN) == self.name
        return is_own and bool(self.record) and tags.get(labels.RECORD) == self.record
