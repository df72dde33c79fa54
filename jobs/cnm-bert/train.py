"""Masked-language-model pre-training of a Chinese BERT whose embedding includes the components of its characters.

    platform submit train cnm-bert --ranks 2 --local                     # a small model on the lines shipped, two CPU ranks
    platform submit train cnm-bert --profile base --gpus 8 --set params.data=/data/lines.txt  # BERT base, 256 lines a step
    python jobs/cnm-bert/train.py --max_train_samples 1000               # alone, on one device
    torchrun --nproc_per_node=8 jobs/cnm-bert/train.py --output_dir OUT  # alone, on eight

Data: UTF-8 text, one sample per line. The file in the repository is synthetic, see jobs/make_corpus.py.
Metrics on the masked tokens of the held-out lines: loss, its exponent (perplexity) and the share of correct predictions
(accuracy).
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_scheduler

from textjobs import component_bert, components, masking, tokenizers, training_state
from trialplane import errors, standalone
from trialplane.training import batches, checkpoint, final_model, lines, progress, tokens

MODEL = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "initializer_range",
    "component_places",
    "component_pooling",
    "component_fusion",
)
FOR_VOCABULARY = 200_000  # lines, evenly spaced, from which the preset `characters` takes its vocabulary


def run(ctx):
    """Run one training. Every rank runs this."""
    p = ctx.params

    # -------------------------------------------------------------------------------------------------------------
    # data: memory-mapped lines, tokenized once into memory-mapped tokens, in processes that end before CUDA starts

    held_out = p["eval_samples"]
    limit = None if p["max_train_samples"] is None else held_out + p["max_train_samples"]
    files = ctx.paths("data")
    text = lines.LineDataset(files, max_samples=limit, cache=ctx.cache)
    if held_out < 1:
        raise errors.InputError(
            f"params.eval_samples is {held_out}, and the model is scored on lines held out: give 1 or more"
        )
    if len(text) <= held_out:
        raise errors.InputError(
            f"{', '.join(map(str, files))} gives {len(text):,} lines, and params.eval_samples holds {held_out:,} out: "
            "nothing is left to train on; use more data or hold out fewer"
        )
    vocabulary_lines = range(0, len(text), -(-len(text) // FOR_VOCABULARY))
    preset = p["tokenizer"] == tokenizers.characters.NAME
    folder = tokenizers.folder(p["tokenizer"], ctx.cache, [text[i]["text"] for i in vocabulary_lines] if preset else ())
    tokenizer = tokenizers.load_tokenizer(str(folder), ctx.cache)
    samples = tokens.tokenized(text, folder, max_length=p["max_length"], cache=ctx.cache, processes=ctx.cpus)
    masked = masking.MaskedSamples(
        samples, masking.masking(tokenizer, seed=ctx.seed, rate=p["mask_rate"], whole_words=p["whole_words"])
    )

    # The global batch of a step does not depend on the number of ranks. A rank divides its share into parts that fit its
    # device.
    # The first lines are held out, so `max_train_samples` does not change which ones.
    order = batches.BatchOrder(len(samples) - held_out, p["batch"], seed=ctx.seed)
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
    # The component ids are a buffer that never changes, so it need not be sent before each step. Torch 2.15 uses another
    # name for this, which neither 2.13 nor Accelerate accepts.
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    ddp = DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    accelerator = Accelerator(mixed_precision=precision, cpu=not gpu, kwargs_handlers=[ddp])

    # Each rank draws the same weights, and then another dropout.
    table = components.read(ctx.path("components"))
    config = component_bert.ComponentBertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=p["max_length"],
        pad_token_id=tokenizer.pad_token_id,
        hidden_dropout_prob=p["dropout"],
        attention_probs_dropout_prob=p["dropout"],
        component_count=table.count,
        **{name: p[name] for name in MODEL},
    )
    checkpoint.reseed(ctx.seed, 0, 0)
    model = component_bert.ComponentBertForMaskedLM(config)
    vocabulary = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    model.set_components(table.of_vocabulary(vocabulary, p["component_places"]))
    checkpoint.reseed(ctx.seed, ctx.rank, 0)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]  # they have weight decay
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": p["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=p["lr"],
        betas=(0.9, p["beta2"]),
        eps=p["eps"],
        fused=True,
    )
    schedule = get_scheduler("linear", optimizer, int(p["warmup"] * total), total)  # not prepared: counts optimizer steps
    model, optimizer = accelerator.prepare(model, optimizer)
    raw_model = accelerator.unwrap_model(model)

    # -------------------------------------------------------------------------------------------------------------
    # checkpoints, and the step to continue from

    saves = checkpoint.Checkpoints(ctx.checkpoints, keep_last=p["keep_last"], keep_best=p["keep_best"])
    state = training_state.TrainingState(ctx, saves, order, accelerator, raw_model, optimizer, schedule)
    start, _ = state.resume(total)

    # -------------------------------------------------------------------------------------------------------------
    # train

    sampler = batches.ResumableSampler(order, ctx.rank, ctx.world_size, start, total, micro)
    keyed = masking.KeyedBatches(sampler, offset=held_out)
    # The loader draws a seed for its workers. It must not use the default generator, whose state a checkpoint restores.
    loader_generator = torch.Generator()
    loader = DataLoader(
        masked, sampler=keyed, batch_size=None, num_workers=p["workers"], pin_memory=gpu, generator=loader_generator
    )
    batch_iterator = iter(loader)
    meter = progress.Meter(ctx, total_steps=total, start=start, every_steps=p["report_every"])
    model.train()
    for step in range(start, total):
        with meter.own_work():
            parts = [next(batch_iterator) for _ in range(sampler.per_step)]
            token_count = sum(int(part["attention_mask"].sum()) for part in parts)
            parts = [move_to(part, accelerator.device) for part in parts]
        # The loss is the mean over the masked tokens of the global batch, not the mean of the means of ranks and parts,
        # which have different numbers of them. So 8 ranks with 4 lines are the same training as 1 rank with 32.
        masked_count = sum(len(part["targets"]) for part in parts)
        tally = accelerator.reduce(torch.tensor([masked_count, ctx.stopping], device=accelerator.device))
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
        if done == total or (done % p["eval_every"] == 0 and not should_stop):
            scores = evaluate(raw_model, masked, held_out, p["per_device"], accelerator, ctx)
            ctx.report(done, **{f"eval_{name}": value for name, value in scores.items()})
        if scores or should_stop or done % p["save_every"] == 0:
            state.save(done, scores.get("loss"))
        if should_stop and done < total:
            saves.close()
            raise ctx.stopped(done)
    saves.close()
    if start == total:  # the training has ended before, but its result was lost, or it was started again
        if ctx.is_main:
            print(f"all {total:,} steps were done before: nothing is trained, the model is scored and written", flush=True)
        scores = evaluate(raw_model, masked, held_out, p["per_device"], accelerator, ctx)

    # -------------------------------------------------------------------------------------------------------------
    # the model, in the format of transformers

    if ctx.is_main:
        target = Path(p["output_dir"]) if p["output_dir"] else ctx.workdir / "model"
        raw_model.save_pretrained(target)
        tokenizer.save_pretrained(target)
        final_model.export_model(target, register=p["register"] or "", tags={"job": "cnm-bert"})
    return {**scores, "steps": total}


def move_to(part, device):
    """Return the tensors of a batch on a device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in part.items()}


