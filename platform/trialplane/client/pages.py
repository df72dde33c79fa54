"""MLflow's pages at a loopback port of this machine: each request goes through the API server to the gateway's door.

So a browser needs no password and no port of a pod. The gateway answers what only reads; what it refuses reaches the browser
as it is. Pages of other sites get nothing: a request must name this machine as its host.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
from collections.abc import Callable
from typing import Any

import urllib3

from trialplane.client.gateway import Gateway
from trialplane.errors import TrialplaneError

MAX_BODY = 4 << 20  # bytes of a search
_PIECE = 1 << 16
_RECEIVED = ("Content-Type", "Content-Disposition", "Cache-Control", "ETag", "Last-Modified", "X-Content-Type-Options")


class Pages:
    """Serves until it is closed.

    Args:
        gateway: of the cluster.
        listener: listens at a port of this machine; closed by `close`.
        report: called with the reason when the gateway could not be reached, once per reason.
    """

    def __init__(self, gateway: Gateway, listener: socket.socket, report: Callable[[str], None]) -> None:
        hosts = {f"{name}:{listener.getsockname()[1]}" for name in ("127.0.0.1", "localhost")}
        reported: set[str] = set()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are two packets, of which the second would wait for 40 ms

            def pass_on(self) -> None:
                text = self.headers.get("Content-Length", "0")
                length = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else MAX_BODY + 1
                origin = self.headers.get("Origin", "").removeprefix("http://")
                if length > MAX_BODY or self.headers.get("Transfer-Encoding"):
                    self._refuse(413, f"a request has at most {MAX_BODY} bytes")
                elif self.headers.get("Host") not in hosts or (origin and origin not in hosts):
                    self._refuse(403, "this is for pages of this machine")
                else:
                    self._pass_on(self.rfile.read(length))

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

            def _pass_on(self, body: bytes) -> None:
                try:
                    with gateway.mlflow(self.command, self.path, body) as response:
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

        self._server = http.server.ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.daemon_threads = True

    def __enter__(self) -> Pages:
        threading.Thread(target=self._server.serve_forever, daemon=True, name="MLflow's pages").start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown()
            self._server.server_close()
