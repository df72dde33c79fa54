"""A process that tokenizes shards: `python -m trialplane.training.tokens.worker`, started by `pool.py`.

Reads its work (pickled) and then shard numbers, one per line, from standard input; answers each with one line of JSON on
standard output; ends when its input ends, also when its parent was killed. It is a fresh interpreter
without torch and the job, so it starts in a fifth of a second and has no CUDA and no threads.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trialplane import errors
from trialplane.training.tokens import shards

if TYPE_CHECKING:
    from trialplane.training.lines import LineDataset

BATCH = 1024  # lines that the tokenizer gets in one call


@dataclasses.dataclass(frozen=True)
class Work:
    """The common work of all workers of one cache.

    Attributes:
        lines: the text; arrives as a recipe.
        tokenizer: the fast tokenizer, serialized.
        max_length: tokens of a line at most, special ones included.
        truncation_side: side at which a longer line is truncated, "right" or "left".
        add_special_tokens: whether a line gets the tokenizer's special tokens.
        folder: for shards.
        dtype: of the tokens.
    """

    lines: LineDataset
    tokenizer: str
    max_length: int
    truncation_side: str
    add_special_tokens: bool
    folder: str
    dtype: str


class Encoder:
    """The tokenizer of some work."""

    def __init__(self, work: Work) -> None:
        import numpy as np
        from tokenizers import Tokenizer

        self._work = work
        self._dtype = np.dtype(work.dtype)
        self._tokenizer = Tokenizer.from_str(work.tokenizer)
        self._tokenizer.enable_truncation(work.max_length, direction=work.truncation_side)

    def shard(self, number: int) -> int:
        """Tokenize and write one shard; return the number of its tokens."""
        work = self._work
        first = number * shards.LINES
        last = min(first + shards.LINES, len(work.lines))
        rows: list[list[int]] = []
        for start in range(first, last, BATCH):
            texts = [work.lines[index]["text"] for index in range(start, min(start + BATCH, last))]
            encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=work.add_special_tokens)
            rows += [each.ids for each in encoded]
        return shards.write(shards.path(Path(work.folder), number), rows, self._dtype)


def main() -> int:
    """Work until the input ends; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers itself
    # The output of a library must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        encoder = Encoder(pickle.load(sys.stdin.buffer))
        for line in sys.stdin.buffer:
            number = int(line)
            if not _answer(answers, _result(encoder, number)):
                return 1
    except BrokenPipeError:  # the parent is gone
        return 1
    return 0


def _result(encoder: Encoder, number: int) -> dict[str, Any]:
    try:
        return {"shard": number, "tokens": encoder.shard(number)}
    except errors.DataError as error:
        return {"failed": "data", "message": str(error)}
    except OSError as error:
        return {"failed": "disk", "message": error.strerror or str(error)}


def _answer(answers: TextIO, message: dict[str, Any]) -> bool:
    """Write an answer; return whether the work goes on."""
    answers.write(json.dumps(message) + "\n")
    answers.flush()
    return "failed" not in message


if __name__ == "__main__":
    sys.exit(main())
