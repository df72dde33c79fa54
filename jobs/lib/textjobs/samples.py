"""Rows of text as samples of tokens, for `datasets.map`: pieces for a language model, labelled texts for a classifier.

The callables have the tokenizer's folder instead of the tokenizer, and load it where they are called. So they are small to
send to other processes. This module imports nothing heavy: the processes that map have no torch.
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
    """Return whether a text is held out. It depends on a hash, so that equal texts are always on the same side."""
    return zlib.crc32(text.encode()) < share * 2**32


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A callable that cuts the tokens of each text, and the token that ends it, into pieces of one text.

    Attributes:
        tokenizer: Folder of the tokenizer.
        column: Column of the texts.
        max_length: Maximum number of tokens of a piece.
        end: Id of the token that ends a text.
        held_out: Share of the texts that are marked as held out.
    """

    tokenizer: str
    column: str
    max_length: int
    end: int
    held_out: float

    def __call__(self, batch: Batch) -> Batch:
        """Return a row for each piece of at least two tokens, as one token alone has nothing to predict."""
        texts = _checked_texts(batch, self.column)
        encodings = _load_tokenizer(self.tokenizer).encode_batch_fast(texts, add_special_tokens=False)
        rows: Batch = {"input_ids": [], "held_out": []}
        for text, encoded in zip(texts, encodings, strict=True):
            ids = [*encoded.ids, self.end]
            pieces = [ids[first : first + self.max_length] for first in range(0, len(ids), self.max_length)]
            pieces = [piece for piece in pieces if len(piece) > 1]
            rows["input_ids"] += pieces
            rows["held_out"] += [is_held_out(text, self.held_out)] * len(pieces)
        return rows


@dataclasses.dataclass(frozen=True)
class LabeledTexts:
    """A callable that returns the first tokens of each text, with special tokens, and the number of its label.

    Attributes:
        tokenizer: Folder of the tokenizer.
        column: Column of the texts.
        label: Column of the labels.
        labels: Names of the labels, in the order of their numbers.
        max_length: Maximum number of tokens, with special ones.
        held_out: Share of the texts that are marked as held out.
    """

    tokenizer: str
    column: str
    label: str
    labels: tuple[str, ...]
    max_length: int
    held_out: float

    def __call__(self, batch: Batch) -> Batch:
        """Return a row for each text."""
        texts, numbers = _checked_texts(batch, self.column), {name: number for number, name in enumerate(self.labels)}
        encodings = _load_tokenizer(self.tokenizer, self.max_length).encode_batch_fast(texts)
        return {
            "input_ids": [encoded.ids for encoded in encodings],
            "label": [numbers[str(label)] for label in batch[self.label]],
            "held_out": [is_held_out(text, self.held_out) for text in texts],
        }


def first_texts(rows: datasets.Dataset, column: str, count: int) -> list[str]:
    """Return the first `count` texts of a column.

    Raises:
        InputError: The column does not have texts.
    """
    kind = getattr(rows.features[column], "dtype", "")
    if kind not in ("string", "large_string"):
        raise errors.InputError(f"the column {column} holds {kind or rows.features[column]}; params.text names one of texts")
    return [text or "" for text in rows[column][:count]]


def class_names(labels: Sequence[Any], column: str) -> tuple[str, ...]:
    """Return the names of the classes of a classifier, in the order of the numbers, or else of the alphabet.

    Args:
        labels: Distinct values of the column.
        column: Name of the column.

    Raises:
        InputError: There are fewer than two labels, or one is not a whole number or a text.
    """
    invalid = [label for label in labels if not isinstance(label, (int, str))]
    if invalid:
        raise errors.InputError(
            f"the column {column} holds {invalid[0]!r}; a label is a whole number or a text, in every row"
        )
    if len(labels) < 2:
        raise errors.InputError(f"the column {column} holds one label only, {labels[0]!r}; a classifier needs two or more")
    are_numbers = all(isinstance(label, int) for label in labels)
    return tuple(str(label) for label in sorted(labels, key=None if are_numbers else str))


def _checked_texts(batch: Batch, column: str) -> list[str]:
    """Return the texts of a column.

    Raises:
        InputError: A value is not a text.
    """
    texts = batch[column]
    invalid = [text for text in texts if not isinstance(text, str)]
    if invalid:
        raise errors.InputError(f"the column {column} holds {invalid[0]!r}; it must hold a text in every row")
    return texts


@functools.lru_cache(maxsize=2)
def _load_tokenizer(folder: str, max_length: int | None = None) -> Tokenizer:
    """Return the tokenizer of a folder in the cache. It is loaded once per process.

    It is loaded without transformers, which would import torch. The files in the cache were written by transformers.
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
