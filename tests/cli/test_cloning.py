"""`platform submit hpo --from` and `platform refit`, as a user types them.

Not checked here: what a comparison says (tests/plan/test_refit.py).
"""

from __future__ import annotations

import json

import pytest
from tests.client.conftest import complete

from trialplane.client import folder
from trialplane.job.kinds import Study
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import RunState, TrialState


@pytest.fixture
def done(runs) -> RunPaths:
    run = runs.make("mine", tell=complete)
    runs.say(run, RunState.SUCCEEDED, complete=6)
    return run


def job_of(runs, name: str) -> Study:
    job = folder.load_job(RunPaths.of(runs.home, name))
    assert isinstance(job, Study)
    return job


def test_a_run_again_with_its_own_code(platform, runs, done, workplace, double):
    (workplace / "jobs" / "demo" / "train.py").write_text("def run(ctx): raise SystemExit\n")
    result = platform("submit", "hpo", "--from", "mine", "--set", "trials=9", "--name", "again", "--local", "--detach")
    assert result.exit_code == 0, result.stderr
    old, new = job_of(runs, "mine"), job_of(runs, "again")
    assert new == old.model_copy(update={"trials": 9})
    assert (RunPaths.of(runs.home, "again").code / "train.py").read_text() == (done.code / "train.py").read_text()


def test_one_trial_again(platform, runs, done, double):
    row = next(row for row in runs.target.rows("mine")[1] if row.trial == 3)
    result = platform("submit", "hpo", "--from", "mine:3", "--name", "again", "--local", "--detach")
    assert result.exit_code == 0, result.stderr
    job = job_of(runs, "again")
    assert (job.trials, job.params, list(job.search.names)) == (1, dict(row.params), [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "nowhere"], "there is no run 'nowhere'"),
        (["--from", "mine:99"], "has started no trial 99"),
        (["--from", "mine:best"], "'best' is no number of a trial"),
        ([], "say what to submit"),
    ],
    ids=str,
)
def test_what_cannot_be_cloned(platform, done, words, message):
    result = platform("submit", "hpo", "--local", *words)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_other_code_is_reported_and_taken_on_request(platform, runs, done, workplace, double):
    (workplace / "jobs" / "demo" / "train.py").write_text("def run(ctx): return {'loss': 2.0}\n")
    words = ("submit", "hpo", "demo", "--from", "mine", "--name", "again", "--local", "--detach")
    result = platform(*words)
    assert (result.exit_code, "train.py: changed" in result.stderr) == (2, True), result.stderr
    assert not RunPaths.of(runs.home, "again").root.exists()
    result = platform(*words, "--other-code")
    assert result.exit_code == 0, result.stderr
    assert "2.0" in (RunPaths.of(runs.home, "again").code / "train.py").read_text()


def test_the_best_are_trained_again_with_new_seeds(platform, runs, done, double):
    result = platform("refit", "mine", "--top", "2", "--seeds", "4", "--name", "again", "--local", "--detach")
    assert result.exit_code == 0, result.stderr
    job, old = job_of(runs, "again"), job_of(runs, "mine")
    best = sorted(runs.target.rows("mine")[1], key=lambda row: row.values)[:2]
    assert job.description == f"refit of mine: trials {best[0].trial}, {best[1].trial}"
    assert (job.trials, job.seed, job.sampler.name) == (8, old.seed + 1, "random")
    assert list(job.enqueue) == [dict(row.params) for row in best] * 4


@pytest.mark.parametrize(
    ("gap", "verdict"), [(0.0, "a tie: these seeds do not tell trials"), (5.0, "is better than the others")]
)
def test_a_tie_is_called_a_tie(platform, runs, done, double, gap, verdict):
    platform("refit", "mine", "--top", "2", "--seeds", "4", "--name", "again", "--local", "--detach")
    again = RunPaths.of(runs.home, "again")

    def tell(request: TrialRequest) -> TrialOutcome:
        loss = 1.0 + 0.01 * (request.trial // 2) + gap * (request.trial % 2)
        return TrialOutcome(request.number, TrialState.COMPLETE, metrics={"loss": loss}, started=1.0, ended=2.0)

    platform("cancel", "again", "--yes")
    runs.drive(again, tell)
    result = platform("refit", "again", "--show")
    assert (result.exit_code, verdict in result.stdout) == (0, True), result.stdout + result.stderr
    assert "is found in 80 % of refits" in result.stdout
    data = json.loads(platform("refit", "again", "--show", "--output", "json").stdout)
    assert [len(one["values"]) for one in data["candidates"]] == [4, 4]


def test_only_a_refit_is_compared(platform, done):
    result = platform("refit", "mine", "--show")
    assert (result.exit_code, "is no refit" in result.stderr) == (2, True)
