"""The kinds of pod of a run, as templates: the head's, in which the controller is, and one for each role. Pure data.

All of them have a read-only root file system and no service account's token, as the Pod Security Standard `restricted`
requires; KubeRay's own container beside trials (`wait-gcs-ready`) copies a trial's environment, mounts and security context.
What is private, the run's token, is in one container, the controller's. It shares processes with
Ray's head, or Ray would not find its raylet; so each container of the head pod has a uid of its own, and Ray's cannot look
into the environment, the memory or the files of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from trialplane.job.kinds import Job, Role
from trialplane.plan import installing, sizes, variables
from trialplane.plan.plan import Plan
from trialplane.plan.saving import Folders, Saving
from trialplane.plan.site import Site
from trialplane.wire import cluster
from trialplane.wire.paths import RunPaths

USER = 1000  # of the images, of the controller, and of the pod that removes the files of a deleted run
HEAD_USER, AUTOSCALER_USER = 1001, 1002  # of the other containers of the head pod; their group is that of USER
RAY_LOGS = "/tmp/ray"  # Ray's sockets and logs, which all containers of the head pod share
# Bounds of the head pod's folders on the node's disk, as `Site.scratch` of trial pods': what goes beyond evicts the pod, and
# not its neighbours.
_TMP, _RAY_LOGS, _HOME = "1Gi", "8Gi", "16Gi"
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
# Nodes of one trial communicate at each step: put them on one machine if they fit, else in one zone.
_NEAR = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
_RAY_AGENT = 52365  # port of Ray's agent in every pod
# Seconds that an indispensable pod may stay on a node that does not answer. Kubernetes takes 40 to notice and waits 300 more
# by default, in which the run does nothing.
_PATIENCE_WITH_NODE = 30
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def labels(plan: Plan, role: str = "") -> dict[str, str]:
    """The labels of an object of a run, or of a pod with a role."""
    common = {cluster.RUN: plan.run, cluster.JOB: plan.job.name, cluster.MANAGED_BY: cluster.MANAGER}
    return {**plan.job.cluster.labels, **common, cluster.ROLE: role} if role else common


def head(plan: Plan, site: Site) -> dict[str, Any]:
    """Template of the head pod: Ray's head and, as a sidecar that the kubelet restarts by itself, the controller."""
    job = plan.job
    store = sizes.controller_object_store(job, site)
    ray = {
        "name": "ray-head",
        "image": site.images.controller,
        "imagePullPolicy": site.images.pull_policy,
        "command": ["umask", "0002"],  # KubeRay puts it before `ray start`: the group may write to Ray's sockets
        "env": variables.head(site),
        "resources": sizes.head(job, site),
        "securityContext": locked(HEAD_USER),
        "volumeMounts": [_mount("tmp", variables.TMP), _mount("ray-logs", RAY_LOGS), _mount("shm", "/dev/shm")],
        # Named here, the service of the head has the controller's as well; its other ports are KubeRay's usual ones.
        "ports": [
            {"name": "gcs-server", "containerPort": cluster.GCS_PORT},
            {"name": "client", "containerPort": 10001},
            {"name": "metrics", "containerPort": 8080},
            {"name": "status", "containerPort": cluster.STATUS_PORT},
        ],
        "readinessProbe": _ready(),
    }
    volumes = [
        _scratch("tmp", _TMP),
        _scratch("controller-tmp", _TMP),
        _scratch("ray-logs", _RAY_LOGS),
        _scratch("home", _HOME),
        *([_claim("runs", site.runs.claim)] if site.runs.claim else []),
        _memory("shm", store + sizes.DEFAULT_SHM),
        {"name": "spec", "configMap": {"name": cluster.spec_map(plan.run)}},
        _code(plan),
        {"name": "run-token", "secret": {"secretName": cluster.token_secret(plan.run), "defaultMode": 0o440}},
    ]
    spec = _pod(plan, site, site.controller_account, ray, volumes)
    spec["initContainers"] = [_controller(plan, site)]
    spec["shareProcessNamespace"] = True  # Ray's driver looks for its raylet among the processes
    # A head that ended has lost what it knew, so KubeRay makes another pod; the sidecar is restarted all the same.
    spec["restartPolicy"] = "Never"
    spec["tolerations"] = _soon_elsewhere()
    # Removed at once when deleted: KubeRay creates no other head while one is terminating, which on a lost node
    # lasts until the node is removed. There is nothing to wait for: Ray ends at the first signal, the ledger has all
    # reported results, and of two controllers it accepts one.
    spec["terminationGracePeriodSeconds"] = 0
    if autoscales(job, site):
        # An account for each run: one for all would accumulate the rights over all of their clusters.
        spec["serviceAccountName"] = cluster.autoscaler_account(plan.run)
        spec["volumes"] += [_scratch("autoscaler-tmp", _TMP), _token_volume()]
    return {"metadata": _metadata(plan, cluster.CONTROLLER), "spec": spec}


