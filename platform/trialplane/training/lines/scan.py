"""Count of the lines of a text file, with numpy on all cores. Files that are not plain text are an error.

Only `index.py` uses this, once per file. Threads suffice, because numpy releases the interpreter's lock. They end before
this returns, because a fork beside threads is unsafe. Each thread reads its span block by block, so that the second pass
over a block (NUL bytes, then newlines) finds it in the processor's cache.
"""

from __future__ import annotations

import collections
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
from numpy import typing as npt

from trialplane import errors
from trialplane.training import process
from trialplane.training.lines import header as headers
from trialplane.training.lines.header import HEADER_SIZE, VERSION, Header, Text

T = TypeVar("T")

SPAN = 16 << 20  # bytes of a thread's task; a change would change all digests
BLOCK = 256 << 10  # bytes of one read
LF, CR = 10, 13
BOM = b"\xef\xbb\xbf"


class _Span(NamedTuple):
    """Counts of one span.

    Attributes:
        starts: For each indexed line that ends in the span, the offset of the next line.
        empty: Number of empty lines that end in the span, indexed or not.
        end_of_last: Offset after the last newline; -1 without a newline.
        nul: Offset of a NUL byte; -1 without one.
    """

    starts: npt.NDArray[np.int64]
    empty: int
    end_of_last: int
    nul: int


def write(file: BinaryIO, text: Text, *, skip: bool) -> Header:
    """Count the lines of `text` and write the index to `file`.

    Raises:
        DataError: The text is compressed, a table or UTF-16, has a NUL byte, or is cut during the count.
        OSError: `file` cannot be written.
    """
    with open(text.path, "rb", buffering=0) as source:  # noqa: PTH123 (as in index.py)
        descriptor = source.fileno()
        begin = len(BOM) if os.pread(descriptor, len(BOM), 0) == BOM else 0
        offset_type = np.dtype("<u4" if text.size + 1 < 1 << 32 else "<u8")
        file.seek(HEADER_SIZE)
        file.write(np.array([begin], offset_type).tobytes())
        indexed = empty = 0
        end_of_last = begin  # offset after the last newline
        span_starts = range(begin, text.size, SPAN)
        for span in _map_in_threads(lambda start: _scan_span(descriptor, text, begin, start, skip=skip), span_starts):
            if span.nul >= 0:
                raise _nul_error(text, span.nul)
            indexed += len(span.starts)
            empty += span.empty
            end_of_last = max(end_of_last, span.end_of_last)
            file.write(span.starts.astype(offset_type).tobytes())
        if end_of_last < text.size:  # the last line has no newline
            is_empty = os.pread(descriptor, 2, end_of_last) == b"\r"  # a carriage return alone
            empty += is_empty
            if not (is_empty and skip):
                indexed += 1
                file.write(np.array([text.size + 1], offset_type).tobytes())  # as if a newline followed
    header = Header(
        version=VERSION,
        size=text.size,
        mtime_ns=text.mtime_ns,
        samples=headers.samples_digest(text.path, text.size),
        lines=indexed,
        width=offset_type.itemsize,
        skipped=skip,
        empty=empty,
    )
    headers.write_header(file, header)
    return header


def digest(text: Text) -> str:
    """Return a digest of all bytes of a file: BLAKE2b of the BLAKE2b of each span, computed on all cores."""
    whole = hashlib.blake2b(digest_size=32)
    with open(text.path, "rb", buffering=0) as source:  # noqa: PTH123

        def digest_of_span(start: int) -> bytes:
            return hashlib.blake2b(os.pread(source.fileno(), SPAN, start)).digest()

        for span_digest in _map_in_threads(digest_of_span, range(0, text.size, SPAN)):
            whole.update(span_digest)
    return whole.hexdigest()


def newlines(path: str, end: int) -> int:
    """Return the number of newlines before `end`."""
    with open(path, "rb", buffering=0) as source:  # noqa: PTH123
        return sum(os.pread(source.fileno(), min(SPAN, end - start), start).count(b"\n") for start in range(0, end, SPAN))


def _scan_span(descriptor: int, text: Text, begin: int, start: int, *, skip: bool) -> _Span:
    """Count the lines of one span.

    A line is empty if the byte before its newline is a newline, or a carriage return after a newline. So each block is read
    together with the two bytes before it.

    Args:
        descriptor: Descriptor of the open file.
        text: Text, for its size, and for errors.
        begin: Offset of the first line of the text.
        start: Offset of the span.
        skip: Leave out empty lines of the index.

    Raises:
        DataError: The file became shorter.
    """
    view = memoryview(bytearray(BLOCK + 2))
    buffer = np.frombuffer(view, np.uint8)
    mask = np.empty(BLOCK, np.bool_)  # reused for all blocks: new memory costs a page fault per 4 KiB
    end = min(start + SPAN, text.size)
    starts: list[npt.NDArray[np.int64]] = []
    empty, end_of_last = 0, -1
    for offset in range(start, end, BLOCK):
        count = min(BLOCK, end - offset)
        if offset == begin:
            buffer[:2] = LF  # as if a newline preceded the first line
            bytes_read = 2 + os.preadv(descriptor, [view[2 : 2 + count]], offset)
        else:
            bytes_read = os.preadv(descriptor, [view[: 2 + count]], offset - 2)
        if bytes_read != 2 + count:
            raise errors.DataError(f"text file {text.path} was cut while its lines were counted; is it being written?")
        block = buffer[2 : 2 + count]
        if block.min() == 0:
            nul = offset + int(np.flatnonzero(block == 0)[0])
            return _Span(starts=np.empty(0, np.int64), empty=empty, end_of_last=end_of_last, nul=nul)
        newline_positions = np.flatnonzero(np.equal(block, LF, out=mask[:count]))  # in the block
        if not len(newline_positions):
            continue
        next_starts = newline_positions + (offset + 1)
        # The bytes before each newline. `block` begins at byte 2 of `buffer`, so its byte i is byte i + 2 there.
        before = buffer[newline_positions + 1]
        if before.min() <= CR:  # otherwise no line is empty or ends with a carriage return
            two_before = buffer[newline_positions]
            is_empty = (before == LF) | ((before == CR) & (two_before == LF))
            empty += int(np.count_nonzero(is_empty))
            starts.append(next_starts[~is_empty] if skip else next_starts)
        else:
            starts.append(next_starts)
        end_of_last = int(next_starts[-1])
    all_starts = np.concatenate(starts) if starts else np.empty(0, np.int64)
    return _Span(starts=all_starts, empty=empty, end_of_last=end_of_last, nul=-1)


def _map_in_threads(work: Callable[[int], T], items: Sequence[int]) -> Iterator[T]:
    """Yield the results of `work` for all items, in order. The number of pending calls is bounded, to bound memory."""
    count = min(process.cores(), len(items))
    if count <= 1:
        yield from map(work, items)
        return
    with futures.ThreadPoolExecutor(count, "lines") as pool:
        pending: collections.deque[futures.Future[T]] = collections.deque()
        for item in items:
            if len(pending) == 3 * count:
                yield pending.popleft().result()
            pending.append(pool.submit(work, item))
        while pending:
            yield pending.popleft().result()


def _nul_error(text: Text, offset: int) -> errors.DataError:
    """Return the error for a text with a NUL byte at an offset."""
    line = newlines(text.path, offset) + 1
    return errors.DataError(
        f"text file {text.path}, line {line:,}: a NUL byte at offset {offset:,}, so this is a compressed or binary file, "
        f"UTF-16, or text whose writing was interrupted; `tail -c +{offset + 1} {text.path} | head -c 64 | od -c` shows it"
    )
