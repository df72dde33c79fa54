"""Labels (post sentence, criterion) pairs: does the sentence meet the criterion?

    platform submit hpo criteria --trials 24 --local                 # a study on this machine
    platform submit hpo criteria --profile max                       # 800 trials on a cluster, encoders from the hub
    python jobs/criteria/train.py                                    # one trial alone, defaults of job.yaml
    python jobs/criteria/train.py --set lr=1e-3 --set epochs=2

Data: CSV or JSONL with the columns post, criterion, label (0 or 1). The file in the repository is synthetic.
Metrics: macro_f1 and pr_auc on the held-out fold, the best epoch's, and its loss.
"""

from __future__ import annotations

import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from textjobs import encoders, pairs, scores, tables, tokenizers
from trialplane import standalone

COLUMNS = ("post", "criterion", "label")


class PairClassifier(nn.Module):
    """A classifier of pairs: an encoder, a pooling of its states, and a linear layer.

    The pooling `cls` is the state of the first token, and `mean` the mean of all states. `pair` is the means over the
    criterion and over the sentence, with their product and distance, from which the linear layer can see directly whether
    they match.
    """

    def __init__(self, encoder, pooling, dropout):
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(encoder.config.hidden_size * (4 if pooling == "pair" else 1), 2)

    def forward(self, ids, mask, segments):
        """Return logits of shape (batch, 2) for ids, attention mask and segments of shape (batch, tokens)."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif self.pooling == "mean":
            pooled = encoders.mean_over(states, mask)
        else:
            criterion, post = (encoders.mean_over(states, segments == part) for part in (pairs.FIRST, pairs.SECOND))
            pooled = torch.cat([criterion, post, criterion * post, (criterion - post).abs()], dim=-1)
        return self.head(self.dropout(pooled))


def loss_of(logits, labels, positive_weight, gamma):
    """Return the weighted cross-entropy. With gamma > 0 it is focal: rows that are already classified well count less."""
    weight = torch.tensor([1.0, positive_weight], device=logits.device)
    losses = nn.functional.cross_entropy(logits.float(), labels, weight=weight, reduction="none")
    if gamma > 0:
        confidence = logits.float().softmax(-1).gather(1, labels[:, None]).squeeze(1)
        losses = losses * (1 - confidence) ** gamma
    return losses.mean()


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
    tokenizer = tokenizers.load_tokenizer(
        p["model"], ctx.cache, [text for row in rows for text in (row["post"], row["criterion"])]
    )
    coded = pairs.encode(tokenizer, [row["criterion"] for row in rows], [row["post"] for row in rows], p["max_length"])
    tensors = (*map(torch.from_numpy, (coded.ids, coded.mask, coded.segments)), labels)
    held_out = torch.tensor([tables.is_validation(row["post"], p["folds"], p["fold"]) for row in rows])
    training = TensorDataset(*(tensor[~held_out] for tensor in tensors))
    validation = TensorDataset(*(tensor[held_out] for tensor in tensors))

    # -------------------------------------------------------------------------------------------------------------
    # model and optimizer

    encoder = encoders.load_encoder(p["model"], tokenizer, seed=ctx.seed, dropout=p["dropout"])
    model = PairClassifier(encoder, p["pooling"], p["dropout"])
    model, optimizer, loader, schedule = encoders.prepare(accelerator, model, {encoder: p["lr"]}, training, p)

    # -------------------------------------------------------------------------------------------------------------
    # train; score after each epoch

    gamma = p["focal_gamma"] if p["loss"] == "focal" else 0.0
    best, best_table, first_epoch = {}, None, 0
    if state := ctx.restored:  # the trial was paused or lost
        encoders.load_training_state(accelerator, state, model, optimizer, schedule)
        best, best_table, first_epoch = state["best"], state["best_table"], state["step"] + 1
    for epoch in range(first_epoch, p["epochs"]):
        model.train()
        for ids, mask, parts, label in loader:
            longest = int(mask.sum(1).max())
            with accelerator.accumulate(model):
                logits = model(ids[:, :longest], mask[:, :longest], parts[:, :longest])
                accelerator.backward(loss_of(logits, label, p["positive_weight"], gamma))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), p["clip"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        logits = predict(model, validation, accelerator.device)
        metrics, table = evaluate(logits, validation.tensors[3])
        ctx.report(epoch, **metrics)
        if not best or metrics["macro_f1"] > best["macro_f1"]:
            best, best_table = metrics, table.tolist()
        state = encoders.training_state(accelerator, model, optimizer, schedule)
        ctx.save(epoch, {**state, "best": best, "best_table": best_table})

    if os.environ.get("MLFLOW_TRACKING_URI"):  # a trial has one; alone, the user may have set one
        import mlflow

        mlflow.log_dict({"rows": "truth 0, 1", "columns": "predicted 0, 1", "counts": best_table}, "confusion.json")
    return best


@torch.no_grad()
def predict(model, dataset, device):
    """Return the logits of all rows, on the CPU."""
    model.eval()
    logits = []
    for *batch, _ in DataLoader(dataset, batch_size=256):
        longest = int(batch[1].sum(1).max())
        logits.append(model(*(part[:, :longest].to(device) for part in batch)).float().cpu())
    return torch.cat(logits)


def evaluate(logits, labels):
    """Return metrics, and the counts of true and predicted labels (see `scores.confusion`)."""
    truth, guess = labels.numpy(), logits.argmax(-1).numpy()
    metrics = {
        "macro_f1": scores.macro_f1(truth, guess),
        "pr_auc": scores.average_precision(truth, logits.softmax(-1)[:, 1].numpy()),
        "loss": float(nn.functional.cross_entropy(logits, labels)),
    }
    return metrics, scores.confusion(truth, guess, 2)


if __name__ == "__main__":
    standalone(__file__, run)
