"""The jobs that `platform init` creates, one for each kind. They run without changes, and are meant to be edited."""

from __future__ import annotations

_JOB = """\
# yaml-language-server: $schema=../job.schema.json
# `platform validate {name}` checks this file; `platform schema` prints its schema for editors.
kind: hpo
description: Finds the lowest point of a valley, as a stand-in for a model to train.
entrypoint: train:run # module:function below this folder
preload: [] # heavy modules to import once per slot: torch, transformers

params: # the same in every trial
  steps: 5

space: # what is searched
  lr: {{type: float, low: 1.0e-4, high: 1.0, log: true}}
  layers: {{type: int, low: 1, high: 6}}
  optimizer: {{type: categorical, choices: [sgd, adam]}}
  momentum: {{type: float, low: 0.0, high: 0.99, when: {{optimizer: sgd}}}}

objective: {{metric: loss, direction: minimize}}
sampler: tpe
pruner: asha # ends bad trials early; {{name: asha, promote: true, …}} continues the good ones

trials: 20
parallel: 2
budget: {{max_failed: 5, timeout: 10m}}
resources: {{cpus: 1, memory: 1Gi}}
"""

_TRAIN = '''\
"""One trial of the job {name}.

    platform submit hpo {name} --local      # a study on this machine
    python jobs/{name}/train.py             # one trial alone; --set lr=0.01 changes a parameter
"""

import math

from trialplane import standalone


def run(ctx):
    """Train with `ctx.params`, report each step, and return the metrics."""
    p = ctx.params
    speed = abs(math.log10(p["lr"]) + 2)  # best at lr = 0.01 ...
    depth = abs(p["layers"] - 3)  # ... with 3 layers ...
    bonus = 0.2 if p["optimizer"] == "adam" else abs(p["momentum"] - 0.9)  # ... and high momentum
    loss = 4.0
    for step in range(p["steps"]):
        loss = 0.5 * loss + 0.5 * (speed + 0.3 * depth + bonus)
        ctx.report(step, loss=loss)  # which prints it too; a pruned trial ends here
    return {{"loss": loss}}


if __name__ == "__main__":
    standalone(__file__, run)
'''

_TRAINING = """\
# yaml-language-server: $schema=../job.schema.json
# `platform validate {name}` checks this file; `platform schema` prints its schema for editors.
kind: train
description: Fits a line, as a stand-in for a model to train.
entrypoint: train:run # module:function below this folder
preload: [torch] # heavy modules to import once, before the ranks are forked

params:
  batch: 32 # samples per step, over all ranks
  steps: 400
  lr: 0.05
  save_every: 100
divided: [batch] # must divide evenly among the ranks; checked before the start

objective: {{metric: loss, direction: minimize}}
retries: {{crashed: 3, lost: 5}}
resources: {{cpus: 2, memory: 4Gi, gpus: 0}} # of each node; one rank per GPU
"""

