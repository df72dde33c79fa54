"""Bodies of requests to MLflow and of its responses, which pass through in pieces, each request's of bounded size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from starlette.responses import Response
from starlette.types import Message

Headers = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Reply:
    """A response whose body passes through; a length of None is one that is not known."""

    code: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes]
    length: int | None

    @classmethod
    def of(cls, response: Response) -> Reply:
        """A response that is complete already."""
        data = bytes(response.body)
        return cls(response.status_code, {"Content-Type": response.headers["Content-Type"]}, iter([data]), len(data))


class BadBody(Exception):
    """A request's body that is too large or too slow, with the status that says so."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class Body:
    """The body of a request, read piece by piece.

    Args:
        headers: of the request.
        receive: the next message of ASGI; raises TimeoutError.

    Attributes:
        length: bytes; None when only its end will tell.
    """

    def __init__(self, headers: Headers, receive: Callable[[], Message]) -> None:
        is_chunked = headers.get("Transfer-Encoding") is not None
        self.length = None if is_chunked else int(headers.get("Content-Length") or 0)
        self._receive = receive

    def check(self, most: int) -> None:
        """Refuses a body that says that it is too large, before any of it is read.

        Raises:
            BadBody: it is.
        """
        if self.length is not None and self.length > most:
            raise BadBody(413, f"the body has {self.length:,} bytes, and {most:,} is the most that may be sent here")

    def whole(self, most: int) -> bytes:
        """All of it; see `pieces`."""
        return b"".join(self.pieces(most))

    def pieces(self, most: int) -> Iterator[bytes]:
        """All of it, in the pieces that arrive.

        Raises:
            BadBody: it is larger than `most`, or does not come in time.
            ConnectionAbortedError: it ends early.
        """
        self.check(most)
        more = self.length != 0
        while more:
            try:
                message = self._receive()
            except TimeoutError as error:
                raise BadBody(408, "the body of the request did not arrive in time") from error
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            piece, more = message.get("body", b""), message.get("more_body", False)
            most -= len(piece)
            if most < 0:
                raise BadBody(413, "the body has more bytes than may be sent here")
            yield piece
