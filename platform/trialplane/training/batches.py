"""Order of samples: one global batch per optimizer step, the same for any number of ranks.

The order depends only on the seed and the optimizer step, so a training that continues at step 1000 sees the same batches as
one without interruption. Indices are computed when needed: no rank holds a permutation of the data in memory.
"""

# Needs numpy; must not import torch, and must not draw from any global generator. A permutation of 14.8 million indices in
# each of 8 ranks would be 950 MB.

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

_ROUNDS = 8  # rounds of the Feistel network
# Up to this number of samples, an epoch's permutation is a sort by hashes, which takes 0.5 MB and 5 ms. The Feistel network
# would shuffle so few values poorly.
_SORTED_UP_TO = 1 << 16
_AHEAD = 64  # steps that a sampler computes at once

# Constants of SplitMix64.
_GAMMA, _LAST_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(31)
_SHIFTS_AND_FACTORS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)

Indices = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class BatchOrder:
    """The sequence of global batches over all epochs.

    Attributes:
        length: Number of samples.
        batch: Number of samples per optimizer step, over all ranks and micro-batches.
        seed: Seed of the permutation, which differs in each epoch.
        shuffle: Shuffle the samples in each epoch. With False, they are in the order of the data.
        drop_last: Drop the samples at the end of an epoch that do not fill a batch. With False, the last batch of an epoch
            is smaller, and some ranks may get fewer samples than others: use it for evaluation only.

    Raises:
        InputError: `batch` is less than 1, or the samples do not fill one batch.
    """

    length: int
    batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = True

    def __post_init__(self) -> None:
        """Raise InputError if the samples do not fill a batch."""
        if self.batch < 1:
            raise errors.InputError(f"a global batch of {self.batch} samples: write 1 or more")
        if self.length < 1 or (self.drop_last and self.length < self.batch):
            raise errors.InputError(
                f"{self.length:,} samples do not fill one global batch of {self.batch:,} (batch per rank × ranks × "
                "accumulation); use more data, a smaller batch or fewer ranks"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps per epoch."""
        return self.length // self.batch if self.drop_last else math.ceil(self.length / self.batch)

    def epoch(self, step: int) -> float:
        """Return the number of epochs before `step`: 1.5 in the middle of the second epoch."""
        return step / self.steps_per_epoch

    def indices(self, step: int, rank: int = 0, world_size: int = 1) -> Indices:
        """Return the indices of a rank's samples in a step.

        Args:
            step: Optimizer step, from 0 over all epochs.
            rank: Number of the rank, from 0.
            world_size: Number of ranks. It must divide the batch.

        Returns:
            Indices of samples, shape (batch / world_size,). Fewer in the last batch of an epoch without `drop_last`.

        Raises:
            InputError: `world_size` does not divide the batch.
            ValueError: `step` or `rank` is out of range.
        """
        if step < 0 or not 0 <= rank < world_size:
            raise ValueError(f"indices(step={step}, rank={rank}, world_size={world_size}): counted from 0")
        (indices,) = self.indices_of_steps(range(step, step + 1), rank, world_size)
        return indices

    def indices_of_steps(self, steps: range, rank: int, world_size: int) -> list[Indices]:
        """Return `indices` for consecutive steps, one array per step. This is much faster than one step at a time.

        Raises:
            InputError: `world_size` does not divide the batch.
        """
        self.share(world_size)  # raises InputError
        indices: list[Indices] = []
        while steps:
            epoch, first_step_in_epoch = divmod(steps[0], self.steps_per_epoch)
            epoch_steps = steps[: self.steps_per_epoch - first_step_in_epoch]  # those of `steps` that are in this epoch
            positions = [self._positions(step % self.steps_per_epoch, rank, world_size) for step in epoch_steps]
            if self.shuffle:  # all steps of the epoch in one call, which is what makes this fast
                shuffled = permute(np.concatenate(positions), self.length, self.seed, epoch)
                ends = np.cumsum([len(step_positions) for step_positions in positions])
                positions = np.split(shuffled, ends[:-1])
            indices += positions
            steps = steps[len(epoch_steps) :]
        return indices

    def _positions(self, step_in_epoch: int, rank: int, world_size: int) -> Indices:
        """Return a rank's positions within an epoch for one of the epoch's steps, before they are shuffled."""
        first = step_in_epoch * self.batch
        count = min(self.batch, self.length - first)  # the last batch of an epoch may be smaller
        return np.arange(first + count * rank // world_size, first + count * (rank + 1) // world_size, dtype=np.int64)

    def share(self, world_size: int) -> int:
        """Return the number of samples per rank in a full batch.

        Raises:
            InputError: `world_size` does not divide the batch.
        """
        if world_size < 1 or self.batch % world_size:
            divisors = ", ".join(str(n) for n in range(1, min(self.batch, 64) + 1) if self.batch % n == 0)
            raise errors.InputError(
                f"a global batch of {self.batch} samples cannot be divided evenly among {world_size} ranks; "
                f"possible numbers of ranks are {divisors}; change the batch or the number of ranks"
            )
        return self.batch // world_size

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state of the order for a checkpoint, after a number of optimizer steps."""
        return {**dataclasses.asdict(self), "step": step}

    def start(self, state: Mapping[str, Any]) -> int:
        """Return the step to continue at, from the `state_dict` in a checkpoint.

        Raises:
            CheckpointMismatch: The state is from another order: other data, batch, seed or options.
        """
        current = dataclasses.asdict(self)
        differences = [
            f"{name} was {state.get(name)!r} and is {value!r}" for name, value in current.items() if state.get(name) != value
        ]
        if differences:
            raise errors.CheckpointMismatch(
                f"the checkpoint of step {state.get('step')} was trained on another order of batches: "
                f"{'; '.join(differences)}. Give the same data, batch and seed to continue; or start a new run from its "
                "weights"
            )
        return int(state["step"])


@dataclasses.dataclass(frozen=True)
class ResumableSampler:
    """The batches of one rank, for `DataLoader(batch_sampler=…)`.

    Do not pass the loader to `accelerator.prepare`, which would divide the batches among the ranks again. Move the batches
    to the device instead.

    Attributes:
        order: Order of the global batches.
        rank: Number of the rank, from 0.
        world_size: Number of ranks. It must divide the batch.
        start: First optimizer step.
        stop: End of the steps, not included.
        micro: Number of samples per micro-batch, for gradient accumulation. It must divide the rank's share of the batch.
            Default: one batch per step.

    Raises:
        InputError: `world_size` does not divide the batch, or `micro` the rank's share.
    """

    order: BatchOrder
    rank: int
    world_size: int
    start: int
    stop: int
    micro: int | None = None

    def __post_init__(self) -> None:
        """Raise InputError if a rank's share of a batch cannot be divided into micro-batches."""
        share = self.order.share(self.world_size)
        if self.micro is not None and (self.micro < 1 or share % self.micro):
            raise errors.InputError(
                f"{share} samples per rank and step cannot be divided into micro-batches of {self.micro}; "
                "choose a divisor, or change the batch"
            )

    @property
    def per_step(self) -> int:
        """Number of micro-batches per optimizer step."""
        return 1 if self.micro is None else self.order.share(self.world_size) // self.micro

    def __len__(self) -> int:
        return max(self.stop - self.start, 0) * self.per_step

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of the samples of each micro-batch of this rank."""
        for first in range(self.start, self.stop, _AHEAD):
            steps = range(first, min(first + _AHEAD, self.stop))
            for indices in self.order.indices_of_steps(steps, self.rank, self.world_size):
                # A rank without samples in an epoch's last batch still yields one empty batch, so that steps stay aligned.
                length = max(len(indices), 1)
                micro = self.micro or length
                for begin in range(0, length, micro):
                    yield indices[begin : begin + micro].tolist()


def permute(positions: Indices, length: int, seed: int, epoch: int) -> Indices:
    """Apply a pseudo-random permutation of `range(length)` to some positions.

    This is a generalized Feistel network over the residues of a × b ≥ length, with cycle walking: Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, methods 2 and 3. With a = ⌈√length⌉ and b = ⌈length / a⌉, at most
    one value in √length walks. The result does not depend on the version of NumPy.

    Args:
        positions: Positions in `range(length)`, shape (n,).
        length: Size of the set.
        seed: Any integer.
        epoch: Number of the epoch. Each has another permutation.

    Returns:
        The permuted positions, shape (n,).
    """
    keys = _keys(seed, epoch, length)
    if length <= _SORTED_UP_TO:
        return _sorted_permutation(length, int(keys[0]))[positions]
    root = math.isqrt(length - 1) + 1
    a, b = np.uint64(root), np.uint64(-(-length // root))
    values = positions.astype(np.uint64)
    values = _network(values, a, b, keys)
    # Cycle walking: a × b may exceed the length, and values beyond it are permuted again until none is left.
    while (outside := np.flatnonzero(values >= np.uint64(length))).size:
        values[outside] = _network(values[outside], a, b, keys)
    return values.astype(np.int64)


def _network(values: NDArray[np.uint64], a: np.uint64, b: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the Feistel network, a permutation of `range(a * b)`, to values. It has a round for each of the keys.

    A value is low + a * high, with low in `range(a)` and high in `range(b)`. Each round exchanges the two parts. So the
    number of keys must be even, for the parts to end where they began.
    """
    low, high = values % a, values // a
    for number, key in enumerate(keys):
        modulus = b if number % 2 else a  # number of values of the part that is changed
        low, high = high, (low + mix(high ^ key) % modulus) % modulus
    return low + a * high


@functools.lru_cache(maxsize=4)  # epochs: of training and of evaluation
def _sorted_permutation(length: int, key: int) -> Indices:
    """Return a permutation of `range(length)`, shape (length,): the numbers, sorted by their hashes with a key."""
    return np.argsort(mix(np.arange(length, dtype=np.uint64) + np.uint64(key)), kind="stable")


def _keys(seed: int, epoch: int, length: int) -> NDArray[np.uint64]:
    """Return a key for each round of the Feistel network, shape (_ROUNDS,)."""
    keys = np.arange(1, _ROUNDS + 1, dtype=np.uint64)
    for word in (seed, epoch, length):
        keys = mix(keys + np.uint64(word % 2**64))
    return keys


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the mixing step of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014."""
    values = values + _GAMMA
    for shift, factor in _SHIFTS_AND_FACTORS:
        values = (values ^ (values >> shift)) * factor
    return values ^ (values >> _LAST_SHIFT)
