"""What a user should know of a job that is right all the same, before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from trialplane.spec.job import Job


def of(job: Job) -> Iterator[str]:
    """Notes about a job, wherever it runs."""
    if job.is_collection:
        return  # its processes are workers, each with a slot of its own
    ranks, need = job.ranks_per_node, job.resources
    if need.gpus > ranks:
        yield (
            f"{_several(ranks, 'rank')} for {need.gpus} GPUs on a node: a rank uses one, unless its code takes more; "
            f"--ranks {need.gpus} uses all"
        )
    if ranks > need.cpus:
        yield f"{ranks} ranks share {_several(need.cpus, 'core')} (resources.cpus) and wait for each other"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"
