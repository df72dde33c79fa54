"""Reads the objects of a Run: its RayCluster and pods, its record, its code and its Secret; and finds problems with them."""

from __future__ import annotations

import base64
import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trialplane.errors import InputError, SpecError, TargetError
from trialplane.kube import kinds, metadata, preflight, waiting
from trialplane.kube.cluster import Cluster
from trialplane.kube.metadata import KubeObject
from trialplane.ledger import archive, run_status
from trialplane.ledger.archive import Archive
from trialplane.ledger.run_status import LedgerView
from trialplane.plan import network, pods
from trialplane.plan import pack as packing
from trialplane.plan import run as runs
from trialplane.plan.pack import Pack
from trialplane.plan.run import Image
from trialplane.plan.site import Site
from trialplane.reconciler import decisions
from trialplane.reconciler.observation import Observation, Phase, Problem
from trialplane.wire import cluster as names
from trialplane.wire import ledger

_EVENTS = 500  # limit of the events that are read; enough for the pods of a large run
_EVENTS_AGE = 5.0  # time for which all runs share one list of events: reading it takes as long as the rest of an observation
_NEW_SECONDS = 30.0  # age of a RayCluster up to which its pods may still be created or refused
_CONTAINERS = ("ray-head", "ray-worker", names.CONTROLLER)  # containers whose images an administrator or a job chooses
_logger = logging.getLogger(__name__)
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})")


