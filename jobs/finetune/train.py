"""Fine-tuning of a causal language model or a text classifier, with snapshots that show how the model changes.

    platform submit train finetune --local                                # a tiny GPT-2 on the notes shipped, two cores
    platform submit train finetune --local --set params.task=sequence     # the same as a classifier
    platform submit train finetune --profile gpt2 --gpus 8 --set params.data=/data/texts.jsonl
    python jobs/finetune/train.py --max_steps 40                          # alone, on one device
    torchrun --nproc_per_node=8 jobs/finetune/train.py --output_dir OUT   # alone, on eight

Data: a table with a column of texts, and for a classifier one of labels. What ships is synthetic: jobs/make_synthetic.py.
Metrics, on the held-out texts: loss and accuracy (of the next token, or of the label), perplexity or macro_f1.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_scheduler

from textjobs import heads, samples, training_state
from trialplane import errors, standalone
from trialplane.training import batches, checkpoint, final_model, mapping, progress, snapshots
from trialplane.training.snapshots import report

FOR_VOCABULARY = 20_000  # texts for the tokenizer of a preset
IGNORED = -100  # a target without a loss


def run(ctx):
    """Run one fine-tuning. Every rank runs this."""
    p = ctx.params
    is_causal = heads.is_causal(p["task"])

    # -------------------------------------------------------------------------------------------------------------
    # data: mapped once, on all cores, in new processes without the state of this one; read from memory-mapped files

    rows = mapping.table(ctx.path("data"), [p["text"]] if is_causal else [p["text"], p["label"]], cache=ctx.cache)
    texts = samples.first_texts(rows, p["text"], FOR_VOCABULARY)
    folder, tokenizer = heads.load_tokenizer(p["tokenizer"] or p["model"], ctx.cache, texts)
    labels = () if is_causal else samples.class_names(rows.unique(p["label"]), p["label"])
    if is_causal:
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        function = samples.Pieces(str(folder), p["text"], p["max_length"], end, p["held_out"])
    else:
        function = samples.LabeledTexts(str(folder), p["text"], p["label"], labels, p["max_length"], p["held_out"])
    column_names = rows.column_names
    data = mapping.mapped(rows, function, cache=ctx.cache, processes=ctx.cpus, batched=True, remove_columns=column_names)
    is_held_out = np.array(data["held_out"])
    training_rows, held_out_rows = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
    data = data.remove_columns("held_out")
    collate_rows = functools.partial(collate, pad=tokenizer.pad_token_id)
    if not len(held_out_rows):
        raise errors.InputError(f"no text of {len(rows):,} is held out: give more of them, or a larger params.held_out")

    # The global batch of a step does not depend on the number of ranks. A rank divides its share into parts that fit its
    # device.
    order = batches.BatchOrder(len(training_rows), p["batch"], seed=ctx.seed)
    share = order.share(ctx.world_size)
    micro = max(size for size in range(1, p["per_device"] + 1) if share % size == 0)
    total = p["max_steps"] or order.steps_per_epoch * p["epochs"]

    # -------------------------------------------------------------------------------------------------------------
    # model and optimizer; CUDA begins here

    torch.set_num_threads(max(1, ctx.cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    gpu = torch.cuda.is_available()
    precision = p["precision"]
    if precision == "auto":
        precision = "bf16" if gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    # Torch 2.15 uses another name for this, which neither 2.13 nor Accelerate accepts.
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    ddp = DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    accelerator = Accelerator(mixed_precision=precision, cpu=not gpu, kwargs_handlers=[ddp])

    # Each rank draws the same new weights, and then another dropout.
    checkpoint.reseed(ctx.seed, 0, 0)
    model = heads.load_model(p["task"], p["model"], tokenizer, labels=labels, dropout=p["dropout"])
    checkpoint.reseed(ctx.seed, ctx.rank, 0)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]  # they have weight decay
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": p["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=p["lr"], fused=True)
    schedule = get_scheduler("linear", optimizer, int(p["warmup"] * total), total)  # not prepared: counts optimizer steps
    model, optimizer = accelerator.prepare(model, optimizer)
    raw_model = accelerator.unwrap_model(model)

    # -------------------------------------------------------------------------------------------------------------
    # checkpoints, and the step to continue from

    saves = checkpoint.Checkpoints(ctx.checkpoints, keep_last=p["keep_last"], keep_best=p["keep_best"])
    state = training_state.TrainingState(ctx, saves, order, accelerator, raw_model, optimizer, schedule)
    start, location = state.resume(total)

    # The snapshots are in the folder of the checkpoints, so that they outlive an attempt, too.
    store = snapshots.Snapshots(f"{ctx.checkpoints}/snapshots", keep=p["snapshots"], max_bytes=p["snapshot_bytes"])

    def evaluate_and_snapshot(step):
        """Return the metrics of the model, and save them with a snapshot of the model."""
        scores = evaluate(raw_model, data, held_out_rows, p["per_device"], collate_rows, accelerator, ctx)
        if step:  # reports begin with the first step
            ctx.report(step, **{f"eval_{name}": value for name, value in scores.items()})
        if ctx.is_main:
            store.save(step, raw_model, scores)
        return scores

    # -------------------------------------------------------------------------------------------------------------
    # train

    sampler = batches.ResumableSampler(order, ctx.rank, ctx.world_size, start, total, micro)
    batches_of_rows = (training_rows[batch].tolist() for batch in sampler)
    # The loader draws a seed for its workers. It must not use the default generator, whose state a checkpoint restores.
    options = {"num_workers": p["workers"], "pin_memory": gpu, "generator": torch.Generator()}
    batch_iterator = iter(DataLoader(data, sampler=batches_of_rows, batch_size=None, collate_fn=collate_rows, **options))
    meter = progress.Meter(ctx, total_steps=total, start=start, every_steps=p["report_every"])
    # The first snapshot is that of the initial model. All ranks decide this alike, without reading the snapshots, which rank
    # 0 may be writing.
    is_first_attempt = not location.startswith(f"{saves.location}/")
    scores = evaluate_and_snapshot(start) if is_first_attempt or start == total else {}
    model.train()
    for step in range(start, total):
        with meter.own_work():
            parts = [next(batch_iterator) for _ in range(sampler.per_step)]
            token_count = sum(int(part["attention_mask"].sum()) for part in parts)
            parts = [move_to(part, accelerator.device) for part in parts]
        # The loss is the mean over the predictions of the global batch, not the mean of the means of ranks and parts, which
        # have different numbers of them. So 8 ranks with 4 texts are the same training as 1 rank with 32.
        count = sum((part["targets"] != IGNORED).sum() for part in parts)
        tally = accelerator.reduce(torch.stack([count, torch.tensor(ctx.stopping, device=count.device)]))
        # All ranks stop at the same step if one of them was requested to stop. The tally is read here, because its reduction
        # has waited for the GPU anyway.
        should_stop = bool(tally[1])
        loss_sum = torch.zeros((), device=accelerator.device)
        for number, part in enumerate(parts):
            is_partial = number < len(parts) - 1  # ranks exchange gradients only with the last part
            with accelerator.no_sync(model) if is_partial else contextlib.nullcontext():
                with meter.own_work():
                    loss = batch_loss(model, part)[0]
                accelerator.backward(loss * ctx.world_size / tally[0])  # DDP computes the mean over ranks
            loss_sum += loss.detach()
        grad_norm = accelerator.clip_grad_norm_(model.parameters(), p["clip"])
        optimizer.step()
        current_lr = schedule.get_last_lr()[0]
        schedule.step()
        optimizer.zero_grad()

        done = step + 1
        mean = accelerator.reduce(loss_sum) / tally[0]
        meter.step(done, samples=share, tokens=token_count, loss=mean, lr=current_lr, grad_norm=grad_norm)
        scores = {}
        if snapshots.is_due(done, total, every=p["snapshot_every"], steps=p["snapshot_steps"]):
            scores = evaluate_and_snapshot(done)
        if scores or should_stop or done % p["save_every"] == 0:
            state.save(done, scores.get("loss"))
        if should_stop and done < total:
            saves.close()
            raise ctx.stopped(done)
    saves.close()

    # -------------------------------------------------------------------------------------------------------------
    # the model, in the format of transformers, with a report on its snapshots

    if ctx.is_main:
        target = Path(p["output_dir"]) if p["output_dir"] else ctx.workdir / "model"
        raw_model.save_pretrained(target)
        tokenizer.save_pretrained(target)
        evolution = report.write(store.location, target / "evolution")
        final_model.export_model(target, register=p["register"] or "", tags={"job": "finetune"})
        print((evolution / "snapshots.md").read_text(), flush=True)
    return {**scores, "steps": total}


def collate(rows, pad):
    """Return the tensors of a batch: tokens, padded to the longest row, and the targets of each token or each row."""
    ids = [torch.tensor(row) for row in rows["input_ids"]]
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    ids = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=pad)
    targets = torch.tensor(rows["label"]) if "label" in rows else ids[:, 1:].masked_fill(mask[:, 1:] == 0, IGNORED)
    return {"input_ids": ids, "attention_mask": mask, "targets": targets}


def move_to(part, device):
    """Return the tensors of a batch on a device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in part.items()}


