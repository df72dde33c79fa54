"""The end of a run's records: what is told while they are waited for, and what MLflow gets of very many parameters.

Not checked here: what else comes to MLflow, and how often (test_recorder.py).
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.controller.conftest import FACTS, Place, outcome, play, request, wait_until

from trialplane.controller.mlflow_writer import MOST_PARAMS
from trialplane.wire.states import RunState

pytestmark = pytest.mark.slow


def test_of_very_many_params_mlflow_shows_the_searched_ones_and_a_file_has_all(place: Place) -> None:
    recorder = place.recorder()
    recorder.study(FACTS)
    params = {**{f"fixed{index}": index for index in range(1500)}, "lr": 0.5}
    wide = request(0, params=params)
    recorder.started(wide, uses_mlflow=False)
    recorder.ended(wide, outcome(0))
    recorder.study_ended(RunState.SUCCEEDED, "all 1 trials ended")
    assert recorder.close(60)
    run = place.trial(0)
    assert len(run.data.params) == MOST_PARAMS and run.data.params["lr"] == "0.5"
    assert json.loads(Path(place.client.download_artifacts(run.info.run_id, "params.json")).read_text()) == params


def test_what_is_waited_for_is_told(place: Place) -> None:
    recorder, told = place.recorder(), []
    recorder.study(FACTS)
    for number in range(3):
        play(recorder, number)
    wait_until(lambda: recorder.tick() or not recorder.behind, "all of them are recorded")
    play(recorder, 3)
    os.kill(recorder._writer.pid, signal.SIGSTOP)
    recorder.started(request(4), uses_mlflow=False)
    recorder.ended(request(4), outcome(4))
    recorder.study_ended(RunState.SUCCEEDED, "all 5 trials ended")
    assert recorder.close(60, lambda: len(told) > 2, told.append) is False
    assert told[-1] in ("recording in MLflow: 3 of 5 trials", "recording in MLflow: 4 of 5 trials")
