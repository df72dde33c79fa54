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
        seen = dataclasses.replace(
            observed, ray_cluster=ray_cluster, recorded=self._archive.recorded(name), blocked=None, why=""
        )
        if ray_cluster is None:
            spec = self._cluster.read(kinds.CONFIG_MAP, names.spec_map(name))
            seen = dataclasses.replace(seen, has_spec=owns(seen, spec), pods=(), leftovers=())
            if decisions.is_due(seen):
                # KubeRay would take them for pods of the new RayCluster, and they have another token.
                if left := tuple(pod["metadata"]["name"] for pod in self._pods(name)):
                    return dataclasses.replace(seen, leftovers=left)
                code = tuple(self._cluster.read(kinds.CONFIG_MAP, one) for one in seen.asked.code.config_maps)
                orphans = any(one is not None and not owns(seen, one) and is_free(one, name) for one in code)
                taken = self._taken(seen, code)
                blocked = Problem("NameTaken", taken) if taken else self._blocked(seen, site, code)
                return dataclasses.replace(seen, blocked=blocked, code=code, has_orphans=orphans)
            return dataclasses.replace(seen, has_orphans=False)
        if seen.mine is not None and metadata.is_deleted(seen.mine):
            # It goes with its last pod, and one on a lost node stays until somebody removes it.
            return dataclasses.replace(seen, leftovers=tuple(pod["metadata"]["name"] for pod in self._pods(name)))
        if seen.mine is None:
            return seen
        found = [pod for pod in self._pods(name) if metadata.is_owned(pod, seen.mine["metadata"].get("uid"))]
        policies = network.policies(ray_cluster, site)
        seen = dataclasses.replace(seen, network=network.digest(policies))
        seen = dataclasses.replace(
            seen,
            controller_runs=any(_runs(pod, names.CONTROLLER) for pod in found),
            pulled=images(found),
        )
        if seen.read.job is None or seen.phase is Phase.ENDED:
            return seen
        if not seen.alive:
            seen = dataclasses.replace(
                seen,
                has_spec=owns(seen, self._cluster.read(kinds.CONFIG_MAP, names.spec_map(name))),
                is_locked_out=self._is_locked_out(seen),
            )
        role = names.group(seen.started_job.roles()[0].name)
        staying = [pod["metadata"] for pod in found if not metadata.is_deleted(pod)]
        first = tuple(one["name"] for one in staying if one["labels"].get(names.GROUP_LABEL) == role)
        known = seen.recorded.status if seen.recorded is not None else None
        complete = seen.alive and known is not None and known.slots_ready >= known.slots
        return dataclasses.replace(seen, pods=first, why="" if complete else self._why(ray_cluster, found))

    def _taken(self, observed: Observation, code: Sequence[Mapping[str, Any] | None]) -> str:
        """Says which object of somebody else has the name of one that the run's start makes or takes; "" if none has."""
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
        found: list[tuple[str, str, Mapping[str, Any] | None]] = []
        found += [(word, name, self._cluster.read(kind, name)) for kind, word, name in wanted]
        found += [("ConfigMap", one["metadata"]["name"], one) for one in code if one is not None]
        for word, name, thing in found:
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
        return not token or observed.recorded is None or not archive.same(observed.recorded.token, ledger.hashed(token))

    def _pods(self, run: str) -> list[dict[str, Any]]:
        """The pods of a run, the newest first."""
        found = self._cluster.list(kinds.POD, selector=f"{names.RUN}={run}")
        return sorted(found, key=metadata.created, reverse=True)

    def _why(self, ray_cluster: Mapping[str, Any], found: list[dict[str, Any]]) -> str:
        """Why not all pods run."""
        listed, events = self._events
        now = self._clock()
        if is_new(ray_cluster, now) or not listed <= now < listed + _EVENTS_AGE:
            events = self._cluster.list(kinds.EVENT, limit=_EVENTS)
            self._events = now, events
        workload = self._workload(ray_cluster) if (ray_cluster.get("spec") or {}).get("suspend") else None
        return waiting.reason(ray_cluster, found, events, workload, now)

    def _workload(self, ray_cluster: Mapping[str, Any]) -> dict[str, Any] | None:
        """Kueue's workload for a RayCluster."""
        try:
            found = self._cluster.list(kinds.WORKLOAD)
        except TargetError:  # there is no Kueue
            return None
        uid = ray_cluster["metadata"].get("uid")
        return next((one for one in found if metadata.is_owned(one, uid)), None)

    def _blocked(self, observed: Observation, site: Site, code: Sequence[Mapping[str, Any] | None]) -> Problem | None:
        """What is wrong with a run that is to be started: its code, or that it does not fit the site."""
        asked, job = observed.asked, observed.job
        issues = [
            *preflight.placement(job, site),
            *preflight.install(job, site.install.enabled),
            *preflight.data(job, site.data.claim),
            *preflight.shards(job, bool(site.checkpoints.claim)),
        ]
        if issues:
            return Problem("Invalid", str(SpecError([issue.below("spec", "job") for issue in issues])))
        maps, parts = asked.code.config_maps, runs.parts(code)
        lacking = [
            f"{name} with {packing.part_name(names.CODE_KEY, number)}"
            for number, (name, part) in enumerate(zip(maps, parts, strict=True))
            if part is None
        ]
        if lacking:
            what = f"the ConfigMap {lacking[0]} is" if len(lacking) == 1 else f"the ConfigMaps {', '.join(lacking)} are"
            cure = "`kubectl apply` it beside the Run" if len(lacking) == 1 else "`kubectl apply` them beside the Run"
            return Problem(runs.CODE_MISSING, f"{what} not there yet; {cure}")
        packed = b"".join(part for part in parts if part is not None)
        where = f"the ConfigMap {maps[0]}" if len(maps) == 1 else f"the ConfigMaps {', '.join(maps)}"
        try:
            found = packing.digest(packed)
        except InputError as error:
            return Problem("CodeMismatch", f"{names.CODE_KEY} in {where}: {error}; submit the run again")
        if found != asked.code.sha256:
            return Problem(
                "CodeMismatch",
                f"the code in {where} is {found[:12]}…, and spec.code.sha256 says {asked.code.sha256[:12]}…; delete the "
                "Run, with which its code goes, and submit the run again",
            )
        wanted = len(Pack(packed, found, ()).parts)
        if wanted != len(maps):  # the pods mount as many as it takes
            return Problem(
                "CodeMismatch",
                f"spec.code.configMaps names {len(maps)}, and the code takes {wanted} of 1 MiB; submit the run again",
            )
        return None


