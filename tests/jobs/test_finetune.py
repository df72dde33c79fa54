"""The job `finetune`: both tasks learn, ranks train as one does, what was killed goes on, and snapshots say how it went.

Ranks are processes with gloo (launch.py). Not checked: the hub's models, GPUs (marker gpu), and the platform around it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import pickle
import subprocess
import sys
import types

import pytest
import torch
from tests.jobs.trainings import ENVIRON, JOBS, losses, said, weights
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from textjobs import heads, samples
from trialplane import errors
from trialplane.job import load
from trialplane.training import mapping, snapshots
from trialplane.worker.context import Stopped

JOB = JOBS / "finetune"
SMALL = {"max_steps": 20, "report_every": 5, "save_every": 10, "snapshot_every": 10}


def kept_by(train):
    return snapshots.Snapshots(train.folder / "checkpoints" / "snapshots").all()


# -- one rank


def test_a_language_model_learns_and_its_evolution_is_told(training, tmp_path):
    train, out = training(), tmp_path / "model"
    result = train(max_steps=40, report_every=5, output_dir=str(out))
    assert train.losses[-1] < train.losses[0] - 1
    assert set(result) == {"loss", "accuracy", "perplexity", "steps"}
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))
    assert {"samples_per_second", "tokens_per_second", "lr", "grad_norm"} <= set(train.reports[0][1])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    inputs = tokenizer("The bus was late", return_tensors="pt")
    assert torch.isfinite(model(**inputs).logits).all()

    kept = kept_by(train)
    assert [one.step for one in kept] == [0, 10, 20, 30, 40]
    evolved = [one.metrics["loss"] for one in kept]
    assert evolved == sorted(evolved, reverse=True)
    assert evolved[-1] == result["loss"]
    rows = list(csv.DictReader(io.StringIO((out / "evolution" / "snapshots.csv").read_text())))
    assert [float(row["from_start"]) > 0 for row in rows] == [False, True, True, True, True]
    assert {"layer:transformer.h.0", "layer:transformer.h.1", "layer:transformer.wte"} <= set(rows[0])
    last = AutoModelForCausalLM.from_pretrained(kept[-1].location)
    assert all(torch.equal(tensor, last.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_classifier_learns(training, tmp_path):
    train, out = training(), tmp_path / "model"
    result = train(task="sequence", max_steps=120, snapshot_every=120, report_every=10, output_dir=str(out))
    assert set(result) == {"loss", "accuracy", "macro_f1", "steps"}
    assert result["accuracy"] > 0.5  # of nine labels
    assert 0 < result["macro_f1"] <= 1
    assert train.losses[-1] < train.losses[0] - 0.5
    model = AutoModelForSequenceClassification.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    logits = model(**tokenizer("I lie awake until three. The bus was late again.", return_tensors="pt")).logits
    assert model.config.id2label[int(logits.argmax())] in model.config.label2id
    assert len(model.config.id2label) == 9


@pytest.mark.parametrize("params", [{"task": "causal"}, {"task": "sequence", "model": "tiny-deberta"}])
def test_gradient_accumulation_changes_nothing(training, params):
    whole, parts = training(), training()
    few = {"max_steps": 4, "report_every": 1, "dropout": 0.0, "snapshot_every": 100, **params}
    whole(**few)
    parts(**few, per_device=8)
    assert parts.losses == pytest.approx(whole.losses, rel=1e-5)


def test_snapshots_stay_within_their_budget(training):
    train = training()
    train(max_steps=8, snapshot_every=1, snapshots=4)
    steps = [one.step for one in kept_by(train)]
    assert len(steps) == 4
    assert (steps[0], steps[-1]) == (0, 8)
    chosen = training()
    chosen(max_steps=8, snapshot_every=None, snapshot_steps=[3, 5])
    assert [one.step for one in kept_by(chosen)] == [0, 3, 5, 8]


def test_a_training_that_is_stopped_saves_itself_and_says_at_which_step(training):
    train = training()
    with pytest.raises(Stopped, match="after step 6, with a checkpoint"):
        train(max_steps=30, report_every=5, save_every=1000, snapshot_every=1000, stop_at=5)
    assert train.checkpoints.newest().step == 6, "with the next step, whenever the next report is due"


def test_what_goes_on_from_a_relative_place_is_no_new_beginning(training, monkeypatch):
    train = training()
    monkeypatch.chdir(train.folder)
    train.checkpoints = types.SimpleNamespace(location="checkpoints")
    few = {"max_steps": 9, "report_every": 3, "save_every": 1000, "snapshot_every": 1000}
    with pytest.raises(Stopped):
        train(stop_at=3, **few)
    train(**few)
    assert [one.step for one in kept_by(train)] == [0, 9]


# -- bad input


@pytest.mark.parametrize(
    ("rows", "params", "says"),
    [
        ([{"text": "a"}], {"task": "sequence"}, "has no column label; it has: text"),
        ([{"text": 3}, {"text": 4}], {}, "the column text holds int64; params.text names one of texts"),
        ([{"text": "a", "label": "x"}], {"task": "sequence"}, "the column label holds one label only, 'x'"),
        (
            [{"text": "a", "label": 0.5}],
            {"task": "sequence"},
            "the column label holds 0.5; a label is a whole number or a text",
        ),
        ([{"text": "a b"}, {"text": None}] * 9, {}, "the column text holds None; it must hold a text in every row"),
        ([{"text": "same words"}] * 40, {"held_out": 0.0}, "no text of 40 is held out"),
        (
            [{"text": f"text number {number}"} for number in range(20)],
            {"held_out": 0.5},
            "do not fill one global batch of 32",
        ),
        ([{"text": f"text number {number}"} for number in range(90)], {"task": "regression"}, "params.task is 'regression'"),
    ],
)
def test_bad_data_is_refused_with_its_reason(training, tmp_path, rows, params, says):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(errors.InputError) as refused:
        training()(data=str(file), **params)
    assert says in str(refused.value)


# -- samples


def test_pieces_leave_nothing_out_and_mix_nothing(cache):
    texts = [json.loads(line)["text"] for line in (JOB / "synthetic.jsonl").read_text().splitlines()[:50]]
    folder, tokenizer = heads.load_tokenizer("tiny-gpt2", cache, texts)
    assert tokenizer.pad_token == tokenizer.eos_token == "<|endoftext|>"
    assert [tokenizer.decode(tokenizer(text)["input_ids"]) for text in texts] == texts
    pieces, made = samples.Pieces(str(folder), "text", 8, end=0, held_out=0.5), {"input_ids": [], "held_out": []}
    for text in texts:
        one = pieces({"text": [text]})
        flat = [token for piece in one["input_ids"] for token in piece]
        whole = [*tokenizer(text)["input_ids"], 0]
        assert flat == (whole if len(whole) % 8 != 1 else whole[:-1])
        assert len(set(one["held_out"])) == 1
        made = {name: made[name] + one[name] for name in made}
    assert pieces({"text": texts}) == made
    assert {len(piece) <= 8 for piece in made["input_ids"]} == {True}
    assert set(made["held_out"]) == {True, False}


@pytest.mark.parametrize("name", ["tiny-deberta", "tiny-gpt2", "characters"])
def test_labelled_texts_are_tokenized_as_transformers_does(cache, name):
    rows = [json.loads(line) for line in (JOB / "synthetic.jsonl").read_text().splitlines()[:50]]
    texts, labels = [row["text"] for row in rows], samples.class_names([row["label"] for row in rows], "label")
    folder, tokenizer = heads.load_tokenizer(name, cache, texts)
    labelled = samples.LabeledTexts(str(folder), "text", "label", labels, 12, 0.5)
    made = labelled({"text": texts, "label": [row["label"] for row in rows]})
    assert made["input_ids"] == tokenizer(texts, truncation=True, max_length=12)["input_ids"]
    assert [labels[number] for number in made["label"]] == [row["label"] for row in rows]
    program = (
        f"import sys; from textjobs import samples\n"
        f"samples.Pieces({str(folder)!r}, 'text', 8, 0, 0.5)({{'text': ['a b']}})\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_names_of_labels_have_an_order():
    assert samples.class_names([10, 2, 1], "label") == ("1", "2", "10")
    assert samples.class_names(["b", "a"], "label") == ("a", "b")
    assert samples.class_names(["b", 1], "label") == ("1", "b")


# -- the job's file


@pytest.mark.parametrize("profile", [None, "smoke", "gpt2", "classifier"])
def test_profiles_hold_together(profile):
    job = load.load_job(JOB, profile=profile, environ={})
    assert job.kind == "train"
    assert job.params["batch"] % job.world_size == 0
    assert job.params["task"] == ("sequence" if profile == "classifier" else "causal")


# -- alone


def test_it_runs_alone(tmp_path):
    environ = {**os.environ, **ENVIRON, "TRIALPLANE_HOME": str(tmp_path / "home")}
    for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"):
        environ.pop(name, None)
    command = [sys.executable, JOB / "train.py", "--profile", "smoke", "--max_steps", "6", "--output_dir=out"]
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout[ended.stdout.index("{") :])["steps"] == 6
    assert "| step | loss | accuracy | perplexity | from start |" in ended.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert "Traceback" not in ended.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_it_trains_in_bf16_on_a_gpu_and_maps_while_cuda_is_there(training, tmp_path):
    torch.zeros(1, device="cuda")
    train = training()
    train.cache = tmp_path / "cache"
    train(max_steps=40, report_every=5, workers=1)
    assert train.losses[-1] < train.losses[0] - 1
    assert "gpu_memory_gib" in train.reports[0][1]


# -- many ranks


@pytest.mark.slow
def test_ranks_train_as_one_does_and_tokenize_once(tmp_path, monkeypatch, launch):
    """Without dropout, whose numbers are each rank's own. What is left is the order in which float32 sums are taken."""
    params = {**SMALL, "max_steps": 6, "report_every": 1, "dropout": 0.0, "snapshot_every": 3}
    one, four = tmp_path / "one", tmp_path / "four"
    spec = {"params": params, "cache": str(tmp_path / "cache")}
    ended = launch(JOB.name, {**spec, "world_size": 4, "folder": str(four)}, {**spec, "world_size": 1, "folder": str(one)})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("mapping 1,500 rows by Pieces on 1 core into") == 1
    assert len(losses(one)) == 6
    assert losses(four) == pytest.approx(losses(one), rel=1e-5)
    assert said(four)["result"] == pytest.approx(said(one)["result"], rel=1e-5)
    both = [snapshots.Snapshots(folder / "checkpoints" / "snapshots").all() for folder in (one, four)]
    assert [[kept.step for kept in found] for found in both] == [[0, 3, 6]] * 2


