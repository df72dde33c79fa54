"""Names in a cluster that the laptop, the chart and the pods must agree on: labels, objects, ports and mount paths.

The chart's templates repeat some of them, and `tests/charts` checks that they are the same.
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
REMOVES = f"{GROUP}/removes"  # on a pod that belongs to no run: the deleted run whose files the pod removes
GROUP_LABEL = "ray.io/group"  # set by KubeRay on each pod: the pod's worker group
CONTROL = f"{GROUP}/control"  # on a team's namespace that the chart created: the control namespace
# Annotations of a Run. An admission policy compares them with the API server's usernames.
OWNER = f"{GROUP}/owner"  # the user who created the Run; it never changes
CHANGED_BY = f"{GROUP}/changed-by"  # the user who changed the spec last, if that was not the owner
# Annotations of a run's RayCluster.
CODE_HASH = f"{GROUP}/code-hash"
SPEC_HASH = f"{GROUP}/spec-hash"
NETWORK_HASH = f"{GROUP}/network-hash"  # hash of the network policies of its pods

# Values of ROLE.
CONTROLLER = "controller"  # the head pod; also the name of the container in it
TRIAL = "trial"  # a worker pod, and the pod of `platform doctor`
OPERATOR = "operator"  # the chart's operator, which reconciles the Runs
VOLUMES = "volumes"  # a short-lived pod that works on volumes and has no network

# The ConfigMap in a team's namespace that describes to the laptop what the chart installed for the team.
SITE = "trialplane"
SITE_KEY = "site.json"

# Ports.
GCS_PORT = 6379  # of Ray's head
STATUS_PORT = 8090  # of the controller, for /status and /metrics
GATEWAY_PORT = 8080
TLS_MOUNT = "/etc/trialplane/tls"  # tls.crt and tls.key of the gateway, in its pods

# Paths in the pods of a run.
HOME = "/var/lib/trialplane"  # TRIALPLANE_HOME; in all pods, the run's folder is RunPaths.of(HOME, run)
SPEC_MOUNT = "/etc/trialplane/run"  # job.json and submission.json
CODE_MOUNT = "/etc/trialplane/code"  # code.tar.gz
CODE_KEY = "code.tar.gz"  # key of the first part of the code; the keys of further parts end in .1, .2, …
TOKEN_MOUNT = "/etc/trialplane/token"  # the run's token; only the controller's pod mounts it
TOKEN_KEY = "token"  # key of the run's token in its Secret
GATEWAY_CA = "gateway-ca.crt"  # key in the ConfigMap SITE: certificate of the authority that signs the gateway's
GATEWAY_CA_MOUNT = "/etc/trialplane/gateway"  # that certificate; all pods of a run mount it
NOTIFY_SECRET = "trialplane-notify"  # a team's Secret with URLs of services to notify
NOTIFY_MOUNT = "/etc/trialplane/notify"  # that Secret; only the controller's container mounts it
RAY_TOKEN_KEY = "auth_token"  # key of Ray's token in its Secret, set by KubeRay
DATA = "/data"  # the data volume, if the chart has one
PACKAGES = "/packages"  # packages that a trial pod installs before its first trial; its slot adds them to the trials' paths
INSTALL = "install"  # the container that installs these packages
CHECKPOINTS = "/checkpoints"  # checkpoints of trials: the checkpoints volume, or a volume that is deleted with the pod

TOKEN_HEADER = "X-Trialplane-Token"  # header with a user's or a run's token; the API server's proxy drops `Authorization`
USER = "trialplane-user"  # service account whose tokens authenticate the users of a namespace; it has no rights of its own
VIEWER = "trialplane-viewer"  # service account whose tokens authenticate users who may only read
AUDIENCE = "trialplane"  # audience of these tokens, so that they are valid for the gateway only
UNCHECKED = "unchecked"  # code of the gateway's answer if it could not authenticate the caller; a later request may succeed


def refusal_file(packages: Path) -> Path:
    """Return the file in which the container `install` writes the reason of a failure that a retry would not solve."""
    return packages / ".refused"


def group(role: str) -> str:
    """Return the name of the worker group with the pods of a role. KubeRay labels the pods with it."""
    return f"{role}s"


def slot(role: str) -> str:
    """Return the name of the Ray resource that a slot of this role requests.

    Each pod of the role has one unit of the resource, so a pod runs one trial at a time.
    """
    return f"{role}_slot"


def code_map(run: str, part: int = 0) -> str:
    """Return the name of the ConfigMap with a part of a run's code, from 0."""
    return f"{run}-code-{part}" if part else f"{run}-code"


# The names below contain a dot, which the name of a run cannot. So they differ from the names of all other runs' objects.


def spec_map(run: str) -> str:
    """Return the name of the ConfigMap with a run's spec, which its pods read."""
    return f"{run}.spec"


def token_secret(run: str) -> str:
    """Return the name of the Secret with the token of a run's last start."""
    return f"{run}.token"


def ray_secret(run: str) -> str:
    """Return the name of the Secret with the token of a run's Ray cluster."""
    return f"{run}.ray"


def autoscaler_account(run: str) -> str:
    """Return the name of the service account of a run's head pod if Ray's autoscaler is enabled."""
    return f"{run}.autoscaler"


def head_service(run: str) -> str:
    """Return the name that KubeRay gives the service of a run's head pod."""
    return f"{run}-head-svc"
