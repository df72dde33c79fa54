"""Checkpoints of a training run: `checkpoint.Checkpoints` saves and finds them, `rng_state` is the generators' state.

`checkpoints` is what jobs see, `writer` writes one, `tensors` knows tensors, `generators` the random generators; names and
places of the folders are `runtime/steps`. Imports torch: a warm template that imports a job's modules has then done so.
"""

from trialplane.runtime.checkpoint.checkpoints import Checkpoints, Resumed
from trialplane.runtime.checkpoint.generators import reseed, rng_state, set_rng_state
from trialplane.runtime.steps.record import Saved

__all__ = ["Checkpoints", "Resumed", "Saved", "reseed", "rng_state", "set_rng_state"]
