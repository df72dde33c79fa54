"""The job `lora`: adapters learn, the base model stays as it is and is shared by forks, and a paused trial stays the same.

Not checked: models of the hub, GPUs, and how good the adapters get.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
from tests.jobs.trainings import ENVIRON, JOBS
from tests.worker.conftest import Bench

from textjobs import base_models
from trialplane import errors
from trialplane.job import entrypoint, load
from trialplane.plan import pack
from trialplane.wire.records import Segment
from trialplane.worker.context import Paused

JOB = JOBS / "lora"
SMALL = {"max_rows": 150, "epochs": 2, "rank": 4, "alpha": 2.0, "lr": 1e-2, "targets": "all", "dropout": 0.1}

FORKS = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import train
from trialplane.policies import spawn
from textjobs import base_models
train.load({"model": "tiny"}, Path(sys.argv[2]))
print(json.dumps({"reasons": spawn.reasons_not_to_fork(), "loaded": base_models.load.cache_info().misses}))
"""


@pytest.fixture
def lora(trials):
    return trials("lora")


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_adapters_learn_and_the_base_model_stays_as_it_is(lora):
    model, _ = base_models.load("tiny", lora.cache, JOB / "synthetic.jsonl")
    before = weights(model)
    metrics = lora(**{**SMALL, "max_rows": 400, "epochs": 4})
    assert set(metrics) == {"loss", "accuracy", "perplexity", "trained"}
    assert all(math.isfinite(value) for value in metrics.values())
    losses = [reported["loss"] for _, reported in lora.reports]
    assert [step for step, _ in lora.reports] == [0, 1, 2, 3]
    assert losses[-1] < losses[0] - 0.1
    after = model.state_dict()
    assert list(before) == list(after), "the adapters are gone"
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_same_seed_and_parameters_give_the_same_metrics(lora):
    few = {**SMALL, "epochs": 1}
    first = lora(seed=3, **few)
    assert lora(seed=3, **few) == first
    assert lora(seed=4, **few) != first


def test_a_trial_that_is_paused_has_the_metrics_of_one_that_is_not(lora, tmp_path):
    whole = lora(**SMALL)
    undisturbed = lora.reports
    with pytest.raises(Paused, match="paused after step 0"):
        lora(**SMALL, checkpoints=tmp_path / "paused", segment=Segment(1, ("loss",)))
    first = lora.reports
    assert lora(**SMALL, checkpoints=tmp_path / "paused") == whole
    assert first + lora.reports == undisturbed, "to the last bit"


def test_a_checkpoint_has_the_adapters_only(lora, tmp_path):
    with pytest.raises(Paused):
        lora(**SMALL, checkpoints=tmp_path / "paused", segment=Segment(1, ("loss",)))
    size = sum(file.stat().st_size for file in (tmp_path / "paused").rglob("*") if file.is_file())
    model, _ = base_models.load("tiny", lora.cache, JOB / "synthetic.jsonl")
    assert size < sum(tensor.nbytes for tensor in model.state_dict().values())


@pytest.mark.parametrize(("targets", "names"), [("attention", {"attn"}), ("mlp", {"mlp"}), ("all", {"attn", "mlp"})])
def test_the_adapter_is_as_peft_loads_it_and_on_the_layers_that_were_asked_for(lora, targets, names):
    lora(**{**SMALL, "epochs": 1, "targets": targets})
    folder = lora.workdir / "adapter"
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 8.0)
    assert {name.split(".")[-2] for name in settings["target_modules"]} == names
    model, _ = base_models.load("tiny", lora.cache, JOB / "synthetic.jsonl")
    loaded = peft.PeftModel.from_pretrained(model, folder)
    assert any("lora_A" in name for name in loaded.state_dict())
    loaded.unload()


def test_only_the_completion_counts(lora):
    encode, collate = lora.train.encode, lora.train.collate
    _, tokenizer = base_models.load("tiny", lora.cache, JOB / "synthetic.jsonl")
    rows = [{"prompt": "The bus was late.", "completion": "low mood"}, {"prompt": "I", "completion": "x"}]
    batch = collate(encode(rows, tokenizer, "prompt", "completion", 64))
    kept = [[token for token in row if token != -100] for row in batch["targets"].tolist()]
    assert tokenizer.decode(kept[0]) == f"low mood{tokenizer.eos_token}"
    assert tokenizer.decode(kept[1]) == f"x{tokenizer.eos_token}"
    inputs, targets = batch["input_ids"][:, 1:], batch["targets"]
    assert torch.equal(inputs[targets != -100], targets[targets != -100]), "each is the next token"
    short = encode(rows[:1], tokenizer, "prompt", "completion", 3)
    assert len(short[0][0]) == 3 and short[0][1] == 2


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"targets": "heads"}, "targets is 'heads'; it is one of: attention, mlp, all"),
        ({"held_out": 0.0}, "0 of 150 rows are held out; change params.held_out"),
        ({"model": "no/such-model"}, "no/such-model"),
        ({"prompt": "question"}, "row 1 has no question"),
    ],
)
def test_bad_input_is_named(lora, monkeypatch, params, said):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # its variable is read when it is imported
    with pytest.raises(errors.InputError, match=re.escape(said)):
        lora(**{**SMALL, **params})


def test_the_template_loads_the_base_model_and_may_be_forked(cache, tmp_path):
    """In a new interpreter, with what a slot gives its template."""
    command = [sys.executable, "-c", FORKS, str(JOB), str(cache)]
    environ = {**os.environ, **ENVIRON, "OMP_NUM_THREADS": "4"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout.splitlines()[-1]) == {"reasons": [], "loaded": 1}


def test_it_travels_with_its_library_and_is_small(tmp_path):
    job = load.load_job(JOB, environ={})
    packed = pack.pack(JOB, entrypoint.packages(job, JOB))
    assert len(packed.data) < 200_000
    assert job.search.ladder is not None
    half = load.load_job(JOB, profile="share", environ={})
    assert (half.resources.gpus, half.params["model"]) == (0.5, "gpt2")


@pytest.mark.slow
def test_trials_of_a_slot_are_forks_with_the_base_model(lora, tmp_path):
    job = load.load_job(JOB, environ={})
    code = tmp_path / "code"
    pack.unpack(pack.pack(JOB, entrypoint.packages(job, JOB)).data, code)
    alone = lora(seed=42, **SMALL)
    settings = {"preload": job.preload, "params": job.params}
    with Bench(tmp_path, {}, **settings) as slot:
        params = {**job.params, **SMALL}
        outcomes = [slot.outcome("", **params) for _ in range(2)]
    for outcome in outcomes:
        assert outcome.metrics["loss"] == alone["loss"], outcome.message
        assert outcome.start_method == "fork"
    assert Path(slot.config.cache).is_dir()
