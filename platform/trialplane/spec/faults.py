"""Faults that a model finds in itself, all at once, as one pydantic error.

A pydantic validator can raise one error; a model may have several things wrong. `refuse` packs them into one error,
and `unpack` takes them out again, each with the field that it concerns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

TYPE = "faults"


class Fault(NamedTuple):
    """One thing wrong, with the path of the field relative to the model that found it."""

    field: tuple[str | int, ...]
    message: str


class Model(BaseModel):
    """What every model of the spec is: a frozen value that knows all its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def refuse(found: Sequence[Fault]) -> None:
    """Raises all of `found` as one error; does nothing when there are none."""
    if found:
        text = "; ".join(f"{'.'.join(map(str, fault.field))}: {fault.message}" for fault in found)
        raise PydanticCustomError(TYPE, "{text}", {"text": text, "found": [tuple(fault) for fault in found]})


def unpack(error: Mapping[str, Any]) -> list[Fault]:
    """The faults that `refuse` packed into one entry of `ValidationError.errors()`; none for pydantic's own errors."""
    if error["type"] != TYPE:
        return []
    return [Fault(*fault) for fault in error["ctx"]["found"]]
