"""Presenters of runs: one for each kind, and their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trialplane.cli.kinds.collection import CollectionPresenter
from trialplane.cli.kinds.presenter import Presenter
from trialplane.cli.kinds.study import StudyPresenter
from trialplane.cli.kinds.training import TrainingPresenter
from trialplane.wire.records import RunStatus

if TYPE_CHECKING:
    from trialplane.job.kinds import Job

PRESENTERS: dict[str, Presenter] = {"hpo": StudyPresenter(), "train": TrainingPresenter(), "collect": CollectionPresenter()}


def of(run: RunStatus | Job) -> Presenter:
    """Return the presenter of a run, by its status or its job."""
    return PRESENTERS[run.kind]