class Observer:
    """Reader of the Runs in one namespace. It changes nothing.

    Args:
        cluster: Client of the cluster for the namespace.
        archive: Ledgers of the namespace.
        site: Description of the chart's installation.
        clock: Clock, in seconds since the epoch.
    """

    def __init__(self, cluster: Cluster, archive: Archive, site: Site, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._archive = archive
        self._site = site
        self._clock = clock
        self._events_listed_at = 0.0
        self._events: list[dict[str, Any]] = []

    def observe(self, previous: Observation) -> Observation:
        """Return a new observation of a Run for the next decision. The Run itself is not read again.

        Only the fields that a decision in the Run's phase needs are read; the others keep their values.

        Args:
            previous: Earlier observation, which may contain only the Run.
        """
        name = previous.name
        ray_cluster = self._cluster.read(kinds.RAY_CLUSTER, name)
        observation = dataclasses.replace(
            previous, ray_cluster=ray_cluster, record=self._archive.snapshot(name), start_problem=None, wait_reason=""
        )
        if ray_cluster is None:
            return self._without_ray_cluster(observation)
        if observation.own_cluster is None:  # the RayCluster belongs to another Run
            return observation
        if metadata.is_deleted(observation.own_cluster):
            # The RayCluster stays until its last pod is gone, and a pod on a lost node until somebody removes it.
            return dataclasses.replace(observation, leftovers=self._pod_names(name))
        return self._with_ray_cluster(observation, observation.own_cluster)

    def recounted(self, observation: Observation) -> Observation:
        """Return the observation with the counts of the ledger's attempts, if the run's last controller was killed."""
        record = observation.record
        if record is None or not observation.is_recorded or not LedgerView(record.status, alive=record.alive).is_killed:
            return observation
        try:
            counts = self._archive.counts(observation.name)
        except ValueError as error:  # a damaged attempt must not keep the Run from being paused or cancelled
            text = "%s: the attempts in the ledger cannot be counted, so its status has the controller's last counts: %s"
            _logger.warning(text, observation.name, error)
            return observation
        status = run_status.recounted(record.status, counts)
        return dataclasses.replace(observation, record=dataclasses.replace(record, status=status))

    def _without_ray_cluster(self, observation: Observation) -> Observation:
        """Return the observation of a Run without a RayCluster. If it must be started, with its code and any problem."""
        name = observation.name
        spec = self._cluster.read(kinds.CONFIG_MAP, names.spec_map(name))
        observation = dataclasses.replace(observation, has_spec=owns(observation, spec), pods=(), leftovers=())
        if not decisions.is_due(observation):
            return dataclasses.replace(observation, has_orphans=False)
        # A start waits until the old pods are gone: KubeRay would mistake them for pods of the new RayCluster, but they have
        # the old token.
        if leftovers := self._pod_names(name):
            return dataclasses.replace(observation, leftovers=leftovers)
        code = tuple(self._cluster.read(kinds.CONFIG_MAP, map_name) for map_name in observation.spec.code.config_maps)
        has_orphans = any(
            config_map is not None and not owns(observation, config_map) and is_free(config_map, name) for config_map in code
        )
        name_conflict = self._name_conflict(observation, code)
        problem = Problem("NameTaken", name_conflict) if name_conflict else self._start_problem(observation, code)
        return dataclasses.replace(observation, start_problem=problem, code=code, has_orphans=has_orphans)

    def _with_ray_cluster(self, observation: Observation, ray_cluster: Mapping[str, Any]) -> Observation:
        """Return the observation of a Run that has a RayCluster, with the state of its pods, token and network policies."""
        name = observation.name
        cluster_pods = [pod for pod in self._pods(name) if metadata.is_owned(pod, ray_cluster["metadata"].get("uid"))]
        observation = dataclasses.replace(
            observation,
            network=network.digest(network.policies(ray_cluster, self._site)),
            controller_runs=any(_runs(pod, names.CONTROLLER) for pod in cluster_pods),
            pulled_images=images(cluster_pods),
        )
        if observation.parsed.job is None or observation.phase is Phase.ENDED:  # no decision then depends on the rest
            return observation
        if not observation.is_alive:  # a controller needs the spec and the token only to start
            observation = dataclasses.replace(
                observation,
                has_spec=owns(observation, self._cluster.read(kinds.CONFIG_MAP, names.spec_map(name))),
                lacks_token=self._lacks_token(observation),
            )
        group = names.group(observation.started_job.roles()[0].name)  # of the pods whose number a user can change
        pod_metadata = [pod["metadata"] for pod in cluster_pods if not metadata.is_deleted(pod)]
        pod_names = tuple(item["name"] for item in pod_metadata if item["labels"].get(names.GROUP_LABEL) == group)
        status = observation.record.status if observation.record is not None else None
        has_all_slots = observation.is_alive and status is not None and status.slots_ready >= status.slots
        wait_reason = "" if has_all_slots else self._wait_reason(ray_cluster, cluster_pods)
        return dataclasses.replace(observation, pods=pod_names, wait_reason=wait_reason)

    def _name_conflict(self, observed: Observation, code: Sequence[Mapping[str, Any] | None]) -> str:
        """Return a message about an object of somebody else that has a name which the start of a Run needs.

        Returns:
            The message about the first such object. "" if there is none.
        """
        run, site = observed.name, self._site
        needed_objects = [
            (kinds.CONFIG_MAP, "ConfigMap", names.spec_map(run)),
            (kinds.SECRET, "Secret", names.token_secret(run)),
            (kinds.SECRET, "Secret", names.ray_secret(run)),
            # KubeRay creates these three, and would use existing ones unchanged.
            (kinds.SERVICE, "Service", names.head_service(run)),
            (kinds.ROLE, "Role", run),
            (kinds.ROLE_BINDING, "RoleBinding", run),
        ]
        if pods.autoscales(observed.job, site):
            needed_objects.append((kinds.SERVICE_ACCOUNT, "ServiceAccount", names.autoscaler_account(run)))
        if site.network.enabled:
            needed_objects += [(kinds.NETWORK_POLICY, "NetworkPolicy", policy) for policy in network.names(run)]
        existing_objects: list[tuple[str, Mapping[str, Any] | None]] = [("ConfigMap", config_map) for config_map in code]
        existing_objects += [(kind_name, self._cluster.read(kind, name)) for kind, kind_name, name in needed_objects]
        for kind_name, existing in existing_objects:
            if existing is not None and not is_free(existing, run):
                name = existing["metadata"]["name"]
                return f"the {kind_name} {name} does not belong to this Run; give the Run another name"
        return ""

    def _lacks_token(self, observed: Observation) -> bool:
        """Whether the run lacks a valid token: its Secret is missing, or the ledger does not accept the token in it.

        The ledger does not accept it, for example, if the database was restored from a backup.
        """
        secret = self._cluster.read(kinds.SECRET, names.token_secret(observed.name))
        if secret is not None and not is_free(secret, observed.name):
            return False  # the Secret belongs to somebody else, so the operator must not replace it
        if not owns(observed, secret):
            return True
        try:
            token = base64.b64decode(((secret or {}).get("data") or {}).get(names.TOKEN_KEY, "")).decode()
        except ValueError:  # somebody has changed the Secret
            return True
        if not token or observed.record is None:
            return True
        return not archive.is_same_digest(observed.record.token, ledger.token_digest(token))

    def _pods(self, run: str) -> list[dict[str, Any]]:
        """Return the pods of a run, the newest first."""
        run_pods = self._cluster.list(kinds.POD, selector=f"{names.RUN}={run}")
        return sorted(run_pods, key=metadata.creation_time, reverse=True)

    def _pod_names(self, run: str) -> tuple[str, ...]:
        """Return the names of a run's pods, the newest first."""
        return tuple(pod["metadata"]["name"] for pod in self._pods(run))

    def _wait_reason(self, ray_cluster: Mapping[str, Any], pods: list[dict[str, Any]]) -> str:
        """Return the reason why not all pods of a RayCluster run. "" if there is none.

        The events of the namespace are listed again if the last list is too old, or if the RayCluster is so new that the
        list may lack its events.
        """
        now = self._clock()
        is_list_recent = self._events_listed_at <= now < self._events_listed_at + _EVENTS_AGE
        if is_new(ray_cluster, now) or not is_list_recent:
            self._events = self._cluster.list(kinds.EVENT, limit=_EVENTS)
            self._events_listed_at = now
        is_suspended = (ray_cluster.get("spec") or {}).get("suspend")  # by Kueue, until there is room
        workload = self._workload(ray_cluster) if is_suspended else None
        return waiting.reason(ray_cluster, pods, self._events, workload=workload, now=now)

    def _workload(self, ray_cluster: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return Kueue's Workload for a RayCluster. None without one."""
        try:
            workloads = self._cluster.list(kinds.WORKLOAD)
        except TargetError:  # Kueue is not installed
            return None
        uid = ray_cluster["metadata"].get("uid")
        return next((workload for workload in workloads if metadata.is_owned(workload, uid)), None)

    def _start_problem(self, observed: Observation, code: Sequence[Mapping[str, Any] | None]) -> Problem | None:
        """Return the reason why a run cannot be started, or None if it can be.

        The chart may not allow its job, or its code may be incomplete or different from the spec's.
        """
        if issues := preflight.chart_issues(observed.job, self._site):
            return Problem("Invalid", str(SpecError([issue.below("spec", "job") for issue in issues])))
        parts = runs.parts(code)
        return _missing_code(observed, parts) or _code_mismatch(observed, b"".join(part or b"" for part in parts))


def _missing_code(observed: Observation, parts: Sequence[bytes | None]) -> Problem | None:
    """Return the problem if parts of the code are missing. None if all exist.

    A missing part is None.
    """
    missing = [
        f"{name} with {packing.part_name(names.CODE_KEY, number)}"
        for number, (name, part) in enumerate(zip(observed.spec.code.config_maps, parts, strict=True))
        if part is None
    ]
    if not missing:
        return None
    if len(missing) == 1:
        text = f"the ConfigMap {missing[0]} is not there yet; `kubectl apply` it beside the Run"
    else:
        text = f"the ConfigMaps {', '.join(missing)} are not there yet; `kubectl apply` them beside the Run"
    return Problem(runs.CODE_MISSING, text)


def _code_mismatch(observed: Observation, packed: bytes) -> Problem | None:
    """Return the problem if the packed code is not the code that the spec names. None if it is."""
    code = observed.spec.code
    maps = code.config_maps
    where = f"the ConfigMap {maps[0]}" if len(maps) == 1 else f"the ConfigMaps {', '.join(maps)}"
    try:
        digest = packing.digest(packed)
    except InputError as error:
        return Problem("CodeMismatch", f"{names.CODE_KEY} in {where}: {error}; submit the run again")
    if digest != code.sha256:
        return Problem(
            "CodeMismatch",
            f"the code in {where} is {digest[:12]}…, and spec.code.sha256 says {code.sha256[:12]}…; delete the Run, with "
            "which its code goes, and submit the run again",
        )
    part_count = len(Pack(data=packed, sha256=digest, files=()).parts)
    if part_count != len(maps):  # pods mount one ConfigMap for each MiB of the code, whatever number the spec names
        return Problem(
            "CodeMismatch",
            f"spec.code.configMaps names {len(maps)}, but the code needs {part_count} of 1 MiB; submit the run again",
        )
    return None


def images(pods: Iterable[Mapping[str, Any]]) -> tuple[Image, ...]:
    """Return the images of Ray's and the controller's containers, each with the digest that its node has pulled.

    An image that the node knows only by another name is left out, for example one that `kind load` has loaded.
    """
    pulled_images: list[Image] = []
    for pod in pods:
        spec = pod.get("spec") or {}
        containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
        image_names = {container["name"]: str(container.get("image", "")) for container in containers}
        for status in _container_statuses(pod):
            image, image_id = image_names.get(status["name"], ""), str(status.get("imageID") or "")
            if status["name"] not in _CONTAINERS or not image_id:  # no ID before the node has pulled the image
                continue
            digest = _image_digest(image, image_id)
            if digest is not None:
                pulled_images.append(Image(image=image, digest=digest))
    return tuple(dict.fromkeys(pulled_images))


def _container_statuses(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the statuses of a pod's containers and init containers."""
    status = pod.get("status") or {}
    return [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]


def _image_digest(image: str, image_id: str) -> str | None:
    """Return the digest of an image: that in its name, or else that in its ID. None if neither has it.

    Args:
        image: Name of the image in a pod's spec.
        image_id: ID of the image in the pod's status. It names a repository, which may be another one for the same image.
    """
    match = _DIGEST.search(image)
    repository = re.sub(r"(?<!/)(?:@.*|:[^/]*)$", "", image)  # "hub:5000/app:1.2" → "hub:5000/app"
    id_repository = image_id.partition("@")[0]  # "docker.io/library/app@sha256:…" → "docker.io/library/app"
    is_same_repository = f"/{id_repository}".endswith(f"/{repository}")  # the ID may add a host
    if match is None and is_same_repository:
        match = _DIGEST.search(image_id)
    return None if match is None else match[1]


def owns(observed: Observation, kube_object: KubeObject | None) -> bool:
    """Whether an object exists and the observed Run owns it."""
    return kube_object is not None and metadata.is_owned(kube_object, observed.uid)


def _runs(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container of a pod runs, according to the pod's status."""
    return any(
        status.get("name") == container and "running" in (status.get("state") or {}) for status in _container_statuses(pod)
    )


def is_free(kube_object: KubeObject, run: str) -> bool:
    """Whether a Run of this name may take over an object.

    An owned object is free if its owners are a Run or a RayCluster of this name. If these are earlier ones that were
    deleted, Kubernetes removes the object soon, unless the new Run becomes its owner first. An object without an owner is
    free only if it contains code and is labeled with the run.
    """
    owners = {(owner.get("kind"), owner.get("name")) for owner in kube_object["metadata"].get("ownerReferences") or []}
    if owners:
        return owners <= {("RayCluster", run), (runs.KIND, run)}
    contains_code = "binaryData" in kube_object
    return contains_code and metadata.labels_of(kube_object).get(names.RUN) == run


def is_new(ray_cluster: Mapping[str, Any], now: float) -> bool:
    """Whether a RayCluster is so new that its pods may still be created or refused."""
    return now < metadata.creation_time(ray_cluster) + _NEW_SECONDS
