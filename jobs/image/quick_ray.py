#!/usr/local/bin/python
"""The images' `ray`: Ray's own command, started in half the time.

`ray health-check --address HOST:PORT` is all that KubeRay's init container of a worker does, with a fifth of a core,
and Ray's own imports for three seconds of CPU before it asks: 15 to 20 s for every new pod. The question is whether
Ray's control service (GCS), a gRPC server, answers; the greeting of HTTP/2, on which gRPC stands, asks it that.
Every other command goes on to Ray, but without Ray Serve's subcommands, whose import takes half of the time, and Ray's
processes get the fast protobuf: the slow one is for trials, and a slot gives it to its template by itself.
"""

from __future__ import annotations

import os
import socket
import sys

# RFC 9113, 3.4: a client begins with this text and a SETTINGS frame, here an empty one, the server with such a frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER = 9  # bytes before a frame's payload: length (3), type (1), flags (1), stream (4)
_SETTINGS = 4
_PATIENCE = 5.0  # seconds; who asks will ask again
_PROTOBUF = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"  # trialplane.policies.protobuf, whose import would take its time


def answers(host: str, port: int) -> bool:
    """Whether a server there speaks HTTP/2."""
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE) as connection:
            connection.sendall(_PREFACE + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0]))
            header = connection.recv(_HEADER, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(header) == _HEADER and header[3] == _SETTINGS


def main(words: list[str]) -> int:
    """Run a command line of `ray`; give its exit status."""
    if words[:2] == ["health-check", "--address"] and len(words) == 3 and os.environ.get("RAY_USE_TLS", "0") == "0":
        host, _, port = words[2].rpartition(":")
        if port.isdigit():
            return 0 if answers(host, int(port)) else 1
    if os.environ.get(_PROTOBUF) == "python":  # any other value is a user's own
        del os.environ[_PROTOBUF]
    sys.modules["ray.serve.scripts"] = None  # type: ignore[assignment]  # Ray goes on without it
    from ray.scripts.scripts import main as ray

    return int(ray() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
