"""The job as a user specified it, resolved and frozen. Its JSON form is read as an equal job.

A job is a `Study`, a `Training` or a `Collection`, depending on `kind`. Only this module looks at the kind, to choose the
class. All differences between kinds are fields, attributes or methods of the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from trialplane.job.kinds.base import Input
from trialplane.job.kinds.collection import Collection
from trialplane.job.kinds.roles import Role
from trialplane.job.kinds.study import Study
from trialplane.job.kinds.training import Training
from trialplane.job.search import Objective

__all__ = ["CLASSES", "Collection", "Input", "Job", "Objective", "Role", "Study", "Training", "kind_class", "read"]

Job = Study | Training | Collection
CLASSES: Mapping[str, type[Study] | type[Training] | type[Collection]] = {
    "hpo": Study,
    "train": Training,
    "collect": Collection,
}
_FIELDS = TypeAdapter(dict[str, Any])


def kind_class(kind: Any) -> type[Study] | type[Training] | type[Collection]:
    """Return the class of a kind of job. For an invalid kind this is `Study`, so that the other fields can be checked."""
    return CLASSES.get(kind, Study) if isinstance(kind, str) else Study


def read(stored: str | bytes | Mapping[str, Any]) -> Job:
    """Return a job from its JSON form: a text, or the parsed mapping.

    Raises:
        pydantic.ValidationError: The form is not that of a job, or the text is not JSON.
    """
    data = _FIELDS.validate_json(stored) if isinstance(stored, (str, bytes)) else _FIELDS.validate_python(stored)
    return kind_class(data.get("kind")).model_validate(data)
