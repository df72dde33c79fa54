"""Pairs of texts (a question about a post, and the post) as padded arrays for an encoder.

A tokenizer's own answer is lists of lists; one pass over its encodings gives ids, segments and character offsets at once,
for models with and without token types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy import typing as npt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL, FIRST, SECOND = -1, 0, 1  # what a token belongs to; padding is SPECIAL too


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Encoded pairs, padded to the longest.

    Attributes:
        ids: token ids, (rows, tokens).
        mask: 1 for a token, 0 for padding, (rows, tokens).
        segments: SPECIAL, FIRST or SECOND, (rows, tokens).
        offsets: [start, end) of each token in the characters of its own text, (rows, tokens, 2).
    """

    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


def encode(tokenizer: PreTrainedTokenizerBase, first: Sequence[str], second: Sequence[str], max_length: int) -> Pairs:
    """The pairs (first[i], second[i]), the second text cut so that no pair has more than `max_length` tokens."""
    coded = tokenizer(list(first), list(second), truncation="only_second", max_length=max_length, padding=True).encodings
    segments = [[SPECIAL if part is None else part for part in row.sequence_ids] for row in coded]
    return Pairs(
        ids=np.array([row.ids for row in coded], dtype=np.int64),
        mask=np.array([row.attention_mask for row in coded], dtype=np.int64),
        segments=np.array(segments, dtype=np.int64),
        offsets=np.array([row.offsets for row in coded], dtype=np.int64),
    )
