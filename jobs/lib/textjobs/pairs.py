"""Pairs of texts (a question about a post, and the post) as padded arrays for an encoder.

A tokenizer itself returns lists of lists. One pass over its encodings gives ids, segments and character offsets, for models
with and without token types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy import typing as npt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL, FIRST, SECOND = -1, 0, 1  # segments; padding is SPECIAL, too


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Encoded pairs, padded to the longest.

    Attributes:
        ids: Token ids, of shape (rows, tokens).
        mask: 1 for a token, 0 for padding, of shape (rows, tokens).
        segments: SPECIAL, FIRST or SECOND, of shape (rows, tokens).
        offsets: [start, end) of each token in the characters of its own text, of shape (rows, tokens, 2).
    """

    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


def encode(tokenizer: PreTrainedTokenizerBase, first: Sequence[str], second: Sequence[str], max_length: int) -> Pairs:
    """Return the pairs (first[i], second[i]). Second texts are cut, so that no pair has more than `max_length` tokens."""
    encodings = tokenizer(list(first), list(second), truncation="only_second", max_length=max_length, padding=True).encodings
    segments = [[SPECIAL if part is None else part for part in row.sequence_ids] for row in encodings]
    return Pairs(
        ids=np.array([row.ids for row in encodings], dtype=np.int64),
        mask=np.array([row.attention_mask for row in encodings], dtype=np.int64),
        segments=np.array(segments, dtype=np.int64),
        offsets=np.array([row.offsets for row in encodings], dtype=np.int64),
    )
