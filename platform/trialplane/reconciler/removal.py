"""Removes the files of a run that its user has deleted from the volumes of the namespace, and then its record.

The record has a mark for the removal, and it stays until the files are gone. So neither a Run nor a finalizer
is needed. For each volume there is a short-lived pod, whose name contains the mark, so that pods of an earlier removal are
not mistaken for it. `step` may be called at any time, and may be killed at any moment.
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

SECONDS = 900  # time limit of a pod
PATIENCE = 60.0  # age in seconds at which a failed pod is replaced
_VOLUME = "/volume"  # mount path of the volume
# Neither command follows links, and rm succeeds without a folder. The chmod is for caches whose folders are read-only, which
# rm could not empty.
_REMOVE = 'chmod -Rf u+rwX -- "$0"; exec rm -rf -- "$0"'
_logger = logging.getLogger(__name__)


class Removal:
    """The removal of runs in one namespace.

    Args:
        cluster: Client of the cluster for the namespace.
        archive: Ledgers of the namespace.
        site: Description of the chart's installation, with its volumes.
        clock: Clock, in seconds since the epoch.
    """

    def __init__(self, cluster: Cluster, archive: Archive, site: Site, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._archive = archive
        self._site = site
        self._clock = clock

    def step(self, run: str, uid: str = "") -> str:
        """Do the next step of a removal, if the run is marked for it; cancel the removal if the Run still exists.

        Everybody who can reach the gateway may request a removal, but only its owner may delete the Run.

        Args:
            run: Name of the run.
            uid: Uid of the Run that has this name now; "" without one. If the run's record belongs to it, the removal is
                canceled. If the record is that of an earlier Run of the name, the removal goes on.

        Returns:
            The reason why the removal is not complete. "" if it is complete, or if the run is not to be removed.
        """
        mark = self._archive.removal_marks().get(run)
        if mark is None:
            return ""
        is_canceled = bool(uid) and self._archive.unmark_for_removal(run, uid)
        if is_canceled:
            _logger.warning("%s: its record is not removed, because its Run still exists", run)
            return ""
        ray_cluster = self._cluster.read(kinds.RAY_CLUSTER, run)
        is_of_run = ray_cluster is not None and metadata.labels_of(ray_cluster).get(names.RUN) == run
        if ray_cluster is not None and is_of_run and not metadata.is_deleted(ray_cluster):
            self._cluster.delete(kinds.RAY_CLUSTER, run, foreground=True)  # the Run was deleted without its RayCluster
        if is_of_run or self._cluster.list(kinds.POD, selector=f"{names.RUN}={run}"):
            return "its pods are ending"  # they may still write files
        existing_pods = {pod["metadata"]["name"]: pod for pod in self._pods(run)}
        wait_reasons: list[str] = []
        for pod in removal_pods(run, mark, self._site):  # all pods are created before one is waited for
            wait_reason = self._remove_files(run, pod, existing_pods.get(pod["metadata"]["name"]))
            if wait_reason:
                wait_reasons.append(wait_reason)
        if wait_reasons:
            return wait_reasons[0]
        try:
            self._archive.delete(run)
        except errors.LedgerLocked as error:  # the database has not detected the end of the controller yet
            return str(error)
        _logger.info("%s: its files and its record are removed", run)
        self.sweep(run)
        return ""

    def sweep(self, run: str) -> None:
        """Delete the pods of completed removals of a run."""
        for pod in self._pods(run):
            if not metadata.is_deleted(pod):
                self._cluster.delete(kinds.POD, pod["metadata"]["name"])

    def _pods(self, run: str) -> list[dict[str, Any]]:
        """Return the pods that remove files of a run."""
        return self._cluster.list(kinds.POD, selector=f"{names.REMOVES}={run}")

    def _remove_files(self, run: str, manifest: Mapping[str, Any], existing: Mapping[str, Any] | None) -> str:
        """Create a pod that removes files, or delete it if it failed some time ago, so that it is created again.

        `existing` is the pod, if it exists.

        Returns:
            The reason why the files are not removed yet, or "".
        """
        name = manifest["metadata"]["name"]
        if existing is None:
            _logger.info("%s: its files are being removed by the pod %s", run, name)
            self._cluster.create(kinds.POD, manifest)
            return f"the pod {name} is being created"
        phase = (existing.get("status") or {}).get("phase")
        is_old = self._clock() - metadata.creation_time(existing) > PATIENCE
        if phase == "Failed" and is_old and not metadata.is_deleted(existing):
            _logger.warning(
                "%s: the pod %s could not remove its files: %s; another one tries", run, name, waiting.last_message(existing)
            )
            with contextlib.suppress(errors.TargetError):  # the next call tries again
                self._cluster.delete(kinds.POD, name)
        return "" if phase == "Succeeded" else f"the pod {name} is {phase or 'Pending'}"


def removal_pods(run: str, mark: str, site: Site) -> Iterator[dict[str, Any]]:
    """Yield the manifests of the pods that remove a run's files: one for each volume, because volumes may need other nodes.

    Each pod mounts one whole volume, because the run's folder itself is removed, and no token or Secret.

    Args:
        run: Name of the run.
        mark: Mark in the run's record, which identifies this removal.
        site: Description of the chart's installation, with its volumes.
    """
    home = Path(names.HOME)
    run_folder = RunPaths.of(home, run).root.relative_to(home)  # path in the volume; see the mounts in `plan.pods`
    for volume, claim, folder in (("runs", site.runs.claim, run_folder), ("checkpoints", site.checkpoints.claim, run)):
        if claim:  # "" without such a volume
            yield _pod(run, name=f"{run}-{volume}-{mark}", claim=claim, folder=f"{_VOLUME}/{folder}", site=site)


def _pod(run: str, name: str, claim: str, folder: str, site: Site) -> dict[str, Any]:
    """Return the manifest of a pod that removes a folder from a volume."""
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
        # If the volume is on a node for trial pods, the pod must tolerate the taints of the node.
        **({"tolerations": [dict(toleration) for toleration in site.tolerations]} if site.tolerations else {}),
        "containers": [container],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
