"""Bodies of requests and responses, whole or piece by piece, each of bounded size."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import json
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from typing import Any

Headers = Mapping[str, str] | Message  # the latter's names are found in any case
PIECE = 1 << 16  # bytes
_SKIPPED = 1 << 20  # bytes of a refused body that are read before the answer, and the connection goes on


@dataclasses.dataclass(frozen=True)
class Answer:
    """The response to a request."""

    code: int
    body: bytes
    kind: str = "application/json"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Reply:
    """A response whose body passes through; a length of None is one that is not known."""

    code: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes]
    length: int | None

    @classmethod
    def of(cls, answer: Answer) -> Reply:
        """An answer that is there already."""
        headers = {"Content-Type": answer.kind, **answer.headers}
        return cls(answer.code, headers, iter([answer.body]), len(answer.body))


class BadBody(Exception):
    """A request's body that is too large, too slow or no HTTP, with the status that says so."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class Body:
    """The body of a request, read piece by piece.

    Args:
        stream: it comes from here.
        headers: of the request.
        expect: allows the next piece its time.

    Attributes:
        length: bytes; None when only its end will tell.
        is_read: whether all of it was.
    """

    def __init__(self, stream: io.BufferedReader[Any], headers: Headers, expect: Callable[[], None]) -> None:
        self._stream = stream
        self._expect = expect
        text, coding = headers.get("Content-Length"), headers.get("Transfer-Encoding")
        self.length: int | None = 0
        self._wrong = ""
        if coding is not None:
            self.length = None
            if coding.strip().lower() != "chunked" or text is not None:
                self._wrong = "a body has a length or is chunked"
        elif text is not None:
            is_number = text.isascii() and text.isdigit() and len(text) < 16
            self.length = int(text) if is_number else None
            self._wrong = "" if is_number else "the length of the body is no number"
        self.is_read = self.length == 0

    def check(self, most: int) -> None:
        """Refuses a body that says that it is too large, before any of it is read.

        Raises:
            BadBody: it is, or it is no HTTP.
        """
        if self._wrong:
            raise BadBody(400, self._wrong)
        if self.length is not None and self.length > most:
            raise BadBody(413, f"the body has {self.length:,} bytes, and {most:,} is the most that may be sent here")

    def whole(self, most: int) -> bytes:
        """All of it, in the time of one piece; see `pieces`."""
        self._expect()
        self._expect = lambda: None
        return b"".join(self.pieces(most, PIECE))

    def pieces(self, most: int, size: int) -> Iterator[bytes]:
        """All of it, in pieces of `size` bytes at most.

        Raises:
            BadBody: it is larger than `most`, or does not come in time.
            ConnectionAbortedError: it ends early.
        """
        self.check(most)
        try:
            if self.length is not None:
                yield from self._exactly(self.length, size)
            else:
                yield from self._chunks(most, size)
        except TimeoutError as error:
            raise BadBody(408, f"{error}, {size:,} bytes at a time") from error
        self.is_read = True

    def skip(self) -> bool:
        """Reads what is left of a refused body, if that is little; returns whether nothing is left."""
        if not self.is_read and not self._wrong and self.length is not None and self.length <= _SKIPPED:
            with contextlib.suppress(BadBody, ConnectionError, TimeoutError):
                collections.deque(self.pieces(_SKIPPED, PIECE), maxlen=0)
        return self.is_read

    def _exactly(self, count: int, size: int) -> Iterator[bytes]:
        while count:
            self._expect()
            piece = self._stream.read(min(count, size))
            if not piece:
                raise ConnectionAbortedError
            count -= len(piece)
            yield piece

    def _chunks(self, most: int, size: int) -> Iterator[bytes]:
        while count := self._size():
            most -= count
            if most < 0:
                raise BadBody(413, "the body has more bytes than may be sent here")
            yield from self._exactly(count, size)
            if self._stream.read(2) != b"\r\n":
                raise BadBody(400, "a chunk of the body is longer than it says")
        while self._line():  # trailers
            pass

    def _size(self) -> int:
        text = self._line().partition(b";")[0].strip()
        if not text or len(text) > 12 or text.strip(b"0123456789abcdefABCDEF"):
            raise BadBody(400, "a chunk of the body has no length")
        return int(text, 16)

    def _line(self) -> bytes:
        self._expect()
        line = self._stream.readline(1000)
        if not line.endswith(b"\r\n"):
            raise BadBody(400, "a line in the body does not end")
        return line[:-2]


def error(status: int, text: str, code: str = "") -> Answer:
    """The answer to a request that failed; `code` is for programs."""
    return Answer(status, json.dumps({"error": text, **({"code": code} if code else {})}).encode())
