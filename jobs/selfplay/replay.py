"""The positions on which one iteration trains: a bounded number, packed, in an order that only depends on the seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import encoding
import numpy as np
import torch

_BITS = np.delete(np.arange(encoding.PLANES), encoding.COUNTS)  # planes of zeros and ones
_WHITE_TO_MOVE = 112  # plane of ones if White is to move


class Positions(NamedTuple):
    """Positions of one game, packed.

    Attributes:
        bits: Planes of zeros and ones, of shape (positions, bytes).
        counts: Values of the two other planes, of shape (positions, 2).
        values: Outcome of the game for the side to move, of shape (positions,).
        widths: Number of legal actions of each position, of shape (positions,).
        actions: Legal actions of all positions, one position after the other.
        shares: Share of the visits that each of these actions had.
    """

    bits: np.ndarray
    counts: np.ndarray
    values: np.ndarray
    widths: np.ndarray
    actions: np.ndarray
    shares: np.ndarray


class Replay:
    """The positions of some games. A position takes about 1 KiB, while its planes take 30.

    Args:
        per_game: Maximum number of positions of a game. Of a longer game, this many are drawn.
    """

    def __init__(self, per_game: int) -> None:
        self._per_game = per_game
        self._games: dict[int, Positions] = {}

    def add(self, unit: int, game: Mapping[str, Any]) -> None:
        """Add positions of a game.

        Args:
            unit: Number of the game, which is the seed for drawing positions.
            game: Record of the game.
        """
        count = game["move_count"]
        rows = np.arange(count)
        if count > self._per_game:
            rows = np.sort(np.random.default_rng(unit).choice(count, self._per_game, replace=False))
        legal = game["legal_masks"]
        ends = np.cumsum(legal.sum(1))  # the visits of all positions are in one array
        visits = np.split(game["visits"], ends[:-1])
        states = game["states"][rows]
        is_white = states[:, _WHITE_TO_MOVE, 0, 0] > 0
        self._games[unit] = Positions(
            bits=np.packbits(states[:, _BITS].reshape(len(rows), -1) > 0, axis=1),
            counts=states[:, encoding.COUNTS, 0, 0],
            values=np.where(is_white, game["outcome"], -game["outcome"]).astype(np.float32),
            widths=np.array([len(visits[row]) for row in rows]),
            actions=np.concatenate([np.flatnonzero(legal[row]) for row in rows]),
            shares=np.concatenate([visits[row] / visits[row].sum() for row in rows]).astype(np.float32),
        )

    def __len__(self) -> int:
        return sum(len(game.bits) for game in self._games.values())

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield all positions once, in batches: planes, shares of visits of each action, and outcomes for the side to move.

        Args:
            size: Size of a batch. The last batch may be smaller.
            rng: Generator for the order.
        """
        # Games are ordered by number, because the order of their arrival is random, and the training must not depend on it.
        in_order = [self._games[unit] for unit in sorted(self._games)]
        bits, counts, values, widths, actions, shares = map(np.concatenate, zip(*in_order, strict=True))
        starts = np.concatenate([[0], np.cumsum(widths)])
        order = rng.permutation(len(bits))
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            states = np.empty((len(rows), encoding.PLANES, 8, 8), dtype=np.float32)
            states[:, _BITS] = np.unpackbits(bits[rows], axis=1, count=len(_BITS) * 64).reshape(len(rows), -1, 8, 8)
            states[:, encoding.COUNTS] = counts[rows][:, :, None, None]
            policies = np.zeros((len(rows), encoding.ACTIONS), dtype=np.float32)
            for index, row in enumerate(rows):
                span = slice(starts[row], starts[row + 1])
                policies[index, actions[span]] = shares[span]
            yield torch.from_numpy(states), torch.from_numpy(policies), torch.from_numpy(values[rows])
