"""`python -m tests.forked.server PID PROGRAM [FILE]`: runs a program in forks, which have imported it already.

The imports are most of the processor time of a small run: MLflow for an exporter, SQLAlchemy and Optuna for a controller,
and a verb's module for a command.
FILE is a store of MLflow, which exporters open. The server ends with the process PID.

Its stdin is a socket that listens. `sitecustomize.py` connects to it in the process that was started, passes signals on, and
waits for the fork's exit code. If that process is killed, its fork ends too.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path


def _exporter(store: str) -> Callable[[], int]:
    from trialplane.training import lean_imports

    lean_imports.install()  # as an exporter does first

    from mlflow.store.tracking import sqlalchemy_store
    from sqlalchemy import orm

    from trialplane.exporter import __main__ as exporter

    orm.configure_mappers()
    # What an exporter does first: it imports all migrations to compare the store's version with the newest.
    sqlalchemy_store.SqlAlchemyStore(f"sqlite:///{store}", str(Path(store).parent)).engine.dispose()
    return exporter.main


def _controller() -> Callable[[], int]:
    from trialplane.controller import __main__ as controller
    from trialplane.controller import session  # noqa: F401 - a controller imports it after it has read its settings

    return controller.main


def _command() -> Callable[[], int]:
    from trialplane.cli import main

    for module in sorted({module for module, _ in main.VERBS.values()}):
        importlib.import_module(module)

    def run() -> int:
        try:
            main.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return run


PROGRAMS = {"trialplane.exporter": _exporter, "trialplane.controller": _controller, "platform": _command}


def _follow_peer(connection: socket.socket) -> None:
    """Pass on the signals of the process at the other end, and kill this process when that one has ended."""
    while number := connection.recv(1):
        signal.pthread_kill(threading.main_thread().ident, number[0])
    os.kill(os.getpid(), signal.SIGKILL)


def _run(connection: socket.socket, program: Callable[[], int]) -> None:
    """Be the process that the other end asks for."""
    data, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Others than those of the server, which may have been of another kind: what can be written to is not always a file.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - until the end
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - the same
    order = json.loads(data)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv, sys.path[:] = order["arguments"], order["path"]
    if order["leads"]:
        os.setsid()
    threading.Thread(target=_follow_peer, args=[connection], daemon=True).start()
    connection.send(b"%d" % program())


def main() -> None:
    """Fork a process for each connection, until the process of the first argument ends."""
    watched = os.pidfd_open(int(sys.argv[1]))
    name = sys.argv[2]
    program = PROGRAMS[name](*sys.argv[3:]) if name in PROGRAMS else importlib.import_module(name).main
    assert threading.active_count() == 1, "a fork has no other threads"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    listener = socket.socket(fileno=os.dup(0))
    while listener in select.select([listener, watched], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            try:
                _run(connection, program)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stderr.flush()
                os._exit(1)
        connection.close()


if __name__ == "__main__":
    main()
