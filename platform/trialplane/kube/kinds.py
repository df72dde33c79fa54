"""The kinds of Kubernetes objects that trialplane uses, with their names in URLs."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ObjectKind:
    """A kind of Kubernetes object.

    Attributes:
        group: API group. "" for the core group.
        version: API version.
        plural: Name of the kind in URLs and in RBAC rules.
        namespaced: Whether its objects are in namespaces.
    """

    group: str
    version: str
    plural: str
    namespaced: bool = True


RUN = ObjectKind("trialplane.io", "v1alpha1", "runs")
RAY_CLUSTER = ObjectKind("ray.io", "v1", "rayclusters")
CONFIG_MAP = ObjectKind("", "v1", "configmaps")
SECRET = ObjectKind("", "v1", "secrets")
POD = ObjectKind("", "v1", "pods")
EVENT = ObjectKind("", "v1", "events")
NAMESPACE = ObjectKind("", "v1", "namespaces", namespaced=False)
NODE = ObjectKind("", "v1", "nodes", namespaced=False)
STORAGE_CLASS = ObjectKind("storage.k8s.io", "v1", "storageclasses", namespaced=False)
CLAIM = ObjectKind("", "v1", "persistentvolumeclaims")
LOCAL_QUEUE = ObjectKind("kueue.x-k8s.io", "v1beta1", "localqueues")
WORKLOAD = ObjectKind("kueue.x-k8s.io", "v1beta1", "workloads")
NETWORK_POLICY = ObjectKind("networking.k8s.io", "v1", "networkpolicies")
SERVICE = ObjectKind("", "v1", "services")
SERVICE_ACCOUNT = ObjectKind("", "v1", "serviceaccounts")
ROLE = ObjectKind("rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDING = ObjectKind("rbac.authorization.k8s.io", "v1", "rolebindings")
LEASE = ObjectKind("coordination.k8s.io", "v1", "leases")
# Kinds that `Cluster.apply` supports, by the `kind` of an object.
APPLIED = {
    "Run": RUN,
    "ConfigMap": CONFIG_MAP,
    "Secret": SECRET,
    "Event": EVENT,
    "NetworkPolicy": NETWORK_POLICY,
    "ServiceAccount": SERVICE_ACCOUNT,
    "Role": ROLE,
}
