"""The job `cnm-bert`: it learns, eight ranks train as one does, and what was killed goes on as if it had not been.

Ranks are processes with gloo (launch.py). Not checked: GPUs, bf16 (marker gpu, tests/e2e), the platform around it
(tests/study), and how good a model becomes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from tests.jobs.trainings import ENVIRON, JOBS, losses, said, weights
from transformers import AutoModelForMaskedLM, AutoTokenizer

from textjobs import component_bert
from trialplane import errors
from trialplane.job import load
from trialplane.worker.context import Stopped

JOB = JOBS / "cnm-bert"
SMALL = {"max_train_samples": 320, "eval_samples": 64, "hidden_size": 32, "num_hidden_layers": 1, "eval_every": 1000}


def keys(folder, rank):
    return [json.loads(line) for line in (folder / f"keys-{rank}.jsonl").read_text().splitlines()]


# -- one rank


def test_the_loss_falls_and_the_model_can_be_loaded(training, tmp_path):
    train, out = training(), tmp_path / "model"
    result = train(max_steps=40, report_every=5, output_dir=str(out))
    assert train.losses[-1] < train.losses[0] - 0.5
    assert set(result) == {"loss", "perplexity", "accuracy", "steps"}
    assert result["steps"] == 40
    assert {"samples_per_second", "tokens_per_second", "lr", "grad_norm"} <= set(train.reports[0][1])
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert type(model) is component_bert.ComponentBertForMaskedLM
    inputs = tokenizer("鲤鱼在[MASK]里游来游去。", return_tensors="pt")
    inputs.pop("token_type_ids", None)
    assert torch.isfinite(model(**inputs).logits).all()


def test_gradient_accumulation_changes_nothing(training):
    whole, parts = training(), training()
    few = {"max_steps": 4, "report_every": 1, "dropout": 0.0}
    whole(**few)
    parts(**few, per_device=8)
    assert parts.losses == pytest.approx(whole.losses, rel=1e-5)


def test_a_training_that_is_stopped_saves_itself_and_says_at_which_step(training):
    train = training()
    with pytest.raises(Stopped, match="after step 6, with a checkpoint"):
        train(max_steps=30, report_every=5, save_every=1000, stop_at=5)
    assert train.checkpoints.newest().step == 6, "with the next step, whenever the next report is due"


def test_fewer_lines_than_are_held_out_are_refused(training, tmp_path):
    (tmp_path / "few.txt").write_text("鲤鱼在河里。\n" * 40)
    with pytest.raises(errors.InputError, match=r"few\.txt gives 40 lines, and params\.eval_samples holds 64 out"):
        training()(max_train_samples=None, data=str(tmp_path / "few.txt"))


def test_several_files_are_read_as_one(training, tmp_path):
    text = (JOB / "synthetic.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    files = [tmp_path / "first.txt", tmp_path / "second.txt"]
    files[0].write_text("".join(text[:200]), encoding="utf-8")
    files[1].write_text("".join(text[200:400]), encoding="utf-8")
    several, one = training(), training()
    few = {"max_steps": 3, "report_every": 1, "max_train_samples": 400 - SMALL["eval_samples"]}
    several(data=[str(file) for file in files], **few)
    one(**few)
    assert several.losses == one.losses
    with pytest.raises(errors.InputError, match=r"first\.txt, .*second\.txt gives 400 lines"):
        training()(data=[str(file) for file in files], eval_samples=400, max_train_samples=None)


def test_without_lines_held_out_there_is_no_score(training):
    with pytest.raises(errors.InputError, match=r"params\.eval_samples is 0"):
        training()(eval_samples=0)


def test_started_again_it_says_that_nothing_is_left_and_never_goes_back(training, capsys):
    train = training()
    first = train(max_steps=6)
    capsys.readouterr()
    assert train(max_steps=6)["loss"] == pytest.approx(first["loss"])
    assert "all 6 steps were done before: nothing is trained" in capsys.readouterr().out
    with pytest.raises(errors.InputError, match=r"has done 6 steps, and this training has 4: raise params\.max_steps"):
        train(max_steps=4)


def test_the_profile_base_is_the_original():
    job = load.load_job(JOB, profile="base", environ={})
    assert job.kind == "train"
    assert (job.world_size, job.resources.gpus) == (8, 8)
    assert job.params["batch"] == 256 == 8 * job.params["per_device"]
    assert job.params["hidden_size"] == 768


def test_without_a_profile_eight_gpus_have_cores_and_memory_for_eight_ranks():
    got = load.load_job(JOB, overrides={"resources.gpus": 8}, environ={}).resources
    assert (got.cpus, got.memory, got.shm) == (16, "32Gi", "8Gi")


@pytest.mark.parametrize("profile", [None, "smoke", "small", "base"])
def test_the_batch_can_be_dealt_to_the_ranks(profile):
    job = load.load_job(JOB, profile=profile, environ={})
    assert job.params["batch"] % job.world_size == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_it_trains_in_bf16_on_a_gpu(training):
    train = training()
    result = train(max_steps=40, report_every=5, workers=2, component_pooling="attention")
    assert train.losses[-1] < train.losses[0] - 0.5
    assert result["loss"] < train.losses[0]
    assert "gpu_memory_gib" in train.reports[0][1]


# -- alone


def alone(tmp_path, *command):
    environ = {**os.environ, **ENVIRON, "TRIALPLANE_HOME": str(tmp_path / "home"), "GLOO_SOCKET_IFNAME": "lo"}
    for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"):
        environ.pop(name, None)
    return subprocess.run([sys.executable, *command], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_it_runs_alone_as_the_original_did(tmp_path):
    (tmp_path / "pretrain_tiny.yaml").write_text("hidden_size: 32\nmax_steps: 12\nlr: 1e-3\n")
    flags = ["--profile", "smoke", "--config", "pretrain_tiny.yaml", "--max_train_samples", "320", "--output_dir=out"]
    ended = alone(tmp_path, JOB / "train.py", *flags)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout[ended.stdout.index("{") :])
    assert said["steps"] == 12
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["hidden_size"] == 32
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max_train_sample", "3"], "max_train_sample: there is no such parameter; did you mean max_train_samples"),
        (["--max_train_samples"], "--max_train_samples has no value; write --max_train_samples VALUE"),
        (["more.yaml"], "'more.yaml' is not an option; write --NAME VALUE"),
    ],
)
def test_an_argument_that_is_none_is_refused(tmp_path, flags, says):
    """By what reads the arguments of every job's script; the job itself, seconds of imports, is not needed for that."""
    program = f"from trialplane.worker import alone; alone.main({str(JOB / 'train.py')!r}, lambda ctx: 0.0)"
    ended = alone(tmp_path, "-c", program, *flags)
    assert ended.returncode == 2
    assert says in ended.stderr


