"""Checkpoints of a training run: `checkpoint.Checkpoints` saves and finds them, `rng_state` is the generators' state.

`checkpoints` is what jobs see, `writer` writes one, `tensors` knows tensors; names and places of the folders are
`training/steps`. Imports torch: a warm template that imports a job's modules has then done so.
"""

from trialplane.training.checkpoint.checkpoints import Checkpoints, Resumed, reseed, rng_state, set_rng_state
from trialplane.training.steps.record import Saved

__all__ = ["Checkpoints", "Resumed", "Saved", "reseed", "rng_state", "set_rng_state"]
