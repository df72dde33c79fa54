"""Metadata of a Kubernetes object: its time of creation, its owner, and whether it is being deleted. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any


def is_deleted(thing: Mapping[str, Any]) -> bool:
    """Whether it is being deleted."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def is_owned(thing: Mapping[str, Any], uid: str | None) -> bool:
    """Whether the object of that uid owns it."""
    return uid in [owner.get("uid") for owner in thing["metadata"].get("ownerReferences") or []]


def created(thing: Mapping[str, Any]) -> float:
    """When it was made, in seconds since the epoch."""
    return moment(thing["metadata"].get("creationTimestamp")) or 0.0


def moment(text: str | None) -> float | None:
    """A time as Kubernetes writes it, in seconds since the epoch."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
