"""Removes the files of a run that its user has deleted, from the claims of the namespace, and then its record.

The record says that it is to go, so no Run and no finalizer is needed for it, and it stays until the files are gone. Each
claim gets a short-lived pod, named after that one removal: a pod of an earlier run of the name does not count. `step` may be
called at any time and be killed at any moment.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.kube import kinds, metadata, waiting
from trialplane.kube.cluster import Cluster
from trialplane.ledger.archive import Archive
from trialplane.plan import pods
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire.paths import RunPaths

SECONDS = 900  # for which a pod may work
PATIENCE = 60.0  # seconds after which a pod that failed makes way for another
_VOLUME = "/volume"
# Neither follows links, and rm succeeds where there is nothing. Some caches are of folders that nobody may write to.
_REMOVE = 'chmod -Rf u+rwX -- "$0"; exec rm -rf -- "$0"'
_logger = logging.getLogger(__name__)


class Removal:
    """Removes runs in one namespace.

    Args:
        cluster: the namespace.
        archive: the ledger.
        site: has the claims.
        clock: seconds since the epoch.
    """

    def __init__(self, cluster: Cluster, archive: Archive, site: Site, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._archive = archive
        self._site = site
        self._clock = clock

    def step(self, run: str, uid: str = "") -> str:
        """Do what is to be done next; "" once nothing is left, or if the run is not to go, else what it waits for.

        Args:
            run: its name.
            uid: of the Run of that name; "" when there is none. While its Run is there a run is not removed: whoever may
                reach the gateway may ask for it, and only its owner may delete the Run.
        """
        mark = self._archive.forgotten().get(run)
        if mark is None:
            return ""
        if uid and self._archive.remember(run, uid):
            _logger.warning("%s: it is not removed as long as its Run is there", run)
            return ""
        ray_cluster = self._cluster.read(kinds.RAY_CLUSTER, run)
        is_ours = ray_cluster is not None and (ray_cluster["metadata"].get("labels") or {}).get(names.RUN) == run
        if ray_cluster is not None and is_ours and not metadata.is_deleted(ray_cluster):
            self._cluster.delete(kinds.RAY_CLUSTER, run, foreground=True)  # of a Run that went without it
        if is_ours or self._cluster.list(kinds.POD, selector=f"{names.RUN}={run}"):
            return "its pods are ending"  # which may write
        existing = {pod["metadata"]["name"]: pod for pod in self._pods(run)}
        problems = [
            self._look(run, pod, existing.get(pod["metadata"]["name"])) for pod in removal_pods(run, mark, self._site)
        ]
        if any(problems):
            return next(filter(None, problems))
        try:
            self._archive.delete(run)
        except errors.LedgerLocked as error:  # by a controller whose end the database has not noticed
            return str(error)
        _logger.info("%s: forgotten, with its files", run)
        self.sweep(run)
        return ""

    def sweep(self, run: str) -> None:
        """Delete pods of removals that are over."""
        for pod in self._pods(run):
            if not metadata.is_deleted(pod):
                self._cluster.delete(kinds.POD, pod["metadata"]["name"])

    def _pods(self, run: str) -> list[dict[str, Any]]:
        return self._cluster.list(kinds.POD, selector=f"{names.REMOVES}={run}")

    def _look(self, run: str, wanted: Mapping[str, Any], existing: Mapping[str, Any] | None) -> str:
        """Return why a pod has not done its work, or "". Create it, or make way for another one."""
        name = wanted["metadata"]["name"]
        if existing is None:
            _logger.info("%s: its files are being removed by the pod %s", run, name)
            self._cluster.create(kinds.POD, wanted)
            return f"the pod {name} is being made"
        phase = (existing.get("status") or {}).get("phase")
        if phase == "Failed" and not metadata.is_deleted(existing) and self._clock() - metadata.created(existing) > PATIENCE:
            _logger.warning(
                "%s: the pod %s could not remove its files: %s; another one tries", run, name, waiting.last_message(existing)
            )
            with contextlib.suppress(errors.TargetError):  # it is not there any more
                self._cluster.delete(kinds.POD, name)
        return "" if phase == "Succeeded" else f"the pod {name} is {phase or 'Pending'}"


def removal_pods(run: str, mark: str, site: Site) -> Iterator[dict[str, Any]]:
    """The pods that remove a run's files: one for each claim, which may lie on another node.

    Each mounts the whole of one claim, as a folder is removed from the one above it, and nothing else: no token, no Secret.

    Args:
        run: its name.
        mark: of its record, by which this removal is told from others.
        site: has the claims.
    """
    home = Path(names.HOME)
    files = RunPaths.of(home, run).root.relative_to(home)  # as head pods mount it
    for volume, claim, folder in (("runs", site.runs.claim, files), ("checkpoints", site.checkpoints.claim, run)):
        if claim:
            yield _pod(run, f"{run}-{volume}-{mark}", claim, f"{_VOLUME}/{folder}", site)


def _pod(run: str, name: str, claim: str, folder: str, site: Site) -> dict[str, Any]:
    container = {
        "name": names.VOLUMES,
        "image": site.images.controller,
        "imagePullPolicy": site.images.pull_policy,
        "command": ["sh", "-c", _REMOVE, folder],
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
        "securityContext": pods.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "volume", "mountPath": _VOLUME}],
    }
    labels = {names.REMOVES: run, names.ROLE: names.VOLUMES, names.MANAGED_BY: names.MANAGER}
    secrets = [{"name": secret} for secret in site.images.pull_secrets]
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": SECONDS,
        "terminationGracePeriodSeconds": 0,
        "securityContext": pods.pod_security(),
        **({"imagePullSecrets": secrets} if secrets else {}),
        # Where a claim is bound to a node of trial pods, it must be able to go there.
        **({"tolerations": [dict(toleration) for toleration in site.tolerations]} if site.tolerations else {}),
        "containers": [container],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
