"""Run a slot in a process of its own: `python -m trialplane.worker.slot_process FD PARENT`.

Its controller, process PARENT, runs on the same machine. FD is a socket on which the controller sends the slot's SlotConfig
and name, and then calls. Each call gets an answer with its number. The process ends with its controller, and the trial in
the slot ends with the process.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from trialplane import errors
from trialplane.training import process
from trialplane.worker.slot_actor import THREADS, SlotActor


def main() -> None:
    """Answer calls until the controller ends."""
    descriptor, controller = int(sys.argv[1]), int(sys.argv[2])
    process.die_with_parent(controller)
    connection: Connection[Any, Any] = Connection(descriptor)
    send_lock = threading.Lock()

    def answer(number: int, method: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Call a method of the slot for the call with this number, and send the answer."""
        data = pickled_answer(number, method, arguments)
        with send_lock:
            connection.send_bytes(data)

    try:
        actor = SlotActor(*connection.recv())  # the config and the slot's name
        # Calls that wait for the trial's process, as `run`, share one thread. Other methods have threads by `THREADS`.
        executors = {thread: ThreadPoolExecutor(1, thread) for thread in ("process", *THREADS.values())}
        while True:
            number, name, arguments = connection.recv()
            executors[THREADS.get(name, "process")].submit(answer, number, getattr(actor, name), arguments)
    except (EOFError, OSError):  # the controller has ended
        os._exit(0)  # at once: a thread may wait for a trial


def pickled_answer(number: int, method: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Call a method; return the pickled answer: the call's number, and the return value or the error (the other is None).

    An error that cannot be pickled, or read by the caller, is replaced by a SlotError with its text.
    """
    try:
        return pickle.dumps((number, method(*arguments), None))
    except Exception as error:  # noqa: BLE001  the caller handles it
        try:
            data = pickle.dumps((number, None, error))
            pickle.loads(data)
        except Exception:  # noqa: BLE001  some errors cannot be unpickled
            text = f"{type(error).__name__}: {errors.first_line(error)}"
            return pickle.dumps((number, None, errors.SlotError(text)))
        return data


if __name__ == "__main__":
    main()
