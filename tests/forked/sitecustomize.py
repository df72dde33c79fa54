"""In each Python process of a test with `FORK_SERVERS`: one that starts as a program of a server lets it run in a fork.

`FORK_SERVERS` are sockets, each with the name of its program.
"""

import os
import sys

_servers = {server.rpartition("/")[2]: server for server in os.environ.get("FORK_SERVERS", "").split(os.pathsep)}

# `python -P -m PROGRAM …`, or the script of a command: `python /…/bin/PROGRAM …`
_arguments = sys.orig_argv[3:] if sys.orig_argv[2:3] == ["-m"] else sys.orig_argv[1:]
_program = _arguments[0].rpartition("/")[2] if _arguments else ""

if _program in _servers:
    try:
        import json
        import select
        import signal
        import socket
        from pathlib import Path

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as _server:
            _server.connect(_servers[_program])
            _order = {
                "arguments": _arguments,
                "environment": dict(os.environ),
                "folder": str(Path.cwd()),
                "path": sys.path,
                "leads": os.getsid(0) == os.getpid(),
            }
            socket.send_fds(_server, [json.dumps(_order).encode()], [0, 1, 2])
            # Python itself writes the number of each signal that has a handler to the socket, at once. A handler would wait
            # for `select`, if the signal comes just before it.
            _server.setblocking(False)
            signal.set_wakeup_fd(_server.fileno())
            for _signal in (signal.SIGTERM, signal.SIGINT):
                signal.signal(_signal, lambda *_: None)
            select.select([_server], [], [])
            signal.set_wakeup_fd(-1)  # the fork has ended
            os._exit(int(_server.recv(20) or 1))  # nothing comes if it was killed
    except BaseException:
        import traceback

        traceback.print_exc()
        raise
    finally:
        os._exit(1)  # Python goes on after an error of this module, and would run the program itself
