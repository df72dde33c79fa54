"""A loop of one's own with Accelerate: the example, with a step for all points."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from data import TRAIN, VALID

from trialplane.integrations import accelerate


def run(ctx):
    accelerator = Accelerator(cpu=True, log_with=accelerate.TrialTracker())
    accelerator.init_trackers("points", {"rate": 0.1})
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=ctx.params.get("lr", 0.1))
    model, optimizer = accelerator.prepare(model, optimizer)
    x, y = (torch.tensor(part, device=accelerator.device) for part in TRAIN)
    valid_x, valid_y = (torch.tensor(part, device=accelerator.device) for part in VALID)

    @torch.no_grad()
    def evaluate():
        return {"valid_loss": torch.nn.functional.cross_entropy(model(valid_x), valid_y).item()}

    total = ctx.params.get("epochs", 8)
    for step in range(accelerate.resume(accelerator), total):
        loss = torch.nn.functional.cross_entropy(model(torch.nn.functional.dropout(x, 0.1)), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss, "what": "a text"} | evaluate(), step=None if ctx.params.get("counts") else step + 1)
        accelerate.stop(accelerator, step + 1)
        if (step + 1) % 2 == 0:
            accelerate.save(accelerator, step + 1)
    accelerator.end_training()
    return {"score": evaluate()["valid_loss"]}  # not what the loop has left: it may have had nothing to do