def _controller(plan: Plan, site: Site) -> dict[str, Any]:
    """The controller's container.

    It has no probes: one of its readiness would keep trial pods from a head whose controller waits for the ledger, one of
    its life would kill it for that. When it is stuck its status says so; when it ends it is restarted.
    """
    home = Path(cluster.HOME)
    folder = RunPaths.of(home, plan.run).root
    # Of the volume of all runs it sees the folder of this one.
    own = {**_mount("runs", str(folder)), "subPath": str(folder.relative_to(home))}
    command = ["python", "-m", "trialplane.controller", "--run-dir", str(folder)]
    return {
        "name": cluster.CONTROLLER,
        "image": site.images.controller,
        "imagePullPolicy": site.images.pull_policy,
        "restartPolicy": "Always",
        "command": [*command, "--submitted", str(PurePosixPath(cluster.SPEC_MOUNT).parent)],
        "env": variables.controller(plan, site, Saving.of(plan.job, site.checkpoints)),
        "resources": sizes.controller(plan.job, site),
        "securityContext": locked(),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # where `waiting` finds why it ended
        "volumeMounts": [
            _mount("controller-tmp", variables.TMP),
            _mount("ray-logs", RAY_LOGS),
            _mount("home", cluster.HOME),
            *([own] if site.runs.claim else []),
            _mount("shm", "/dev/shm"),
            _mount("spec", cluster.SPEC_MOUNT, read_only=True),
            _mount("code", cluster.CODE_MOUNT, read_only=True),
            _mount("run-token", cluster.TOKEN_MOUNT, read_only=True),
        ],
    }


def autoscales(job: Job, site: Site) -> bool:
    """Whether trial pods are autoscaled; in a queue if the job says so, as then Kueue does not admit its pods at once.

    Nor where a trial fills several pods, or where there is one trial: it can begin when all of them are ready.
    """
    if any(role.gang for role in job.roles()):
        return False
    if job.cluster.autoscale is not None:
        return job.cluster.autoscale
    return site.autoscale and not (job.cluster.queue or site.queue)


def trial(plan: Plan, site: Site, role: Role) -> dict[str, Any]:
    """Template of a pod of a role, in which one trial, or one node of a trial, or one worker runs at a time."""
    saving = Saving.of(plan.job, site.checkpoints)
    need, placement = role.resources, role.cluster
    resources = sizes.resources(need.cpus, sizes.mib(sizes.trial_memory(role)), site.overcommit)
    if need.gpus:
        for kind in ("limits", "requests"):
            resources[kind][placement.gpu_resource] = str(need.gpus)
    mounts = [
        _mount("tmp", variables.TMP),
        _mount("home", cluster.HOME),
        _mount("shm", "/dev/shm"),
        _mount("code", cluster.CODE_MOUNT, read_only=True),
    ]
    container: dict[str, Any] = {
        "name": "ray-worker",
        "image": placement.image or site.images.trial,
        "imagePullPolicy": site.images.pull_policy,
        "env": variables.trial(site, saving),
        "resources": resources,
        "securityContext": locked(),
        "volumeMounts": mounts,
        "readinessProbe": _ready(),
    }
    volumes = [
        _scratch("tmp", site.scratch),
        _scratch("home", site.scratch),
        _memory("shm", sizes.trial_shm(role)),
        _code(plan),
    ]
    if site.data.claim:
        mounts.append(_mount("data", cluster.DATA, read_only=True))
        volumes.append(_claim("data", site.data.claim, read_only=True))
    spec = _pod(plan, site, site.trial_account, container, volumes)
    # An ended container is not restarted in the same pod; the pod is recreated: it waits for the head as the
    # first one did, without back-off, and finds nothing left in memory or on disk.
    spec["restartPolicy"] = "Never"
    selector = {**placement.node_selector, **site.node_selector}
    if selector:
        spec["nodeSelector"] = selector
    tolerations = [dict(one) for one in site.tolerations]
    tolerations += [one.model_dump(exclude_none=True) for one in placement.tolerations]
    if tolerations:
        spec["tolerations"] = tolerations
    spec.update(_topology(plan, role))
    if saving is not None:
        saving.add_to(spec, container, Folders(plan.run, plan.job.resume, site.scratch))
    if plan.job.install:
        installing.add_to(spec, container, plan.job, site.install)
    return {"metadata": _metadata(plan, cluster.TRIAL), "spec": spec}


