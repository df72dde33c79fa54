"""A training that counts: how many of its steps were done twice, because an attempt was lost between two checkpoints."""

from __future__ import annotations

from typing import Any

from tests.e2e.conftest import Cluster

STEPS = 250
# Each step is noted beside the checkpoints as it is done, so whatever is done again stands there twice. At a URL nothing can
# be added to a file; there the first step of an attempt is what its log says.
_CODE = """
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from trialplane.training import checkpoint, progress


def run(ctx):
    p = ctx.params
    distributed.init_process_group("gloo")
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    saves = checkpoint.Checkpoints(ctx.checkpoints)
    found = saves.resume(rank=ctx.rank, world_size=ctx.world_size, like=model)
    start = 0
    if found is not None:
        start = found.state["done"]
        model.load_state_dict(found.state["model"])
        optimizer.load_state_dict(found.state["optimizer"])
    if ctx.rank == 0:
        print(f"begins with step {start}", flush=True)
    diary = None if "://" in str(ctx.checkpoints) else Path(ctx.checkpoints).parent / "diary"
    wrapped = DistributedDataParallel(model)
    meter = progress.Meter(ctx, total_steps=p["steps"], start=start, every=1.0)
    for step in range(start, p["steps"]):
        time.sleep(p["pause"])
        x = torch.linspace(-1, 1, 32).unsqueeze(1)
        loss = nn.functional.mse_loss(wrapped(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if ctx.rank == 0 and diary is not None:
            with diary.open("a") as file:
                file.write(f"{step}\\n")
        meter.step(step + 1, samples=len(x), loss=loss)
        stops = torch.tensor(float(ctx.stopping))
        distributed.all_reduce(stops, op=distributed.ReduceOp.MAX)
        if stops or (step + 1) % p["save_every"] == 0:
            time.sleep(p["saving"] if stops else 0)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": step + 1}
            saves.save(step + 1, state, rank=ctx.rank, world_size=ctx.world_size)
        if stops and step + 1 < p["steps"]:
            saves.close()
            raise ctx.stopped(step + 1)
    saves.close()
    done = [] if diary is None else diary.read_text().split()
    distributed.destroy_process_group()
    return {"loss": float(loss), "begun": start, "again": len(done) - len(set(done)), "done": len(set(done))}
"""
_SPEC = f"""
kind: train
entrypoint: train:run
preload: [torch]
params: {{steps: {STEPS}, pause: 0.3, save_every: 1000, saving: 0}}
objective: {{metric: loss, direction: minimize}}
ranks: 2
resources: {{cpus: 1, memory: 2Gi, gpus: 0}}
"""


def submit(cluster: Cluster, run: str, *more: str, cluster_fields: str = "") -> None:
    """Starts the training under a name; one that saves itself only when it is told to go, unless `more` says otherwise."""
    spec = _SPEC + (f"cluster: {cluster_fields}\n" if cluster_fields else "")
    folder = cluster.job(cluster.home / "jobs" / run / "steps", _CODE, spec)
    cluster.platform("submit", "train", folder, "--name", run, *more, "--detach")


def step(cluster: Cluster, run: str) -> int:
    """The steps that were reported so far."""
    return int(cluster.status(run)["progress"].get("step") or 0)


def passed(cluster: Cluster, run: str, wanted: int, patience: float = 300) -> int:
    """Waits until a training has reported so many steps; gives how many it has."""
    return int(cluster.until(f"step {wanted} of {run}", lambda: (at := step(cluster, run)) >= wanted and at, patience))


def finished(cluster: Cluster, run: str, patience: float = 600) -> dict[str, Any]:
    """Waits for the end of a training; gives its row."""
    cluster.until(f"end of {run}", lambda: cluster.status(run)["state"] in ("SUCCEEDED", "FAILED"), patience)
    (row,) = cluster.said("results", run)
    assert row["state"] == "COMPLETE", row
    return dict(row)
