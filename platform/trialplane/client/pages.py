"""Web pages at a loopback port of this machine, for the user who started them alone.

What they show is MLflow, on this machine or behind a cluster's gateway, or optuna-dashboard. Every account of the machine
can connect to the port, so a request needs a secret, as with Jupyter: the printed address has it, and opening that sets it
as a cookie. Pages of other sites get nothing: no cookie is sent for them, and a request must name this machine as its host.
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

MAX_BODY = 4 << 20  # bytes of a search
_PIECE = 1 << 16
_RECEIVED = (
    "Content-Type", "Content-Disposition", "Cache-Control", "ETag", "Last-Modified", "Location", "X-Content-Type-Options"
)  # fmt: skip


class Pages:
    """Serves until it is closed.

    Args:
        source: answers a request that may be answered.
        listener: listens at a port of this machine; closed by `close`.
        start: the path of the page that the address leads to.
        report: called with the reason when the source could not be reached, once per reason.

    Attributes:
        address: what the user opens; it has the secret.
    """

    def __init__(
        self, source: Source, listener: socket.socket, start: Callable[[], str], report: Callable[[str], None]
    ) -> None:
        host, port = listener.getsockname()[:2]
        secret = secrets.token_hex(16)
        self._site, self._secret = f"http://{host}:{port}", secret
        self.address = self.page("/")
        cookie = f"trialplane-{port}"  # a browser sends it to all ports
        reported: set[str] = set()

        def is_secret(text: str) -> bool:
            return hmac.compare_digest(text.encode(errors="replace"), secret.encode())

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are two packets, of which the second would wait for 40 ms

            def pass_on(self) -> None:
                text = self.headers.get("Content-Length", "0")
                length = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else MAX_BODY + 1
                named, origin = self.headers.get("Host", ""), self.headers.get("Origin")
                path, _, query = self.path.partition("?")
                # By its name alone: the port may be forwarded from another machine.
                if named.partition(":")[0] not in ("127.0.0.1", "localhost") or origin not in (None, f"http://{named}"):
                    self._refuse(403, "this is for pages of this machine")
                elif any(map(is_secret, urllib.parse.parse_qs(query).get("token", ()))):
                    self._open(path)
                elif not any(map(is_secret, self._cookies())):
                    self._refuse(403, "open the address that `platform ui` has printed; each start has a new one")
                elif length > MAX_BODY or self.headers.get("Transfer-Encoding"):
                    self._refuse(413, f"a request has at most {MAX_BODY} bytes")
                else:
                    self._pass_on(self.rfile.read(length))

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

            def _cookies(self) -> Iterator[str]:
                """The values of ours; `http.cookies` would read none beside one that it cannot read."""
                for part in ";".join(self.headers.get_all("Cookie", ())).split(";"):
                    name, _, value = part.strip().partition("=")
                    if name == cookie:
                        yield value

            def _open(self, path: str) -> None:
                """Lead to a page, / to the start page, with the secret in a cookie and not in the browser's history."""
                self.send_response(303)
                self.send_header("Location", f"/{path.lstrip('/')}" if path.strip("/") else start())
                self.send_header("Set-Cookie", f"{cookie}={secret}; Path=/; HttpOnly; SameSite=Strict")
                self.send_header("Cache-Control", "no-store")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _pass_on(self, body: bytes) -> None:
                try:
                    with source(self.command, self.path, body) as response:
                        self._reply(response)
                except TrialplaneError as error:
                    if str(error) not in reported:
                        reported.add(str(error))
                        report(str(error))
                    self._refuse(502, str(error))
                except (urllib3.exceptions.HTTPError, OSError, http.client.HTTPException):
                    self.close_connection = True  # without the end of the body, by which the browser notices

            def _reply(self, response: Any) -> None:
                self.send_response(response.status)
                for name in _RECEIVED:
                    if name in response.headers:
                        self.send_header(name, response.headers[name])
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in response.stream(_PIECE, decode_content=True):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

            def _refuse(self, status: int, text: str) -> None:
                data = text.encode()
                self.close_connection = True  # the body may be unread
                self.send_response(status)
                for name, value in {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
                return

        self._server = http.server.ThreadingHTTPServer((host, port), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.daemon_threads = True

    def page(self, path: str) -> str:
        """The address of a page, with the secret."""
        return f"{self._site}{path}?token={self._secret}"

    def __enter__(self) -> Pages:
        threading.Thread(target=self._server.serve_forever, daemon=True, name="web pages").start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown()
            self._server.server_close()


class PrivateServer:
    """A server that this account alone can connect to: its socket is in a folder of mode 0700.

    Args:
        address: host and port by which browsers know it, and to which it redirects them.

    Attributes:
        listener: what the server inherits.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._folder = tempfile.TemporaryDirectory(prefix="trialplane-")
        self._descriptor = os.open(self._folder.name, os.O_PATH)
        self._path = f"/proc/self/fd/{self._descriptor}/server"  # the address of a socket has 107 characters at most
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self._path)
        self.listener.listen()

    def __enter__(self) -> PrivateServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        os.close(self._descriptor)
        self._folder.cleanup()

    @contextlib.contextmanager
    def ask(self, method: str, target: str, body: bytes) -> Iterator[Any]:
        """The response to a request, when the server has started; see `Source`."""
        with contextlib.closing(_PrivateConnection(self._path, *self._address)) as connection:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, target, body or None, headers, preload_content=False)
            yield connection.getresponse()


class _PrivateConnection(urllib3.connection.HTTPConnection):
    def __init__(self, path: str, host: str, port: int) -> None:
        super().__init__(host, port)
        self._path = path

    def _new_conn(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        return connection
