"""Checkpoints of a training, complete or absent, written in the background.

    checkpoints = checkpoint.Checkpoints(ctx.checkpoints, keep_last=2, keep_best=1)
    found = checkpoints.resume(rank=ctx.rank, world_size=ctx.world_size, like=model)
    if found is not None:
        model.load_state_dict(found.state["model"])
        ...
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "order": order.state_dict(step)}
    checkpoints.save(step, state, rank_state={"rng": checkpoint.rng_state()}, rank=ctx.rank, world_size=ctx.world_size)
    checkpoints.wait()

Files are in torch's format and are read with `weights_only=True`: they hold tensors and plain values, and no code.
"""

# `checkpoints` is the public part, `writer` writes one, `tensors` knows tensors; names and locations of the folders are
# `training/steps`. Imports torch: a warm template that imports a job's modules has then done so.

from trialplane.training.checkpoint.checkpoints import Checkpoints, Resumed, reseed, rng_state, set_rng_state
from trialplane.training.steps.record import Saved

__all__ = ["Checkpoints", "Resumed", "Saved", "reseed", "rng_state", "set_rng_state"]
