"""Points of a plane, and whether they are above a line: enough for every library to learn something."""

from __future__ import annotations

import numpy as np


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """float32 [count, 2], and 0 or 1 for each as int64 [count]."""
    x = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
    return x, (x[:, 0] + 2 * x[:, 1] > 0.3).astype(np.int64)


TRAIN, VALID = points(64, seed=1), points(64, seed=2)
