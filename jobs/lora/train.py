"""Low-rank fine-tuning of a causal language model: the base model does not change, and a trial trains small adapters for it.

    platform submit hpo lora --trials 24 --local                     # a tiny base model, made on first use; no download
    platform submit hpo lora --profile gpu --set params.model=NAME   # on a cluster, a model of the hub
    python jobs/lora/train.py                                        # one trial alone, defaults of job.yaml
    python jobs/lora/train.py --set rank=8 --set targets=all

Data: CSV or JSONL with the columns prompt and completion. What ships is synthetic, see jobs/make_synthetic.py.
The loss is that of the completion's tokens alone. Metrics on the held-out rows, after each epoch: loss, perplexity, and
accuracy (the share of completions of which every token is predicted correctly from the true tokens before it).
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
IGNORED = -100  # a target without a loss
LAYERS = {"attention": ("attn", "attention"), "mlp": ("mlp", "feed_forward"), "all": ("",)}  # parts of layers' names
MAX_EXPONENT = 700  # the exponential of a larger number overflows


def load(params, cache):
    """Load the base model in the template: trials are forks of it, and share its memory."""
    base_models.load(params["model"], cache, TEXTS)


def run(ctx):
    """Run one trial."""
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
    held_out = np.array([samples.is_held_out(row[p["prompt"]], p["held_out"]) for row in rows])
    training, validation = ([coded[row] for row in np.flatnonzero(side)] for side in (~held_out, held_out))
    if not (training and validation):
        raise errors.InputError(f"{path}: {len(validation)} of {len(rows)} rows are held out; change params.held_out")

    # -------------------------------------------------------------------------------------------------------------
    # adapters; the base model's own weights are never written, so forked trials share them all the time

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

        metrics, first_epoch = {}, 0
        if state := ctx.restored:  # the trial was paused or lost
            peft.set_peft_model_state_dict(adapter, state["adapter"])
            optimizer.load_state_dict(state["optimizer"])
            schedule.load_state_dict(state["schedule"])
            metrics, first_epoch = state["metrics"], state["step"] + 1
        for epoch in range(first_epoch, p["epochs"]):
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
    """Return for each row its tokens, and how many of the last ones are predicted. Too long a row is cut in front."""
    end = tokenizer.eos_token_id
    prompts = tokenizer([f"{row[prompt]}\n" for row in rows], add_special_tokens=False)["input_ids"]
    completions = tokenizer([str(row[completion]) for row in rows], add_special_tokens=False)["input_ids"]
    coded = []
    for prompt_ids, completion_ids in zip(prompts, completions, strict=True):
        ids = [*prompt_ids, *completion_ids, end][-max_length:]
        predicted_count = min(len(completion_ids) + 1, len(ids) - 1)  # with the end; the first token cannot be predicted
        coded.append((ids, predicted_count))
    return coded


def collate(rows):
    """Return the tensors of a batch, padded to its longest row: tokens, mask, and each token's target.

    The target of a token is the next token, or IGNORED outside of the completion.
    """
    ids = [torch.tensor(tokens) for tokens, _ in rows]
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    targets = [torch.tensor([IGNORED] * (len(tokens) - count - 1) + tokens[-count:]) for tokens, count in rows]
    return {
        "input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": mask,
        "targets": nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=IGNORED),
    }


def layers(model, which):
    """Return the names of the linear layers that get adapters: those of attention, of the MLPs, or all but the head.

    Raises:
        InputError: There is no such kind, or the model has no layers of this kind.
    """
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
    """Context manager that provides the base model with new adapters, and removes them from it at the end."""
    # peft 0.21 reads a property that transformers 5.24 has renamed.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    adapter = peft.get_peft_model(model, config)
    try:
        yield adapter
    finally:
        adapter.unload()


def loss_of(model, batch):
    """Return the mean loss of the tokens with a target, the predicted tokens, and the targets."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
    targets = batch["targets"]
    return (
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED),
        logits.argmax(-1),
        targets,
    )


@torch.no_grad()
def evaluate(model, rows, size, device):
    """Return metrics on held-out rows."""
    model.eval()
    loss_sum, token_count, correct_rows = 0.0, 0, 0
    for batch in DataLoader(rows, batch_size=size, collate_fn=collate):
        loss, predicted, targets = loss_of(model, {name: tensor.to(device) for name, tensor in batch.items()})
        has_target = targets != IGNORED
        batch_tokens = int(has_target.sum())
        loss_sum += float(loss) * batch_tokens
        token_count += batch_tokens
        correct_rows += int(((predicted == targets) | ~has_target).all(1).sum())
    mean = loss_sum / token_count
    return {"loss": mean, "accuracy": correct_rows / len(rows), "perplexity": math.exp(min(mean, MAX_EXPONENT))}


if __name__ == "__main__":
    standalone(__file__, run)
