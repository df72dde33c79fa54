"""MLflow as runs and laptops reach it, through the gateway: where its doors are, and what opens a run's.

The gateway alone talks to MLflow's server. Below `path(place, run)` is what MLflow's own client may request for the MLflow
runs of this run, with `token(…)` as its `Authorization: Bearer`; below `UI` of a namespace what its pages may read, for
users.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re
from collections.abc import Mapping

from trialplane.wire import labels, ledger

UI = "/mlflow"
_INSIDE = re.compile(r"/namespaces/([^/?]+)(?:/runs/([^/?]+))?/mlflow(/.*)", re.DOTALL)
_PURPOSE = b"mlflow"


@dataclasses.dataclass(frozen=True)
class Inside:
    """What a request to MLflow is for.

    Attributes:
        namespace: of the run, or of the user.
        run: whose door it came to; "" for that of users.
        target: what is behind the door.
    """

    namespace: str
    run: str
    target: str


@dataclasses.dataclass(frozen=True)
class Scope:
    """What of the one MLflow belongs to a namespace.

    Records without a namespace were made before there were several, and are the control namespace's, in which all runs were.

    Attributes:
        namespace: of runs.
        is_control: whether the platform itself is in it; its experiments are named as their jobs.
    """

    namespace: str
    is_control: bool

    def experiment(self, job: str) -> str:
        """The name of a job's experiment; no job's name has a slash."""
        return job if self.is_control else f"{self.namespace}/{job}"

    def has_experiment(self, name: str) -> bool:
        """Whether an experiment of that name is of the namespace."""
        return "/" not in name if self.is_control else name.startswith(f"{self.namespace}/")

    def has(self, tags: Mapping[str, str]) -> bool:
        """Whether a record with these tags is of a run in the namespace."""
        return tags.get(labels.NAMESPACE, self.namespace if self.is_control else "") == self.namespace


def path(place: str, run: str) -> str:
    """Where the MLflow of a run is at the gateway: with its address in front, the tracking URI of controller and trials."""
    return f"{place}/runs/{run}{UI}"


def inside(target: str) -> Inside | None:
    """Which door a request comes to; None if to none."""
    found = _INSIDE.fullmatch(target)
    if found is None or (found[2] is not None and not ledger.is_name(found[2])):
        return None
    return Inside(found[1], found[2] or "", found[3])


def token(run_token: str) -> str:
    """What opens MLflow's door for a run, and not its ledger: trials have it, and cannot compute the run's token from it."""
    return hmac.new(run_token.encode("utf-8", "surrogateescape"), _PURPOSE, hashlib.sha256).hexdigest()
