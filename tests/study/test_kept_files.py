"""A study that keeps files of its best trials: where they are when it has ended.

Not checked here: what is sent when something fails (tests/controller/test_sending.py, tests/worker/test_kept_files.py).
"""

from __future__ import annotations

from pathlib import Path

from mlflow.tracking import MlflowClient
from tests.study.conftest import SPEC, Study

from trialplane.wire import paths
from trialplane.wire.states import RunState

JOB = """
from pathlib import Path

def run(ctx):
    Path("out").mkdir()
    Path("out", "weights.txt").write_text(f"weights of trial {ctx.trial}")
    Path("notes.txt").write_text("not asked for")
    return {"score": ctx.params["x"]}
"""


def test_the_files_of_the_best_trials_are_in_their_runs_in_mlflow(study: Study) -> None:
    study.write(JOB, SPEC.replace("preload: [mlflow]", "keep: {best: 2, files: [out/*.txt]}"))
    run = study.submit(trials=5)
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED and not status.warnings, (status.reason, status.warnings)
    best = {row.trial for row in run.rows()[:2]}
    client = MlflowClient(paths.mlflow_uri(study.home))
    (experiment,) = [one for one in client.search_experiments() if one.name == "toy"]
    there = {}
    for found in client.search_runs([experiment.experiment_id], "tags.`trialplane.kind` = 'trial'"):
        if client.list_artifacts(found.info.run_id, "kept_files"):
            file = client.download_artifacts(found.info.run_id, "kept_files/out/weights.txt")
            there[int(found.data.tags["trialplane.trial"])] = Path(file).read_text()
            assert [one.path for one in client.list_artifacts(found.info.run_id, "kept_files")] == ["kept_files/out"]
    assert there == {trial: f"weights of trial {trial}" for trial in best}
