"""Web pages at a loopback port of this machine, which only the user who started them can read.

They show MLflow, on this machine or behind a cluster's gateway, or optuna-dashboard. Every account of the machine can
connect to the port. A request therefore needs a secret, as with Jupyter: it is in the printed URL, and opening that sets it
as a cookie. Pages of other sites have no access: browsers do not send the cookie with their requests, and a request must
name this machine as its host.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import http.server
import os
import secrets
import socket
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import urllib3
import urllib3.connection

from trialplane.errors import TrialplaneError

Source = Callable[[str, str, bytes], AbstractContextManager[Any]]  # method, path with query, and body → urllib3's response

START = "/-/start"  # leads to the start page; no path of MLflow or optuna-dashboard begins with this
MAX_BODY = 4 << 20  # bytes of a request, which may be a search
_PIECE = 1 << 16  # bytes
_MAX_TEMPORARY_FOLDER = 70  # bytes of its path; the address of a socket has at most 103 on macOS, and 107 on Linux
_RESPONSE_HEADERS = (
    "Content-Type", "Content-Disposition", "Cache-Control", "ETag", "Last-Modified", "Location", "X-Content-Type-Options"
)  # fmt: skip


class Pages:
    """A server of pages, which runs in a thread during the context.

    Args:
        source: Function that answers an authorized request.
        listener: Socket that listens at a loopback port. `Pages` closes it.
        start: Function that returns the path of the start page.
        report: Function to call with the reason why the source could not be reached, once for each reason.

    Attributes:
        site: URL of the server, without a path.
        secret: Secret of a request: in the URL of a page, in a cookie, or for a client of MLflow as its token.
        address: URL of the start page, with the secret.
    """

    def __init__(
        self, source: Source, listener: socket.socket, start: Callable[[], str], report: Callable[[str], None]
    ) -> None:
        self._server = _Server(source, listener, start, report)
        self.site, self.secret = self._server.site, self._server.secret
        self.address = self.page("/")

    def page(self, path: str) -> str:
        """Return the URL of a page, with the secret."""
        return f"{self.site}{path}?token={self.secret}"

    def __enter__(self) -> Pages:
        threading.Thread(target=self._server.serve_forever, daemon=True, name="web pages").start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown()
            self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    """The state that the handlers of all requests share; see `Pages` for the arguments."""

    daemon_threads = True

    def __init__(
        self, source: Source, listener: socket.socket, start: Callable[[], str], report: Callable[[str], None]
    ) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.source, self.start = source, start
        self.site = f"http://{host}:{port}"
        self.secret = secrets.token_hex(16)
        # The name has the port, because a browser sends the cookies of a host to all of its ports.
        self.cookie = f"trialplane-{port}"
        self._report = report
        self._reported: set[str] = set()

    def is_secret(self, text: str) -> bool:
        """Whether a text is the secret. The comparison takes the same time for every text, so that none can be guessed."""
        return hmac.compare_digest(text.encode(errors="replace"), self.secret.encode())

    def report_once(self, reason: str) -> None:
        """Report the reason why the source could not be reached, unless it was reported before."""
        if reason not in self._reported:
            self._reported.add(reason)
            self._report(reason)


class _Handler(http.server.BaseHTTPRequestHandler):
    """The handler of one connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # with Nagle's algorithm, the body would wait 40 ms for the receipt of the headers

    def answer(self) -> None:
        """Answer a request: open the page if it has the secret in its URL, forward it if it has the cookie."""
        length_text = self.headers.get("Content-Length", "0")
        is_valid_length = length_text.isascii() and length_text.isdigit() and len(length_text) < 10
        length = int(length_text) if is_valid_length else MAX_BODY + 1  # which is refused
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        # Only the name of the host is checked, because the port may be forwarded from another machine.
        is_for_this_machine = host.partition(":")[0] in ("127.0.0.1", "localhost")
        is_from_another_site = origin not in (None, f"http://{host}")
        path, _, query = self.path.partition("?")
        has_secret_in_url = any(map(self.server.is_secret, urllib.parse.parse_qs(query).get("token", ())))
        has_secret = any(map(self.server.is_secret, (*self._cookies(), self._token())))
        if not is_for_this_machine or is_from_another_site:
            self._refuse(403, "this is for pages of this machine")
        elif has_secret_in_url:
            self._open(path)
        elif not has_secret:
            self._refuse(403, "open the address that `platform ui` has printed; each start has a new one")
        elif length > MAX_BODY or self.headers.get("Transfer-Encoding"):
            self._refuse(413, f"a request has at most {MAX_BODY} bytes")
        elif path == START:
            self._open("/")
        else:
            self._forward(self.rfile.read(length))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def _cookies(self) -> Iterator[str]:
        """Yield the values of this server's cookie. `http.cookies` would read none if another cookie is malformed."""
        for part in ";".join(self.headers.get_all("Cookie", ())).split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.server.cookie:
                yield value

    def _token(self) -> str:
        """Return the token in the request's header `Authorization`; "" without one."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return token if scheme == "Bearer" else ""

    def _open(self, path: str) -> None:
        """Redirect to a page, or from / to the start page, without the secret in the URL, and set it as a cookie."""
        self.send_response(303)
        self.send_header("Location", f"/{path.lstrip('/')}" if path.strip("/") else self.server.start())
        self.send_header("Set-Cookie", f"{self.server.cookie}={self.server.secret}; Path=/; HttpOnly; SameSite=Strict")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _forward(self, body: bytes) -> None:
        """Answer with the response of the source."""
        try:
            with self.server.source(self.command, self.path, body) as response:
                self._send(response)
        except TrialplaneError as error:
            self.server.report_once(str(error))
            self._refuse(502, str(error))
        except (urllib3.exceptions.HTTPError, OSError, http.client.HTTPException):
            self.close_connection = True  # the missing end of the body shows the browser that the response is incomplete

    def _send(self, response: Any) -> None:
        """Send a response of the source in chunks, because its length is unknown."""
        self.send_response(response.status)
        for name in _RESPONSE_HEADERS:
            if name in response.headers:
                self.send_header(name, response.headers[name])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in response.stream(_PIECE, decode_content=True):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, status: int, text: str) -> None:
        """Answer with an error for the user, and close the connection."""
        data = text.encode()
        self.close_connection = True  # the body of the request may not have been read
        self.send_response(status)
        for name, value in {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
        """Log nothing."""


class PrivateServer:
    """A Unix socket for a server to which only this account can connect: it is in a folder of mode 0700.

    Args:
        address: Host and port for the server's redirects, at which browsers reach it through `Pages`.

    Attributes:
        folder: Folder of the socket, which contains nothing else.
        listener: Listening socket, which the process of the server inherits.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        # /tmp instead of a TMPDIR whose path is too long for the address of a socket.
        is_short = len(os.fsencode(tempfile.gettempdir())) <= _MAX_TEMPORARY_FOLDER
        self._folder = tempfile.TemporaryDirectory(prefix="trialplane-", dir=None if is_short else "/tmp")
        self.folder = self._folder.name
        self._path = f"{self.folder}/server"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self._path)
        self.listener.listen()

    def __enter__(self) -> PrivateServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        self._folder.cleanup()

    @contextlib.contextmanager
    def ask(self, method: str, target: str, body: bytes) -> Iterator[Any]:
        """Yield the response to a request; see `Source`. It waits for a server that still starts."""
        with contextlib.closing(_PrivateConnection(self._path, *self._address)) as connection:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, target, body or None, headers, preload_content=False)
            yield connection.getresponse()


class _PrivateConnection(urllib3.connection.HTTPConnection):
    """A connection to a Unix socket; `host` and `port` are only sent as the host of requests."""

    def __init__(self, path: str, host: str, port: int) -> None:
        super().__init__(host, port)
        self._path = path

    def _new_conn(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        return connection
