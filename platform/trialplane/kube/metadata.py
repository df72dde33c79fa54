"""Metadata of a Kubernetes object: its creation time, its owners, and whether it is being deleted. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any


def is_deleted(thing: Mapping[str, Any]) -> bool:
    """Whether an object is being deleted."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def is_owned(thing: Mapping[str, Any], uid: str | None) -> bool:
    """Whether an object is owned by the object with this uid."""
    return uid in [owner.get("uid") for owner in thing["metadata"].get("ownerReferences") or []]


def created(thing: Mapping[str, Any]) -> float:
    """Return the creation time of an object, in seconds since the epoch. 0 if it is unknown."""
    return moment(thing["metadata"].get("creationTimestamp")) or 0.0


def moment(text: str | None) -> float | None:
    """Return a time in the format of Kubernetes as seconds since the epoch. None if the text is None or ""."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
