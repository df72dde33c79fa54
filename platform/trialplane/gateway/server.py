"""The HTTP server of the gateway: takes requests from connections, each of bounded size and in bounded time.

A connection is a thread. The body of a controller or a trial may be large, so its token is checked before it is read. What
goes to MLflow passes through in pieces (`bodies`). A connection counts for its peer's address until it has shown a token,
for which there is little time and room, and then for the namespace of that: all laptops come from the API server's address.
When there are as many connections as there may be, one that only waits for its peer makes room: that of whoever has the
most such, so whoever holds many slow ones closes its own.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.client
import http.server
import io
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from trialplane.gateway import ledgers as services
from trialplane.gateway.bodies import PIECE, Answer, Body, Headers, Reply, error
from trialplane.gateway.ledgers import LedgerService
from trialplane.gateway.limits import Admit, Limit, crowded
from trialplane.ledger import locking
from trialplane.wire import cluster, escapes, ledger, mlflow

MAX_BODY = 4096  # bytes of a request's body, of a laptop's
IDLE_SECONDS = 60.0  # after which a quiet connection is closed, unless it is a controller's
MAX_CONNECTIONS = 2048  # a thread for each; a few more while some are being closed
MAX_PER_NAMESPACE = 1024  # and one more makes room for itself
MAX_UNKNOWN = 64  # of one address that have shown no token yet
UNKNOWN_SECONDS = 10.0  # for the first request of a connection to arrive, up to its token
REQUEST_SECONDS = 30.0  # for a request to arrive from its first byte on, and for its answer to be taken; of those to MLflow
# for each piece
LINGER_SECONDS = 5.0  # for a refused body that is too large to be read first, and
_LINGERING = 16 << 20  # bytes of it, that are taken after the answer
_SAID_SECONDS = 60.0  # between two lines in the log about connections that made room

# To a request of a laptop: method, target, headers, and what is told the namespace that it is admitted to.
Respond = Callable[[str, str, Mapping[str, str], Admit], Answer]
# To a request that came to a door of MLflow: which and what is behind it, method, headers, body, and as above.
Forward = Callable[[mlflow.Inside, str, Headers, Body, Admit], contextlib.AbstractContextManager[Reply]]


Waits = contextlib.AbstractContextManager[None]


class _Waiting:
    """Connections that wait for their peers: for bytes from them, or for them to take some. In order of their waits."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._holders: dict[socket.socket, Hashable] = {}
        self._said = -math.inf

    @contextlib.contextmanager
    def of(self, connection: socket.socket, holder: Hashable) -> Iterator[None]:
        """Counts one as such, for whoever it is of, for as long as the context is entered."""
        with self._changing:
            self._holders[connection] = holder
        try:
            yield
        finally:
            with self._changing:
                self._holders.pop(connection, None)

    def make_room(self, of: Hashable = None) -> bool:
        """Ends the one that has waited longest of one holder, or of whoever has the most; returns whether there was one."""
        with self._changing:
            counts = collections.Counter(its for its in self._holders.values() if of in (None, its))
            if not counts:
                return False
            ((holder, number),) = counts.most_common(1)
            chosen = next(one for one, its in self._holders.items() if its == holder)
            del self._holders[chosen]
            with contextlib.suppress(OSError):  # its thread notices, and closes it
                chosen.shutdown(socket.SHUT_RDWR)
            says, now = time.monotonic() - self._said > _SAID_SECONDS, time.monotonic()
            self._said = now if says else self._said
        if says:
            most = MAX_CONNECTIONS if of is None else MAX_PER_NAMESPACE
            text = f"{most} connections are open: of {number} of {holder} that wait the oldest made room"
            sys.stderr.write(f"{text}\n")
        return True