@pytest.mark.slow
def test_ranks_stop_at_the_same_step_when_one_of_them_is_told_to(tmp_path, cache, launch):
    params = {**SMALL, "max_steps": 30, "report_every": 5, "save_every": 1000, "snapshot_every": 1000}
    spec = {"world_size": 2, "params": params, "cache": str(cache)}
    ended = launch(JOB.name, {**spec, "folder": str(tmp_path), "stop_at": 5})
    assert ended.returncode == 0, ended.stderr
    assert "rank 0: stopped by SIGTERM after step 6, with a checkpoint" in ended.stdout
    assert "rank 1: stopped by itself after step 6, with a checkpoint" in ended.stdout
    assert weights(tmp_path)[0] == 6


@pytest.mark.slow
def test_what_was_killed_goes_on_as_if_it_had_not_been(tmp_path, cache, launch):
    """With dropout: the generators of each rank are part of a checkpoint. The classifier, so that it has been in ranks."""
    params = {**SMALL, "task": "sequence", "max_steps": 12, "report_every": 1, "save_every": 4, "snapshot_every": 6}
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    spec = {"world_size": 2, "params": params, "cache": str(cache)}
    ended = launch(JOB.name, {**spec, "folder": str(calm)}, {**spec, "folder": str(killed), "kill_at": 9})
    assert ended.returncode == 1, ended.stderr
    assert not (killed / "said.json").exists()
    ended = launch(JOB.name, {**spec, "folder": str(killed)})
    assert ended.returncode == 0, ended.stderr
    assert "continues from" in ended.stdout
    (last, ours), (end, theirs) = weights(killed), weights(calm)
    assert last == end == 12
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert said(killed)["result"] == said(calm)["result"]
    both = [snapshots.Snapshots(folder / "checkpoints" / "snapshots").all() for folder in (killed, calm)]
    ours, theirs = ([(kept.step, kept.metrics) for kept in found] for found in both)
    assert ours == theirs


def test_the_mapping_of_the_job_is_small_to_send(tmp_path):
    rows = mapping.table(JOB / "synthetic.jsonl", ["text"], cache=tmp_path)
    assert len(pickle.dumps(rows)) < 4096
