"""`platform submit hpo --from` and `platform refit`, as a user types them.

Not checked here: what a comparison says (tests/plan/test_refit.py).
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.client.conftest import complete, failed

from trialplane.client import exporting, folder
from trialplane.job.kinds import Study, Training
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialRequest, TrialRow
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


def trained(request: TrialRequest, gap: float) -> TrialOutcome:
    """The outcome of a trial of two configurations that differ by a gap."""
    loss = 1.0 + 0.01 * (request.trial // 2) + gap * (request.trial % 2)
    return TrialOutcome(request.number, TrialState.COMPLETE, metrics={"loss": loss}, started=1.0, ended=2.0)


def test_a_run_again_with_its_own_code(platform, runs, done, workplace, double):
    (workplace / "jobs" / "demo" / "train.py").write_text("def run(ctx): raise SystemExit\n")
    result = platform("submit", "hpo", "--from", "mine", "--set", "trials=9", "--name", "again", "--local", "--detach")
    assert result.exit_code == 0, result.stderr
    old, new = job_of(runs, "mine"), job_of(runs, "again")
    assert new == old.model_copy(update={"trials": 9})
    assert (RunPaths.of(runs.home, "again").code / "train.py").read_text() == (done.code / "train.py").read_text()


def test_one_trial_again(platform, runs, done, double):
    row = next(row for row in runs.target.rows("mine") if row.trial == 3)
    result = platform("submit", "hpo", "--from", "mine:3", "--name", "again", "--local", "--detach")
    assert result.exit_code == 0, result.stderr
    job = job_of(runs, "again")
    assert (job.trials, job.params, list(job.search.names)) == (1, dict(row.params), [])


def test_one_trial_from_one_of_its_checkpoints(platform, runs, done, double):
    for step in (4, 9):
        folder_of_step = done.checkpoints / "mine" / "trial-3" / f"step-{step:010d}"
        folder_of_step.mkdir(parents=True)
    words = ("submit", "hpo", "--from", "mine:3", "--name", "again", "--local", "--detach")
    result = platform(*words, "--checkpoint", "5")
    assert (result.exit_code, "trial 3 of mine has no checkpoint of step 5; it has 4, 9" in result.stderr) == (2, True)
    result = platform(*words, "--checkpoint", "4")
    assert result.exit_code == 0, result.stderr
    job = job_of(runs, "again")
    assert job.start is not None
    assert (job.start.run, job.start.trial, job.start.step, job.pruner.name) == ("mine", 3, 4, "none")


def test_a_member_of_a_population_is_no_source_of_a_checkpoint(platform, runs):
    train = runs.jobs / "demo" / "train.py"
    train.write_text(train.read_text() + "\nSTATE = 'ctx.restored'\n")
    fields = {"population": {"interval": 4, "steps": 12}, "trials": 4, "pruner": "none", "sampler": "random"}
    source = runs.make("herd", tell=complete, **fields)
    (source.checkpoints / "herd" / "trial-3" / "step-0000000004").mkdir(parents=True)
    result = platform("submit", "hpo", "--from", "herd:3", "--checkpoint", "4", "--local", "--detach")
    assert (result.exit_code, "herd has a population, whose checkpoints" in result.stderr) == (2, True), result.stderr


def test_a_member_of_a_population_again_has_its_last_parameters(platform, runs, double):
    train = runs.jobs / "demo" / "train.py"
    train.write_text(train.read_text() + "\nSTATE = 'ctx.restored'\n")

    def segment(request: TrialRequest) -> TrialOutcome:
        state = TrialState.PAUSED if request.segment and request.segment.rung else TrialState.COMPLETE
        return dataclasses.replace(complete(request), state=state, step=request.segment.rung or 12)

    fields = {"population": {"interval": 4, "steps": 12}, "trials": 4, "pruner": "none", "sampler": "random"}
    runs.say(runs.make("herd", tell=segment, **fields), RunState.SUCCEEDED)
    segments = [row for row in runs.target.rows("herd") if row.params != row_of(runs, "herd", row.trial, 0).params]
    changed = max(segments, key=lambda row: (row.done, row.trial))
    result = platform("submit", "hpo", "--from", f"herd:{changed.trial}", "--name", "again", "--local", "--detach")
    assert result.exit_code == 0, result.stderr
    assert f"trial {changed.trial} of herd is a member of a population" in result.stderr
    assert "trains its last parameters from step 0" in result.stderr
    job = job_of(runs, "again")
    assert (job.trials, job.population, list(job.search.names)) == (1, None, [])
    assert job.params == {**job.params, **changed.params}


def row_of(runs, name: str, trial: int, done: int) -> TrialRow:
    """The segment of a trial that begins after so many steps."""
    return next(row for row in runs.target.rows(name) if (row.trial, row.done) == (trial, done))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "mine", "--checkpoint", "4"], "--checkpoint needs the trial that saved it: --from RUN:TRIAL"),
        (["--from", "mine:3", "--checkpoint", "4"], "mine has saved no checkpoint"),
        (["--from", "nowhere"], "there is no run 'nowhere'"),
        (["--from", "mine:99"], "has started no trial 99"),
        (["--from", "mine:best"], "'best' is not the number of a trial"),
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
    best = sorted(runs.target.rows("mine"), key=lambda row: row.values)[:2]
    assert job.description == f"refit of mine: trials {best[0].trial}, {best[1].trial}"
    assert (job.trials, job.seed, job.sampler.name) == (8, old.seed + 1, "random")
    assert list(job.enqueue) == [dict(row.params) for row in best] * 4


def test_a_refit_can_have_more_gpus(platform, runs, done, double, monkeypatch):
    words = ("refit", "mine", "--top", "2", "--seeds", "2", "--name", "again", "--local", "--detach", "--gpus")
    monkeypatch.setattr("trialplane.client.machine.visible_gpus", lambda: 2)
    result = platform(*words, "0.5")
    assert result.exit_code == 0, result.stderr
    assert (job_of(runs, "mine").resources.gpus, job_of(runs, "again").resources.gpus) == (0, 0.5)
    result = platform(*words, "many")
    assert (result.exit_code, "resources.gpus" in result.stderr) == (2, True), result.stderr


def test_the_best_is_trained_as_a_training(platform, runs, double):
    fields = {
        "environment": {"AGAIN": "retries.crashed", "TRIALS": "trials"},
        "cluster.autoscale": True,
        "budget.time": "1h",
    }
    study = runs.make("study", tell=complete, pruner="median", **fields)
    runs.say(study, RunState.SUCCEEDED, complete=6)
    sets = ("--set", "ranks=99", "--set", "resources.cpus=1")
    result = platform("refit", "study", "--train", *sets, "--name", "again", "--local", "--detach")
    assert result.exit_code == 0, result.stderr
    assert "note: 99 ranks share 1 core" in result.stderr
    job, old = folder.load_job(RunPaths.of(runs.home, "again")), job_of(runs, "study")
    assert isinstance(job, Training)
    best = min(runs.target.rows("study"), key=lambda row: row.values)
    assert f"again trains with the parameters of trial {best.trial} of study" in result.stderr
    assert job.params == {**old.params, **best.params}
    assert (job.objectives, job.seed, job.world_size) == (old.objectives, old.seed + 1, 99)
    assert (job.environment, job.cluster.autoscale, job.budget.time) == ({"AGAIN": "retries.crashed"}, None, None)
    assert (RunPaths.of(runs.home, "again").code / "train.py").read_text() == (study.code / "train.py").read_text()


def test_of_a_refit_the_best_mean_is_trained(platform, runs, double):
    def tell(request: TrialRequest) -> TrialOutcome:
        lucky = 0.5 if request.trial == 0 else 1.5  # the best value, but a worse mean than 1
        loss = 1.0 if request.trial % 2 else lucky
        return TrialOutcome(request.number, TrialState.COMPLETE, metrics={"loss": loss}, started=1.0, ended=2.0)

    again = runs.make("again", tell=tell, description="refit of mine: trials 4, 2", trials=6)
    runs.say(again, RunState.SUCCEEDED, complete=6)
    result = platform("refit", "again", "--train", "--name", "final", "--local", "--detach")
    assert result.exit_code == 0, result.stderr
    row = next(row for row in runs.target.rows("again") if row.trial == 1)
    assert folder.load_job(RunPaths.of(runs.home, "final")).params == dict(row.params)


@pytest.mark.parametrize("words", [("--seeds", "5"), ("--top", "3"), ("--register", "winner"), ("--show",)], ids=" ".join)
def test_a_training_compares_nothing(platform, done, words):
    result = platform("refit", "mine", "--train", *words, "--local")
    assert (result.exit_code, f"drop {words[0]}" in result.stderr) == (2, True), result.stderr


def test_a_training_does_not_start_from_the_checkpoint_of_a_trial(platform, runs):
    runs.say(runs.make("mine", tell=complete, start={"run": "other", "trial": 2}), RunState.SUCCEEDED, complete=6)
    result = platform("refit", "mine", "--train", "--local")
    assert (result.exit_code, "start from a checkpoint of other" in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("gap", "verdict"), [(0.0, "a tie: these seeds do not tell trials"), (5.0, "is better than the others")]
)
def test_a_tie_is_called_a_tie(platform, runs, done, double, gap, verdict):
    platform("refit", "mine", "--top", "2", "--seeds", "5", "--name", "again", "--local", "--detach")
    again = RunPaths.of(runs.home, "again")

    platform("cancel", "again", "--yes")
    runs.drive(again, lambda request: trained(request, gap))
    result = platform("refit", "again", "--show")
    assert (result.exit_code, verdict in result.stdout) == (0, True), result.stdout + result.stderr
    assert "is found in about 80 % of refits" in result.stdout
    data = json.loads(platform("refit", "again", "--show", "--output", "json").stdout)
    assert [len(one["values"]) for one in data["candidates"]] == [5, 5]


def test_only_a_refit_is_compared(platform, done):
    result = platform("refit", "mine", "--show")
    assert (result.exit_code, "is not a refit" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("state", "failing", "message"),
    [
        (RunState.RUNNING, (1,), "again has not ended"),
        (RunState.PAUSED, (), "again has not ended"),
        (RunState.SUCCEEDED, (1, 3, 5), "those of trials 2 have fewer"),
        (RunState.FAILED, (0, 2, 3, 5), "those of trials 4, 2 have fewer"),
    ],
    ids=str,
)
def test_a_configuration_that_was_not_compared_is_not_registered(platform, runs, monkeypatch, state, failing, message):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////none/mlflow.db")

    def tell(request: TrialRequest) -> TrialOutcome:
        return failed(request) if request.trial in failing else trained(request, 5.0)

    again = runs.make("again", tell=tell, description="refit of mine: trials 4, 2", trials=6)
    runs.say(again, state)
    result = platform("refit", "again", "--show", "--register", "winner")
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def registered(platform, runs, mlflow_uri: str, gap: float) -> None:
    """A refit that has ended, whose trials have a model in MLflow."""
    from mlflow.tracking import MlflowClient

    platform("refit", "mine", "--top", "2", "--seeds", "3", "--name", "again", "--local", "--detach")
    platform("cancel", "again", "--yes")

    runs.drive(RunPaths.of(runs.home, "again"), lambda request: trained(request, gap))
    exporting.export_to_mlflow(runs.target, "again", mlflow_uri)
    client = MlflowClient(mlflow_uri)
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id], "tags.`trialplane.kind` = 'trial'"):
            client.log_text(run.info.run_id, run.data.tags["trialplane.trial"], "model/weights.txt")


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize(("gap", "is_registered"), [(5.0, True), (0.0, False)])
def test_the_winner_is_registered_with_seeds_interval_and_origin(
    platform, runs, done, double, monkeypatch, tmp_path, gap, is_registered
):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", (tmp_path / "artifacts").as_uri())
    registered(platform, runs, uri, gap)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    result = platform("refit", "again", "--show", "--register", "winner")
    if not is_registered:
        assert (result.exit_code, "no configuration is better than the others for certain" in result.stderr) == (2, True)
        assert not client.search_registered_models()
        return
    assert result.exit_code == 0, result.stderr
    (version,) = client.search_model_versions("name = 'winner'")
    best = min(runs.target.rows("mine"), key=lambda row: row.values)
    assert (version.tags["trialplane.run"], version.tags["trialplane.trial"]) == ("mine", str(best.trial))
    assert version.tags["trialplane.refit"] == "again"
    assert json.loads(version.tags["trialplane.values"]) == [1.0, 1.01, 1.02]
    assert float(version.tags["trialplane.mean"]) == pytest.approx(1.01)
    assert len(set(json.loads(version.tags["trialplane.seeds"]))) == 3
    assert "± 0.0" in version.description and "of mine" in version.description
    run = client.get_run(version.run_id)
    assert run.data.tags["trialplane.trial"] == "2", "the one nearest to the mean"
    assert version.source == f"{run.info.artifact_uri}/model"
    assert "is version 1 of winner" in result.stderr
    assert platform("refit", "again", "--show", "--register", "winner").exit_code == 0
    assert len(client.search_model_versions("name = 'winner'")) == 2


@pytest.mark.slow
@pytest.mark.services
def test_a_trial_without_a_model_is_not_registered(platform, runs, done, double, monkeypatch, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", (tmp_path / "artifacts").as_uri())
    platform("refit", "mine", "--top", "1", "--seeds", "2", "--name", "again", "--local", "--detach")
    platform("cancel", "again", "--yes")
    runs.drive(RunPaths.of(runs.home, "again"), complete)
    result = platform("refit", "again", "--show", "--register", "winner")
    assert (result.exit_code, "`platform export` brings it up to date" in result.stderr) == (2, True), result.stderr
    exporting.export_to_mlflow(runs.target, "again", uri)
    result = platform("refit", "again", "--show", "--register", "winner")
    assert (result.exit_code, "has no model in MLflow" in result.stderr) == (2, True), result.stderr