def batch_loss(model, part):
    """Return the sum of the losses of a batch's masked tokens, and the number of correct predictions."""
    logits = model(part["input_ids"], part["attention_mask"], positions=part["positions"]).logits.float()
    targets = part["targets"]
    return nn.functional.cross_entropy(logits, targets, reduction="sum"), (logits.detach().argmax(-1) == targets).sum()


@torch.no_grad()
def evaluate(model, masked, count, size, accelerator, ctx):
    """Return loss, perplexity and accuracy on the first `count` lines, always with the same masks. A rank scores a share."""
    own_keys = [(masking.EVALUATION, number) for number in range(ctx.rank, count, ctx.world_size)]
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    for first in range(0, len(own_keys), size):
        part = torch.utils.data.default_convert(masked[own_keys[first : first + size]])
        loss, correct = batch_loss(model, move_to(part, accelerator.device))
        sums += torch.stack(
            [loss.double(), correct.double(), torch.tensor(len(part["targets"]), device=sums.device).double()]
        )
    model.train()
    loss, correct, masked_count = accelerator.reduce(sums).tolist()
    return {
        "loss": loss / masked_count,
        "perplexity": math.exp(min(loss / masked_count, 700)),
        "accuracy": correct / masked_count,
    }


if __name__ == "__main__":
    standalone(__file__, run)
