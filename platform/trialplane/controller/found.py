"""What MLflow holds of a run that the writer's journal does not know: it was lost, or an answer of MLflow's was."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from trialplane.wire import labels


@dataclasses.dataclass
class Found:
    """The attempts that have a run in MLflow.

    Attributes:
        runs: number of the attempt → id of its run.
        whole: numbers of those that have everything. That a run has ended says nothing: the job may have ended it.
    """

    runs: dict[int, str] = dataclasses.field(default_factory=dict)
    whole: set[int] = dataclasses.field(default_factory=set)


def studies(client: Any, experiment: str, run: str, submitted: float) -> list[Any]:
    """The runs of a study, the one that was written to first: there are several when an answer of MLflow's was lost.

    A run that was deleted may have had this one's name: its study stays in MLflow, and is another one.

    Args:
        client: MLflow's.
        experiment: id.
        run: the name.
        submitted: when, in seconds since the epoch.
    """
    query = f"tags.`{labels.RUN}` = '{run}' and tags.`{labels.KIND}` = 'study'"
    known_as = (moment(submitted), str(submitted))  # the latter of a version that wrote seconds
    known = [study for study in client.search_runs([experiment], query) if study.data.tags.get(labels.SUBMITTED) in known_as]
    return sorted(known, key=lambda study: labels.STATE not in study.data.tags)


def moment(submitted: float) -> str:
    """The time of a submission as its study's run has it."""
    return datetime.datetime.fromtimestamp(submitted, datetime.UTC).isoformat(" ", "milliseconds")


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
                if labels.RECORDED in run.data.tags:
                    found.whole.add(int(number))
        token = page.token or None
    return found
