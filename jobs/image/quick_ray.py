#!/usr/local/bin/python
"""The `ray` of the images: Ray's own command, which starts in half the time.

KubeRay's init container of a worker runs only `ray health-check --address HOST:PORT`, with a fifth of a core. Ray itself
imports modules for three seconds of CPU time first: 15 to 20 s for every new pod. The command checks whether Ray's control
service (GCS), a gRPC server, answers. The first bytes of an HTTP/2 connection, on which gRPC is based, check the same.

`ray start --address HOST:PORT` imports Ray and then waits for the GCS, so a worker needs no init container. In it the check
succeeds at once: otherwise the container would look every 5 s only, and the worker's import would follow the head's start.

Every command except the check is passed to Ray, but without the subcommands of Ray Serve, whose import takes half of the
time. Ray's processes use the fast protobuf. The slow one is for trials, and a slot sets it for its template. A head has
neither Ray's API server nor the server of Ray Client, which no run uses, and which take half of its start.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

# RFC 9113, 3.4: a client begins with this text and a SETTINGS frame, here an empty one. A server begins with such a frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER = 9  # bytes before a frame's payload: length (3), type (1), flags (1), stream (4)
_SETTINGS = 4
_PATIENCE = 5.0  # seconds; the caller repeats the check
_HEAD_PATIENCE = 600.0  # seconds; then Ray fails with its own message, and KubeRay makes another pod
_FIRST_PROCESS = Path("/proc/1/cmdline")  # of the container
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


def head_address(words: list[str]) -> tuple[str, int] | None:
    """Return host and port in the option --address of a command line of `ray`; None if it is another form of address."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--address", default="")
    host, _, port = parser.parse_known_args(words)[0].address.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None  # brackets are around an IPv6 address


def only_checks() -> bool:
    """Return whether this container does nothing but repeat the check, as KubeRay's init container does."""
    try:
        return b"ray health-check" in _FIRST_PROCESS.read_bytes()
    except OSError:
        return False


def start_no_unused_servers() -> None:
    """Let a head start neither Ray's API server nor the server of Ray Client.

    Without a dashboard, the API server only reports usage statistics. Ray waits for it before it starts the raylet.
    """
    from ray._private.node import Node

    Node.start_api_server = Node.start_ray_client_server = lambda self, **_: None


def wait_for_head(host: str, port: int) -> None:
    """Wait until the GCS answers, for `_HEAD_PATIENCE` at most."""
    if speaks_http2(host, port):
        return
    print(f"waiting for Ray's head at {host}:{port}", flush=True)
    deadline = time.monotonic() + _HEAD_PATIENCE
    while time.monotonic() < deadline and not speaks_http2(host, port):
        time.sleep(0.2)


def main(words: list[str]) -> int:
    """Run a command line of `ray`, and return its exit code."""
    # The check does not speak TLS. With TLS, workers need KubeRay's init container and Ray's own check.
    head = head_address(words) if os.environ.get("RAY_USE_TLS", "0") == "0" else None
    if words[:2] == ["health-check", "--address"] and len(words) == 3 and head:
        return 0 if only_checks() or speaks_http2(*head) else 1
    if os.environ.get(_PROTOBUF) == "python":  # any other value was set by the user
        del os.environ[_PROTOBUF]
    sys.modules["ray.serve.scripts"] = None  # type: ignore[assignment]  # Ray works without it
    from ray.scripts.scripts import main as ray

    if words[:1] == ["start"]:
        start_no_unused_servers()
    if words[:1] == ["start"] and head:
        wait_for_head(*head)
    return int(ray() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
