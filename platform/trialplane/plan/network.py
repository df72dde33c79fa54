"""The network policies of a run: its pods reach each other, and beyond that only what the chart's values allow. Pure data.

Where a run is, everything is denied that no policy allows, so pods of two runs cannot connect to each other. Heads and
trials have a policy each, since only a head pod, in which the controller is, reaches the gateway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trialplane.plan import installing
from trialplane.plan.site import Rules, Site
from trialplane.wire import cluster

_LABELS = (cluster.RUN, cluster.JOB, cluster.MANAGED_BY)


def policies(ray_cluster: Mapping[str, Any], site: Site) -> list[dict[str, Any]]:
    """The objects, without a namespace or an owner; none where the chart makes no network policies.

    Args:
        ray_cluster: of the run, as it is or is going to be: what its pods need goes by how they were made.
        site: what the chart installed.
    """
    network = site.network
    if not network.enabled:
        return []
    autoscales = bool(ray_cluster["spec"].get("enableInTreeAutoscaling"))
    of_head = [network.head, network.autoscaler] if autoscales else [network.head]
    made = zip(names(ray_cluster["metadata"]["name"]), (cluster.CONTROLLER, cluster.TRIAL), strict=True)
    of_trials = [network.trial]
    if installing.installs(ray_cluster) and site.install.enabled:
        of_trials.append(Rules(egress=site.install.egress))
    allowed = {cluster.CONTROLLER: of_head, cluster.TRIAL: of_trials}
    return [_policy(ray_cluster["metadata"], name, role, allowed[role]) for name, role in made]


def names(run: str) -> tuple[str, str]:
    """Names of the two policies of a run: of its head pod, and of its trial pods."""
    return f"{run}.head", f"{run}.trials"


def digest(policies: Sequence[Mapping[str, Any]]) -> str:
    """By which policies are known to be the same; an annotation of the RayCluster."""
    return hashlib.sha256(json.dumps(policies, sort_keys=True).encode()).hexdigest()[:16]


def _policy(of: Mapping[str, Any], name: str, role: str, allowed: Sequence[Rules]) -> dict[str, Any]:
    mine = [{"podSelector": {"matchLabels": {cluster.RUN: of["name"]}}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {key: of["labels"][key] for key in _LABELS}},
        "spec": {
            "podSelector": {"matchLabels": {cluster.RUN: of["name"], cluster.ROLE: role}},
            "policyTypes": ["Ingress", "Egress"],
            # On any port: Ray opens them as it likes, and so do the ranks of a training.
            "ingress": [{"from": mine}, *(dict(rule) for rules in allowed for rule in rules.ingress)],
            "egress": [{"to": mine}, *(dict(rule) for rules in allowed for rule in rules.egress)],
        },
    }
