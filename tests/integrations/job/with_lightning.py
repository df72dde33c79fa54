"""Lightning's Trainer: the example, with steps of 16 points, of which 4 make an epoch."""

from __future__ import annotations

import torch
from data import TRAIN, VALID

from trialplane.integrations import lightning

try:
    import lightning.pytorch as pl
except ModuleNotFoundError:
    import pytorch_lightning as pl


class Module(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.layer = torch.nn.Linear(2, 2)

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def loader(data):
    tensors = [torch.tensor(part) for part in data]
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=16)


def run(ctx):
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=ctx.world_size,
        max_epochs=ctx.params.get("epochs", 4),
        max_steps=ctx.params.get("steps", -1),
        val_check_interval=ctx.params.get("validate", 1.0),
        check_val_every_n_epoch=ctx.params.get("every", 1),
        callbacks=[lightning.TrialCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(ctx.params.get("lr", 0.1)), loader(TRAIN), loader(VALID), ckpt_path=lightning.resume_from())
    return {"score": trainer.callback_metrics["val_loss"].item()}
