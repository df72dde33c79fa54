"""Masked-language-model pre-training of a Chinese BERT whose embedding includes the components of its characters.

    platform submit train cnm-bert --ranks 2 --local                     # a small model on the lines shipped, two CPU ranks
    platform submit train cnm-bert --profile base --gpus 8 --set params.data=/data/lines.txt  # BERT base, 256 lines a step
    python jobs/cnm-bert/train.py --max_train_samples 1000               # alone, on one device
    torchrun --nproc_per_node=8 jobs/cnm-bert/train.py --output_dir OUT  # alone, on eight

Data: UTF-8 text, one sample per line. What ships is synthetic, see jobs/make_corpus.py.
Metrics: loss of masked tokens on the held-out lines, its exponent (perplexity) and the share guessed right (accuracy).
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

from textjobs import component_bert, components, masking, tokenizers
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
FOR_VOCABULARY = 200_000  # lines, spread over the corpus, that the preset `characters` takes its vocabulary from


def run(ctx):
    """One training; every rank runs this."""
    p = ctx.params

    # -------------------------------------------------------------------------------------------------------------
    # data: memory-mapped lines, tokenized once into memory-mapped tokens, in processes that are gone before CUDA is there

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
    spread = range(0, len(text), -(-len(text) // FOR_VOCABULARY))
    preset = p["tokenizer"] == tokenizers.characters.NAME
    folder = tokenizers.folder(p["tokenizer"], ctx.cache, [text[i]["text"] for i in spread] if preset else ())
    tokenizer = tokenizers.load_tokenizer(str(folder), ctx.cache)
    samples = tokens.tokenized(text, folder, max_length=p["max_length"], cache=ctx.cache, processes=ctx.cpus)
    masked = masking.MaskedSamples(
        samples, masking.masking(tokenizer, seed=ctx.seed, rate=p["mask_rate"], whole_words=p["whole_words"])
    )

    # The global batch of a step is the same whatever the number of ranks; a rank cuts its share into what fits its device.
    # The first lines are held out, so that they are the same ones whatever `max_train_samples` is.
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
    # The component ids are a buffer that never changes: it need not be sent before each step. Torch 2.15 wants that said by
    # another name, which 2.13 does not know, nor Accelerate.
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    ddp = DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    accelerator = Accelerator(mixed_precision=precision, cpu=not gpu, kwargs_handlers=[ddp])

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
    checkpoint.reseed(ctx.seed, 0, 0)  # the same weights in all ranks ...
    model = component_bert.ComponentBertForMaskedLM(config)
    vocabulary = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    model.set_components(table.of_vocabulary(vocabulary, p["component_places"]))
    checkpoint.reseed(ctx.seed, ctx.rank, 0)  # ... and a dropout of its own in each
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": p["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=p["lr"],
        betas=(0.9, p["beta2"]),
        eps=p["eps"],
        fused=True,
    )
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
        scaler = accelerator.scaler.state_dict() if accelerator.scaler is not None else {}
        state = {
            "model": bare.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "scaler": scaler,
            "order": order.state_dict(step),
        }
        rank_state = {"rng": checkpoint.rng_state()}
        saves.save(step, state, rank_state=rank_state, metric=metric, rank=ctx.rank, world_size=ctx.world_size)

    # -------------------------------------------------------------------------------------------------------------
    # train

    sampler = batches.ResumableSampler(order, ctx.rank, ctx.world_size, start, total, micro)
    keyed = masking.Keyed(sampler, offset=held_out)
    # A loader draws its workers' seed: from a generator of its own, not from the one that a checkpoint has brought back.
    drawn = torch.Generator()
    loader = DataLoader(masked, sampler=keyed, batch_size=None, num_workers=p["workers"], pin_memory=gpu, generator=drawn)
    read = iter(loader)
    meter = progress.Meter(ctx, total_steps=total, start=start, every_steps=p["report_every"])
    model.train()
    for step in range(start, total):
        with meter.own_work():
            parts = [next(read) for _ in range(sampler.per_step)]
            length = sum(int(part["attention_mask"].sum()) for part in parts)
            parts = [to(part, accelerator.device) for part in parts]
        # The loss is the mean over the masked tokens of the global batch, not a mean of means over ranks and parts with
        # different numbers of them: that is what makes 8 ranks of 4 lines the same training as 1 rank of 32.
        tally = torch.tensor([sum(len(part["targets"]) for part in parts), ctx.stopping], device=accelerator.device)
        tally = accelerator.reduce(tally)
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
        if done == total or (done % p["eval_every"] == 0 and not stops):
            scores = evaluate(bare, masked, held_out, p["per_device"], accelerator, ctx)
            ctx.report(done, **{f"eval_{name}": value for name, value in scores.items()})
        if scores or stops or done % p["save_every"] == 0:
            save(done, scores.get("loss"))
        if stops and done < total:
            saves.close()
            raise ctx.stopped(done)
    saves.close()
    if start == total:  # it had ended, but its outcome was lost; or it was started again unchanged
        if ctx.is_main:
            print(f"all {total:,} steps were done before: nothing is trained, the model is scored and written", flush=True)
        scores = evaluate(bare, masked, held_out, p["per_device"], accelerator, ctx)

    # -------------------------------------------------------------------------------------------------------------
    # the model, as transformers loads it, for whoever comes next

    if ctx.is_main:
        target = Path(p["output_dir"]) if p["output_dir"] else ctx.workdir / "model"
        bare.save_pretrained(target)
        tokenizer.save_pretrained(target)
        final_model.export_model(target, register=p["register"] or "", tags={"job": "cnm-bert"})
    return {**scores, "steps": total}


def to(part, device):
    """The batch's tensors on the device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in part.items()}


def loss_of(model, part):
    """The summed loss over the masked tokens of a batch, and how many are guessed right."""
    logits = model(part["input_ids"], part["attention_mask"], positions=part["positions"]).logits.float()
    targets = part["targets"]
    return nn.functional.cross_entropy(logits, targets, reduction="sum"), (logits.detach().argmax(-1) == targets).sum()


@torch.no_grad()
def evaluate(model, masked, count, size, accelerator, ctx):
    """Loss, perplexity and accuracy on the first `count` lines, with the same masks every time; each rank does a share."""
    own_keys = [(masking.EVALUATION, number) for number in range(ctx.rank, count, ctx.world_size)]
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    for first in range(0, len(own_keys), size):
        part = torch.utils.data.default_convert(masked[own_keys[first : first + size]])
        loss, correct = loss_of(model, to(part, accelerator.device))
        sums += torch.stack(
            [loss.double(), correct.double(), torch.tensor(len(part["targets"]), device=sums.device).double()]
        )
    model.train()
    loss, correct, chosen = accelerator.reduce(sums).tolist()
    return {"loss": loss / chosen, "perplexity": math.exp(min(loss / chosen, 700)), "accuracy": correct / chosen}


if __name__ == "__main__":
    standalone(__file__, run)
