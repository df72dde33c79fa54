"""In each Python process of a test with `FORK_SERVERS`: one that starts as a program of a server lets it run in a fork.

`FORK_SERVERS` are sockets, each with the name of its program.
"""

import os
import sys

_servers = {server.rpartition("/")[2]: server for server in os.environ.get("FORK_SERVERS", "").split(os.pathsep)}

if sys.orig_argv[2:3] == ["-m"] and sys.orig_argv[3] in _servers:
    import json
    import signal
    import socket
    from pathlib import Path

    _signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, _signals)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as _server:
        _server.connect(_servers[sys.orig_argv[3]])
        _order = {
            "arguments": sys.orig_argv[3:],
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "path": sys.path,
            "leads": os.getsid(0) == os.getpid(),
        }
        socket.send_fds(_server, [json.dumps(_order).encode()], [0, 1, 2])
        _pid = int(_server.recv(20) or 0)
        if not _pid:  # the fork has died
            os._exit(1)
        for _signal in _signals:
            signal.signal(_signal, lambda number, _frame: os.kill(_pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _signals)
        os._exit(int(_server.recv(20) or 1))  # nothing comes if the fork has died
