"""What kind `train` means: a run of one trial with many ranks. Its defaults, and what of a search it cannot have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trialplane.spec import values
from trialplane.spec.faults import Fault
from trialplane.spec.resources import Budget

if TYPE_CHECKING:  # it asks this module for the defaults
    from trialplane.spec.job import Job

KIND = "train"
# Fields that say how to choose among trials. A training has none of them, not even with their defaults.
SEARCH_ONLY: Mapping[str, str] = {
    "space": "write the values into params",
    "enqueue": "write the values into params",
    "sampler": "nothing is drawn",
    "pruner": "nothing is compared",
    "constraints": "nothing is compared",
}
_BUDGET = {
    "max_failed": "retries says how often to try again",
    "failed_alike": "retries says how often to try again",
    "time": "budget.timeout ends a training that takes too long",
    "target": "the job's own code stops when it is good enough",
}
_OBJECTIVE = {"metric": "loss", "direction": "minimize"}
# A rank may be killed by its node's lack of memory or a GPU's error; begun again from a checkpoint, little is lost.
_CRASHED = 3
_MEMORY_GIB = 2  # of each rank: what a trial of a search gets


def filled(data: Any) -> Any:
    """The fields of a job as given, with the defaults that a training has otherwise than a search.

    Resources left out are those of a trial of a search, for each rank: one core and 2 GiB.
    """
    if not isinstance(data, dict) or data.get("kind") != KIND:
        return data
    made = {"objectives": [_OBJECTIVE], "trials": 1, "parallel": 1, **data}
    retries = made.get("retries", {})
    if isinstance(retries, dict):
        made["retries"] = {"crashed": _CRASHED, **retries}
    resources = made.get("resources", {})
    if isinstance(resources, dict):
        count = _count(made.get("ranks"), resources.get("gpus"))
        made["resources"] = {"cpus": count, "memory": f"{count * _MEMORY_GIB}Gi", **resources}
    return made


def scaled(written: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """A training's resources for other GPUs than they were written for: to each rank what it would have had.

    Ranks on CPUs share the cores that are there, so without GPUs all stays as it is written.

    Args:
        written: the job's fields as its file and profile give them.
        asked: the same with the command line laid over them.

    Returns:
        The fields of `resources` that are others then.
    """
    old, new = written.get("resources", {}), asked.get("resources", {})
    if asked.get("kind") != KIND or not isinstance(old, dict) or not isinstance(new, dict):
        return {}
    if new.get("gpus", 0) in (0, old.get("gpus", 0)):
        return {}
    was, now = _count(written.get("ranks"), old.get("gpus")), _count(asked.get("ranks"), new["gpus"])
    made: dict[str, Any] = {}
    if type(old.get("cpus")) is int:
        made["cpus"] = -(-old["cpus"] * now // was)
    for name in ("memory", "shm"):
        if name in old and (amount := values.times(old[name], now / was)) is not None:
            made[name] = amount
    return made


def _count(*given: Any) -> int:
    """Ranks of a node, from fields nobody has looked at yet."""
    return next((one for one in given if isinstance(one, int) and not isinstance(one, bool) and 0 < one < 2**20), 1)


def check(job: Job) -> Iterator[Fault]:
    """What a training must leave to a search, and a search to a training; and ranks that cannot be."""
    if job.is_training:
        yield from _refused(job)
    elif job.resume is not None and not job.is_collection:
        yield Fault(("resume",), "is for kind: train and kind: collect; a study goes on with `platform resume`")
    yield from _ranks(job)


def _refused(job: Job) -> Iterator[Fault]:
    search = "is for a search (kind: hpo), and a training is one trial"
    for field, why in SEARCH_ONLY.items():
        if field in job.model_fields_set:
            yield Fault((field,), f"{search}: {why}; drop it")
    for field, why in _BUDGET.items():
        if getattr(job.budget, field) != Budget.model_fields[field].default:
            yield Fault(("budget", field), f"{search}: {why}; drop it")
    for field in ("trials", "parallel"):
        if getattr(job, field) != 1:
            yield Fault((field,), f"{search}; more processes are ranks, more pods are nodes; drop it")


def _ranks(job: Job) -> Iterator[Fault]:
    gpus = job.resources.gpus
    if job.ranks is not None and 0 < gpus < job.ranks:
        message = f"{job.ranks} is more than the GPUs of a node ({gpus}), and ranks cannot share one"
        yield Fault(("ranks",), f"{message}; write ranks: {gpus}, or leave it out for one per GPU, or resources.gpus: 0")
    if job.cluster.autoscale and job.is_placed_whole:
        what = "the pods of a training" if job.is_training else "the nodes of a trial"
        yield Fault(("cluster", "autoscale"), f"{what} must all be there before it starts; drop it")
