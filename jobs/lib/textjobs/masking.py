"""Batches of masked tokens for masked-language-model training, the same masks whoever asks.

What is masked in a sample depends on the seed, the sample's number in the whole training set and the epoch, and on nothing
else: not on the rank, the world size, the DataLoader's worker, the batch it is in or what was drawn before. So a run on
eight GPUs sees the masks of a run on one, and a resumed run those of an undisturbed one. Every epoch masks anew; a fixed
number in place of the epoch gives fixed masks, as an evaluation wants them.

As BERT does: of the positions chosen 80 % become [MASK], 10 % another token, 10 % stay. How many are chosen is exact: `rate`
of a sample's tokens, and at least one. Nothing is drawn from a generator: numbers are hashed, a whole batch at once.
Knows nothing of torch; all that is here pickles small, for DataLoader workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy import typing as npt

from trialplane.training import batches

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100  # what torch's cross-entropy leaves out
EVALUATION = 2**32 - 1  # in place of an epoch

_TO_MASK, _TO_OTHER = 0.8, 0.9

Ids = npt.NDArray[np.int64]
Key = tuple[int, int]  # epoch, number of the sample


class Tokens(Protocol):
    """Samples as arrays of token ids."""

    def __getitem__(self, index: int, /) -> npt.NDArray[Any]:
        """Ids of shape (tokens,)."""


@dataclasses.dataclass(frozen=True)
class Masking:
    """The rule by which tokens are masked.

    Attributes:
        padding: id of [PAD].
        mask: id of [MASK].
        plain: ids that may be masked and may replace others: all but the special ones.
        special: for each id, whether it is a special one.
        continues: for each id, whether it continues the word of the token before it (`##` in front).
        seed: of all masks.
        rate: share of a sample's tokens to choose.
        whole_words: whether a word's tokens are chosen together: the word in which the count is reached is masked to its
            end. A Chinese character is a word here; a Latin one or a number has several tokens.
    """

    padding: int
    mask: int
    plain: Ids
    special: npt.NDArray[np.bool_]
    continues: npt.NDArray[np.bool_]
    seed: int
    rate: float
    whole_words: bool

    def __call__(self, ids: Ids, keys: Sequence[Key]) -> tuple[Ids, Ids]:
        """The batch as the model sees it, and the labels: the true token where one was chosen, else `IGNORED`.

        Args:
            ids: (samples, tokens), filled up with `padding`.
            keys: epoch and number of each sample.
        """
        rows, columns = ids.shape
        epochs, numbers = np.array(keys, dtype=np.uint64).reshape(rows, 2).T
        sample = batches.mixed(batches.mixed(batches.mixed(np.full(rows, self.seed, dtype=np.uint64)) + epochs) + numbers)
        position = np.arange(columns)
        score = batches.mixed(sample[:, None] + position.astype(np.uint64))
        candidate = ~self.special[ids]
        first = np.where(self.continues[ids] & self.whole_words, 0, position)
        first = np.maximum.accumulate(first, axis=1)  # of the word that a position belongs to
        order = np.where(candidate, np.take_along_axis(score, first, axis=1), np.uint64(2**64 - 1))
        rank = np.empty_like(first)
        np.put_along_axis(rank, np.argsort(order, axis=1, kind="stable"), np.broadcast_to(position, ids.shape), axis=1)
        number_chosen = np.maximum(np.rint(self.rate * candidate.sum(axis=1)), 1)
        chosen = candidate & (np.take_along_axis(rank, first, axis=1) < number_chosen[:, None])

        other = self.plain[batches.mixed(score + np.uint64(1)) % np.uint64(len(self.plain))]
        fate = (batches.mixed(score + np.uint64(2)) >> np.uint64(11)).astype(np.float64) * 2.0**-53  # in [0, 1)
        shown = np.where(fate < _TO_MASK, self.mask, np.where(fate < _TO_OTHER, other, ids))
        return np.where(chosen, shown, ids), np.where(chosen, ids, IGNORED)


@dataclasses.dataclass(frozen=True)
class MaskedSamples:
    """A dataset of masked batches, for `DataLoader(dataset, sampler=keyed batches, batch_size=None)`.

    Attributes:
        tokens: the whole set of samples.
        masking: how they are masked.
    """

    tokens: Tokens
    masking: Masking

    def __getitem__(self, keys: Sequence[Key]) -> dict[str, Ids]:
        """The batch of these samples, as long as its longest.

        Returns:
            `input_ids` and `attention_mask` of shape (samples, tokens); `positions` of shape (chosen,), where the chosen
            tokens are when the samples are laid end to end, and their true ids, `targets`. So a model computes its largest
            layer where a loss is, and a GPU need not be asked how many there are.
        """
        samples = [self.tokens[number] for _, number in keys]
        ids = np.full((len(keys), max(map(len, samples))), self.masking.padding, dtype=np.int64)
        for row, sample in enumerate(samples):
            ids[row, : len(sample)] = sample
        inputs, labels = self.masking(ids, keys)
        attention = (np.arange(ids.shape[1]) < np.array([[len(sample)] for sample in samples])).astype(np.int64)
        positions = np.flatnonzero(labels != IGNORED)
        return {
            "input_ids": inputs,
            "attention_mask": attention,
            "positions": positions,
            "targets": labels.reshape(-1)[positions],
        }


@dataclasses.dataclass(frozen=True)
class Keyed:
    """One rank's batches with the epoch of each sample, so that every epoch masks anew.

    Attributes:
        sampler: the rank's batches.
        offset: number of the first sample to train on; those before it are held out.
    """

    sampler: batches.ResumableSampler
    offset: int = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[Key]]:
        for number, batch in enumerate(self.sampler):
            step = self.sampler.start + number // self.sampler.per_step
            epoch = step // self.sampler.order.steps_per_epoch
            yield [(epoch, index + self.offset) for index in batch]


def masking(tokenizer: PreTrainedTokenizerBase, *, seed: int, rate: float = 0.15, whole_words: bool = True) -> Masking:
    """The masking for a tokenizer's vocabulary.

    Args:
        tokenizer: must have a mask token.
        seed: of all masks, from 0.
        rate: share of a sample's tokens to choose.
        whole_words: whether a word's tokens are chosen together.
    """
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = np.zeros(len(tokens), dtype=np.bool_)
    special[tokenizer.all_special_ids] = True
    return Masking(
        padding=tokenizer.pad_token_id,
        mask=tokenizer.mask_token_id,
        plain=np.flatnonzero(~special),
        special=special,
        continues=np.array([token.startswith("##") for token in tokens]),
        seed=seed,
        rate=rate,
        whole_words=whole_words,
    )
