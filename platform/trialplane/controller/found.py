"""What MLflow holds of a run whose writer's journal is lost, with the disk of a head pod for example."""

from __future__ import annotations

import dataclasses
from typing import Any

from trialplane.wire import labels

_ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclasses.dataclass
class Found:
    """The attempts that have a run in MLflow.

    Attributes:
        runs: number of the attempt → id of its run.
        whole: numbers of those that have everything; ending a run is the last thing a writer does to it.
    """

    runs: dict[int, str] = dataclasses.field(default_factory=dict)
    whole: set[int] = dataclasses.field(default_factory=set)


def attempts(client: Any, experiment: str, parent: str) -> Found:
    """Asks MLflow for all children of a study's run.

    Args:
        client: MLflow's.
        experiment: id.
        parent: id of the study's run.
    """
    found = Found()
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], f"tags.`{labels.PARENT}` = '{parent}'", page_token=token or None)
        for run in page:
            number = run.data.tags.get(labels.NUMBER)
            if number is not None:  # else it was reserved, and nobody knows for whom: it is not used again
                found.runs[int(number)] = run.info.run_id
                if run.info.status in _ENDED:
                    found.whole.add(int(number))
        token = page.token or None
    return found
