"""`platform edit` of a real study while its trials run: it pauses, changes and continues, and no trial is lost.

Not checked here: which fields may change (tests/plan/test_changes.py), and the command line (tests/cli/test_changing.py).
"""

from __future__ import annotations

import json

import pytest
from tests.study.conftest import Study, wait_until

from trialplane.wire.states import RunState


def points(study: Study) -> dict[int, float]:
    """By trial the value of x: the same one in each attempt."""
    found: dict[int, float] = {}
    for (text,) in study.rows("toy", "select request from attempts order by number"):
        fields = json.loads(text)
        value = fields["params"]["x"]
        assert found.setdefault(fields["trial"], value) == value
    return found


@pytest.mark.slow
def test_a_running_study_goes_on_with_more_trials_in_another_space(study: Study) -> None:
    run = study.submit_in_stages(trials=3, preload=[], **{"params.logs": False})  # trials wait for a file
    wait_until(lambda: len(study.trials()) == 2, "two trials run")
    before = points(study)
    assert before.keys() == {0, 1}
    run.edit(["trials=5", "space.x.low=5", "space.x.high=6"])
    study.let_begin(0)
    status = run.wait(600)
    assert (status.state, status.complete) == (RunState.SUCCEEDED, 5), status.reason
    assert [handle.name for handle in study.platform.list()] == ["toy"]
    study.check_exact(5, logged=False)
    after = points(study)
    assert {trial: after[trial] for trial in before} == before, "those that ran have kept their parameters"
    assert all(5 <= after[trial] <= 6 for trial in (2, 3, 4)), after
