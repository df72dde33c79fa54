"""What the models of a job have in common, and the issues that one finds in itself, all at once, as one pydantic error."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from trialplane.errors import Issue

ISSUES = "issues"  # type of the error by which a model refuses itself


class Model(BaseModel):
    """What every model of the spec is: a frozen value that knows all its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def refuse(found: Sequence[Issue]) -> None:
    """Raises all of `found`, whose places are relative to the model, as one error; does nothing when there are none."""
    if found:
        text = "; ".join(f"{issue.field}: {issue.message}" for issue in found)
        raise PydanticCustomError(ISSUES, "{text}", {"text": text, ISSUES: list(found)})