_TRAIN_IN_RANKS = '''\
"""Training of the job {name}; the same code in each rank.

    platform submit train {name} --local --ranks 2       # here, on CPUs; on a cluster: --gpus 8 --nodes 2
    python jobs/{name}/train.py                          # one rank alone; --set lr=0.01 changes a parameter
    torchrun --nproc_per_node=2 jobs/{name}/train.py     # two, without the platform
"""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from trialplane import standalone
from trialplane.training import batches, checkpoint, progress


def run(ctx):
    """Train with `ctx.params`, save checkpoints, and return the metrics."""
    p, gpu = ctx.params, torch.cuda.is_available()
    device = torch.device("cuda", ctx.local_rank) if gpu else torch.device("cpu")
    if ctx.world_size > 1:
        distributed.init_process_group("nccl" if gpu else "gloo")

    points = torch.linspace(-1, 1, 1024).unsqueeze(1)
    order = batches.BatchOrder(len(points), p["batch"], seed=ctx.seed)  # the same batches for any number of ranks
    model = nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p["lr"], momentum=0.9)

    saves, start = checkpoint.Checkpoints(ctx.checkpoints), 0
    resumed = saves.resume(rank=ctx.rank, world_size=ctx.world_size, like=model, otherwise=ctx.resume_from)
    if resumed is not None:  # from an earlier attempt, or from the run of --resume
        start = order.start(resumed.state["order"])
        model.load_state_dict(resumed.state["model"])
        optimizer.load_state_dict(resumed.state["optimizer"])

    wrapped = DistributedDataParallel(model) if ctx.world_size > 1 else model
    meter = progress.Meter(ctx, total_steps=p["steps"], start=start, every=2.0)
    for step in range(start, p["steps"]):
        with meter.own_work():
            x = points[order.indices(step, ctx.rank, ctx.world_size)].to(device)
        loss = nn.functional.mse_loss(wrapped(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        done = step + 1
        meter.step(done, samples=len(x), loss=loss)
        stops = torch.tensor(float(ctx.stopping), device=device)  # the pod is being evicted, or the run is paused
        if ctx.world_size > 1:
            distributed.all_reduce(stops, op=distributed.ReduceOp.MAX)  # all ranks stop at the same step
        if stops or done % p["save_every"] == 0 or done == p["steps"]:
            state = {{
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "order": order.state_dict(done),
            }}
            saves.save(done, state, rank=ctx.rank, world_size=ctx.world_size)
        if stops and done < p["steps"]:
            saves.close()
            raise ctx.stopped(done)
    saves.close()

    with torch.no_grad():
        loss = nn.functional.mse_loss(model(points.to(device)), 3 * points.to(device) + 1)
    if ctx.world_size > 1:
        distributed.destroy_process_group()
    return {{"loss": float(loss)}}


if __name__ == "__main__":
    standalone(__file__, run)
'''

_COLLECTION = """\
# yaml-language-server: $schema=../job.schema.json
# `platform validate {name}` checks this file; `platform schema` prints its schema for editors.
kind: collect
description: Looks for the lowest point of a valley where workers try points, as a stand-in for games to learn from.
entrypoint: train:play # the worker: module:function below this folder
preload: [numpy] # heavy modules to import once per slot: torch

params: # the same in every unit
  points: 2000 # per unit
  keep: 0.05 # share of best points, from which the next iteration starts

collect:
  units: 20 # results of one iteration
  iterations: 5
  workers: 2 # each in a slot of its own; the learner has one more
  learner: train:learn # reads the results; or write: {{format: npz}}
  in_flight: 64Mi # most bytes on their way to the learner; /dev/shm is sized by it
  timeout: 5m # longest time of a worker without a result

resources: {{cpus: 1, memory: 1Gi}} # of each worker, and of the learner
"""

_PLAY_AND_LEARN = '''\
"""Worker and learner of the job {name}.

    platform submit collect {name} --local      # on this machine; on a cluster: --workers 8 --units 800
    python jobs/{name}/train.py                 # alone in one process
"""

import numpy as np

from trialplane import standalone


def play(ctx):
    """Compute a result for each unit, with the weights of the previous iteration; each unit has its own `unit.seed`."""
    where = ctx.weights or {{"mean": np.full(2, 5.0), "width": np.full(2, 4.0)}}  # none in the first iteration
    for unit in ctx.units():
        points = np.random.default_rng(unit.seed).normal(where["mean"], where["width"], (ctx.params["points"], 2))
        heights = ((points - (1.0, -2.0)) ** 2).sum(axis=1)
        ctx.give(unit, {{"points": points, "heights": heights}}, items=len(points))


def learn(ctx, results):
    """Read the results as they arrive, and return metrics and the weights for the next iteration."""
    points, heights = [], []
    for result in results:  # its arrays are read-only, in shared memory
        few = np.argsort(result.value["heights"])[: int(ctx.params["keep"] * result.items) + 1]
        points.append(result.value["points"][few])
        heights.append(result.value["heights"][few])
    points, heights = np.concatenate(points), np.concatenate(heights)
    print(f"iteration {{ctx.iteration}}: lowest {{heights.min():.6f}} of {{results.expected}} units")
    weights = {{"mean": points.mean(axis=0), "width": points.std(axis=0)}}
    return {{"height": float(heights.mean()), "weights": weights}}


if __name__ == "__main__":
    standalone(__file__, play, learn)
'''

# Kind → job.yaml and train.py, for `str.format`.
STUDY, TRAINING, COLLECTION = (_JOB, _TRAIN), (_TRAINING, _TRAIN_IN_RANKS), (_COLLECTION, _PLAY_AND_LEARN)
