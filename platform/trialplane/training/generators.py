"""State of the random generators of Python and NumPy, as plain values and arrays."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np


def state() -> dict[str, Any]:
    """Return the state of both generators."""
    version, words, gauss = random.getstate()  # `gauss` is the next normal value, or None
    return {"python": [version, np.array(words, dtype=np.uint64), gauss], "numpy": np.random.get_state(legacy=False)}


def set_state(saved: Mapping[str, Any]) -> None:
    """Restore a state that the function `state` has returned."""
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(saved["numpy"])
