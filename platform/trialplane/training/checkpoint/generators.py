"""The random generators of one rank (Python's, numpy's, torch's, the GPU's) as a value that a checkpoint keeps.

`set_rng_state(rng_state())` changes nothing that is drawn afterwards. Imports torch: for training loops.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trialplane.training import process


def rng_state() -> dict[str, Any]:
    """The state of all generators of this process, in tensors and plain values; the GPU's is that of the current device."""
    version, words, gauss = random.getstate()
    legacy: dict[str, Any] = np.random.get_state(legacy=False)
    state = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {**legacy, "state": {**legacy["state"], "key": torch.from_numpy(legacy["state"]["key"].astype(np.int64))}},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Puts all generators into a state of `rng_state`; the GPU's where both had one."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    legacy = state["numpy"]
    key = legacy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def reseed(seed: int, rank: int, step: int) -> None:
    """Seeds all generators for a rank that goes on at `step` without a state of its own: the number of ranks has changed."""
    words = np.random.SeedSequence([seed % 2**64, rank, step]).generate_state(1, np.uint64)
    process.seed_everything(int(words[0] >> np.uint64(1)))
