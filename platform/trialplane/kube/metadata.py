"""Metadata, spec, status and conditions of a Kubernetes object, of which any may be missing. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

KubeObject = Mapping[str, Any]  # object of Kubernetes, as plain JSON values


def labels_of(kube_object: KubeObject) -> Mapping[str, str]:
    """Return the labels of an object, which may have none."""
    return kube_object["metadata"].get("labels") or {}


def annotations_of(kube_object: KubeObject) -> Mapping[str, str]:
    """Return the annotations of an object, which may have none."""
    return kube_object["metadata"].get("annotations") or {}


def spec_of(kube_object: KubeObject) -> Mapping[str, Any]:
    """Return the spec of an object, which may have none."""
    return kube_object.get("spec") or {}


def status_of(kube_object: KubeObject) -> Mapping[str, Any]:
    """Return the status of an object, which has none before its controller has written one."""
    return kube_object.get("status") or {}


def conditions_of(kube_object: KubeObject) -> Sequence[Mapping[str, Any]]:
    """Return the conditions in the status of an object, such as `{"type": "Ready", "status": "False", "reason": …}`."""
    return status_of(kube_object).get("conditions") or []


def is_deleted(kube_object: KubeObject) -> bool:
    """Whether an object is being deleted."""
    return bool(kube_object["metadata"].get("deletionTimestamp"))


def is_owned(kube_object: KubeObject, uid: str | None) -> bool:
    """Whether an object is owned by the object with this uid."""
    return uid in [owner.get("uid") for owner in kube_object["metadata"].get("ownerReferences") or []]


def creation_time(kube_object: KubeObject) -> float:
    """Return the creation time of an object, in seconds since the epoch. 0 if it is unknown."""
    return timestamp(kube_object["metadata"].get("creationTimestamp")) or 0.0


def timestamp(text: str | None) -> float | None:
    """Return a time in the format of Kubernetes as seconds since the epoch. None if the text is None or ""."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
