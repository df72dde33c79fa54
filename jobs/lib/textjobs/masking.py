"""Batches of masked tokens for masked-language-model training, with reproducible masks.

The mask of a sample depends only on the seed, the number of the sample in the training set, and the epoch. It does not
depend on the rank, the world size, the DataLoader's worker or the batch. So a run on eight GPUs has the masks of a run on
one, and a resumed run those of an undisturbed one. Each epoch has other masks. A fixed number instead of the epoch gives
fixed masks, for evaluation.

As in BERT, 80 % of the chosen positions become [MASK], 10 % another token, and 10 % stay. The number of chosen positions is
exact: `rate` of the sample's tokens, and at least one. No generator is used: numbers are hashed, for a whole batch at once.
This module does not import torch, and its objects are small when they are pickled for DataLoader workers.
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

IGNORED = -100  # target that torch's cross-entropy leaves out
EVALUATION = 2**32 - 1  # instead of the epoch, for evaluation

_TO_MASK, _TO_OTHER = 0.8, 0.9  # bounds of the shares of positions that become [MASK] and another token

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
        padding: Id of [PAD].
        mask: Id of [MASK].
        plain: Ids of all tokens except special ones. They may be masked, and may replace others.
        special: Whether each id is that of a special token.
        continues: Whether the token of each id continues the word of the token before it (`##` in front).
        seed: Seed of all masks.
        rate: Share of a sample's tokens to choose.
        whole_words: Whether the tokens of a word are chosen together. The last chosen word is masked to its end, even if
            that exceeds the rate. A Chinese character is a word here; a Latin word or a number has several tokens.
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
        """Return the input of the model for a batch, and the labels: the true token of each chosen position, else `IGNORED`.

        Args:
            ids: Token ids of shape (samples, tokens), padded with `padding`.
            keys: Epoch and number of each sample.
        """
        rows, columns = ids.shape
        epochs, numbers = np.array(keys, dtype=np.uint64).reshape(rows, 2).T
        sample = batches.mix(batches.mix(batches.mix(np.full(rows, self.seed, dtype=np.uint64)) + epochs) + numbers)
        position = np.arange(columns)
        score = batches.mix(sample[:, None] + position.astype(np.uint64))
        # Words are ordered by the hash of their first position, and special tokens come last. All tokens of a word are
        # chosen if its first one is among the first `chosen_count`.
        candidate = ~self.special[ids]
        word_start = np.where(self.continues[ids] & self.whole_words, 0, position)
        word_start = np.maximum.accumulate(word_start, axis=1)  # first position of each token's word
        order = np.where(candidate, np.take_along_axis(score, word_start, axis=1), np.uint64(2**64 - 1))
        rank = np.empty_like(word_start)  # place of each token in this order
        np.put_along_axis(rank, np.argsort(order, axis=1, kind="stable"), np.broadcast_to(position, ids.shape), axis=1)
        chosen_count = np.maximum(np.rint(self.rate * candidate.sum(axis=1)), 1)
        chosen = candidate & (np.take_along_axis(rank, word_start, axis=1) < chosen_count[:, None])

        # Two more hashes of each position draw another token, and in which of the three ways a chosen token is replaced.
        other = self.plain[batches.mix(score + np.uint64(1)) % np.uint64(len(self.plain))]
        draw = (batches.mix(score + np.uint64(2)) >> np.uint64(11)).astype(np.float64) * 2.0**-53  # in [0, 1)
        replaced = np.where(draw < _TO_MASK, self.mask, np.where(draw < _TO_OTHER, other, ids))
        return np.where(chosen, replaced, ids), np.where(chosen, ids, IGNORED)


@dataclasses.dataclass(frozen=True)
class MaskedSamples:
    """A dataset of masked batches, for `DataLoader(dataset, sampler=keyed batches, batch_size=None)`.

    Attributes:
        tokens: All samples.
        masking: Rule by which they are masked.
    """

    tokens: Tokens
    masking: Masking

    def __getitem__(self, keys: Sequence[Key]) -> dict[str, Ids]:
        """Return the batch of these samples, padded to the longest.

        Returns:
            `input_ids` and `attention_mask` of shape (samples, tokens); `positions` of shape (chosen,), which counts chosen
            tokens through the whole batch, and `targets`, their true ids. So a model computes its largest layer only for
            tokens with a loss, and needs not wait for the GPU to count them.
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
class KeyedBatches:
    """The batches of a rank, with the epoch of each sample, so that each epoch has other masks.

    Attributes:
        sampler: Sampler of the rank's batches.
        offset: Number of the first training sample. The samples before it are held out.
    """

    sampler: batches.ResumableSampler
    offset: int = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[Key]]:
        """Yield the batches, each as the epoch and the number of each of its samples."""
        for number, batch in enumerate(self.sampler):
            step = self.sampler.start + number // self.sampler.per_step
            epoch = step // self.sampler.order.steps_per_epoch
            yield [(epoch, index + self.offset) for index in batch]


def masking(tokenizer: PreTrainedTokenizerBase, *, seed: int, rate: float = 0.15, whole_words: bool = True) -> Masking:
    """Return the masking for a tokenizer's vocabulary.

    Args:
        tokenizer: Tokenizer with a mask token.
        seed: Seed of all masks, from 0.
        rate: Share of a sample's tokens to choose.
        whole_words: Whether the tokens of a word are chosen together.
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
