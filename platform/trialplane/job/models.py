"""The base of all models of a job, and a way for a model to report all of its issues as one pydantic error."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from trialplane.errors import Issue

ISSUES = "issues"  # type of the error with which a model rejects its data


class Model(BaseModel):
    """The base of every model of the spec: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def refuse(found: Sequence[Issue]) -> None:
    """Raise all of `found`, whose places are relative to the model, as one error; does nothing when there are none."""
    if found:
        text = "; ".join(f"{issue.field}: {issue.message}" for issue in found)
        raise PydanticCustomError(ISSUES, "{text}", {"text": text, ISSUES: list(found)})
