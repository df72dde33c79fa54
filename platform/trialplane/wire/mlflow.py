"""MLflow as runs and laptops reach it, through the gateway: its addresses there, what opens a run's, and who asks MLflow.

The gateway alone talks to MLflow's server. Below `path(place, run)` MLflow's own client works in the workspace of the run's
namespace, with `token(…)` as its `Authorization: Bearer`; below `UI` of a namespace its pages do, for users. MLflow asks the
API server's RBAC for each request: which roles may do what in a namespace is in the chart.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import re
from collections.abc import Mapping

from trialplane.wire import env, ledger

UI = "/mlflow"
_DESTINATION = re.compile(r"/namespaces/([^/?]+)(?:/runs/([^/?]+))?/mlflow(/.*)", re.DOTALL)
_PURPOSE = b"mlflow"
USERS, VIEWERS, RUNS = "users", "viewers", "runs"  # the roles that ask MLflow
WORKSPACE = "X-MLFLOW-WORKSPACE"


@dataclasses.dataclass(frozen=True)
class Destination:
    """The destination of a request to MLflow.

    Attributes:
        namespace: of the run, or of the user.
        run: the run whose address it has; "" for that of users.
        target: path and query at MLflow's server.
    """

    namespace: str
    run: str
    target: str


def caller(namespace: str, role: str, name: str) -> dict[str, str]:
    """Return the headers with the caller and the workspace for MLflow's server; only the gateway can set them.

    Args:
        namespace: of the workspace.
        role: of the caller there; "" for none.
        name: of the caller, for MLflow's records.
    """
    groups = {"X-Remote-Groups": f"trialplane:{role}:{namespace}"} if role else {}
    return {"X-Remote-User": name, **groups, WORKSPACE: namespace}


def login(environ: Mapping[str, str]) -> str:
    """Return the value of `Authorization` for MLflow, from the variables of MLflow's client; "" without a login."""
    if token := environ.get(env.MLFLOW_TOKEN, ""):
        return f"Bearer {token}"
    user, password = environ.get(env.MLFLOW_USERNAME, ""), environ.get(env.MLFLOW_PASSWORD, "")
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""


def path(namespace_path: str, run: str) -> str:
    """Return the path at the gateway of a run's MLflow: after its address, the tracking URI of controller and trials."""
    return f"{namespace_path}/runs/{run}{UI}"


def destination(target: str) -> Destination | None:
    """Return the destination of a request by its path and query; None if it is not for MLflow."""
    match = _DESTINATION.fullmatch(target)
    if match is None or (match[2] is not None and not ledger.is_name(match[2])):
        return None
    return Destination(match[1], match[2] or "", match[3])


def token(run_token: str) -> str:
    """Return the token of a run for MLflow alone: trials have it, and cannot compute the run's token from it."""
    return hmac.new(run_token.encode("utf-8", "surrogateescape"), _PURPOSE, hashlib.sha256).hexdigest()
