"""MLflow as runs and laptops reach it, through the gateway: its addresses there, what opens a run's, and who asks MLflow.

The gateway alone talks to MLflow's server. Below `path(place, run)` MLflow's own client works in the workspace of the run's
namespace, with `token(…)` as its `Authorization: Bearer`; below `UI` of a namespace its pages do, for users. MLflow asks the
API server's RBAC for each request: which roles may do what in a namespace is in the chart.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re

from trialplane.wire import ledger

UI = "/mlflow"
_INSIDE = re.compile(r"/namespaces/([^/?]+)(?:/runs/([^/?]+))?/mlflow(/.*)", re.DOTALL)
_PURPOSE = b"mlflow"
USERS, VIEWERS, RUNS = "users", "viewers", "runs"  # the roles that ask MLflow
WORKSPACE = "X-MLFLOW-WORKSPACE"


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


def caller(namespace: str, role: str, name: str) -> dict[str, str]:
    """Return the headers by which MLflow's server knows who asks, and in which workspace; nobody but the gateway sets them.

    Args:
        namespace: whose workspace it is.
        role: of the caller there; "" for none.
        name: of the caller, for MLflow's records.
    """
    groups = {"X-Remote-Groups": f"trialplane:{role}:{namespace}"} if role else {}
    return {"X-Remote-User": name, **groups, WORKSPACE: namespace}


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
