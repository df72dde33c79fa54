"""Reads what there is of a Run: its RayCluster and pods, its record, its code, its Secret; and what is wrong with them."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trialplane.errors import InputError, SpecError, TargetError
from trialplane.kube import kinds, metadata, preflight, waiting
from trialplane.kube.cluster import Cluster
from trialplane.ledger import archive
from trialplane.ledger.archive import Archive
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

_EVENTS = 500  # the newest that the API server returns; enough for the pods of a wide run
_EVENTS_AGE = 5.0  # seconds for which one list of them serves all runs: reading it costs as much as the rest of a look
_SETTLING = 30.0  # seconds of a RayCluster in which its pods are made, or refused, which only events say
_CONTAINERS = ("ray-head", "ray-worker", names.CONTROLLER)  # of which an administrator or a job names the image
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})")


class Observer:
    """Looks at the Runs of one namespace, and changes nothing.

    Args:
        cluster: the namespace.
        archive: the ledger.
        site: what the chart installed there.
        clock: seconds since the epoch.
    """

    def __init__(self, cluster: Cluster, archive: Archive, site: Site, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._archive = archive
        self._site = site
        self._clock = clock
        self._events: tuple[float, list[dict[str, Any]]] = 0.0, []  # when they were listed

    def look(self, observed: Observation) -> Observation:
        """Everything that the next decision needs; the Run itself as it was read."""
        name, site = observed.name, self._site
        ray_cluster = self._cluster.read(kinds.RAY_CLUSTER, name)
        observation = dataclasses.replace(
            observed, ray_cluster=ray_cluster, recorded=self._archive.snapshot(name), blocked=None, waits=""
        )
        if ray_cluster is None:
            spec = self._cluster.read(kinds.CONFIG_MAP, names.spec_map(name))
            observation = dataclasses.replace(observation, has_spec=owns(observation, spec), pods=(), leftovers=())
            if decisions.is_due(observation):
                # KubeRay would take them for pods of the new RayCluster, and they have another token.
                if leftovers := tuple(pod["metadata"]["name"] for pod in self._pods(name)):
                    return dataclasses.replace(observation, leftovers=leftovers)
                code = tuple(
                    self._cluster.read(kinds.CONFIG_MAP, map_name) for map_name in observation.spec.code.config_maps
                )
                orphans = any(
                    config_map is not None and not owns(observation, config_map) and is_free(config_map, name)
                    for config_map in code
                )
                taken = self._taken(observation, code)
                blocked = Problem("NameTaken", taken) if taken else self._blocked(observation, site, code)
                return dataclasses.replace(observation, blocked=blocked, code=code, has_orphans=orphans)
            return dataclasses.replace(observation, has_orphans=False)
        if observation.own_cluster is not None and metadata.is_deleted(observation.own_cluster):
            # It goes with its last pod, and one on a lost node stays until somebody removes it.
            return dataclasses.replace(observation, leftovers=tuple(pod["metadata"]["name"] for pod in self._pods(name)))
        if observation.own_cluster is None:
            return observation
        cluster_pods = [
            pod for pod in self._pods(name) if metadata.is_owned(pod, observation.own_cluster["metadata"].get("uid"))
        ]
        policies = network.policies(ray_cluster, site)
        observation = dataclasses.replace(observation, network=network.digest(policies))
        observation = dataclasses.replace(
            observation,
            controller_runs=any(_runs(pod, names.CONTROLLER) for pod in cluster_pods),
            pulled=images(cluster_pods),
        )
        if observation.read.job is None or observation.phase is Phase.ENDED:
            return observation
        if not observation.alive:
            observation = dataclasses.replace(
                observation,
                has_spec=owns(observation, self._cluster.read(kinds.CONFIG_MAP, names.spec_map(name))),
                is_locked_out=self._is_locked_out(observation),
            )
        role = names.group(observation.started_job.roles()[0].name)
        staying = [pod["metadata"] for pod in cluster_pods if not metadata.is_deleted(pod)]
        first = tuple(pod["name"] for pod in staying if pod["labels"].get(names.GROUP_LABEL) == role)
        status = observation.recorded.status if observation.recorded is not None else None
        complete = observation.alive and status is not None and status.slots_ready >= status.slots
        return dataclasses.replace(observation, pods=first, waits="" if complete else self._waits(ray_cluster, cluster_pods))

    def _taken(self, observed: Observation, code: Sequence[Mapping[str, Any] | None]) -> str:
        """Say which object of somebody else has the name of one that the run's start makes or takes; "" if none has."""
        run, site = observed.name, self._site
        wanted = [
            (kinds.CONFIG_MAP, "ConfigMap", names.spec_map(run)),
            (kinds.SECRET, "Secret", names.token_secret(run)),
            (kinds.SECRET, "Secret", names.ray_secret(run)),
            # KubeRay takes these three as they are when they are there.
            (kinds.SERVICE, "Service", names.head_service(run)),
            (kinds.ROLE, "Role", run),
            (kinds.ROLE_BINDING, "RoleBinding", run),
        ]
        if pods.autoscales(observed.job, site):
            wanted.append((kinds.SERVICE_ACCOUNT, "ServiceAccount", names.autoscaler_account(run)))
        if site.network.enabled:
            wanted += [(kinds.NETWORK_POLICY, "NetworkPolicy", policy) for policy in network.names(run)]
        objects: list[tuple[str, str, Mapping[str, Any] | None]] = []
        objects += [(word, name, self._cluster.read(kind, name)) for kind, word, name in wanted]
        objects += [
            ("ConfigMap", config_map["metadata"]["name"], config_map) for config_map in code if config_map is not None
        ]
        for word, name, thing in objects:
            if thing is not None and not is_free(thing, run):
                return f"the {word} {name} is not of this Run; give the Run another name"
        return ""

    def _is_locked_out(self, observed: Observation) -> bool:
        """Whether the Secret of its token, which somebody may have deleted, does not open the ledger, as after a restore."""
        secret = self._cluster.read(kinds.SECRET, names.token_secret(observed.name))
        if secret is not None and not is_free(secret, observed.name):
            return False  # somebody else's, which is left as it is
        if not owns(observed, secret):
            return True
        try:
            token = base64.b64decode(((secret or {}).get("data") or {}).get(names.TOKEN_KEY, "")).decode()
        except ValueError:
            return True
        return (
            not token
            or observed.recorded is None
            or not archive.is_same_digest(observed.recorded.token, ledger.token_digest(token))
        )

    def _pods(self, run: str) -> list[dict[str, Any]]:
        """The pods of a run, the newest first."""
        pods = self._cluster.list(kinds.POD, selector=f"{names.RUN}={run}")
        return sorted(pods, key=metadata.created, reverse=True)

    def _waits(self, ray_cluster: Mapping[str, Any], pods: list[dict[str, Any]]) -> str:
        """Return why not all pods run."""
        listed, events = self._events
        now = self._clock()
        if is_new(ray_cluster, now) or not listed <= now < listed + _EVENTS_AGE:
            events = self._cluster.list(kinds.EVENT, limit=_EVENTS)
            self._events = now, events
        workload = self._workload(ray_cluster) if (ray_cluster.get("spec") or {}).get("suspend") else None
        return waiting.reason(ray_cluster, pods, events, workload, now)

    def _workload(self, ray_cluster: Mapping[str, Any]) -> dict[str, Any] | None:
        """Kueue's workload for a RayCluster."""
        try:
            workloads = self._cluster.list(kinds.WORKLOAD)
        except TargetError:  # there is no Kueue
            return None
        uid = ray_cluster["metadata"].get("uid")
        return next((workload for workload in workloads if metadata.is_owned(workload, uid)), None)

    def _blocked(self, observed: Observation, site: Site, code: Sequence[Mapping[str, Any] | None]) -> Problem | None:
        """Return the problem of a run that is to be started: its code, or that it does not fit the site."""
        spec, job = observed.spec, observed.job
        issues = [
            *preflight.placement(job, site),
            *preflight.install(job, site.install.enabled),
            *preflight.data(job, site.data.claim),
            *preflight.shards(job, bool(site.checkpoints.claim)),
        ]
        if issues:
            return Problem("Invalid", str(SpecError([issue.below("spec", "job") for issue in issues])))
        maps, parts = spec.code.config_maps, runs.parts(code)
        lacking = [
            f"{name} with {packing.part_name(names.CODE_KEY, number)}"
            for number, (name, part) in enumerate(zip(maps, parts, strict=True))
            if part is None
        ]
        if lacking:
            missing = f"the ConfigMap {lacking[0]} is" if len(lacking) == 1 else f"the ConfigMaps {', '.join(lacking)} are"
            remedy = "`kubectl apply` it beside the Run" if len(lacking) == 1 else "`kubectl apply` them beside the Run"
            return Problem(runs.CODE_MISSING, f"{missing} not there yet; {remedy}")
        packed = b"".join(part for part in parts if part is not None)
        where = f"the ConfigMap {maps[0]}" if len(maps) == 1 else f"the ConfigMaps {', '.join(maps)}"
        try:
            digest = packing.digest(packed)
        except InputError as error:
            return Problem("CodeMismatch", f"{names.CODE_KEY} in {where}: {error}; submit the run again")
        if digest != spec.code.sha256:
            return Problem(
                "CodeMismatch",
                f"the code in {where} is {digest[:12]}…, and spec.code.sha256 says {spec.code.sha256[:12]}…; delete the "
                "Run, with which its code goes, and submit the run again",
            )
        wanted = len(Pack(packed, digest, ()).parts)
        if wanted != len(maps):  # the pods mount as many as it takes
            return Problem(
                "CodeMismatch",
                f"spec.code.configMaps names {len(maps)}, and the code takes {wanted} of 1 MiB; submit the run again",
            )
        return None


