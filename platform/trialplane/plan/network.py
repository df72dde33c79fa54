"""The network policies of a run: its pods reach each other, and otherwise only what the chart's values allow.

A team's namespace denies everything that no policy allows, so pods of two runs cannot connect to each other. Head pods and
trial pods have different policies, because only the controller in a head pod may reach the gateway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trialplane.plan import installing
from trialplane.plan.site import NetworkRules, Site
from trialplane.wire import cluster

_LABELS = (cluster.RUN, cluster.JOB, cluster.MANAGED_BY)


def policies(ray_cluster: Mapping[str, Any], site: Site) -> list[dict[str, Any]]:
    """Return the network policies of a run, without namespace and owner. Empty if the chart creates none.

    Args:
        ray_cluster: RayCluster of the run, existing or planned, on whose pods the policies depend.
        site: Description of the chart.
    """
    network = site.network
    if not network.enabled:
        return []
    metadata = ray_cluster["metadata"]
    head_name, trial_name = names(metadata["name"])
    is_autoscaled = bool(ray_cluster["spec"].get("enableInTreeAutoscaling"))
    head_rules = [network.head, network.autoscaler] if is_autoscaled else [network.head]
    trial_rules = [network.trial]
    if installing.installs(ray_cluster) and site.install.enabled:
        trial_rules.append(NetworkRules(egress=site.install.egress))
    return [
        _policy(metadata, head_name, pod_kind=cluster.CONTROLLER, allowed=head_rules),
        _policy(metadata, trial_name, pod_kind=cluster.TRIAL, allowed=trial_rules),
    ]


def names(run: str) -> tuple[str, str]:
    """Return the names of the two policies of a run: for its head pod, and for its trial pods."""
    return f"{run}.head", f"{run}.trials"


def digest(policies: Sequence[Mapping[str, Any]]) -> str:
    """Return a digest of policies, for an annotation of the RayCluster by which a change of them is detected."""
    return hashlib.sha256(json.dumps(policies, sort_keys=True).encode()).hexdigest()[:16]


def _policy(metadata: Mapping[str, Any], name: str, pod_kind: str, allowed: Sequence[NetworkRules]) -> dict[str, Any]:
    """Return a policy for the head pod or the trial pods: they reach the pods of their run, and what the rules allow.

    `metadata` is that of the RayCluster, and `pod_kind` is `cluster.CONTROLLER` or `cluster.TRIAL`.
    """
    same_run = [{"podSelector": {"matchLabels": {cluster.RUN: metadata["name"]}}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {key: metadata["labels"][key] for key in _LABELS}},
        "spec": {
            "podSelector": {"matchLabels": {cluster.RUN: metadata["name"], cluster.ROLE: pod_kind}},
            "policyTypes": ["Ingress", "Egress"],
            # Pods of a run reach each other on any port, because Ray and the ranks of a training choose their ports.
            "ingress": [{"from": same_run}, *(dict(rule) for rules in allowed for rule in rules.ingress)],
            "egress": [{"to": same_run}, *(dict(rule) for rules in allowed for rule in rules.egress)],
        },
    }
