"""The job as a user specified it, resolved and frozen. Its JSON form reads back to an equal job.

A job is a `Study`, a `Training` or a `Collection`, told apart by `kind`. The kind is asked for here, to pick the class; what
differs between kinds is a field, an attribute or a method of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from trialplane.spec import former
from trialplane.spec.jobs.base import Input
from trialplane.spec.jobs.collection import Collection
from trialplane.spec.jobs.roles import Role
from trialplane.spec.jobs.study import Study
from trialplane.spec.jobs.training import Training
from trialplane.spec.search import Objective

__all__ = ["CLASSES", "Collection", "Input", "Job", "Objective", "Role", "Study", "Training", "of_kind", "read"]

Job = Study | Training | Collection
CLASSES: Mapping[str, type[Study] | type[Training] | type[Collection]] = {
    "hpo": Study,
    "train": Training,
    "collect": Collection,
}
_FIELDS = TypeAdapter(dict[str, Any])
# Fields that earlier versions wrote into every job, whatever its kind, or accepted where they had no effect.
_FORMER = ("trials", "parallel", "nodes", "ranks", "divided", "resume")
_FORMER_OF_CLUSTER = ("backoff_limit",)  # which earlier versions wrote into every job, and which has no effect


def of_kind(kind: Any) -> type[Study] | type[Training] | type[Collection]:
    """The class of the jobs of a kind; a study's for an invalid kind, so that the rest of a job can be checked."""
    return CLASSES.get(kind, Study) if isinstance(kind, str) else Study


def read(stored: str | bytes | Mapping[str, Any]) -> Job:
    """The job in its JSON form, which this version wrote or an earlier one.

    Raises:
        pydantic.ValidationError: it is not a job, or not JSON.
    """
    data = _FIELDS.validate_json(stored) if isinstance(stored, (str, bytes)) else _FIELDS.validate_python(stored)
    kind = of_kind(data.get("kind"))
    kept = {key: value for key, value in data.items() if not (key in kind.foreign and key in _FORMER)}
    collect = kept.get("collect")
    if isinstance(collect, Mapping):
        kept["collect"], _ = former.renamed(collect, ("collect",))
    pods = kept.get("cluster")
    if isinstance(pods, Mapping):
        kept["cluster"] = {key: value for key, value in pods.items() if key not in _FORMER_OF_CLUSTER}
    variables = kept.get("environment")
    if isinstance(variables, Mapping):
        paths = {name: former.path(field) for name, field in variables.items() if isinstance(field, str)}
        kept["environment"] = {name: field for name, field in paths.items() if field.split(".")[0] not in kind.foreign}
    return kind.model_validate(kept)
