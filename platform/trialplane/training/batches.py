"""In which order training sees its samples: a global batch per optimizer step, the same whatever the number of ranks.

The position in training is the optimizer step and nothing else, so a run that goes on at step 1000 sees the batches that an
undisturbed run would have seen. No rank holds a permutation of the data: 14.8 million indices in each of 8 ranks would be
950 MB. Needs numpy; must not import torch, and must not draw from any global generator.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trialplane import errors

__all__ = ["BatchOrder", "ResumableSampler"]

_ROUNDS = 8
# Up to here an epoch's permutation is a sort by hashes: 0.5 MB, 5 ms. A network of few bits mixes small sets less well.
_SORTED_UP_TO = 1 << 16
_AHEAD = 64  # steps that a sampler computes at once

_GAMMA, _LAST = np.uint64(0x9E3779B97F4A7C15), np.uint64(31)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)

Indices = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class BatchOrder:
    """The sequence of global batches over all epochs.

    Attributes:
        length: number of samples.
        batch: samples per optimizer step, over all ranks and micro-batches.
        seed: with the epoch's number it decides the epoch's permutation.
        shuffle: False for the order of the data.
        drop_last: whether an epoch leaves out the samples that fill no batch (others in each epoch, when shuffled). When
            they are kept, an epoch's last batch is smaller, and so are the ranks' shares of it: fit for evaluation, not
            for steps in which all ranks must take part.
    """

    length: int
    batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = True

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise errors.InputError(f"a global batch of {self.batch} samples: write 1 or more")
        if self.length < 1 or (self.drop_last and self.length < self.batch):
            raise errors.InputError(
                f"{self.length:,} samples do not fill one global batch of {self.batch:,} (batch per rank × ranks × "
                "accumulation); use more data, a smaller batch or fewer ranks"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the data."""
        return self.length // self.batch if self.drop_last else math.ceil(self.length / self.batch)

    def epoch(self, step: int) -> float:
        """Passes over the data that lie before `step`: 1.5 in the middle of the second one."""
        return step / self.steps_per_epoch

    def indices(self, step: int, rank: int = 0, world_size: int = 1) -> Indices:
        """A rank's contiguous share of the global batch of `step`.

        Args:
            step: optimizer step, counted from 0 over all epochs.
            rank: of `world_size` ranks.
            world_size: must divide the batch.

        Returns:
            Indices of samples: (batch / world_size,); fewer in the last batch of an epoch without `drop_last`.
        """
        if step < 0 or not 0 <= rank < world_size:
            raise ValueError(f"indices(step={step}, rank={rank}, world_size={world_size}): counted from 0")
        return self.shares(range(step, step + 1), rank, world_size)[0]

    def shares(self, steps: range, rank: int, world_size: int) -> list[Indices]:
        """`indices` of consecutive steps; much cheaper than step by step, since numpy's calls cost more than their work."""
        self.share(world_size)
        shares: list[Indices] = []
        while steps:
            epoch, number = divmod(steps[0], self.steps_per_epoch)
            here = steps[: self.steps_per_epoch - number]  # of this epoch
            positions = [self._positions(step % self.steps_per_epoch, rank, world_size) for step in here]
            if self.shuffle:
                ends = np.cumsum([len(some) for some in positions])
                positions = np.split(permuted(np.concatenate(positions), self.length, self.seed, epoch), ends[:-1])
            shares += positions
            steps = steps[len(here) :]
        return shares

    def _positions(self, number: int, rank: int, world_size: int) -> Indices:
        """Positions within an epoch of a rank's share of its batch `number`."""
        first = number * self.batch
        count = min(self.batch, self.length - first)
        return np.arange(first + count * rank // world_size, first + count * (rank + 1) // world_size, dtype=np.int64)

    def share(self, world_size: int) -> int:
        """Samples of one rank in a full batch.

        Raises:
            InputError: the batch cannot be dealt evenly, which would make the ranks' mean gradients unequal in weight.
        """
        if world_size < 1 or self.batch % world_size:
            fits = ", ".join(str(n) for n in range(1, min(self.batch, 64) + 1) if self.batch % n == 0)
            raise errors.InputError(
                f"a global batch of {self.batch} samples cannot be dealt evenly to {world_size} ranks; "
                f"it can to {fits}; change the batch or the number of ranks"
            )
        return self.batch // world_size

    def state_dict(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps of the order: which one it is, and the step at which to go on."""
        return {**dataclasses.asdict(self), "step": step}

    def start(self, state: Mapping[str, Any]) -> int:
        """The step at which a checkpoint's `state_dict` goes on in this order.

        Raises:
            CheckpointMismatch: it is of another order, so its step means other samples.
        """
        now = dataclasses.asdict(self)
        other = [f"{name} was {state.get(name)!r} and is {now[name]!r}" for name in now if state.get(name) != now[name]]
        if other:
            raise errors.CheckpointMismatch(
                f"the checkpoint of step {state.get('step')} was trained on another order of batches: {'; '.join(other)}. "
                "Give the same data, batch and seed to go on; or start a new run from its weights"
            )
        return int(state["step"])


@dataclasses.dataclass(frozen=True)
class ResumableSampler:
    """One rank's batches of an order, for `DataLoader(batch_sampler=…)`.

    The loader must not be given to `accelerator.prepare`, which would deal each rank's share to all ranks once more; move
    its batches to the device instead. How far the loader's workers have read ahead is of no interest: the position is the
    optimizer step of the checkpoint.

    Attributes:
        order: the global order.
        rank: of `world_size` ranks.
        world_size: must divide the order's batch.
        start: first optimizer step.
        stop: the step before which it ends.
        micro: samples per micro-batch (gradient accumulation); must divide the rank's share. None for one batch per step.
    """

    order: BatchOrder
    rank: int
    world_size: int
    start: int
    stop: int
    micro: int | None = None

    def __post_init__(self) -> None:
        share = self.order.share(self.world_size)
        if self.micro is not None and (self.micro < 1 or share % self.micro):
            raise errors.InputError(
                f"{share} samples per rank and step cannot be cut into micro-batches of {self.micro}; "
                "choose a divisor, or change the batch"
            )

    @property
    def per_step(self) -> int:
        """Micro-batches in one optimizer step."""
        return 1 if self.micro is None else self.order.share(self.world_size) // self.micro

    def __len__(self) -> int:
        return max(self.stop - self.start, 0) * self.per_step

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(self.start, self.stop, _AHEAD):
            steps = range(first, min(first + _AHEAD, self.stop))
            for share in self.order.shares(steps, self.rank, self.world_size):
                size = self.micro or max(len(share), 1)
                for begin in range(0, max(len(share), 1), size):
                    yield share[begin : begin + size].tolist()


def permuted(positions: Indices, length: int, seed: int, epoch: int) -> Indices:
    """Where a pseudo-random permutation of `range(length)` sends `positions`; computed for these alone.

    A generalized Feistel network over the residues of a × b ≥ length, walking on while a value falls outside: Black and
    Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (method 3 with its cycle walking, method 2). With
    a = ⌈√length⌉ and b = ⌈length / a⌉ at most one value in √length walks. Independent of numpy's generators, whose streams
    may change between its versions.

    Args:
        positions: (n,), each in `range(length)`.
        length: size of the set.
        seed: any integer.
        epoch: another permutation for each.
    """
    keys = _keys(seed, epoch, length)
    if length <= _SORTED_UP_TO:
        return _sorted_permutation(length, int(keys[0]))[positions]
    root = math.isqrt(length - 1) + 1
    a, b = np.uint64(root), np.uint64(-(-length // root))
    values = positions.astype(np.uint64)
    values = _network(values, a, b, keys)
    while (outside := np.flatnonzero(values >= np.uint64(length))).size:
        values[outside] = _network(values[outside], a, b, keys)
    return values.astype(np.int64)


def _network(values: NDArray[np.uint64], a: np.uint64, b: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of `range(a * b)`; `keys` is even in number."""
    left, right = values % a, values // a
    for number, key in enumerate(keys):
        modulus = b if number % 2 else a
        left, right = right, (left + mixed(right ^ key) % modulus) % modulus
    return left + a * right


@functools.lru_cache(maxsize=4)  # epochs: of training and of evaluation
def _sorted_permutation(length: int, key: int) -> Indices:
    return np.argsort(mixed(np.arange(length, dtype=np.uint64) + np.uint64(key)), kind="stable")


def _keys(seed: int, epoch: int, length: int) -> NDArray[np.uint64]:
    """Round keys, (_ROUNDS,)."""
    keys = np.arange(1, _ROUNDS + 1, dtype=np.uint64)
    for word in (seed, epoch, length):
        keys = mixed(keys + np.uint64(word % 2**64))
    return keys


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's step: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014."""
    values = values + _GAMMA
    for shift, factor in _MIX:
        values = (values ^ (values >> shift)) * factor
    return values ^ (values >> _LAST)
