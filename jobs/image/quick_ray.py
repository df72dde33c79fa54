#!/usr/local/bin/python
"""The `ray` of the images: Ray's own command, which starts in half the time.

KubeRay's init container of a worker runs only `ray health-check --address HOST:PORT`, with a fifth of a core. Ray itself
imports modules for three seconds of CPU time first: 15 to 20 s for every new pod. The command checks whether Ray's control
service (GCS), a gRPC server, answers. The first bytes of an HTTP/2 connection, on which gRPC is based, check the same.

Every other command is passed to Ray, but without the subcommands of Ray Serve, whose import takes half of the time. Ray's
processes use the fast protobuf. The slow one is for trials, and a slot sets it for its template.
"""

from __future__ import annotations

import os
import socket
import sys

# RFC 9113, 3.4: a client begins with this text and a SETTINGS frame, here an empty one. A server begins with such a frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER = 9  # bytes before a frame's payload: length (3), type (1), flags (1), stream (4)
_SETTINGS = 4
_PATIENCE = 5.0  # seconds; the caller repeats the check
_PROTOBUF = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"  # as in trialplane.policies.protobuf, whose import would take time


def speaks_http2(host: str, port: int) -> bool:
    """Return whether a server at this address speaks HTTP/2."""
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE) as connection:
            connection.sendall(_PREFACE + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0]))
            header = connection.recv(_HEADER, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(header) == _HEADER and header[3] == _SETTINGS


def main(words: list[str]) -> int:
    """Run a command line of `ray`, and return its exit code."""
    if words[:2] == ["health-check", "--address"] and len(words) == 3 and os.environ.get("RAY_USE_TLS", "0") == "0":
        host, _, port = words[2].rpartition(":")
        if port.isdigit():
            return 0 if speaks_http2(host, int(port)) else 1
    if os.environ.get(_PROTOBUF) == "python":  # any other value was set by the user
        del os.environ[_PROTOBUF]
    sys.modules["ray.serve.scripts"] = None  # type: ignore[assignment]  # Ray works without it
    from ray.scripts.scripts import main as ray

    return int(ray() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