def images(found: Iterable[Mapping[str, Any]]) -> tuple[Image, ...]:
    """The images of Ray's and the controller's containers, each with the digest that its node pulled.

    Left out is an image that the node has under another name, as those that `kind load` brings.
    """
    made: list[Image] = []
    for pod in found:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        boxes = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
        named = {box["name"]: str(box.get("image", "")) for box in boxes}  # a node may know the image by another name
        for box in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
            image, pulled = named.get(box["name"], ""), str(box.get("imageID") or "")
            repository = re.sub(r"(?<!/)(?:@.*|:[^/]*)$", "", image)
            is_same = f"/{pulled.partition('@')[0]}".endswith(f"/{repository}")
            digest = pulled and (_DIGEST.search(image) or (is_same and _DIGEST.search(pulled)))
            if digest and box["name"] in _CONTAINERS:
                made.append(Image(image=image, digest=digest[1]))
    return tuple(dict.fromkeys(made))


def owns(observed: Observation, thing: Mapping[str, Any] | None) -> bool:
    """Whether an object is there and is this Run's."""
    return thing is not None and metadata.is_owned(thing, observed.uid)


def _runs(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container of a pod runs, as far as its node said last."""
    status = pod.get("status") or {}
    found = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return any(one.get("name") == container and "running" in (one.get("state") or {}) for one in found)


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
