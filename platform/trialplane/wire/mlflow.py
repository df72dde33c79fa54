"""Access of runs and laptops to MLflow through the gateway: addresses, tokens, and the headers that identify a caller.

Only the gateway can reach MLflow's server. MLflow's client in a run uses `path(namespace_path, run)` as its tracking URI and
`token(…)` as `Authorization: Bearer`, and works in the workspace of the run's namespace. A user's browser opens MLflow's
pages below `UI` of a namespace. MLflow authorizes each request by Kubernetes' RBAC; the chart has the roles.
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
_DESTINATION = re.compile(  # /namespaces/team/mlflow/… or /namespaces/team/runs/tune/mlflow/…
    r"/namespaces/(?P<namespace>[^/?]+)(?:/runs/(?P<run>[^/?]+))?/mlflow(?P<target>/.*)",
    re.DOTALL,
)
_PURPOSE = b"mlflow"  # distinguishes a token for MLflow from tokens for other purposes
USERS, VIEWERS, RUNS = "users", "viewers", "runs"  # roles of callers
WORKSPACE = "X-MLFLOW-WORKSPACE"


@dataclasses.dataclass(frozen=True)
class Destination:
    """The destination of a request to MLflow.

    Attributes:
        namespace: Namespace of the run or the user.
        run: Name of the run whose address was used. "" for the address for users.
        target: Path and query at MLflow's server.
    """

    namespace: str
    run: str
    target: str


def caller_headers(namespace: str, role: str, name: str) -> dict[str, str]:
    """Return the headers that identify a caller and a workspace to MLflow's server. Only the gateway can set them.

    Args:
        namespace: Namespace, which is also the workspace.
        role: Role of the caller in the namespace: `USERS`, `VIEWERS`, `RUNS`, or "" for none.
        name: Name of the caller, for MLflow's records.
    """
    groups = {"X-Remote-Groups": f"trialplane:{role}:{namespace}"} if role else {}
    return {"X-Remote-User": name, **groups, WORKSPACE: namespace}


def authorization(environ: Mapping[str, str]) -> str:
    """Return the value of the header `Authorization` for MLflow's server. "" without a login.

    Args:
        environ: Environment with the variables of MLflow's client: a token, or a user and a password.
    """
    if token := environ.get(env.MLFLOW_TOKEN, ""):
        return f"Bearer {token}"
    user, password = environ.get(env.MLFLOW_USERNAME, ""), environ.get(env.MLFLOW_PASSWORD, "")
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""


def path(namespace_path: str, run: str) -> str:
    """Return the gateway's path to MLflow for a run. With the gateway's address before it, it is the run's tracking URI."""
    return f"{namespace_path}/runs/{run}{UI}"


def destination(target: str) -> Destination | None:
    """Return the destination of a request, from its path and query. None if the request is not for MLflow."""
    match = _DESTINATION.fullmatch(target)
    if match is None:
        return None
    run = match["run"] or ""
    if run and not ledger.is_run_name(run):
        return None
    return Destination(namespace=match["namespace"], run=run, target=match["target"])


def token(run_token: str) -> str:
    """Return a token that is valid for MLflow only, derived from the run's token.

    Trials get it, because the run's token cannot be derived from it.
    """
    return hmac.new(run_token.encode("utf-8", "surrogateescape"), _PURPOSE, hashlib.sha256).hexdigest()
