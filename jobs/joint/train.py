"""Two encoders trained together: one labels (post, criterion), the other finds the evidence, and they are made to agree.

    platform submit hpo joint --trials 24 --local                    # a study on this machine
    platform submit hpo joint --profile max                          # 800 trials on a cluster, encoders from the hub
    python jobs/joint/train.py                                       # one trial alone, defaults of job.yaml
    python jobs/joint/train.py --set lr=1e-3 --set agreement=0.5

Data: CSV or JSONL with the columns post, criterion, label (0 or 1), spans ([[start, end], ...] in characters). The
file in the repository is synthetic, see jobs/make_synthetic.py.
The loss is the label's + the tags' + agreement x the squared difference of two probabilities that the criterion is met: the
label's and the strongest token's. Their mean is the prediction. Metrics on the held-out fold, of the best epoch: score (mean
of macro_f1 and span_f1, which the study maximizes), macro_f1 and pr_auc of the label, span_f1 (both ends exact), loss.
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


class TwoEncoders(nn.Module):
    """An encoder for labels and an encoder for tags, each with its own tokens of the same texts."""

    def __init__(self, labeller, tagger, dropout):
        super().__init__()
        self.labeller, self.tagger = labeller, tagger
        self.dropout = nn.Dropout(dropout)
        self.label_head = nn.Linear(labeller.config.hidden_size * 4, 2)
        self.tag_head = nn.Linear(tagger.config.hidden_size * 2, 3)

    def forward(self, label_inputs, tag_inputs):
        """Return logits of labels, of shape (batch, 2), and of tags, of shape (batch, tokens, 3).

        Args:
            label_inputs: Ids, mask and segments for the label encoder.
            tag_inputs: The same for the tag encoder.
        """
        ids, mask, segments = label_inputs
        states = self.labeller(input_ids=ids, attention_mask=mask).last_hidden_state
        criterion, post = (encoders.mean_over(states, segments == part) for part in (pairs.FIRST, pairs.SECOND))
        pooled = torch.cat([criterion, post, criterion * post, (criterion - post).abs()], dim=-1)
        ids, mask, segments = tag_inputs
        states = self.tagger(input_ids=ids, attention_mask=mask).last_hidden_state
        met = torch.cat([states, states * encoders.mean_over(states, segments == pairs.FIRST)[:, None]], dim=-1)
        return self.label_head(self.dropout(pooled)), self.tag_head(self.dropout(met))


def chances(by_label, by_tag, segments):
    """Return the probabilities, of shape (batch,), that the criterion is met: by label head, and by strongest token."""
    evidence = 1 - by_tag.float().softmax(-1)[..., spans.OUTSIDE]
    return by_label.float().softmax(-1)[:, 1], evidence.masked_fill(segments != pairs.SECOND, 0.0).amax(-1)


def loss_of(by_label, by_tag, segments, labels, tags, agreement, evidence_weight):
    """Return the sum of both cross-entropies and of the weighted squared difference of both probabilities."""
    weight = torch.tensor([1.0, evidence_weight, evidence_weight], device=by_tag.device)
    tag_loss = nn.functional.cross_entropy(
        by_tag.float().flatten(0, 1), tags.flatten(), weight=weight, ignore_index=spans.IGNORED
    )
    label_chance, tag_chance = chances(by_label, by_tag, segments)
    gap = ((label_chance - tag_chance) ** 2).mean()
    return nn.functional.cross_entropy(by_label.float(), labels) + tag_loss + agreement * gap


def run(ctx):
    """Run one trial."""
    p = ctx.params
    torch.set_num_threads(ctx.cpus)
    set_seed(ctx.seed)
    accelerator = Accelerator(mixed_precision=p["precision"], gradient_accumulation_steps=p["accumulate"])

    # -------------------------------------------------------------------------------------------------------------
    # data: tokenized once for each encoder, as tensors; each batch is cut to its own longest row

    path = ctx.path("data")
    rows = tables.read_rows(path, COLUMNS)[: p["max_rows"]]
    labels = torch.tensor([tables.integer(row, "label", path, 2) for row in rows])
    truth = [spans.parse(row, path) for row in rows]
    corpus = [text for row in rows for text in (row["post"], row["criterion"])]
    criteria, posts = [row["criterion"] for row in rows], [row["post"] for row in rows]
    names = p["model"], p["model"] if p["evidence_model"] == "same" else p["evidence_model"]
    label_tokenizer, tag_tokenizer = (tokenizers.load_tokenizer(name, ctx.cache, corpus) for name in names)
    label_coded = pairs.encode(label_tokenizer, criteria, posts, p["max_length"])
    tag_coded = pairs.encode(tag_tokenizer, criteria, posts, p["max_length"])
    tags = spans.tag(tag_coded, truth)
    inputs = [array for coded in (label_coded, tag_coded) for array in (coded.ids, coded.mask, coded.segments)]
    tensors = [*map(torch.from_numpy, [*inputs, tags]), labels]
    held_out = np.array([tables.is_validation(post, p["folds"], p["fold"]) for post in posts])
    training = TensorDataset(*(tensor[~held_out] for tensor in tensors))
    validation = TensorDataset(*(tensor[held_out] for tensor in tensors))
    posts, truth = ([column[row] for row in np.flatnonzero(held_out)] for column in (posts, truth))
    offsets = tag_coded.offsets[held_out]

    # -------------------------------------------------------------------------------------------------------------
    # models and optimizer; the tagger's weights are drawn from another seed

    labeller = encoders.load_encoder(names[0], label_tokenizer, seed=ctx.seed, dropout=p["dropout"])
    tagger = encoders.load_encoder(names[1], tag_tokenizer, seed=ctx.seed + 1, dropout=p["dropout"])
    model = TwoEncoders(labeller, tagger, p["dropout"])
    prepared = encoders.prepare(accelerator, model, {labeller: p["lr"], tagger: p["lr"] * p["tagger_lr"]}, training, p)
    model, optimizer, loader, schedule = prepared

    # -------------------------------------------------------------------------------------------------------------
    # train; score after each epoch

    best, best_spans, first_epoch = {}, None, 0
    if state := ctx.restored:  # the trial was paused or lost
        encoders.load_training_state(accelerator, state, model, optimizer, schedule)
        best, best_spans, first_epoch = state["best"], state["best_spans"], state["step"] + 1
    for epoch in range(first_epoch, p["epochs"]):
        model.train()
        for batch in loader:
            label_inputs, tag_inputs, tag, label = cut(batch)
            with accelerator.accumulate(model):
                by_label, by_tag = model(label_inputs, tag_inputs)
                _, _, segments = tag_inputs
                loss = loss_of(by_label, by_tag, segments, label, tag, p["agreement"], p["evidence_weight"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), p["clip"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        by_label, by_tag = predict(model, validation, accelerator.device)
        metrics, predicted = evaluate(by_label, by_tag, validation.tensors, offsets, posts, truth, p["agreement"])
        ctx.report(epoch, **metrics)
        if not best or metrics["score"] > best["score"]:
            best, best_spans = metrics, predicted
        state = encoders.training_state(accelerator, model, optimizer, schedule)
        ctx.save(epoch, {**state, "best": best, "best_spans": best_spans})

    spans.log_examples(posts, truth, best_spans)
    return best


def cut(batch):
    """Return label inputs, tag inputs, tags and labels of a batch, without columns in which all rows are padding."""
    label_inputs, tag_inputs, (tags, labels) = batch[:3], batch[3:6], batch[6:]  # inputs are ids, mask and segments
    label_longest, tag_longest = (int(mask.sum(1).max()) for _, mask, _ in (label_inputs, tag_inputs))
    label_inputs = [part[:, :label_longest] for part in label_inputs]
    tag_inputs = [part[:, :tag_longest] for part in tag_inputs]
    return label_inputs, tag_inputs, tags[:, :tag_longest], labels


@torch.no_grad()
def predict(model, dataset, device):
    """Return logits of labels, of shape (rows, 2), and of tags, of shape (rows, tokens, 3), on the CPU."""
    model.eval()
    width = dataset.tensors[3].shape[1]
    labels, tags = [], []
    for batch in DataLoader(dataset, batch_size=256):
        label_inputs, tag_inputs, _, _ = cut([part.to(device) for part in batch])
        by_label, by_tag = model(label_inputs, tag_inputs)
        labels.append(by_label.float().cpu())
        tags.append(nn.functional.pad(by_tag.float().cpu(), (0, 0, 0, width - by_tag.shape[1])))
    return torch.cat(labels), torch.cat(tags)


def evaluate(by_label, by_tag, tensors, offsets, posts, truth, agreement):
    """Return metrics, and the predicted spans of each post."""
    segments, tags, labels = tensors[5:]
    label_chance, tag_chance = chances(by_label, by_tag, segments)
    chance = ((label_chance + tag_chance) / 2).numpy()
    guess = np.where((segments == pairs.SECOND).numpy(), by_tag.argmax(-1).numpy(), spans.IGNORED)
    predicted = [spans.decode(guess[row], offsets[row], post) for row, post in enumerate(posts)]
    macro_f1 = scores.macro_f1(labels.numpy(), chance > 0.5)
    span_f1 = scores.span_f1([set(gold) for gold in truth], predicted)
    metrics = {
        "score": (macro_f1 + span_f1) / 2,
        "macro_f1": macro_f1,
        "pr_auc": scores.average_precision(labels.numpy(), chance),
        "span_f1": span_f1,
        "loss": float(loss_of(by_label, by_tag, segments, labels, tags, agreement, 1.0)),
    }
    return metrics, predicted


if __name__ == "__main__":
    standalone(__file__, run)
