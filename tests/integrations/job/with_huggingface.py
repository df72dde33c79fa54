"""Transformers' Trainer: the example, with steps of 8 points, of which 8 make an epoch."""

from __future__ import annotations

import torch
from data import TRAIN, VALID
from transformers import Trainer, TrainingArguments

from trialplane.integrations import huggingface


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(4, 2)
        )

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


def rows(data):
    return [{"x": torch.tensor(x), "labels": int(y)} for x, y in zip(*data, strict=True)]


def run(ctx):
    arguments = TrainingArguments(
        output_dir="out" if ctx.params.get("elsewhere") else huggingface.output_dir("out"),
        num_train_epochs=ctx.params.get("epochs", 2),
        learning_rate=ctx.params.get("learning_rate", 0.1),
        max_grad_norm=0.0,
        per_device_train_batch_size=8 // ctx.world_size,
        logging_steps=ctx.params.get("log", 2),
        eval_strategy="steps",
        eval_steps=4,
        save_strategy=ctx.params.get("save", "epoch"),
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        Model(),
        arguments,
        train_dataset=rows(TRAIN),
        eval_dataset=rows(VALID),
        compute_metrics=accuracy,
        callbacks=[huggingface.TrialCallback()],
    )
    trainer.train(resume_from_checkpoint=huggingface.resume_from())
    weights = sum(parameter.abs().sum() for parameter in trainer.model.parameters())
    return {"score": trainer.evaluate()["eval_loss"], "weights": weights.item()}