def batch_loss(model, part):
    """Return the sum of the losses of a batch, the predictions, and the targets."""
    logits = model(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).logits.float()
    targets = part["targets"]
    if targets.ndim == 2:  # the logits of a token predict the next token
        logits, targets = logits[:, :-1].flatten(0, 1), targets.flatten()
    return nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"), logits.argmax(-1), targets


@torch.no_grad()
def evaluate(model, data, numbers, size, collate_rows, accelerator, ctx):
    """Return metrics on the held-out samples. Each rank evaluates a share."""
    is_causal = "label" not in data.column_names
    own_numbers = numbers[ctx.rank :: ctx.world_size]
    classes = 1 if is_causal else model.config.num_labels
    sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    table = torch.zeros(classes * classes, dtype=torch.float64, device=accelerator.device)  # of true and predicted labels
    model.eval()
    for first in range(0, len(own_numbers), size):
        part = move_to(collate_rows(data[own_numbers[first : first + size].tolist()]), accelerator.device)
        loss, predicted, targets = batch_loss(model, part)
        counts = targets != IGNORED
        sums += torch.stack([loss.double(), (predicted == targets)[counts].sum().double(), counts.sum().double()])
        if not is_causal:
            table += torch.bincount(targets * classes + predicted, minlength=len(table))
    model.train()
    loss, correct, count = accelerator.reduce(sums).tolist()
    metrics = {"loss": loss / count, "accuracy": correct / count}
    if is_causal:
        return {**metrics, "perplexity": math.exp(min(loss / count, 700))}
    table = accelerator.reduce(table).reshape(classes, classes)
    f1 = 2 * table.diagonal() / (table.sum(0) + table.sum(1)).clamp(min=1)
    return {**metrics, "macro_f1": float(f1[table.sum(0) + table.sum(1) > 0].mean())}


if __name__ == "__main__":
    standalone(__file__, run)
