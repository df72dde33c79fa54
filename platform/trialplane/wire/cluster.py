"""Names that the laptop, the chart and the pods agree on in a cluster: labels, objects, ports and mount paths.

The chart's templates repeat some of them; `tests/charts` compares.
"""

from __future__ import annotations

from pathlib import Path

GROUP = "trialplane.io"

# Labels of every object of a run, and of the chart's pods.
RUN = f"{GROUP}/run"
JOB = f"{GROUP}/job"
ROLE = f"{GROUP}/role"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "trialplane"  # the value of MANAGED_BY on objects of a run, and the field manager of what the laptop applies
REMOVES = f"{GROUP}/removes"  # on a pod that is no run's: the deleted run whose files it removes
GROUP_LABEL = "ray.io/group"  # KubeRay's, on each pod: the worker group that it is of
CONTROL = f"{GROUP}/control"  # on the namespace of a team that the chart made: the control namespace
# Annotations of a Run, which an admission policy compares with the API server's names of users.
OWNER = f"{GROUP}/owner"  # who made it; it never changes
CHANGED_BY = f"{GROUP}/changed-by"  # who changed its spec last, if that was not the owner
# Annotations of a run's RayCluster.
CODE_HASH = f"{GROUP}/code-hash"
SPEC_HASH = f"{GROUP}/spec-hash"
NETWORK_HASH = f"{GROUP}/network-hash"  # of the network policies that its pods have

# Values of ROLE.
CONTROLLER = "controller"  # the head pod; also the name of the container in it
TRIAL = "trial"  # a worker pod, and the pod of `platform doctor`
OPERATOR = "operator"  # of the chart: it follows the Runs
VOLUMES = "volumes"  # a short-lived pod that works on volumes and has no network

# The one object by which the laptop finds what the chart installed for a team: a ConfigMap of this name in its namespace.
SITE = "trialplane"
SITE_KEY = "site.json"

# Ports.
GCS_PORT = 6379  # of Ray's head
STATUS_PORT = 8090  # of the controller: /status and /metrics
GATEWAY_PORT = 8080

# Where things lie in the pods of a run.
HOME = "/var/lib/trialplane"  # TRIALPLANE_HOME; the run's folder is RunPaths.of(HOME, run), in all pods alike
SPEC_MOUNT = "/etc/trialplane/run"  # job.json and submission.json
CODE_MOUNT = "/etc/trialplane/code"  # code.tar.gz
CODE_KEY = "code.tar.gz"  # of the first ConfigMap; of further ones with .1, .2, …
TOKEN_MOUNT = "/etc/trialplane/token"  # the run's token, in the controller's pod alone
TOKEN_KEY = "token"  # of its Secret
NOTIFY_SECRET = "trialplane-notify"  # a team's Secret with URLs of services to notify
NOTIFY_MOUNT = "/etc/trialplane/notify"  # these, in the controller's container alone
RAY_TOKEN_KEY = "auth_token"  # of the Secret of Ray's token, as KubeRay has it
DATA = "/data"  # the data volume, when there is one
PACKAGES = "/packages"  # what a trial pod has installed before its first trial; its slot puts it on the paths of trials
INSTALL = "install"  # the container that does so
CHECKPOINTS = "/checkpoints"  # of trials that save themselves: the checkpoints volume, or one that goes with the pod

TOKEN_HEADER = "X-Trialplane-Token"  # of requests to the gateway, a user's or a run's; the proxy drops `Authorization`
USER = "trialplane-user"  # the service account by whose tokens the gateway knows the users of a namespace; it has no rights
VIEWER = "trialplane-viewer"  # the same for those who only read
AUDIENCE = "trialplane"  # of these tokens, which open nothing else
UNCHECKED = "unchecked"  # code of an answer of the gateway that could not find out who asks: try again


def refusal(packages: Path) -> Path:
    """The file in which the container `install` says why nothing it could try again would install the packages."""
    return packages / ".refused"


def group(role: str) -> str:
    """Name of the worker group with the pods of a role; KubeRay labels them with it."""
    return f"{role}s"


def slot(role: str) -> str:
    """Name of the resource of Ray by which a slot finds a pod of its role: each has one, so it runs one trial at a time."""
    return f"{role}_slot"


def code_map(run: str, part: int = 0) -> str:
    """Name of the ConfigMap that holds a run's code, or a further part of it."""
    return f"{run}-code-{part}" if part else f"{run}-code"


# Names with a dot, which no name of a run has: a run takes no name of another object of its namespace by being called so.


def spec_map(run: str) -> str:
    """Name of the ConfigMap with a run's spec, which its pods read."""
    return f"{run}.spec"


def token_secret(run: str) -> str:
    """Name of the Secret that holds the token of a run's last start."""
    return f"{run}.token"


def ray_secret(run: str) -> str:
    """Name of the Secret with the token of a run's Ray cluster."""
    return f"{run}.ray"


def autoscaler_account(run: str) -> str:
    """Name of the service account of a run's head with Ray's autoscaler."""
    return f"{run}.autoscaler"


def head_service(run: str) -> str:
    """Name of the service of a run's head pod, as KubeRay makes it."""
    return f"{run}-head-svc"
