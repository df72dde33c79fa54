"""Low-rank fine-tuning of a causal language model: the base model stays as it is, and a trial trains small adapters for it.

    platform submit hpo lora --trials 24 --local                     # a tiny base model, made on first use; no download
    platform submit hpo lora --profile gpu --set params.model=NAME   # on a cluster, a model of the hub
    python jobs/lora/train.py                                        # one trial alone, defaults of job.yaml
    python jobs/lora/train.py --set rank=8 --set targets=all

Data: CSV or JSONL with the columns prompt and completion. What ships is synthetic, see jobs/make_synthetic.py.
The loss is that of the completion's tokens alone. Metrics on the held-out rows, after each epoch: loss, perplexity, and
accuracy (the share of completions that are right in all their tokens, each given those before it).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from pathlib import Path

import numpy as np
import peft
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_scheduler
from transformers.pytorch_utils import Conv1D

from textjobs import base_models, samples, tables
from trialplane import errors, standalone

TEXTS = Path(__file__).with_name("synthetic.jsonl")  # what the model `tiny` is made from
IGNORED = -100  # a target that counts for nothing
LAYERS = {"attention": ("attn", "attention"), "mlp": ("mlp", "feed_forward"), "all": ("",)}


def load(params, cache):
    """Load the base model in the template: trials are forks of it, and share its memory."""
    base_models.load(params["model"], cache, TEXTS)


def run(ctx):
    """One trial."""
    p = ctx.params
    model, tokenizer = base_models.load(p["model"], ctx.cache, TEXTS)
    torch.set_num_threads(ctx.cpus)
    set_seed(ctx.seed)
    accelerator = Accelerator(mixed_precision=p["precision"])

    # -------------------------------------------------------------------------------------------------------------
    # data

    path = ctx.path("data")
    rows = tables.read_rows(path, (p["prompt"], p["completion"]))[: p["max_rows"]]
    coded = encode(rows, tokenizer, p["prompt"], p["completion"], p["max_length"])
    away = np.array([samples.is_held_out(row[p["prompt"]], p["held_out"]) for row in rows])
    training, validation = ([coded[row] for row in np.flatnonzero(side)] for side in (~away, away))
    if not (training and validation):
        raise errors.InputError(f"{path}: {len(validation)} of {len(rows)} rows are held out; change params.held_out")

    # -------------------------------------------------------------------------------------------------------------
    # adapters: the base model's own weights are never written, so forks go on sharing them

    names = layers(model, p["targets"])
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=p["rank"],
        lora_alpha=p["rank"] * p["alpha"],
        lora_dropout=p["dropout"],
        target_modules=names,
        fan_in_fan_out=any(isinstance(model.get_submodule(name), Conv1D) for name in names),
    )
    with adapted(model, config) as adapter:
        adapters = [parameter for parameter in adapter.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(adapters, lr=p["lr"], weight_decay=p["weight_decay"], fused=True)
        loader = DataLoader(training, batch_size=p["batch"], shuffle=True, collate_fn=collate)
        steps = len(loader) * p["epochs"]
        schedule = get_scheduler("linear", optimizer, int(p["warmup"] * steps), steps)
        adapter, optimizer, loader, schedule = accelerator.prepare(adapter, optimizer, loader, schedule)

        # ---------------------------------------------------------------------------------------------------------
        # train; score after each epoch. A checkpoint has the adapters and not the base model

        metrics, done = {}, 0
        if state := ctx.restored:  # of a trial that was paused, or lost
            peft.set_peft_model_state_dict(adapter, state["adapter"])
            optimizer.load_state_dict(state["optimizer"])
            schedule.load_state_dict(state["schedule"])
            metrics, done = state["metrics"], state["step"] + 1
        for epoch in range(done, p["epochs"]):
            adapter.train()
            for batch in loader:
                loss, _, _ = loss_of(adapter, batch)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(adapters, p["clip"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            metrics = evaluate(adapter, validation, p["batch"], accelerator.device)
            ctx.report(epoch, **metrics)
            state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(), "metrics": metrics}
            ctx.save(epoch, {**state, "adapter": peft.get_peft_model_state_dict(adapter)})

        adapter.save_pretrained(ctx.workdir / "adapter", save_embedding_layers=False)
        trained = sum(parameter.numel() for parameter in adapters)
    return {**metrics, "trained": float(trained)}


def encode(rows, tokenizer, prompt, completion, max_length):
    """Rows as (tokens, how many of the last are to be predicted); what is too long loses its beginning."""
    end = tokenizer.eos_token_id
    prompts = tokenizer([f"{row[prompt]}\n" for row in rows], add_special_tokens=False)["input_ids"]
    completions = tokenizer([str(row[completion]) for row in rows], add_special_tokens=False)["input_ids"]
    coded = []
    for asked, answer in zip(prompts, completions, strict=True):
        ids = [*asked, *answer, end][-max_length:]
        coded.append((ids, min(len(answer) + 1, len(ids) - 1)))
    return coded


def collate(rows):
    """Tensors of a batch, padded to its longest: tokens, mask, and for each token the next one, where it counts."""
    ids = [torch.tensor(tokens) for tokens, _ in rows]
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    targets = [torch.tensor([IGNORED] * (len(tokens) - count - 1) + tokens[-count:]) for tokens, count in rows]
    return {
        "input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": mask,
        "targets": nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=IGNORED),
    }


def layers(model, which):
    """The names of the linear layers that get adapters: those of attention, of the MLPs, or all but the head."""
    if which not in LAYERS:
        raise errors.InputError(f"targets is {which!r}; it is one of: {', '.join(LAYERS)}")
    head = model.get_output_embeddings()
    linear = [
        name for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D)) and module is not head
    ]
    chosen = [name for name in linear if any(part in name for part in LAYERS[which])]
    if not chosen:
        raise errors.InputError(f"the model has no linear layers of the kind {which!r}; its layers: {', '.join(linear[:8])}")
    return chosen


@contextlib.contextmanager
def adapted(model, config):
    """The base model with new adapters, which are taken out of it again at the end."""
    # peft 0.21 reads a property that transformers 5.24 has renamed.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    adapter = peft.get_peft_model(model, config)
    try:
        yield adapter
    finally:
        adapter.unload()


def loss_of(model, batch):
    """The mean loss of the tokens that count, the predictions, and what they should be."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
    targets = batch["targets"]
    return (
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED),
        logits.argmax(-1),
        targets,
    )


@torch.no_grad()
def evaluate(model, rows, size, device):
    """Metrics on held-out rows."""
    model.eval()
    total, count, right = 0.0, 0, 0
    for batch in DataLoader(rows, batch_size=size, collate_fn=collate):
        loss, guessed, targets = loss_of(model, {name: tensor.to(device) for name, tensor in batch.items()})
        counts = targets != IGNORED
        number = int(counts.sum())
        total, count = total + float(loss) * number, count + number
        right += int(((guessed == targets) | ~counts).all(1).sum())
    return {"loss": total / count, "accuracy": right / len(rows), "perplexity": math.exp(min(total / count, 700))}


if __name__ == "__main__":
    standalone(__file__, run)
