"""Whether a value is a number. Without pydantic, for slots."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number. True and False are none, although Python counts them among the integers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
