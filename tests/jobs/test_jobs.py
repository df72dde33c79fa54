"""Each job runs a small trial on the tiny encoder: metrics, reports, determinism, bad data, profiles, folder size.

Not checked: hub encoders, GPUs, and studies through the controller (tests/e2e_local). Scores are only compared with each
other; how good they get is the benchmark's matter.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from textjobs import encoders
from trialplane import errors
from trialplane.job import entrypoint, load
from trialplane.plan import pack
from trialplane.wire.records import Segment
from trialplane.worker.context import Paused

JOBS = Path(__file__).parents[2] / "jobs"
METRICS = {
    "criteria": {"macro_f1", "pr_auc", "loss"},
    "evidence": {"span_f1", "macro_f1", "pr_auc", "loss"},
    "share": {"macro_f1", "pr_auc", "span_f1", "loss"},
    "joint": {"score", "macro_f1", "pr_auc", "span_f1", "loss"},
}
SMALL = {"max_rows": 60, "epochs": 1}
FOUR = pytest.mark.parametrize("name", sorted(METRICS))

# Run in a new interpreter, with what a slot gives its template.
IMPORT_ALL = """
import importlib, importlib.util, os, sys
from pathlib import Path
from trialplane.job import load
from trialplane.policies import spawn
kind, *folders = sys.argv[1:]
if kind == "trainings":
    spawn.apply()
    sys.path[:0] = folders  # their modules have different names
