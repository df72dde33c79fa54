"""Creation of shards in a fresh interpreter (`training/clean.py`), which forks a process for each core.

It uses processes because all threads of the Rust library share one Python interpreter, which must unpack their results.
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
        lines: Text, which is sent as a recipe.
        tokenizer: Serialized fast tokenizer.
        max_length: Maximum number of tokens of a line, including special tokens.
        truncation_side: Side at which longer lines are truncated, "right" or "left".
        add_special_tokens: Whether to add the tokenizer's special tokens to each line.
        folder: Folder of the shards.
        dtype: Type of the tokens.
        missing: Numbers of the shards to create.
        processes: Maximum number of processes.
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
    """Tokenizer that creates the shards of a `Work`."""

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
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=work.add_special_tokens)
            rows += [encoding.ids for encoding in encodings]
        shards.write(shards.path(Path(work.folder), number), rows, self._dtype)


_encoder: Encoder  # global, so that forked processes inherit it


def _create_shard(number: int) -> None:  # a function of the module, because that is what a process pool can call
    _encoder.shard(number)


def work(message: Work, send: Callable[[dict[str, Any]], None]) -> None:
    """Create the missing shards, and send an empty message after each. Complete ones stay, even if others fail.

    Raises:
        DataError: A line cannot be read.
        CacheError: The disk is full, or a process was killed.
    """
    global _encoder
    _encoder = Encoder(message)
    pool = futures.ProcessPoolExecutor(message.processes, multiprocessing.get_context("fork"))
    try:
        for shard in futures.as_completed([pool.submit(_create_shard, number) for number in message.missing]):
            shard.result()  # raises the error of the shard, if any
            send({})
    except futures.BrokenExecutor as error:
        raise errors.CacheError(f"a tokenizing process was killed; {clean.MEMORY_HINT}") from error
    except OSError as error:
        raise errors.CacheError(
            f"token files cannot be written to {message.folder}: {error.strerror or error}; complete shards are kept. "
            "Make room and run it again, or name another cache folder"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an error, do not begin other shards
