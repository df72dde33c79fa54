"""Pod templates of a run: the head pod with the controller, and one for each role.

All have a read-only root file system and no service account token, as the Pod Security Standard `restricted` requires.
KubeRay's own container beside trials (`wait-gcs-ready`) copies a trial's environment, mounts and security context. Only the
controller's container has the run's token. It shares a process namespace with Ray's head, because Ray must find its raylet.
So each container of the head pod has its own uid, and Ray's cannot read the environment, memory or files of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from trialplane.job.kinds import Job, Role
from trialplane.plan import installing, sizes, variables
from trialplane.plan.gpus import GpuRequest
from trialplane.plan.plan import Plan
from trialplane.plan.saving import Saving
from trialplane.plan.site import Site
from trialplane.wire import cluster
from trialplane.wire.paths import RunPaths

USER = 1000  # uid in the images, of the controller, and of the pod that removes the files of a deleted run
HEAD_USER, AUTOSCALER_USER = 1001, 1002  # uids of the other containers of the head pod, in the group of USER
RAY_LOGS = "/tmp/ray"  # Ray's sockets and logs, which all containers of the head pod share
CODE = "code"  # name of the volume with the packed code
# Size limits of the head pod's folders on the node's disk. If one is exceeded, this pod is evicted, and no other pod. For
# trial pods, there is `Site.scratch`.
_TMP, _RAY_LOGS, _HOME = "1Gi", "8Gi", "16Gi"
OBJECT_STORE = "/object-store"  # folder of Ray's object store where /dev/shm is the MPS daemon's
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
# Labels by which the pods of one trial are packed. They communicate at each step, so they should be on one machine if they
# fit, else in one zone.
_PACK_KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
_RAY_AGENT = 52365  # port of Ray's agent in every pod
# Seconds that a head pod may stay on an unreachable node. Kubernetes takes 40 to notice, and by default waits 300 more, in
# which the run would make no progress.
_NODE_TIMEOUT = 30
_LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def labels(plan: Plan, pod_kind: str = "") -> dict[str, str]:
    """Return the labels of an object of a run.

    Args:
        plan: Plan of the run.
        pod_kind: `cluster.CONTROLLER` or `cluster.TRIAL` for a pod; "" for another object.
    """
    common = {cluster.RUN: plan.run, cluster.JOB: plan.job.name, cluster.MANAGED_BY: cluster.MANAGER}
    return {**plan.job.cluster.labels, **common, cluster.ROLE: pod_kind} if pod_kind else common


def head(plan: Plan, site: Site) -> dict[str, Any]:
    """Return the template of the head pod: Ray's head and the controller, a sidecar that the kubelet restarts."""
    job = plan.job
    store = sizes.controller_object_store(job, site)
    ray = {
        "name": "ray-head",
        "image": site.images.controller,
        "imagePullPolicy": site.images.pull_policy,
        "command": ["umask", "0002"],  # KubeRay puts it before `ray start`: the group may write to Ray's sockets
        "env": variables.head(site),
        "resources": sizes.head(job, site),
        "securityContext": container_security(HEAD_USER),
        "volumeMounts": [_mount("tmp", variables.TMP), _mount("ray-logs", RAY_LOGS), _mount("shm", "/dev/shm")],
        # All ports are listed, so that the head's service has the controller's too; the others are KubeRay's defaults.
        "ports": [
            {"name": "gcs-server", "containerPort": cluster.GCS_PORT},
            {"name": "client", "containerPort": 10001},
            {"name": "metrics", "containerPort": 8080},
            {"name": "status", "containerPort": cluster.STATUS_PORT},
        ],
        "readinessProbe": _readiness_probe(),
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
        *_notify_volumes(job),
        *_authority_volumes(site),
    ]
    spec = _pod(plan, site, account=site.controller_account, container=ray, volumes=volumes)
    spec["initContainers"] = [_controller(plan, site)]
    spec["shareProcessNamespace"] = True  # Ray's driver looks for its raylet among the processes
    # Ray's head has lost its state when it ends, so KubeRay creates another pod. The sidecar is restarted nevertheless.
    spec["restartPolicy"] = "Never"
    spec["tolerations"] = _lost_node_tolerations()
    # A deleted head pod is removed at once: KubeRay creates no other head while one is terminating, which on a lost node
    # lasts until the node is removed. Nothing is lost: Ray ends at the first signal, and the ledger has all reported results
    # and accepts one of two controllers.
    spec["terminationGracePeriodSeconds"] = 0
    if autoscales(job, site):
        # An account for each run: one for all would accumulate the rights over all of their clusters.
        spec["serviceAccountName"] = cluster.autoscaler_account(plan.run)
        spec["volumes"] += [_scratch("autoscaler-tmp", _TMP), _token_volume()]
    return {"metadata": _metadata(plan, cluster.CONTROLLER), "spec": spec}


