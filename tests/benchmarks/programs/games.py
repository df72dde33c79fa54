"""The results that are moved in `packing` and `moving`: games of so many positions, as the states and masks of each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

STATE = (119, 8, 8)
ACTIONS = 4672
WARM = 20  # games that are not counted: imports, and pages that are made


class Clock:
    """Seconds from the last game that is not counted to the last of all."""

    def __init__(self) -> None:
        self._arrived = 0
        self._began = 0.0
        self.seconds = 0.0

    def arrived(self) -> None:
        """A game was read."""
        self._arrived += 1
        if self._arrived == WARM:
            self._began = time.perf_counter()
        self.seconds = time.perf_counter() - self._began


def game(positions: int, *, stacked: bool = False) -> dict[str, Any]:
    """A game: lists of float32 (119, 8, 8) and bool (4672,); or stacked, one array of each."""
    random = np.random.default_rng(0)
    states = [random.random(STATE, dtype=np.float32) for _ in range(positions)]
    masks = [random.random(ACTIONS) < 0.01 for _ in range(positions)]
    if stacked:
        return {"states": np.stack(states), "masks": np.stack(masks)}
    return {"states": states, "masks": masks}


def size(made: dict[str, Any]) -> int:
    """Bytes of all arrays of a game."""
    return sum(array.nbytes for array in arrays(made))


def arrays(made: dict[str, Any]) -> Iterator[Any]:
    """All arrays, or tensors, of a game."""
    for value in made.values():
        yield from value if isinstance(value, list) else [value]


def read(made: dict[str, Any]) -> int:
    """Reads every byte; gives one that depends on all."""
    return max(int(np.asarray(array).reshape(-1).view(np.uint64).max()) for array in arrays(made))
