"""Fine-tuning of a causal language model or a text classifier, which keeps snapshots of how the model changes.

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

from textjobs import heads, samples
from trialplane import errors, standalone
from trialplane.training import batches, checkpoint, final_model, mapping, progress, snapshots
from trialplane.training.snapshots import report

FOR_VOCABULARY = 20_000  # texts that a preset's tokenizer is made from
IGNORED = -100  # a target that counts for nothing


def run(ctx):
    """One fine-tuning; every rank runs this."""
    p = ctx.params
    causal = heads.is_causal(p["task"])

    # -------------------------------------------------------------------------------------------------------------
    # data: mapped once, on all cores, in processes that are clean whatever this one has; read from memory-mapped files

    rows = mapping.table(ctx.path("data"), [p["text"]] if causal else [p["text"], p["label"]], cache=ctx.cache)
    texts = samples.strings(rows, p["text"], FOR_VOCABULARY)
    folder, tokenizer = heads.load_tokenizer(p["tokenizer"] or p["model"], ctx.cache, texts)
    labels = () if causal else samples.names(rows.unique(p["label"]), p["label"])
    if causal:
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        function = samples.Pieces(str(folder), p["text"], p["max_length"], end, p["held_out"])
    else:
        function = samples.Labelled(str(folder), p["text"], p["label"], labels, p["max_length"], p["held_out"])
    columns = rows.column_names
    data = mapping.mapped(rows, function, cache=ctx.cache, processes=ctx.cpus, batched=True, remove_columns=columns)
    away = np.array(data["held_out"])
    inside, outside = np.flatnonzero(~away), np.flatnonzero(away)
    data = data.remove_columns("held_out")
    collated = functools.partial(collate, pad=tokenizer.pad_token_id)
    if not len(outside):
        raise errors.InputError(f"no text of {len(rows):,} is held out: give more of them, or a larger params.held_out")

    # The global batch of a step is the same whatever the number of ranks; a rank cuts its share into what fits its device.
    order = batches.BatchOrder(len(inside), p["batch"], seed=ctx.seed)
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

    checkpoint.reseed(ctx.seed, 0, 0)  # the same new weights in all ranks ...
    model = heads.load_model(p["task"], p["model"], tokenizer, labels=labels, dropout=p["dropout"])
    checkpoint.reseed(ctx.seed, ctx.rank, 0)  # ... and a dropout of its own in each
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": p["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=p["lr"], fused=True)
    schedule = get_scheduler("linear", optimizer, int(p["warmup"] * total), total)  # counts optimizer steps: not prepared
    model, optimizer = accelerator.prepare(model, optimizer)
    bare = accelerator.unwrap_model(model)

    # -------------------------------------------------------------------------------------------------------------
    # where to go on

    saves = checkpoint.Checkpoints(ctx.checkpoints, keep_last=p["keep_last"], keep_best=p["keep_best"])
    start = 0
    resumed = saves.resume(rank=ctx.rank, world_size=ctx.world_size, like=bare, otherwise=ctx.resume_from)
    if resumed is not None:
        start = order.start(resumed.state["order"])
        if start > total:
            raise errors.InputError(
                f"{resumed.saved.location} has done {start:,} steps, and this training has {total:,}: raise "
                "params.max_steps or params.epochs, or give it another location for its checkpoints"
            )
        bare.load_state_dict(resumed.state["model"])
        optimizer.load_state_dict(resumed.state["optimizer"])
        schedule.load_state_dict(resumed.state["schedule"])
        if accelerator.scaler is not None and resumed.state["scaler"]:
            accelerator.scaler.load_state_dict(resumed.state["scaler"])
        if resumed.rank_state is not None:
            checkpoint.set_rng_state(resumed.rank_state["rng"])
        else:
            checkpoint.reseed(ctx.seed, ctx.rank, start)
        for note in resumed.notes if ctx.is_main else ():
            print(note, flush=True)

    def save(step, metric=None):
        state = {
            "model": bare.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "scaler": accelerator.scaler.state_dict() if accelerator.scaler is not None else {},
            "order": order.state_dict(step),
        }
        rank_state = {"rng": checkpoint.rng_state()}
        saves.save(step, state, rank_state=rank_state, metric=metric, rank=ctx.rank, world_size=ctx.world_size)

    # The snapshots lie beside the checkpoints, and outlive an attempt as these do.
    store = snapshots.Snapshots(f"{ctx.checkpoints}/snapshots", keep=p["snapshots"], max_bytes=p["snapshot_bytes"])

    def look(step):
        """The model's metrics, and itself as a snapshot."""
        scores = evaluate(bare, data, outside, p["per_device"], collated, accelerator, ctx)
        if step:  # reports begin with the first step
            ctx.report(step, **{f"eval_{name}": value for name, value in scores.items()})
        if ctx.is_main:
            store.save(step, bare, scores)
        return scores

    # -------------------------------------------------------------------------------------------------------------
    # train

    sampler = batches.ResumableSampler(order, ctx.rank, ctx.world_size, start, total, micro)
    chosen = (inside[batch].tolist() for batch in sampler)
    # A loader draws its workers' seed: from a generator of its own, not from the one that a checkpoint has brought back.
    options = {"num_workers": p["workers"], "pin_memory": gpu, "generator": torch.Generator()}
    read = iter(DataLoader(data, sampler=chosen, batch_size=None, collate_fn=collated, **options))
    meter = progress.Meter(ctx, total_steps=total, start=start, every_steps=p["report_every"])
    # How it begins is the first snapshot. All ranks must agree whether to look, so none lists what rank 0 may be writing.
    begins = resumed is None or not resumed.saved.location.startswith(f"{saves.location}/")
    scores = look(start) if begins or start == total else {}
    model.train()
    for step in range(start, total):
        with meter.own_work():
            parts = [next(read) for _ in range(sampler.per_step)]
            length = sum(int(part["attention_mask"].sum()) for part in parts)
            parts = [to(part, accelerator.device) for part in parts]
        # The loss is the mean over all that is predicted in the global batch, not a mean of the means of ranks and parts,
        # in which there are different numbers of it: that makes 8 ranks of 4 the same training as 1 rank of 32.
        count = sum((part["targets"] != IGNORED).sum() for part in parts)
        tally = accelerator.reduce(torch.stack([count, torch.tensor(ctx.stopping, device=count.device)]))
        # By the tally all ranks learn in the same step that one of them was requested to stop. It is read here, where making
        # it has waited for the GPU anyway, and not behind what the step gives the GPU to do.
        stops = bool(tally[1])
        summed = torch.zeros((), device=accelerator.device)
        for number, part in enumerate(parts):
            alone = number < len(parts) - 1  # gradients are exchanged with the last part only
            with accelerator.no_sync(model) if alone else contextlib.nullcontext():
                with meter.own_work():
                    loss = loss_of(model, part)[0]
                accelerator.backward(loss * ctx.world_size / tally[0])  # DDP takes the mean over ranks
            summed += loss.detach()
        norm = accelerator.clip_grad_norm_(model.parameters(), p["clip"])
        optimizer.step()
        rate = schedule.get_last_lr()[0]
        schedule.step()
        optimizer.zero_grad()

        done = step + 1
        mean = accelerator.reduce(summed) / tally[0]
        meter.step(done, samples=share, tokens=length, loss=mean, lr=rate, grad_norm=norm)
        scores = {}
        if snapshots.is_due(done, total, every=p["snapshot_every"], steps=p["snapshot_steps"]):
            scores = look(done)
        if scores or stops or done % p["save_every"] == 0:
            save(done, scores.get("loss"))
        if stops and done < total:
            saves.close()
            raise ctx.stopped(done)
    saves.close()

    # -------------------------------------------------------------------------------------------------------------
    # the model, as transformers loads it, with the report of its evolution

    if ctx.is_main:
        target = Path(p["output_dir"]) if p["output_dir"] else ctx.workdir / "model"
        bare.save_pretrained(target)
        tokenizer.save_pretrained(target)
        evolution = report.write(store.location, target / "evolution")
        final_model.export_model(target, register=p["register"] or "", tags={"job": "finetune"})
        print((evolution / "snapshots.md").read_text(), flush=True)
    return {**scores, "steps": total}


