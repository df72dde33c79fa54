"""The tokenizing of shards in a clean process (`training/clean.py`), which forks a process for each core.

Processes, because the Rust library's threads share one Python interpreter that must unpack all of their results.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.training import clean
from trialplane.training.tokens import shards

if TYPE_CHECKING:
    from trialplane.training.lines import LineDataset

BATCH = 1024  # lines that the tokenizer gets in one call


@dataclasses.dataclass(frozen=True)
class Work:
    """The missing shards of one cache.

    Attributes:
        lines: the text; arrives as a recipe.
        tokenizer: the fast tokenizer, serialized.
        max_length: tokens of a line at most, special ones included.
        truncation_side: side at which a longer line is truncated, "right" or "left".
        add_special_tokens: whether a line gets the tokenizer's special tokens.
        folder: for shards.
        dtype: of the tokens.
        missing: numbers of the shards.
        processes: at most.
    """

    lines: LineDataset
    tokenizer: str
    max_length: int
    truncation_side: str
    add_special_tokens: bool
    folder: str
    dtype: str
    missing: Sequence[int] = ()
    processes: int = 1


class Encoder:
    """The tokenizer of some work."""

    def __init__(self, work: Work) -> None:
        import numpy as np
        from tokenizers import Tokenizer

        self._work = work
        self._dtype = np.dtype(work.dtype)
        self._tokenizer = Tokenizer.from_str(work.tokenizer)
        self._tokenizer.enable_truncation(work.max_length, direction=work.truncation_side)

    def shard(self, number: int) -> None:
        """Tokenize and write one shard."""
        work = self._work
        first = number * shards.LINES
        last = min(first + shards.LINES, len(work.lines))
        rows: list[list[int]] = []
        for start in range(first, last, BATCH):
            texts = [work.lines[index]["text"] for index in range(start, min(start + BATCH, last))]
            encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=work.add_special_tokens)
            rows += [each.ids for each in encoded]
        shards.write(shards.path(Path(work.folder), number), rows, self._dtype)


_encoder: Encoder  # inherited by the forks


def _shard(number: int) -> None:
    _encoder.shard(number)


def work(work: Work, send: Callable[[dict[str, Any]], None]) -> None:
    """Create the missing shards, and tell of each. Complete ones stay, even if others fail.

    Raises:
        DataError: a line cannot be read.
        CacheError: the disk is full, or a process was killed.
    """
    global _encoder
    _encoder = Encoder(work)
    pool = futures.ProcessPoolExecutor(work.processes, multiprocessing.get_context("fork"))
    try:
        for shard in futures.as_completed([pool.submit(_shard, number) for number in work.missing]):
            shard.result()
            send({})
    except futures.BrokenExecutor as error:
        raise errors.CacheError(f"a tokenizing process was killed; {clean.MEMORY_HINT}") from error
    except OSError as error:
        raise errors.CacheError(
            f"token files cannot be written to {work.folder}: {error.strerror or error}; complete shards are kept. "
            "Make room and run it again, or name another cache folder"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
