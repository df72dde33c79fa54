"""A made-up corpus and a tokenizer for it, written where a benchmark works; the same bytes on every machine.

Lines of Chinese characters, whose frequencies fall as those of words do, 8 to 54 characters long: 93 bytes on average, as in
the corpora that language models are trained on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

FIRST, COUNT = 0x4E00, 20_902  # of the characters
_CHUNK = 200_000  # lines made at once


def write(file: Path, lines: int) -> None:
    """Writes a corpus of so many lines."""
    generator = np.random.default_rng(5)
    weights = np.cumsum(1 / np.arange(1, COUNT + 1))
    # The inverse of the distribution, in steps: one look-up per character instead of a search.
    table = FIRST + np.searchsorted(weights / weights[-1], (np.arange(1 << 16) + 0.5) / (1 << 16)).astype(np.uint32)
    with file.open("wb") as out:
        for start in range(0, lines, _CHUNK):
            lengths = generator.integers(8, 55, min(_CHUNK, lines - start))
            codes = table[generator.integers(0, len(table), int(lengths.sum()), np.uint16, endpoint=False)]
            out.write(_utf8(codes, lengths))


def write_tokenizer(folder: Path) -> None:
    """Saves a WordPiece tokenizer that knows every character: the shape of bert-base-chinese."""
    from transformers import BertTokenizer

    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(FIRST + number) for number in range(COUNT))]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)


def _utf8(codes: np.ndarray[tuple[int], np.dtype[np.uint32]], lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bytes:
    """The characters as UTF-8, three bytes each, with a newline after each line's."""
    data = np.empty(3 * len(codes) + len(lengths), np.uint8)
    is_newline = np.zeros(len(data), bool)
    is_newline[np.cumsum(3 * lengths + 1) - 1] = True
    data[is_newline] = 10
    data[~is_newline] = np.stack([0xE0 | codes >> 12, 0x80 | codes >> 6 & 0x3F, 0x80 | codes & 0x3F], axis=1).ravel()
    return data.tobytes()
