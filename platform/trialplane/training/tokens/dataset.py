"""Token caches: a text tokenized once, on all cores, and then memory-mapped by every rank of every run.

`tokenized(lines, tokenizer, max_length=…, cache=…)` returns a `TokenDataset`, whose item i has the tokens of line i. A
cache is a folder named after its content: digests of the text, the tokenizer and the arguments. It holds shards of a fixed
number of lines (`shards.py`), whose bytes do not depend on the number of processes, and `complete.json`, which is written
after all shards. So a killed run continues where it stopped, and an incomplete cache is never used.

Call it before the process group is created: all ranks of a run may call it at once, one of them creates the cache and the
others wait for it without a collective's time limit. It starts a fresh interpreter (`training/clean.py`), never a
fork, so CUDA may be initialized already.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import typing as npt

from trialplane import errors
from trialplane.training import building, clean, process
from trialplane.training.lines import LineDataset
from trialplane.training.tokens import loading, shards
from trialplane.training.tokens.worker import Work

VERSION = 1
_COMPLETE = "complete.json"
SAY_EVERY = 10.0  # seconds between messages about the progress


class TokenDataset:
    """Tokens of each line, read-only, from memory-mapped files: item i is an array. Created by `tokenized`.

    The dataset pickles to a few hundred bytes.

    Attributes:
        folder: Folder of the cache.
        tokens: Total number of tokens.
        dtype: uint16 for a vocabulary of at most 65,536 tokens, else int32.
    """

    def __init__(self, folder: Path, lines: int, tokens: int, dtype: str) -> None:
        self.folder = folder
        self.tokens = tokens
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._lines = lines
        self._shards: dict[int, shards.Shard] = {}

    def __len__(self) -> int:
        return self._lines

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """Return the tokens of a line, by its index from 0, or from the end if negative.

        Returns:
            A read-only view of the file, shape (tokens of the line,).

        Raises:
            IndexError: The index is out of range.
            CacheError: The cache is missing or damaged.
        """
        row = operator.index(index)
        if row < 0:
            row += self._lines
        if not 0 <= row < self._lines:
            raise IndexError(f"line {index} of {self._lines:,}")
        number, row_in_shard = divmod(row, shards.LINES)
        return self._shard(number).row(row_in_shard)

    def __repr__(self) -> str:
        return f"TokenDataset({self._lines:,} lines, {self.tokens:,} tokens, in {self.folder})"

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "lines": self._lines, "tokens": self.tokens, "dtype": self.dtype.str}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Path(state["folder"]), lines=state["lines"], tokens=state["tokens"], dtype=state["dtype"])  # type: ignore[misc]

    def _shard(self, number: int) -> shards.Shard:
        """Return a shard, which is opened at the first use."""
        shard = self._shards.get(number)
        if shard is None:
            file = shards.path(self.folder, number)
            shard = self._shards[number] = shards.Shard(file, _lines_of(number, self._lines), self.dtype)
        return shard


def tokenized(
    lines: LineDataset,
    tokenizer: str | Path,
    *,
    max_length: int,
    cache: str | Path,
    processes: int | None = None,
    add_special_tokens: bool = True,
    say: Callable[[str], object] | None = print,
) -> TokenDataset:
    """Return the tokens of each line, from a cache that is created if needed.

    Call it before `init_process_group()` or `Accelerator()`. All ranks can call it at once: one creates the cache, and the
    others wait for it. A killed run continues where it stopped.

    Args:
        lines: Lines to tokenize.
        tokenizer: Folder of a fast tokenizer, for example from `save_pretrained`.
        max_length: Maximum number of tokens per line, including special tokens. Longer lines are truncated.
        cache: Folder for caches. Each text, tokenizer and set of arguments gets a folder in it.
        processes: Number of processes. Default: one per usable core.
        add_special_tokens: Add the special tokens of the tokenizer.
        say: Function to call with messages about the progress. None: no messages.

    Raises:
        DataError: A line is not UTF-8, or the text has changed.
        InputError: The tokenizer cannot be loaded or is not fast, or `max_length` is less than 1.
        CacheError: The cache cannot be written, or a process was killed.
        PolicyError: The cache does not exist, and other ranks would wait for it in a process group.
    """
    if max_length < 1:
        raise errors.InputError(f"max_length is {max_length}; it must be at least 1")
    say = say or (lambda text: None)
    serialized = _serialize_tokenizer(tokenizer)
    dtype = serialized.dtype
    facts = {  # what the tokens depend on; its digest is in the name of the cache
        "version": VERSION,
        "text": lines.content,
        "lines": len(lines),
        "tokenizer": hashlib.blake2b(serialized.text.encode(), digest_size=32).hexdigest(),
        "tokenizers": metadata.version("tokenizers"),
        "max_length": max_length,
        "truncation_side": serialized.truncation_side,
        "add_special_tokens": add_special_tokens,
        "dtype": dtype.str,
        "shard": shards.LINES,
    }
    key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
    folder = Path(cache).expanduser().absolute() / f"tokens-{key}"
    existing = _open_complete(folder, len(lines), dtype)
    if existing is not None:
        return existing
    _check_no_ranks(folder)
    work = Work(
        lines=lines,
        tokenizer=serialized.text,
        max_length=max_length,
        truncation_side=serialized.truncation_side,
        add_special_tokens=add_special_tokens,
        folder=str(folder),
        dtype=dtype.str,
    )
    try:
        with building.lock(folder):
            # Another process may have created it while this one waited.
            if _open_complete(folder, len(lines), dtype) is None:
                _create_cache(work, facts, processes or process.cores(), say)
    except OSError as error:
        raise errors.CacheError(
            f"the token cache {folder} cannot be written ({error.strerror}); make room, or name another cache folder"
        ) from error
    created = _open_complete(folder, len(lines), dtype)
    assert created is not None  # `_create_cache` raises an error otherwise
    return created


def _create_cache(work: Work, facts: dict[str, Any], processes: int, say: Callable[[str], object]) -> None:
    """Create the missing shards, then the file that marks the cache as complete."""
    folder, dtype, count = Path(work.folder), np.dtype(work.dtype), len(work.lines)
    folder.mkdir(exist_ok=True)
    (folder / _COMPLETE).unlink(missing_ok=True)  # it exists if somebody deleted a shard of a complete cache
    building.sweep(folder)
    missing = [number for number, tokens in enumerate(_token_counts(folder, count, dtype)) if tokens is None]
    done_before = 1 - len(missing) / _shard_count(count)
    processes = min(processes, len(missing))
    say(
        f"tokenizing {count:,} lines on {errors.counted(processes, 'core')} into {folder}"
        + (f"; {done_before:.0%} was done before" if done_before else "")
    )
    if missing:
        progress = _Progress(len(missing), say)
        work = dataclasses.replace(work, missing=missing, processes=processes)
        clean.run(
            "trialplane.training.tokens.worker",
            message=work,
            name="the tokenizing process",
            on_answer=lambda _: progress.add_shard(),
        )
    if work.lines.content != facts["text"]:
        raise errors.DataError(f"the text changed while it was tokenized into {folder}; run it again")
    tokens = sum(tokens_of_shard for tokens_of_shard in _token_counts(folder, count, dtype) if tokens_of_shard is not None)
    with building.open_new(folder / _COMPLETE) as file:
        file.write(json.dumps({**facts, "tokens": tokens}, indent=2, sort_keys=True).encode())
    say(f"tokenized {count:,} lines: {tokens:,} tokens, {tokens * dtype.itemsize / 2**20:,.0f} MiB")


def _open_complete(folder: Path, lines: int, dtype: np.dtype[Any]) -> TokenDataset | None:
    """Return the cache if its last file and all shards exist, else None."""
    try:
        fields = json.loads((folder / _COMPLETE).read_bytes())
    except (OSError, ValueError):
        return None
    if None in _token_counts(folder, lines, dtype):
        return None
    return TokenDataset(folder=folder, lines=lines, tokens=fields["tokens"], dtype=dtype.str)


def _token_counts(folder: Path, lines: int, dtype: np.dtype[Any]) -> Iterator[int | None]:
    """Yield the number of tokens in each shard; None for a missing one."""
    for number in range(_shard_count(lines)):
        yield shards.token_count(shards.path(folder, number), _lines_of(number, lines), dtype)


class _SerializedTokenizer(NamedTuple):
    """Fast tokenizer as text, its truncation side ("right" or "left"), and the type for its tokens."""

    text: str
    truncation_side: str
    dtype: np.dtype[Any]


def _serialize_tokenizer(tokenizer: str | Path) -> _SerializedTokenizer:
    """Return the fast tokenizer that `transformers` would use.

    Not the file `tokenizer.json` itself: settings beside it change the tokenizer that `transformers` loads.
    """
    loading.quiet()
    loaded = loading.load(tokenizer)
    if not loaded.is_fast:
        raise errors.InputError(f"the tokenizer {str(tokenizer)!r} has no fast version, which a token cache needs")
    backend = type(loaded.backend_tokenizer).from_str(loaded.backend_tokenizer.to_str())
    backend.no_truncation()  # the worker truncates to `max_length`
    backend.no_padding()
    largest_token = max(backend.get_vocab(with_added_tokens=True).values())
    dtype = np.dtype("<u2" if largest_token < 1 << 16 else "<i4")
    return _SerializedTokenizer(backend.to_str(), loaded.truncation_side, dtype)


def _check_no_ranks(folder: Path) -> None:
    """Raise PolicyError if this is one of several ranks with an initialized process group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_world_size() > 1:
        raise errors.PolicyError(
            f"the token cache {folder} does not exist yet, and this is rank {distributed.get_rank()} of "
            f"{distributed.get_world_size()}: the others would wait in a collective until its time limit ends them. Call "
            "tokenized() before init_process_group() or Accelerator(); the ranks then wait for the one that creates it"
        )


def _shard_count(lines: int) -> int:
    """Return the number of shards for a number of lines, rounded up."""
    return -(-lines // shards.LINES)


def _lines_of(shard: int, lines: int) -> int:
    """Return the number of lines in a shard. The last one may have fewer than the others."""
    return min(shards.LINES, lines - shard * shards.LINES)


class _Progress:
    """Progress of creating shards, printed from time to time."""

    def __init__(self, count: int, say: Callable[[str], object]) -> None:
        self._shards, self._say = count, say
        self._completed = 0
        self._start_time = self._message_time = time.monotonic()

    def add_shard(self) -> None:
        """Count a complete shard, and say how much is left if `SAY_EVERY` seconds have passed since the last message."""
        self._completed += 1
        now = time.monotonic()
        is_last = self._completed == self._shards  # the caller says that the cache is complete
        if is_last or now - self._message_time < SAY_EVERY:
            return
        self._message_time = now
        rate = self._completed / (now - self._start_time)  # shards per second
        seconds_left = (self._shards - self._completed) / rate
        self._say(
            f"tokenizing: {self._completed / self._shards:.0%}, {rate * shards.LINES:,.0f} lines/s, "
            f"{seconds_left:,.0f} s left"
        )
