"""`python -m tests.forked.server PARENT`: runs exporters in forks, which have imported MLflow already. That takes seconds.

Its stdin is a socket that listens. `sitecustomize.py` connects to it in the process that a controller has started, and
waits for the fork's exit code. If that process is killed, its fork ends too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import traceback

from trialplane.exporter import lean_imports
from trialplane.training import process

lean_imports.install()  # as an exporter does first

from mlflow.store.tracking import sqlalchemy_store  # noqa: E402, F401 - an exporter imports it when it opens a store
from sqlalchemy import orm  # noqa: E402

from trialplane.exporter import __main__ as exporter  # noqa: E402


def _end_with_peer(connection: socket.socket) -> None:
    """Kill this process when the other end is closed."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


def _export(connection: socket.socket) -> None:
    """Be the exporter that the other end asks for."""
    data, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    order = json.loads(data)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = order["arguments"]
    threading.Thread(target=_end_with_peer, args=[connection], daemon=True).start()
    connection.send(b"%d" % exporter.main())


def main() -> None:
    """Fork an exporter for each connection, until the parent ends."""
    process.die_with_parent(int(sys.argv[1]))
    orm.configure_mappers()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    listener = socket.socket(fileno=os.dup(0))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _export(connection)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stderr.flush()
                os._exit(1)
        connection.close()


if __name__ == "__main__":
    main()