def collate(rows, pad):
    """Tensors of a batch: tokens padded to its longest, and what is to be predicted, for each token or for each row."""
    ids = [torch.tensor(row) for row in rows["input_ids"]]
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    ids = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=pad)
    targets = torch.tensor(rows["label"]) if "label" in rows else ids[:, 1:].masked_fill(mask[:, 1:] == 0, IGNORED)
    return {"input_ids": ids, "attention_mask": mask, "targets": targets}


def to(part, device):
    """The batch's tensors on the device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in part.items()}


def loss_of(model, part):
    """The summed loss of a batch, the predictions, and what they should be."""
    logits = model(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).logits.float()
    targets = part["targets"]
    if targets.ndim == 2:  # each token's logits are about the next one
        logits, targets = logits[:, :-1].flatten(0, 1), targets.flatten()
    return nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"), logits.argmax(-1), targets


@torch.no_grad()
def evaluate(model, data, numbers, size, collated, accelerator, ctx):
    """Metrics on the held-out samples; each rank does a share."""
    causal = "label" not in data.column_names
    own_numbers = numbers[ctx.rank :: ctx.world_size]
    classes = 1 if causal else model.config.num_labels
    sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    table = torch.zeros(classes * classes, dtype=torch.float64, device=accelerator.device)  # of true and guessed labels
    model.eval()
    for first in range(0, len(own_numbers), size):
        part = to(collated(data[own_numbers[first : first + size].tolist()]), accelerator.device)
        loss, guessed, targets = loss_of(model, part)
        counts = targets != IGNORED
        sums += torch.stack([loss.double(), (guessed == targets)[counts].sum().double(), counts.sum().double()])
        if not causal:
            table += torch.bincount(targets * classes + guessed, minlength=len(table))
    model.train()
    loss, correct, count = accelerator.reduce(sums).tolist()
    metrics = {"loss": loss / count, "accuracy": correct / count}
    if causal:
        return {**metrics, "perplexity": math.exp(min(loss / count, 700))}
    table = accelerator.reduce(table).reshape(classes, classes)
    f1 = 2 * table.diagonal() / (table.sum(0) + table.sum(1)).clamp(min=1)
    return {**metrics, "macro_f1": float(f1[table.sum(0) + table.sum(1) > 0].mean())}


if __name__ == "__main__":
    standalone(__file__, run)
