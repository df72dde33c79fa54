"""`platform diff`, `edit` and `retry`, as a user types them.

Not checked here: which fields may change (tests/plan/test_changes.py), what a study does then
(tests/controller/test_changed_search.py).
"""

from __future__ import annotations

import json

import pytest
from tests.client.conftest import complete, failed

from trialplane.client import folder
from trialplane.job.kinds import Study
from trialplane.wire.paths import RunPaths
from trialplane.wire.states import FailureClass, RunState


@pytest.fixture
def done(runs) -> RunPaths:
    """A study that has succeeded, with two failed trials."""
    run = runs.make("mine", tell=lambda one: failed(one, FailureClass.OOM) if one.trial in (1, 4) else complete(one))
    runs.say(run, RunState.SUCCEEDED, complete=4, failed=2)
    return run


def job_of(run: RunPaths) -> Study:
    job = folder.load_job(run)
    assert isinstance(job, Study)
    return job


def test_failed_trials_are_tried_again(platform, done, double):
    result = platform("retry", "mine", "--failed", "--detach")
    assert result.exit_code == 0, result.stderr
    assert "mine continues with 2 failed trials" in result.stderr
    assert job_of(done).retries.failed_before == 6


def test_nothing_has_failed(platform, runs, double):
    run = runs.make("mine", tell=complete)
    runs.say(run, RunState.SUCCEEDED, complete=6)
    result = platform("retry", "mine", "--failed")
    assert (result.exit_code, "no trial of mine has failed" in result.stderr) == (2, True)
    assert platform("retry", "mine").exit_code == 2, "without --failed"


def test_a_population_is_not_tried_again(platform, runs, double):
    (runs.jobs / "demo" / "train.py").write_text("def run(ctx):\n    state = ctx.restored\n")
    members = {"population": {"interval": 2, "steps": 8}}
    run = runs.make("mine", tell=lambda one: failed(one, FailureClass.OOM), asks=2, **members)
    runs.say(run, RunState.FAILED, failed=2)
    result = platform("retry", "mine", "--failed")
    assert (result.exit_code, "mine is a population, and the checkpoints" in result.stderr) == (2, True), result.stderr


def test_a_study_that_has_ended_goes_on_with_another_space(platform, done, double):
    result = platform("edit", "mine", "--set", "space.lr.high=3", "--set", "trials=9", "--detach")
    assert result.exit_code == 0, result.stderr
    job = job_of(done)
    assert (job.search.parameters["lr"].high, job.trials) == (3.0, 9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "seed=3"], "cannot change when a run is resumed"),
        (["--set", "pruner={name: asha, promote: true, max_resource: 4}"], "changes the rungs"),
        ([], "say what to change"),
    ],
    ids=str,
)
def test_what_cannot_be_edited(platform, done, words, message):
    before = done.job.read_text()
    result = platform("edit", "mine", *words)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert done.job.read_text() == before


def test_diff_says_when_each_change_can_take_effect(platform, done, workplace):
    job = workplace / "jobs" / "demo" / "job.yaml"
    job.write_text(job.read_text().replace("trials: 6", "trials: 9\nseed: 5\nparallel: 3"))
    (workplace / "jobs" / "demo" / "more.py").write_text("")
    result = platform("diff", "demo")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "while it runs:",
        "  parallel: 1 → 3",
        "when it is resumed:",
        "  trials: 6 → 9",
        "in a new run:",
        "  seed: 0 → 5",
        "  code: job.yaml: changed",
        "  code: more.py: added",
    ]
    data = json.loads(platform("diff", "demo", "mine", "--output", "json").stdout)
    assert data["when_it_is_resumed"] == ["trials: 6 → 9"]


def test_diff_of_the_same(platform, done):
    assert platform("diff", "demo", "mine").stdout == "demo and mine are the same\n"
    result = platform("diff", "demo", "mine", "--set", "sampler=tpe")
    assert result.stdout.splitlines() == ["when it is resumed:", '  sampler.name: "random" → "tpe"']
    result = platform("diff", "demo", "mine", "--set", "trials=5")
    assert result.stdout.splitlines() == ["in a new run:", "  trials: 6 → 5"], "six have started"


def test_diff_without_a_run(platform):
    result = platform("diff", "demo")
    assert (result.exit_code, "no run of demo" in result.stderr) == (2, True)
