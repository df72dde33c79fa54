"""What `platform doctor` asks a cluster; `doctor_verdicts` says what to think of the answers.

What a plain user may not read becomes a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trialplane.client import doctor_pod, kinds
from trialplane.client import doctor_verdicts as verdicts
from trialplane.client.cluster import Answer, Cluster
from trialplane.errors import TargetError
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.wire import findings
from trialplane.wire.findings import Finding

# What the verbs of the command line do: verbs, group, resource, subresource, name.
_Permission = tuple[tuple[str, ...], str, str, str, str]
_PERMISSIONS: tuple[_Permission, ...] = (
    (("get", "list", "create", "patch", "delete"), "ray.io", "rayjobs", "", ""),
    (("get", "list", "patch"), "ray.io", "rayclusters", "", ""),
    (("get", "create", "patch", "delete"), "", "configmaps", "", ""),
    (("get", "list"), "", "pods", "", ""),
    (("get",), "", "pods", "log", ""),
    (("list",), "", "events", "", ""),
)
_PERMISSIONS_OF_DOCTOR: tuple[_Permission, ...] = ((("create", "delete"), "", "pods", "", ""),)


def reach(cluster: Cluster) -> Iterator[Finding]:
    """The API server and KubeRay; after a failed first finding nothing else can be seen."""
    try:
        yield verdicts.server(cluster.call("GET", "/version"), cluster.context)
    except TargetError as error:
        yield findings.failed(verdicts.SERVER, str(error), "look at the network, the VPN and the kubeconfig")
        return
    api = cluster.call("GET", "/apis/ray.io/v1")
    schema = cluster.call("GET", "/openapi/v3/apis/ray.io/v1") if api.ok else api
    yield verdicts.resources(api, schema)
    yield _guarded("KubeRay operator", lambda: verdicts.operator(_operators(cluster)))


def look(cluster: Cluster, site: Site, plan: Plan) -> Iterator[Finding]:
    """What the chart made, and whether the namespace has room for the plan's trials."""
    classes = _try(cluster, kinds.STORAGE_CLASS)
    yield _guarded("volumes", lambda: verdicts.claims(site, cluster.list(kinds.CLAIM), classes))
    yield verdicts.gateway(cluster.service(site.gateway.service, site.gateway.port, "GET", "/health"), site)
    yield from verdicts.room(site, plan, _try(cluster, kinds.NODE), _try(cluster, kinds.QUOTA))
    yield _guarded(
        "permissions", lambda: verdicts.permissions(_denied(cluster, _permissions(site)), cluster.context, cluster.namespace)
    )
    yield verdicts.admission(_unruly(cluster, site, plan))


def may_make_pods(cluster: Cluster) -> Finding | None:
    """None when this user may make a pod to check in."""
    denied = _denied(cluster, _PERMISSIONS_OF_DOCTOR)
    return verdicts.permission_to_make_pods(denied, cluster.context, cluster.namespace)


def _unruly(cluster: Cluster, site: Site, plan: Plan) -> Answer:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    return cluster.call("POST", path, query={"dryRun": "All"}, body=verdicts.unruly(doctor_pod.manifest(plan, site, [])))


def _operators(cluster: Cluster) -> list[dict[str, Any]]:
    """Deployments of KubeRay's operator in all namespaces: by the label of its chart, else by its usual name."""
    found: list[dict[str, Any]] = []
    for query in ({"labelSelector": verdicts.OPERATOR}, {"fieldSelector": "metadata.name=kuberay-operator"}):
        answer = cluster.call("GET", "/apis/apps/v1/deployments", query=query)
        if not answer.ok:
            raise cluster.refused(answer, "list", "deployments.apps")
        found = found or answer.json()["items"]
    return found


def _permissions(site: Site) -> list[_Permission]:
    gateway_ = site.gateway
    found = [
        *_PERMISSIONS,
        (("get", "update", "delete"), "", "services", "proxy", f"http:{gateway_.service}:{gateway_.port}"),
    ]
    return [*found, (("get",), "", "secrets", "", gateway_.secret)] if gateway_.secret else found


def _denied(cluster: Cluster, wanted: Sequence[_Permission]) -> list[str]:
    """What of it this user may not do, in words."""
    denied = []
    for verbs, group, resource, below, name in wanted:
        for verb in verbs:
            asked = {"namespace": cluster.namespace, "verb": verb, "group": group, "resource": resource}
            asked |= {key: value for key, value in (("subresource", below), ("name", name)) if value}
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            }
            answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
            if not answer.ok:
                raise cluster.refused(answer, "create", "selfsubjectaccessreviews.authorization.k8s.io")
            if not answer.json()["status"].get("allowed"):
                denied.append(" ".join([verb, "/".join(part for part in (resource, below) if part), name]).strip())
    return denied


def _try(cluster: Cluster, kind: kinds.Kind) -> list[dict[str, Any]] | None:
    """All objects of a kind, or None when they may not be read."""
    try:
        return cluster.list(kind)
    except TargetError:
        return None


def _guarded(check: str, make: Callable[[], Finding]) -> Finding:
    """A finding, or a warning when what it needs may not be read."""
    try:
        return make()
    except TargetError as error:
        return findings.warned(check, f"could not be looked at: {error}", "ask whoever runs the cluster to run this")