for folder in map(Path, folders):
    for module in load.load_job(folder, environ={}).preload:
        importlib.import_module(module)
    spec = importlib.util.spec_from_file_location(folder.name, folder / "train.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
if kind == "trainings":
    spawn.check()
print(spawn.reasons_not_to_fork())
"""


@FOUR
def test_a_trial_returns_finite_metrics_and_reports_each_epoch(trials, name):
    trial = trials(name)
    metrics = trial(max_rows=60, epochs=2)
    assert set(metrics) == METRICS[name]
    assert set(trial.job.required_metrics) <= set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(isinstance(value, float) for value in metrics.values())
    assert [step for step, _ in trial.reports] == [0, 1]
    assert metrics in [reported for _, reported in trial.reports]


@FOUR
def test_the_same_seed_and_parameters_give_the_same_metrics(trials, name):
    trial = trials(name)
    first = trial(seed=3, **SMALL)
    assert trial(seed=3, **SMALL) == first
    assert trial(seed=4, **SMALL) != first


@FOUR
def test_a_trial_that_is_paused_has_the_metrics_of_one_that_is_not(trials, name, tmp_path):
    trial = trials(name)
    whole = trial(max_rows=60, epochs=2, dropout=0.1)
    undisturbed = trial.reports
    with pytest.raises(Paused, match="paused after step 0"):
        trial(max_rows=60, epochs=2, dropout=0.1, checkpoints=tmp_path / "paused", segment=Segment(1, ("loss",)))
    first = trial.reports
    continued = trial(max_rows=60, epochs=2, dropout=0.1, checkpoints=tmp_path / "paused")
    assert first + trial.reports == undisturbed, "to the last bit"
    assert continued == whole


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_criteria_pools_in_other_ways(trials, pooling):
    assert math.isfinite(trials("criteria")(pooling=pooling, loss="focal", focal_gamma=2.0, **SMALL)["macro_f1"])


def test_evidence_without_condition(trials):
    metrics = trials("evidence")(condition="none", loss="focal", focal_gamma=2.0, **SMALL)
    assert math.isfinite(metrics["span_f1"])


def test_joint_takes_two_different_encoders(trials, tmp_path):
    trial = trials("joint")
    tokenizer = trial.train.tokenizers.load_tokenizer("tiny-deberta", trial.cache, ["I feel sad", "I lie awake"])
    folder = tmp_path / "encoder"
    tokenizer.save_pretrained(folder)
    encoders.load_encoder("tiny-deberta", tokenizer, seed=0, dropout=0.0).save_pretrained(folder)
    assert math.isfinite(trial(evidence_model=str(folder), **SMALL)["score"])


@pytest.mark.slow
def test_a_good_learning_rate_beats_a_bad_one(trials):
    trial = trials("criteria")
    plain = {"pooling": "pair", "batch": 32, "head_lr": 1.0, "layer_decay": 1.0, "dropout": 0.0, "positive_weight": 1.0}
    good = trial(lr=4e-3, warmup=0.1, epochs=3, loss="cross_entropy", **plain)
    bad = trial(lr=5e-5, warmup=0.1, epochs=3, loss="cross_entropy", **plain)
    assert good["macro_f1"] > bad["macro_f1"] + 0.15
    assert good["pr_auc"] > bad["pr_auc"] + 0.15


@FOUR
def test_data_without_a_column_names_file_and_column(trials, tmp_path, name):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"post": "a", "label": 1}) + "\n")
    with pytest.raises(errors.InputError, match=r"mine\.jsonl: row 1 has no criterion"):
        trials(name)(data=str(file))


def test_a_label_that_is_none_names_file_and_value(trials, tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("post,criterion,label\nI feel sad,depressed mood,maybe\n")
    with pytest.raises(errors.InputError, match=r"mine\.csv: label is 'maybe'"):
        trials("criteria")(data=str(file))


def test_artifacts_land_in_the_trials_run(trials, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    logged = {}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///its-own")  # also without a run of the platform's
    monkeypatch.setattr(mlflow, "log_dict", lambda value, name: logged.update({name: json.dumps(value)}))
    trials("criteria")(**SMALL)
    trials("evidence")(**SMALL)
    assert set(logged) == {"confusion.json", "spans.json"}


@FOUR
@pytest.mark.parametrize(("profile", "count"), [("max", 800), ("supermax", 2000)])
def test_profiles_search_the_hub_encoders(name, profile, count):
    job = load.load_job(JOBS / name, profile=profile, environ={})
    assert job.trials == count
    assert job.resources.gpus == 1
    assert "microsoft/deberta-v3-large" in job.search.parameters["model"].choices


@FOUR
def test_the_original_variables_are_honoured(name):
    environ = {"HPO_EPOCHS": "7", "HPO_MODEL_CHOICES": "roberta-base,bert-base-uncased"}
    job = load.load_job(JOBS / name, environ=environ)
    assert job.params["epochs"] == 7
    assert job.search.parameters["model"].choices == ("roberta-base", "bert-base-uncased")


@pytest.mark.parametrize("name", [*sorted(METRICS), "cnm-bert", "finetune"])
def test_a_job_travels_with_its_library_and_is_small(name, tmp_path):
    folder, code = JOBS / name, tmp_path / "code"
    packed = pack.pack(folder, entrypoint.packages(load.load_job(folder, environ={}), folder))
    assert len(packed.data) < 200_000
    pack.unpack(packed.data, code)
    command = [sys.executable, "-c", "import textjobs; print(textjobs.__file__)"]
    found = subprocess.run(command, cwd=code, capture_output=True, text=True, check=True).stdout.strip()
    assert found == str(code / "textjobs" / "__init__.py")


@pytest.mark.parametrize(
    ("kind", "names"), [("studies", sorted(METRICS)), ("trainings", ["cnm-bert", "finetune", "selfplay"])]
)
def test_importing_the_jobs_leaves_a_process_that_may_be_forked(kind, names):
    environ = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
    }
    command = [sys.executable, "-c", IMPORT_ALL, kind, *(str(JOBS / name) for name in names)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_a_job_runs_alone_and_says_little(tmp_path):
    environ = {**os.environ, "TRIALPLANE_HOME": str(tmp_path)}
    command = [sys.executable, JOBS / "criteria" / "train.py", "--set", "max_rows=60", "--set", "epochs=1"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert set(json.loads(ended.stdout[ended.stdout.index("{") :])) == METRICS["criteria"]
    assert len(ended.stdout.splitlines()) < 10
    assert len(ended.stderr.splitlines()) < 5, ended.stderr
