"""The base class of a job's models, and a way for a model to report all of its issues as one pydantic error."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from trialplane.errors import Issue

ISSUES = "issues"  # type of the error with which a model rejects its data


class Model(BaseModel):
    """Base of all models of a job: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def refuse(issues: Sequence[Issue]) -> None:
    """Raise all issues of a model as one error. Do nothing if there are none.

    Args:
        issues: Issues with paths that are relative to the model.

    Raises:
        PydanticCustomError: There are issues.
    """
    if issues:
        text = "; ".join(f"{issue.field}: {issue.message}" for issue in issues)
        raise PydanticCustomError(ISSUES, "{text}", {"text": text, ISSUES: list(issues)})