def images(pods: Iterable[Mapping[str, Any]]) -> tuple[Image, ...]:
    """The images of Ray's and the controller's containers, each with the digest that its node pulled.

    Left out is an image that the node has under another name, as those that `kind load` brings.
    """
    pulled: list[Image] = []
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        boxes = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
        named = {box["name"]: str(box.get("image", "")) for box in boxes}  # a node may know the image by another name
        for box in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
            image, image_id = named.get(box["name"], ""), str(box.get("imageID") or "")
            repository = re.sub(r"(?<!/)(?:@.*|:[^/]*)$", "", image)
            is_same = f"/{image_id.partition('@')[0]}".endswith(f"/{repository}")
            digest = image_id and (_DIGEST.search(image) or (is_same and _DIGEST.search(image_id)))
            if digest and box["name"] in _CONTAINERS:
                pulled.append(Image(image=image, digest=digest[1]))
    return tuple(dict.fromkeys(pulled))


def owns(observed: Observation, thing: Mapping[str, Any] | None) -> bool:
    """Whether an object is there and is this Run's."""
    return thing is not None and metadata.is_owned(thing, observed.uid)


def _runs(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container of a pod runs, as far as its node said last."""
    status = pod.get("status") or {}
    statuses = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return any(item.get("name") == container and "running" in (item.get("state") or {}) for item in statuses)


def is_free(thing: Mapping[str, Any], run: str) -> bool:
    """Whether a Run of that name may have an object: it is that of a Run of its name, or code that waits for its Run.

    Of a Run that is gone, Kubernetes is about to remove it, or its next owner is named first.
    """
    owners = [(owner.get("kind"), owner.get("name")) for owner in thing["metadata"].get("ownerReferences") or []]
    of_kuberay = {("RayCluster", run), (runs.KIND, run)}
    if owners:
        return set(owners) <= of_kuberay
    return "binaryData" in thing and (thing["metadata"].get("labels") or {}).get(names.RUN) == run


def is_new(ray_cluster: Mapping[str, Any], now: float) -> bool:
    """Whether a RayCluster's pods are perhaps still being made, or refused."""
    return now < metadata.created(ray_cluster) + _SETTLING
