"""What an iteration's record in MLflow has of its own: its name, its workers' logs, that it was paused.

The rest is in test_recorder.py.
"""

from __future__ import annotations

import json

import pytest
from tests.controller.conftest import FACTS, Place, outcome, request

from trialplane.wire.states import FailureClass, RunState, TrialState

pytestmark = pytest.mark.slow


def test_an_iteration_of_which_units_failed_keeps_the_logs_that_say_why(place: Place) -> None:
    place.run.job.write_text(json.dumps({"name": "toy", "kind": "collect"}))
    recorder = place.recorder()
    recorder.study(FACTS)
    for number, failed in enumerate((0.0, 2.0)):
        for log in (place.run.trial_log(number, 1), place.run.trial_log(number, 1, worker=0)):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("all of it")
        recorder.started(request(number), uses_mlflow=False)
        recorder.ended(request(number), outcome(number, metrics={"units_failed": failed}))
    stopped = outcome(2, state=TrialState.FAILED, failure=FailureClass.STOPPED, metrics={}, retried=True)
    recorder.started(request(2), uses_mlflow=False)
    recorder.ended(request(2), stopped)
    recorder.study_ended(RunState.PAUSED, "paused by the user")
    assert recorder.close(60)
    kept = [[item.path for item in place.client.list_artifacts(place.trial(n).info.run_id, "logs")] for n in (0, 1)]
    assert kept == [[], ["logs/attempt-1.log", "logs/worker-0.log"]]
    assert [place.trial(number).info.run_name for number in (0, 1)] == ["iteration-0000", "iteration-0001"]
    paused = place.trial(2)
    assert (paused.info.status, paused.data.tags["trialplane.state"]) == ("KILLED", "PAUSED")
