"""Finds the spans of a post that are evidence for a criterion, token by token.

    platform submit hpo evidence --trials 24 --local                 # a study on this machine
    platform submit hpo evidence --profile max                       # 800 trials on a cluster, encoders from the hub
    python jobs/evidence/train.py                                    # one trial alone, defaults of job.yaml
    python jobs/evidence/train.py --set lr=1e-3 --set epochs=2

Data: CSV or JSONL with the columns post, criterion, spans ([[start, end], ...] in characters; empty when there is no
evidence). The file in the repository is synthetic.
Metrics on the held-out fold, the best epoch's: span_f1 (both ends exact); macro_f1 and pr_auc of "this sentence holds
evidence", a sentence scoring as its best token; loss.
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

COLUMNS = ("post", "criterion", "spans")


class SpanTagger(nn.Module):
    """A tagger of tokens: an encoder, and a linear layer for each token.

    With `condition: product`, the state of a token is extended by its product with the mean state of the criterion, from
    which the linear layer can see directly whether they match. With `none`, only the encoder's attention combines the two.
    """

    def __init__(self, encoder, condition, dropout):
        super().__init__()
        self.encoder, self.condition = encoder, condition
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(encoder.config.hidden_size * (2 if condition == "product" else 1), 3)

    def forward(self, ids, mask, segments):
        """Return logits of shape (batch, tokens, 3) for ids, attention mask and segments of shape (batch, tokens)."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        if self.condition == "product":
            criterion = encoders.mean_over(states, segments == pairs.FIRST)
            states = torch.cat([states, states * criterion[:, None]], dim=-1)
        return self.head(self.dropout(states))


def loss_of(logits, tags, evidence_weight, gamma):
    """Return the cross-entropy of the post's tokens, with a weight for evidence. With gamma > 0 it is focal."""
    weight = torch.tensor([1.0, evidence_weight, evidence_weight], device=logits.device)
    logits, tags = logits.float().flatten(0, 1), tags.flatten()
    losses = nn.functional.cross_entropy(logits, tags, weight=weight, reduction="none", ignore_index=spans.IGNORED)
    if gamma > 0:
        confidence = logits.softmax(-1).gather(1, tags.clamp(min=0)[:, None]).squeeze(1)
        losses = losses * (1 - confidence) ** gamma
    return losses.sum() / (tags != spans.IGNORED).sum().clamp(min=1)


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
    truth = [spans.parse(row, path) for row in rows]
    tokenizer = tokenizers.load_tokenizer(
        p["model"], ctx.cache, [text for row in rows for text in (row["post"], row["criterion"])]
    )
    coded = pairs.encode(tokenizer, [row["criterion"] for row in rows], [row["post"] for row in rows], p["max_length"])
    tags = spans.tag(coded, truth)
    tensors = [torch.from_numpy(array) for array in (coded.ids, coded.mask, coded.segments, tags)]
    held_out = np.array([tables.is_validation(row["post"], p["folds"], p["fold"]) for row in rows])
    training = TensorDataset(*(tensor[~held_out] for tensor in tensors))
    validation = TensorDataset(*(tensor[held_out] for tensor in tensors))
    validation_rows = np.flatnonzero(held_out)
    posts, truth = [rows[row]["post"] for row in validation_rows], [truth[row] for row in validation_rows]
    offsets = coded.offsets[held_out]

    # -------------------------------------------------------------------------------------------------------------
    # model and optimizer

    encoder = encoders.load_encoder(p["model"], tokenizer, seed=ctx.seed, dropout=p["dropout"])
    model = SpanTagger(encoder, p["condition"], p["dropout"])
    model, optimizer, loader, schedule = encoders.prepare(accelerator, model, {encoder: p["lr"]}, training, p)

    # -------------------------------------------------------------------------------------------------------------
    # train; score after each epoch

    gamma = p["focal_gamma"] if p["loss"] == "focal" else 0.0
    best, best_spans, first_epoch = {}, None, 0
    if state := ctx.restored:  # the trial was paused or lost
        encoders.load_training_state(accelerator, state, model, optimizer, schedule)
        best, best_spans, first_epoch = state["best"], state["best_spans"], state["step"] + 1
    for epoch in range(first_epoch, p["epochs"]):
        model.train()
        for batch in loader:
            longest = int(batch[1].sum(1).max())
            ids, mask, parts, tag = (part[:, :longest] for part in batch)
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model(ids, mask, parts), tag, p["evidence_weight"], gamma))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), p["clip"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        logits = predict(model, validation, accelerator.device)
        metrics, predicted = evaluate(logits, validation.tensors, offsets, posts, truth)
        ctx.report(epoch, **metrics)
        if not best or metrics["span_f1"] > best["span_f1"]:
            best, best_spans = metrics, predicted
        state = encoders.training_state(accelerator, model, optimizer, schedule)
        ctx.save(epoch, {**state, "best": best, "best_spans": best_spans})

    spans.log_examples(posts, truth, best_spans)
    return best


@torch.no_grad()
def predict(model, dataset, device):
    """Return the logits of all rows, of shape (rows, tokens, 3), on the CPU."""
    model.eval()
    longest_row = dataset.tensors[0].shape[1]
    padded = []
    for batch in DataLoader(dataset, batch_size=256):
        longest = int(batch[1].sum(1).max())
        logits = model(*(part[:, :longest].to(device) for part in batch[:3])).float().cpu()
        padded.append(nn.functional.pad(logits, (0, 0, 0, longest_row - longest)))
    return torch.cat(padded)


def evaluate(logits, tensors, offsets, posts, truth):
    """Return metrics, and the predicted spans of each post."""
    _, _, segments, tags = tensors
    in_post = (segments == pairs.SECOND).numpy()
    guess = np.where(in_post, logits.argmax(-1).numpy(), spans.IGNORED)
    chance = np.where(in_post, 1 - logits.softmax(-1)[..., spans.OUTSIDE].numpy(), 0.0)
    predicted = [spans.decode(guess[row], offsets[row], post) for row, post in enumerate(posts)]
    sentences = [
        pair for row, post in enumerate(posts) for pair in spans.sentence_scores(post, truth[row], chance[row], offsets[row])
    ]
    labels, score = np.array([is_evidence for is_evidence, _ in sentences]), np.array([value for _, value in sentences])
    metrics = {
        "span_f1": scores.span_f1([set(gold) for gold in truth], predicted),
        "macro_f1": scores.macro_f1(labels, score > 0.5),
        "pr_auc": scores.average_precision(labels, score),
        "loss": float(loss_of(logits, tags, 1.0, 0.0)),
    }
    return metrics, predicted


if __name__ == "__main__":
    standalone(__file__, run)