def _controller(plan: Plan, site: Site) -> dict[str, Any]:
    """Return the controller's container.

    It has no probes. While the controller waits for the ledger, a failing readiness probe would take the head pod out of its
    service, so that trial pods could not connect, and a liveness probe would kill the controller. Instead, the run's status
    shows whether the controller is stuck, and the kubelet restarts the container when its process ends.
    """
    home = Path(cluster.HOME)
    folder = RunPaths.of(home, plan.run).root
    # The volume has the folders of all runs, and the container gets only the folder of this run.
    run_folder = {**_mount("runs", str(folder)), "subPath": str(folder.relative_to(home))}
    submitted_folder = PurePosixPath(cluster.SPEC_MOUNT).parent  # with the mounts of the spec and of the code
    command = ["python", "-m", "trialplane.controller", "--run-dir", str(folder), "--submitted", str(submitted_folder)]
    return {
        "name": cluster.CONTROLLER,
        "image": site.images.controller,
        "imagePullPolicy": site.images.pull_policy,
        "restartPolicy": "Always",
        "command": command,
        "env": variables.controller(plan, site, Saving.of(plan.job, site.checkpoints)),
        "resources": sizes.controller(plan.job, site),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # from which `waiting` reads why it ended
        "volumeMounts": [
            _mount("controller-tmp", variables.TMP),
            _mount("ray-logs", RAY_LOGS),
            _mount("home", cluster.HOME),
            *([run_folder] if site.runs.claim else []),
            _mount("shm", "/dev/shm"),
            _mount("spec", cluster.SPEC_MOUNT, read_only=True),
            _mount(CODE, cluster.CODE_MOUNT, read_only=True),
            _mount("run-token", cluster.TOKEN_MOUNT, read_only=True),
            *(_mount(volume["name"], cluster.NOTIFY_MOUNT, read_only=True) for volume in _notify_volumes(plan.job)),
            *(_mount(volume["name"], cluster.GATEWAY_CA_MOUNT, read_only=True) for volume in _authority_volumes(site)),
        ],
    }


def _notify_volumes(job: Job) -> list[dict[str, Any]]:
    """Return a list with the volume of the secrets of the job's notifications. Empty if the job has none.

    The secret is optional: the pod starts even if it is missing.
    """
    names = sorted({rule.secret for rule in job.notify if rule.secret is not None})
    items = [{"key": name, "path": name} for name in names]
    secret = {"secretName": cluster.NOTIFY_SECRET, "items": items, "optional": True, "defaultMode": 0o440}
    return [{"name": "notify", "secret": secret}] if names else []


def _authority_volumes(site: Site) -> list[dict[str, Any]]:
    """Return a list with the volume of the authority of the gateway's certificate. Empty if the gateway has none."""
    items = [{"key": cluster.GATEWAY_CA, "path": cluster.GATEWAY_CA}]
    return [{"name": "gateway-ca", "configMap": {"name": cluster.SITE, "items": items}}] if site.gateway.tls else []