class _Incoming(io.RawIOBase):
    """What comes in on a connection, each request by a deadline: a peer that sends byte by byte does not hold a thread."""

    def __init__(self, connection: socket.socket, waiting: Callable[[], Waits]) -> None:
        self._connection = connection
        self._waiting = waiting
        self._deadline: float | None = None

    def expect(self, seconds: float | None) -> None:
        """Bounds all reading from now on; raises TimeoutError after that."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        if left is None:  # a controller, which holds its run's lock and may be quiet
            return self._connection.recv_into(buffer)
        with self._waiting():
            return self._connection.recv_into(buffer)


class _Outgoing(io.BufferedIOBase):
    """What goes out on a connection: an answer is one packet, which is taken in bounded time or not at all.

    What passes through in pieces is sent in pieces.
    """

    def __init__(self, connection: socket.socket, waiting: Callable[[], Waits]) -> None:
        self._connection = connection
        self._waiting = waiting
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size >= PIECE:
            self.flush()
        return len(data)

    def flush(self) -> None:
        data, self._parts, self._size = b"".join(self._parts), [], 0
        if data:
            self._connection.settimeout(REQUEST_SECONDS)
            with self._waiting():
                self._connection.sendall(data)  # of all calls this one alone bounds the time for all of the data


@dataclasses.dataclass(frozen=True)
class Namespace:
    """Whom a connection counts for whose request has shown a token."""

    name: str

    def __str__(self) -> str:
        return f"namespace {self.name}"


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection, of which there are at most so many: in all, of a namespace, and of an address before."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self.connections = Limit()  # by address, as text, or by namespace
        self.waiting = _Waiting()
        self._holders: dict[socket.socket, str | Namespace] = {}
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more, or one was made; one that is refused is closed."""
        whose = client_address[0]
        if not self.connections.enter(whose, MAX_UNKNOWN):
            return False  # first: one that may not come in ends no other's
        if self.connections.total > MAX_CONNECTIONS and not self.waiting.make_room():
            self.connections.leave(whose)
            return False
        self._holders[request] = whose
        return True

    def holder(self, connection: socket.socket) -> str | Namespace:
        """Whom a connection counts for."""
        return self._holders[connection]

    def admit(self, connection: socket.socket, namespace: str) -> bool:
        """Has a connection count for a namespace from now on; returns False when that has as many as it may."""
        before, now = self._holders[connection], Namespace(namespace)
        if before != now:
            makes_room = not self.connections.enter(now, MAX_PER_NAMESPACE)
            if makes_room and not (self.waiting.make_room(now) and self.connections.enter(now, MAX_CONNECTIONS)):
                return False
            self.connections.leave(before)
            self._holders[connection] = now
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection."""
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no room for another thread
            self.connections.leave(self._holders.pop(request))
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.leave(self._holders.pop(request))


def serve(answer: Respond, ledgers: LedgerService, door: Forward, host: str, port: int) -> Server:
    """The server, bound and not yet serving.

    Args:
        answer: to a request of a laptop: its method, target and headers.
        ledgers: answers controllers.
        door: answers what is for MLflow.
        host: to bind to; "" for all addresses.
        port: 0 for a free one.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        path = ""  # of a request whose first line cannot be read
        disable_nagle_algorithm = True
        server: Server

        def setup(self) -> None:
            super().setup()
            locking.keep_alive(self.connection)
            self.rfile.close()
            self._incoming = _Incoming(self.connection, self._waits)
            self.rfile = self._stream = io.BufferedReader(self._incoming)
            self.wfile = _Outgoing(self.connection, self._waits)
            self._ledger = services.Connection(ledgers)

        def finish(self) -> None:
            self._ledger.close()
            with contextlib.suppress(OSError):  # what was not taken
                super().finish()

        def handle_one_request(self) -> None:
            is_known = isinstance(self._holder, Namespace)
            # A controller holds its run's lock for as long as it is connected.
            self._incoming.expect(None if self._ledger.is_open else IDLE_SECONDS if is_known else UNKNOWN_SECONDS)
            with contextlib.suppress(ConnectionError, TimeoutError):
                if self._stream.peek(1):
                    self._incoming.expect(REQUEST_SECONDS if is_known else UNKNOWN_SECONDS)
                    super().handle_one_request()
                    return
            self.close_connection = True

        @property
        def _holder(self) -> str | Namespace:
            return self.server.holder(self.connection)

        def _waits(self) -> Waits:
            return self.server.waiting.of(self.connection, self._holder)

        def _admit(self, namespace: str) -> bool:
            """Has the connection count for a namespace, whose token the request has shown, and gives it more time."""
            if not self.server.admit(self.connection, namespace):
                return False
            self._incoming.expect(REQUEST_SECONDS)
            return True

        def handle_any(self) -> None:
            if (inside := mlflow.inside(self.path)) is not None:
                self._forward(inside)
                return
            length = self._length(MAX_BODY)
            if length is None:
                self.close_connection = True  # the body stays unread
                self._send(error(413, f"a request's body must state its length, of at most {MAX_BODY} bytes"))
                return
            answered = answer(self.command, self.path, dict(self.headers.items()), self._admit)
            self.rfile.read(length)  # no request needs one
            self._send(answered)

        do_GET = do_PUT = do_DELETE = do_PATCH = handle_any

        def do_POST(self) -> None:
            whose = ledger.address(self.path)
            if whose is None:
                self.handle_any()
                return
            try:
                self._send(Answer(200, self._answer(whose)))
            except services.Failure as failure:
                self._send(error(ledger.STATUSES[failure.code], str(failure), failure.code))

        def _answer(self, whose: ledger.Address) -> bytes:
            """The answer to a controller; its body is read once it is known whose it is."""
            self.close_connection, closes = True, self.close_connection  # unless the body was read
            self._ledger.admit(whose, self.headers.get(cluster.TOKEN_HEADER) or "")
            if not self._admit(whose.namespace):
                raise services.Failure(ledger.BUSY, crowded(whose.namespace))
            length = self._length(ledger.MAX_BYTES)
            if length is None:
                text = f"a request's body must state its length, of at most {ledger.MAX_BYTES} bytes"
                raise services.Failure(ledger.TOO_LARGE, text)
            try:
                body = self.rfile.read(length)
            except TimeoutError as error:
                raise services.Failure(ledger.SLOW, f"{error}: {REQUEST_SECONDS:g} s") from error
            if len(body) < length:
                raise ConnectionAbortedError
            self.close_connection = closes
            return self._ledger.answer(body)

        def _forward(self, inside: mlflow.Inside) -> None:
            """Passes a request on to MLflow, and its response back."""
            self.close_connection, closes = True, self.close_connection  # unless the body was read
            body = Body(self._stream, self.headers, lambda: self._incoming.expect(REQUEST_SECONDS))
            with door(inside, self.command, self.headers, body, self._admit) as reply:
                self.close_connection = closes if body.skip() and isinstance(self._holder, Namespace) else True
                self.connection.settimeout(REQUEST_SECONDS)
                self.send_response(reply.code)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                chunked = reply.length is None
                self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(reply.length))))
                if self.close_connection:
                    self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for piece in reply.pieces:
                        self.connection.settimeout(REQUEST_SECONDS)
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    self.wfile.write(b"0\r\n\r\n" if chunked else b"")
                    self.wfile.flush()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True  # without the end of the body, by which the client notices
            if not body.is_read:
                self._linger()

        def _linger(self) -> None:
            """Takes what a client still sends of a refused body: closed at once, the connection would lose the answer."""
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
                self._incoming.expect(LINGER_SECONDS)
                left = _LINGERING
                while left > 0 and (piece := self._stream.read1(PIECE)):
                    left -= len(piece)

        def _length(self, most: int) -> int | None:
            """The length of the body; None if it is not stated, or too large."""
            text = self.headers.get("Content-Length", "0")
            length = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
            return length if 0 <= length <= most and not self.headers.get("Transfer-Encoding") else None

        def _send(self, answer: Answer) -> None:
            self.close_connection = self.close_connection or not isinstance(self._holder, Namespace)
            self.send_response(answer.code)
            headers = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), **answer.headers}
            if self.close_connection:
                headers["Connection"] = "close"
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
            if self.path != "/health":
                sys.stderr.write(f"{self.address_string()} {escapes.visible(format % args)}\n")

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            inside = mlflow.inside(self.path)
            of_a_run = ledger.address(self.path) is not None or (inside is not None and inside.run)
            if code != http.HTTPStatus.OK or not of_a_run:  # not each transaction of each run
                super().log_request(code, size)

    return Server((host, port), Handler)