def autoscaler(site: Site) -> dict[str, Any]:
    """Resources and mounts of KubeRay's autoscaler container in the head pod; the only one with a token."""
    return {
        "imagePullPolicy": site.images.pull_policy,
        "env": variables.autoscaler(site),
        "resources": sizes.resources(0.25, "512Mi", site.overcommit),
        "securityContext": locked(AUTOSCALER_USER),
        "volumeMounts": [
            _mount("autoscaler-tmp", variables.TMP),
            _mount("ray-logs", RAY_LOGS),
            _mount("token", _TOKEN, read_only=True),
        ],
    }


def locked(user: int = USER) -> dict[str, Any]:
    """The security context of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def as_user() -> dict[str, Any]:
    """The security context of every pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",  # not file by file over a large claim at each start
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _ready() -> dict[str, Any]:
    """KubeRay's own check whether Ray runs in a pod, but without its initial 10 s and its interval of 5 s."""
    asked = {"path": "/api/healthz", "port": _RAY_AGENT}
    return {"httpGet": asked, "initialDelaySeconds": 1, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 10}


def _pod(
    plan: Plan, site: Site, account: str, container: Mapping[str, Any], volumes: list[dict[str, Any]]
) -> dict[str, Any]:
    priority = plan.job.cluster.priority_class or site.priority_class
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # variables for every service of the namespace
        "securityContext": as_user(),
        **({"priorityClassName": priority} if priority else {}),
        **({"imagePullSecrets": [{"name": name} for name in site.images.pull_secrets]} if site.images.pull_secrets else {}),
        "containers": [container],
        "volumes": volumes,
    }


def _soon_elsewhere() -> list[dict[str, Any]]:
    """Tolerations of a pod that is soon recreated elsewhere when its node is lost.

    Trial pods stay as long as Kubernetes lets others: the controller learns from Ray which are gone, and one whose node only
    Kubernetes does not reach may be far in a trial.
    """
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _PATIENCE_WITH_NODE}
        for key in _LOST_NODE
    ]


def _topology(plan: Plan, role: Role) -> dict[str, Any]:
    """Preferences for placing the trial pods of a run together."""
    topology = plan.job.cluster.topology
    alike = {"matchLabels": {cluster.RUN: plan.run, cluster.ROLE: cluster.TRIAL}}
    made: dict[str, Any] = {}
    if topology is not None and topology.spread:
        made["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": topology.spread,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": alike,
            }
        ]
    packed = (topology.pack,) if topology is not None else _NEAR if role.nodes > 1 else ()
    terms = [{"weight": 100, "podAffinityTerm": {"topologyKey": key, "labelSelector": alike}} for key in packed if key]
    if terms:
        made["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    return made


def _metadata(plan: Plan, role: str) -> dict[str, Any]:
    annotations = plan.job.cluster.annotations
    return {"labels": labels(plan, role), **({"annotations": dict(annotations)} if annotations else {})}


def _mount(name: str, path: str, read_only: bool = False) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _scratch(name: str, limit: str) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"sizeLimit": limit}}


def _memory(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": sizes.mib(size)}}


def _claim(name: str, claim: str, read_only: bool = False) -> dict[str, Any]:
    source: dict[str, Any] = {"claimName": claim, **({"readOnly": True} if read_only else {})}
    return {"name": name, "persistentVolumeClaim": source}


def _code(plan: Plan) -> dict[str, Any]:
    """The volume with the packed code; of several ConfigMaps one folder is made, which exists once all of them do."""
    maps = [{"name": name} for name in plan.code_maps]
    if len(maps) == 1:
        return {"name": "code", "configMap": maps[0]}
    return {"name": "code", "projected": {"sources": [{"configMap": one} for one in maps]}}


def _token_volume() -> dict[str, Any]:
    """The token of the pod's account, as Kubernetes would mount it in every container of the pod."""
    return {
        "name": "token",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]
        },
    }
