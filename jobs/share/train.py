"""One encoder with two heads: does the post meet the criterion, and which spans are the evidence?

    platform submit hpo share --trials 24 --local                    # a study on this machine
    platform submit hpo share --profile max                          # 800 trials on a cluster, encoders from the hub
    python jobs/share/train.py                                       # one trial alone, defaults of job.yaml
    python jobs/share/train.py --set lr=1e-3 --set span_weight=0.7

Data: CSV or JSONL with the columns post, criterion, label (0 or 1), spans ([[start, end], ...] in characters). The
file in the repository is synthetic, see jobs/make_synthetic.py.
The loss is (1 - span_weight) x the label's + span_weight x the tags'. Two objectives pull at it, so the study's answer is a
Pareto front: macro_f1 of the label and span_f1 (both ends exact) on the held-out fold, of the epoch where their mean was
best; beside them pr_auc of the label, and loss.
"""

from __future__ import annotations

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from textjobs import encoders, pairs, scores, spans, tables, tokenizers
from trialplane import standalone

COLUMNS = ("post", "criterion", "label", "spans")


class SharedEncoder(nn.Module):
    """An encoder with a head for labels, on the pooled states, and a head for tags, on the state of each token.

    Both heads also get the product of the states with the mean state of the criterion, from which they can see directly
    whether they match.
    """

    def __init__(self, encoder, dropout):
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.label_head = nn.Linear(encoder.config.hidden_size * 2, 2)
        self.tag_head = nn.Linear(encoder.config.hidden_size * 2, 3)

    def forward(self, ids, mask, segments):
        """Return logits of labels, of shape (batch, 2), and of tags, of shape (batch, tokens, 3)."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        criterion = encoders.mean_over(states, segments == pairs.FIRST)
        conditioned = torch.cat([states, states * criterion[:, None]], dim=-1)
        post = encoders.mean_over(conditioned, segments == pairs.SECOND)
        return self.label_head(self.dropout(post)), self.tag_head(self.dropout(conditioned))


def loss_of(label_logits, tag_logits, labels, tags, span_weight, evidence_weight):
    """Return the joint loss: the weighted mean of the cross-entropies of both heads."""
    weight = torch.tensor([1.0, evidence_weight, evidence_weight], device=tag_logits.device)
    by_tag = nn.functional.cross_entropy(
        tag_logits.float().flatten(0, 1), tags.flatten(), weight=weight, ignore_index=spans.IGNORED
    )
    return (1 - span_weight) * nn.functional.cross_entropy(label_logits.float(), labels) + span_weight * by_tag


def run(ctx):
    """Run one trial."""
    p = ctx.params
    torch.set_num_threads(ctx.cpus)
    set_seed(ctx.seed)
    accelerator = Accelerator(mixed_precision=p["precision"], gradient_accumulation_steps=p["accumulate"])

    # -------------------------------------------------------------------------------------------------------------
    # data: tokenized once, as tensors; each batch is cut to its longest row

    path = ctx.path("data")
    rows = tables.read_rows(path, COLUMNS)[: p["max_rows"]]
    labels = torch.tensor([tables.integer(row, "label", path, 2) for row in rows])
    truth = [spans.parse(row, path) for row in rows]
    tokenizer = tokenizers.load_tokenizer(
        p["model"], ctx.cache, [text for row in rows for text in (row["post"], row["criterion"])]
    )
    coded = pairs.encode(tokenizer, [row["criterion"] for row in rows], [row["post"] for row in rows], p["max_length"])
    tags = spans.tag(coded, truth)
    tensors = [*map(torch.from_numpy, (coded.ids, coded.mask, coded.segments, tags)), labels]
    held_out = np.array([tables.is_validation(row["post"], p["folds"], p["fold"]) for row in rows])
    training = TensorDataset(*(tensor[~held_out] for tensor in tensors))
    validation = TensorDataset(*(tensor[held_out] for tensor in tensors))
    validation_rows = np.flatnonzero(held_out)
    posts, truth = [rows[row]["post"] for row in validation_rows], [truth[row] for row in validation_rows]
    offsets = coded.offsets[held_out]

    # -------------------------------------------------------------------------------------------------------------
    # model and optimizer

    encoder = encoders.load_encoder(p["model"], tokenizer, seed=ctx.seed, dropout=p["dropout"])
    model = SharedEncoder(encoder, p["dropout"])
    model, optimizer, loader, schedule = encoders.prepare(accelerator, model, {encoder: p["lr"]}, training, p)

    # -------------------------------------------------------------------------------------------------------------
    # train; score after each epoch

    best, best_spans, first_epoch = {}, None, 0
    if state := ctx.restored:  # the trial was paused or lost
        encoders.load_training_state(accelerator, state, model, optimizer, schedule)
        best, best_spans, first_epoch = state["best"], state["best_spans"], state["step"] + 1
    for epoch in range(first_epoch, p["epochs"]):
        model.train()
        for *batch, label in loader:
            longest = int(batch[1].sum(1).max())
            ids, mask, parts, tag = (part[:, :longest] for part in batch)
            with accelerator.accumulate(model):
                by_label, by_tag = model(ids, mask, parts)
                accelerator.backward(loss_of(by_label, by_tag, label, tag, p["span_weight"], p["evidence_weight"]))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), p["clip"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        by_label, by_tag = predict(model, validation, accelerator.device)
        metrics, predicted = evaluate(by_label, by_tag, validation.tensors, offsets, posts, truth, p["span_weight"])
        ctx.report(epoch, **metrics)
        if not best or metrics["macro_f1"] + metrics["span_f1"] > best["macro_f1"] + best["span_f1"]:
            best, best_spans = metrics, predicted
        state = encoders.training_state(accelerator, model, optimizer, schedule)
        ctx.save(epoch, {**state, "best": best, "best_spans": best_spans})

    spans.log_examples(posts, truth, best_spans)
    return best


@torch.no_grad()
def predict(model, dataset, device):
    """Return logits of labels, of shape (rows, 2), and of tags, of shape (rows, tokens, 3), on the CPU."""
    model.eval()
    width = dataset.tensors[0].shape[1]
    labels, tags = [], []
    for batch in DataLoader(dataset, batch_size=256):
        longest = int(batch[1].sum(1).max())
        by_label, by_tag = model(*(part[:, :longest].to(device) for part in batch[:3]))
        labels.append(by_label.float().cpu())
        tags.append(nn.functional.pad(by_tag.float().cpu(), (0, 0, 0, width - longest)))
    return torch.cat(labels), torch.cat(tags)


def evaluate(by_label, by_tag, tensors, offsets, posts, truth, span_weight):
    """Return metrics, and the predicted spans of each post."""
    _, _, segments, tags, labels = tensors
    guess = np.where((segments == pairs.SECOND).numpy(), by_tag.argmax(-1).numpy(), spans.IGNORED)
    predicted = [spans.decode(guess[row], offsets[row], post) for row, post in enumerate(posts)]
    metrics = {
        "macro_f1": scores.macro_f1(labels.numpy(), by_label.argmax(-1).numpy()),
        "pr_auc": scores.average_precision(labels.numpy(), by_label.softmax(-1)[:, 1].numpy()),
        "span_f1": scores.span_f1([set(gold) for gold in truth], predicted),
        "loss": float(loss_of(by_label, by_tag, labels, tags, span_weight, 1.0)),
    }
    return metrics, predicted


if __name__ == "__main__":
    standalone(__file__, run)