def autoscales(job: Job, site: Site) -> bool:
    """Whether trial pods are autoscaled: as set by the job, else as set by the chart.

    The chart's setting is ignored in a queue, where Kueue would admit the pods one by one. If a trial needs several pods,
    they are never autoscaled, because it starts when all of them are ready.
    """
    if any(role.gang for role in job.roles()):
        return False
    if job.cluster.autoscale is not None:
        return job.cluster.autoscale
    return site.autoscale and not (job.cluster.queue or site.queue)


def trial(plan: Plan, site: Site, role: Role) -> dict[str, Any]:
    """Return the pod template of a role. A pod runs one trial, one node of a trial, or one worker at a time."""
    saving = Saving.of(plan.job, site.checkpoints)
    request = role.resources
    memory = sizes.mib(sizes.trial_memory(role))
    resources = sizes.resources(cpus=request.cpus, memory=memory, overcommit=site.overcommit)
    gpu_request = GpuRequest.of(role, site)
    if gpu_request is not None:
        for kind in ("limits", "requests"):
            resources[kind][gpu_request.resource] = str(gpu_request.number)
    # A volume of the pod at /dev/shm would hide that of the MPS daemon, which the device plugin mounts there.
    uses_mps = gpu_request is not None and gpu_request.uses_mps
    mounts = [
        _mount("tmp", variables.TMP),
        _mount("home", cluster.HOME),
        _mount("shm", OBJECT_STORE if uses_mps else "/dev/shm"),
        _mount(CODE, cluster.CODE_MOUNT, read_only=True),
    ]
    container: dict[str, Any] = {
        "name": "ray-worker",
        "image": role.cluster.image or site.images.trial,
        "imagePullPolicy": site.images.pull_policy,
        "env": variables.trial(site, saving, gpu_memory=None if gpu_request is None else gpu_request.memory),
        "resources": resources,
        "securityContext": container_security(),
        "volumeMounts": mounts,
        "readinessProbe": _readiness_probe(),
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
    for volume in _authority_volumes(site):
        mounts.append(_mount(volume["name"], cluster.GATEWAY_CA_MOUNT, read_only=True))
        volumes.append(volume)
    spec = _pod(plan, site, account=site.trial_account, container=container, volumes=volumes)
    # An ended container is not restarted in its pod, but KubeRay creates another pod, which waits for the head without
    # back-off, and starts with empty memory and disk.
    spec["restartPolicy"] = "Never"
    spec.update(_placement(role, site))
    spec.update(_topology(plan, role))
    if saving is not None:
        saving.add_to(spec, container, run=plan.run, origin=plan.job.origin, disk_limit=site.scratch)
    if plan.job.install:
        installing.add_to(spec, container, plan.job, site.install)
    return {"metadata": _metadata(plan, cluster.TRIAL), "spec": spec}


def autoscaler(site: Site) -> dict[str, Any]:
    """Return resources and mounts of KubeRay's autoscaler container in the head pod, the only one with a token."""
    return {
        "imagePullPolicy": site.images.pull_policy,
        "env": variables.head(site),
        "resources": sizes.resources(cpus=0.25, memory="512Mi", overcommit=site.overcommit),
        "securityContext": container_security(AUTOSCALER_USER),
        "volumeMounts": [
            _mount("autoscaler-tmp", variables.TMP),
            _mount("ray-logs", RAY_LOGS),
            _mount("token", _TOKEN, read_only=True),
        ],
    }


def container_security(user: int = USER) -> dict[str, Any]:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_security() -> dict[str, Any]:
    """Return the security context of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",  # do not visit all files of a large claim at each start
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _readiness_probe() -> dict[str, Any]:
    """Return KubeRay's readiness probe of Ray, but without its initial 10 s and its interval of 5 s."""
    return {
        "httpGet": {"path": "/api/healthz", "port": _RAY_AGENT},
        "initialDelaySeconds": 1,
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 10,
    }


def _pod(
    plan: Plan, site: Site, account: str, container: Mapping[str, Any], volumes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the spec of a pod of a run, with the fields that head pods and trial pods have in common."""
    priority = plan.job.cluster.priority_class or site.priority_class
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # variables for every service of the namespace
        "securityContext": pod_security(),
        **({"priorityClassName": priority} if priority else {}),
        **({"imagePullSecrets": [{"name": name} for name in site.images.pull_secrets]} if site.images.pull_secrets else {}),
        "containers": [container],
        "volumes": volumes,
    }


def _lost_node_tolerations() -> list[dict[str, Any]]:
    """Return the tolerations of a head pod for the taints of a lost node: it stays for a short time only.

    So the pod is soon recreated on another node. Trial pods have Kubernetes' longer default. The controller knows from Ray
    which of them are lost, and on a node that only Kubernetes cannot reach, a trial may still run.
    """
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _NODE_TIMEOUT}
        for key in _LOST_NODE_TAINTS
    ]


def _placement(role: Role, site: Site) -> dict[str, Any]:
    """Return the fields of a trial pod's spec that say which nodes it may use, as the job and the chart set them."""
    selector = {**role.cluster.node_selector, **site.node_selector}
    tolerations = [dict(toleration) for toleration in site.tolerations]
    tolerations += [toleration.model_dump(exclude_none=True) for toleration in role.cluster.tolerations]
    return {**({"nodeSelector": selector} if selector else {}), **({"tolerations": tolerations} if tolerations else {})}


def _topology(plan: Plan, role: Role) -> dict[str, Any]:
    """Return the fields of a trial pod's spec that place it with regard to the other pods of the run.

    Pods are spread or packed as the job's `topology` says. Without it, only pods of a trial with several nodes are packed.
    """
    topology = plan.job.cluster.topology
    same_run = {"matchLabels": {cluster.RUN: plan.run, cluster.ROLE: cluster.TRIAL}}
    constraints: dict[str, Any] = {}
    if topology is not None and topology.spread:
        constraints["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": topology.spread,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": same_run,
            }
        ]
    pack_keys: tuple[str, ...] = ()
    if topology is not None:
        pack_keys = (topology.pack,) if topology.pack else ()
    elif role.nodes > 1:
        pack_keys = _PACK_KEYS
    terms = [{"weight": 100, "podAffinityTerm": {"topologyKey": key, "labelSelector": same_run}} for key in pack_keys]
    if terms:
        constraints["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    return constraints


def _metadata(plan: Plan, pod_kind: str) -> dict[str, Any]:
    """Return the labels and annotations of a pod; see `labels`."""
    annotations = plan.job.cluster.annotations
    return {"labels": labels(plan, pod_kind), **({"annotations": dict(annotations)} if annotations else {})}


def _mount(name: str, path: str, *, read_only: bool = False) -> dict[str, Any]:
    """Return the mount of a volume in a container."""
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _scratch(name: str, limit: str) -> dict[str, Any]:
    """Return a volume on the node's disk that is deleted with the pod, with a size limit."""
    return {"name": name, "emptyDir": {"sizeLimit": limit}}


def _memory(name: str, size: int) -> dict[str, Any]:
    """Return a volume in memory with a size in bytes."""
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": sizes.mib(size)}}


def _claim(name: str, claim: str, *, read_only: bool = False) -> dict[str, Any]:
    """Return the volume of a PersistentVolumeClaim."""
    source: dict[str, Any] = {"claimName": claim, **({"readOnly": True} if read_only else {})}
    return {"name": name, "persistentVolumeClaim": source}


def _code(plan: Plan) -> dict[str, Any]:
    """Return the volume with the packed code. Several ConfigMaps become one folder. The pod starts when all exist."""
    maps = [{"name": name} for name in plan.code_maps]
    if len(maps) == 1:
        return {"name": CODE, "configMap": maps[0]}
    return {"name": CODE, "projected": {"sources": [{"configMap": config_map} for config_map in maps]}}


def _token_volume() -> dict[str, Any]:
    """Return a volume with the token of the pod's account.

    Kubernetes would mount the same files in all containers. Only the autoscaler's container mounts this volume.
    """
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
