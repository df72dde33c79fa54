"""A run's name is used again after the run was deleted: its study in MLflow is another one.

Not checked here: what a study in MLflow holds (test_recorder).
"""

from __future__ import annotations

import json
import shutil

import pytest
from tests.controller.conftest import FACTS, Place, play

from trialplane.controller.recorder import Recorder

pytestmark = pytest.mark.slow


def test_a_name_that_is_used_again_is_another_study(place: Place) -> None:
    first = place.recorder()
    first.study(FACTS)
    for number in range(3):
        play(first, number)
    assert first.close(60)
    shutil.rmtree(place.run.spool)
    facts = json.loads(place.run.submission.read_text())
    place.run.submission.write_text(json.dumps({**facts, "submitted": facts["submitted"] + 60}))

    second = Recorder(place.run, place.uri, keeps_folder=False)
    place.recorders.append(second)
    second.study(FACTS)
    for number in range(2):
        play(second, number)
    assert second.close(60)
    parents = [run.info.run_id for run in place.runs("study")]
    assert len(parents) == 2
    children = [run.data.tags["mlflow.parentRunId"] for run in place.runs()]
    assert sorted(children.count(parent) for parent in parents) == [2, 3]
