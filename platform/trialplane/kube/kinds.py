"""Table of the kinds of Kubernetes objects that the laptop reads or creates, as they are named in URLs."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of object: `plural` as in URLs; `group` is "" for the core."""

    group: str
    version: str
    plural: str
    namespaced: bool = True


RUN = Kind("trialplane.io", "v1alpha1", "runs")
RAY_CLUSTER = Kind("ray.io", "v1", "rayclusters")
CONFIG_MAP = Kind("", "v1", "configmaps")
SECRET = Kind("", "v1", "secrets")
POD = Kind("", "v1", "pods")
EVENT = Kind("", "v1", "events")
QUOTA = Kind("", "v1", "resourcequotas")
NAMESPACE = Kind("", "v1", "namespaces", namespaced=False)
NODE = Kind("", "v1", "nodes", namespaced=False)
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
STORAGE_CLASS = Kind("storage.k8s.io", "v1", "storageclasses", namespaced=False)
CLAIM = Kind("", "v1", "persistentvolumeclaims")
LOCAL_QUEUE = Kind("kueue.x-k8s.io", "v1beta1", "localqueues")
WORKLOAD = Kind("kueue.x-k8s.io", "v1beta1", "workloads")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies")
SERVICE = Kind("", "v1", "services")
SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings")
LEASE = Kind("coordination.k8s.io", "v1", "leases")
# For `apply`, by the `kind` of an object.
APPLIED = {
    "Run": RUN,
    "ConfigMap": CONFIG_MAP,
    "Secret": SECRET,
    "Event": EVENT,
    "NetworkPolicy": NETWORK_POLICY,
    "ServiceAccount": SERVICE_ACCOUNT,
    "Role": ROLE,
}
