"""Rows of text as samples of tokens, for `datasets.map`: pieces for a language model, labelled texts for a classifier.

Recipes: they hold the tokenizer's folder and load it where they are called, so they are small to send. Imports nothing
heavy: the processes that map have no torch.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane import errors

if TYPE_CHECKING:
    import datasets
    from tokenizers import Tokenizer

Batch = dict[str, list[Any]]


def is_held_out(text: str, share: float) -> bool:
    """Whether a text is held out: by a hash of it, so that equal ones are always on the same side."""
    return zlib.crc32(text.encode()) < share * 2**32


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The tokens of each text and the token that ends it, cut into pieces; nothing is left out, none holds two texts.

    Attributes:
        tokenizer: its folder.
        column: the texts'.
        max_length: tokens of a piece at most.
        end: the token that ends a text.
        held_out: share of the texts that is marked as held out.
    """

    tokenizer: str
    column: str
    max_length: int
    end: int
    held_out: float

    def __call__(self, batch: Batch) -> Batch:
        """A row for each piece of at least two tokens: one to predict the other from."""
        texts = _texts(batch, self.column)
        rows: Batch = {"input_ids": [], "held_out": []}
        for text, encoded in zip(
            texts, _load(self.tokenizer).encode_batch_fast(texts, add_special_tokens=False), strict=True
        ):
            ids = [*encoded.ids, self.end]
            pieces = [ids[first : first + self.max_length] for first in range(0, len(ids), self.max_length)]
            pieces = [piece for piece in pieces if len(piece) > 1]
            rows["input_ids"] += pieces
            rows["held_out"] += [is_held_out(text, self.held_out)] * len(pieces)
        return rows


@dataclasses.dataclass(frozen=True)
class Labelled:
    """The first tokens of each text, with the tokenizer's special ones, and its label's number.

    Attributes:
        tokenizer: its folder.
        column: the texts'.
        label: the labels' column.
        labels: their names, in the order of their numbers.
        max_length: tokens at most, special ones included.
        held_out: share of the texts that is marked as held out.
    """

    tokenizer: str
    column: str
    label: str
    labels: tuple[str, ...]
    max_length: int
    held_out: float

    def __call__(self, batch: Batch) -> Batch:
        """A row for each text."""
        texts, numbers = _texts(batch, self.column), {name: number for number, name in enumerate(self.labels)}
        coded = _load(self.tokenizer, self.max_length).encode_batch_fast(texts)
        return {
            "input_ids": [encoded.ids for encoded in coded],
            "label": [numbers[str(label)] for label in batch[self.label]],
            "held_out": [is_held_out(text, self.held_out) for text in texts],
        }


def strings(rows: datasets.Dataset, column: str, count: int) -> list[str]:
    """The first so many texts of a column.

    Raises:
        InputError: the column does not hold texts.
    """
    kind = getattr(rows.features[column], "dtype", "")
    if kind not in ("string", "large_string"):
        raise errors.InputError(f"the column {column} holds {kind or rows.features[column]}; params.text names one of texts")
    return [text or "" for text in rows[column][:count]]


def names(labels: Sequence[Any], column: str) -> tuple[str, ...]:
    """The names of classes among a column's distinct values, in a fixed order: that of numbers, or of the alphabet.

    Raises:
        InputError: there are fewer than two, or one is missing or a fraction.
    """
    wrong = [label for label in labels if not isinstance(label, (int, str))]
    if wrong:
        raise errors.InputError(f"the column {column} holds {wrong[0]!r}; a label is a whole number or a text, in every row")
    if len(labels) < 2:
        raise errors.InputError(f"the column {column} holds one label only, {labels[0]!r}; a classifier needs two or more")
    numbers = all(isinstance(label, int) for label in labels)
    return tuple(str(label) for label in sorted(labels, key=None if numbers else str))


def _texts(batch: Batch, column: str) -> list[str]:
    texts = batch[column]
    wrong = next((text for text in texts if not isinstance(text, str)), "")
    if wrong != "":
        raise errors.InputError(f"the column {column} holds {wrong!r}; it must hold a text in every row")
    return texts


@functools.lru_cache(maxsize=2)
def _load(folder: str, max_length: int | None = None) -> Tokenizer:
    """The tokenizer of a folder in the cache, once per process.

    Without transformers, which would import torch: that cache holds what transformers wrote when it had read all settings.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    settings = json.loads((Path(folder) / "tokenizer_config.json").read_text())
    tokenizer.no_padding()
    if max_length is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(max_length, direction=settings.get("truncation_side", "right"))
    return tokenizer