def test_arguments_are_numbers_as_a_job_file_has_them(tmp_path):
    (tmp_path / "tiny.yaml").write_text("hidden_size: 32\nlr: 1e-3\n")
    program = f"from trialplane.worker import alone; alone.main({str(JOB / 'train.py')!r}, lambda ctx: dict(ctx.params))"
    flags = ["--config", "tiny.yaml", "--max-train-samples=7", "--set", "weight_decay=1e-2", "--beta2", "9e-1"]
    params = json.loads(alone(tmp_path, "-c", program, *flags).stdout)
    assert (params["hidden_size"], params["lr"], params["max_train_samples"]) == (32, 0.001, 7)
    assert (params["weight_decay"], params["beta2"], params["max_steps"]) == (0.01, 0.9, None)


@pytest.mark.slow
def test_it_runs_under_torchrun(tmp_path):
    flags = ["--profile", "smoke", "--max_train_samples", "320", "--hidden_size", "32", "--max_steps", "6"]
    ended = alone(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", JOB / "train.py", *flags)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout[ended.stdout.index("{") :])
    assert said["steps"] == 6
    assert ended.stdout.count("step 6: eval_loss") == 1


# -- many ranks


@pytest.mark.slow
def test_eight_ranks_of_four_train_as_one_of_thirty_two(tmp_path, cache, launch):
    """Without dropout, whose numbers are each rank's own. What is left is the order in which float32 sums are taken."""
    params = {**SMALL, "max_steps": 12, "report_every": 1, "dropout": 0.0, "save_every": 1000}
    one, eight = tmp_path / "one", tmp_path / "eight"
    ended = launch(
        JOB.name,
        {"world_size": 1, "params": params, "folder": str(one), "cache": str(cache)},
        {"world_size": 8, "params": {**params, "per_device": 4}, "folder": str(eight), "cache": str(cache)},
    )
    assert ended.returncode == 0, ended.stderr
    assert len(losses(one)) == 12
    assert losses(eight) == pytest.approx(losses(one), rel=1e-5)
    assert said(eight)["result"]["loss"] == pytest.approx(said(one)["result"]["loss"], rel=1e-5)
    dealt = [key for step in range(12) for rank in range(8) for key in keys(eight, rank)[step]]
    assert dealt == [key for batch in keys(one, 0) for key in batch]


@pytest.mark.slow
def test_ranks_stop_at_the_same_step_when_one_of_them_is_told_to(tmp_path, cache, launch):
    params = {**SMALL, "max_steps": 30, "report_every": 5, "save_every": 1000}
    spec = {"world_size": 2, "params": params, "cache": str(cache)}
    ended = launch(JOB.name, {**spec, "folder": str(tmp_path), "stop_at": 5})
    assert ended.returncode == 0, ended.stderr
    assert "rank 0: stopped by SIGTERM after step 6, with a checkpoint" in ended.stdout
    assert "rank 1: stopped by itself after step 6, with a checkpoint" in ended.stdout
    assert weights(tmp_path)[0] == 6


@pytest.mark.slow
def test_what_was_killed_goes_on_as_if_it_had_not_been(tmp_path, cache, launch):
    """With dropout: the generators of each rank are part of a checkpoint."""
    params = {**SMALL, "max_steps": 14, "report_every": 1, "save_every": 5}
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    spec = {"world_size": 2, "params": params, "cache": str(cache)}
    ended = launch(JOB.name, {**spec, "folder": str(calm)}, {**spec, "folder": str(killed), "kill_at": 8})
    assert ended.returncode == 1, ended.stderr
    assert not (killed / "said.json").exists()
    before = [keys(killed, rank) for rank in range(2)]
    ended = launch(JOB.name, {**spec, "folder": str(killed)})
    assert ended.returncode == 0, ended.stderr
    assert "continues from" in ended.stdout
    assert "after step 5" in ended.stdout

    for rank in range(2):
        undisturbed, again = keys(calm, rank), keys(killed, rank)[len(before[rank]) :]
        assert before[rank] == undisturbed[: len(before[rank])]
        assert again == undisturbed[5:]
    (last, ours), (end, theirs) = weights(killed), weights(calm)
    assert last == end == 14
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert said(killed)["result"] == said(calm)["result"]


@pytest.mark.slow
def test_it_goes_on_with_another_number_of_ranks(tmp_path, cache, launch):
    params = {**SMALL, "max_steps": 6, "save_every": 3, "dropout": 0.0, "report_every": 1}
    folder, calm = tmp_path / "moved", tmp_path / "calm"
    spec = {"params": params, "cache": str(cache)}
    ended = launch(
        JOB.name,
        {**spec, "folder": str(folder), "world_size": 2, "kill_at": 4},
        {**spec, "folder": str(folder), "world_size": 1},
        {**spec, "folder": str(calm), "world_size": 1},
    )
    assert "it was saved by 2 ranks, and there are 1 now" in ended.stdout
    assert said(folder)["result"]["loss"] == pytest.approx(said(calm)["result"]["loss"], rel=1e-5)
