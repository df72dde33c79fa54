"""Slots as processes of this machine, for runs on a laptop that need no Ray.

They start in a fraction of the time that Ray takes. Calls and answers go through a socket, and large results through files.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.wire.records import SlotConfig


class ProcessHost:
    """A `SlotHost` on this machine. Its answers are futures, resolved by one thread for each slot."""

    def open(self, config: SlotConfig, name: str) -> SlotProcess:
        """Start a process."""
        return SlotProcess(config, name)

    def wait(self, answers: Sequence[Future[Any]], timeout: float) -> list[Future[Any]]:
        """Wait at most `timeout` seconds for the first of these answers; return all that have arrived."""
        if not answers:
            time.sleep(timeout)
            return []
        return list(futures.wait(answers, timeout, futures.FIRST_COMPLETED).done)

    def result(self, answer: Future[Any]) -> Any:
        """Return an answer that has arrived, or raise its error."""
        return answer.result()

    def read(self, file: str) -> Any:
        """Return the bytes of the file at this path, and remove it. See `SlotHost`."""
        import numpy as np  # only for results that are arrays

        try:
            data = np.fromfile(file, dtype=np.uint8)
        except OSError as error:
            raise errors.SlotError(f"{file}: {error}") from error
        Path(file).unlink()
        return data


class SlotProcess:
    """A slot in a child process, which ends with this process.

    Args:
        config: Configuration that all slots of the role share.
        name: Name of the slot.
    """

    def __init__(self, config: SlotConfig, name: str) -> None:
        own_socket, child_socket = socket.socketpair()
        with child_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trialplane.worker.slot_process", str(child_socket.fileno()), str(os.getpid())],
                pass_fds=[child_socket.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # the controller's log
                start_new_session=True,  # a signal to the controller's process group must not reach its trials
            )
        self._connection: Connection[Any, Any] = Connection(own_socket.detach())
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # held while the connection is written, and while the fields below are used
        self._unanswered: dict[int, Future[Any]] = {}
        self._end = ""  # description of the process's end; "" while it runs
        self._send((config, name))
        threading.Thread(target=self._receive, name=f"slot-{name}", daemon=True).start()

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Send a call, and return the future of its answer."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._unanswered[number] = answer
            if self._end:
                self._fail_calls()
            else:
                self._send((number, method, arguments))
        return answer

    def kill(self) -> None:
        """Kill the process; its template and trial end with it."""
        self._process.kill()

    def _send(self, message: tuple[Any, ...]) -> None:
        """Send a message to the process. If it has just ended, `_receive` lets the call fail."""
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def _receive(self) -> None:
        """Set the results of the answers as they arrive, until the process ends; runs in a separate thread."""
        with self._connection:
            try:
                while True:
                    number, result, error = self._connection.recv()
                    with self._lock:
                        answer = self._unanswered.pop(number)
                    if error is None:
                        answer.set_result(result)
                    else:
                        answer.set_exception(error)
            except (EOFError, OSError):
                code = self._process.wait()
            with self._lock:
                exit_description = f"signal {-code}" if code < 0 else f"exit code {code}"
                self._end = f"its process {self._process.pid} ended with {exit_description}; see controller.log"
                self._fail_calls()

    def _fail_calls(self) -> None:
        """Let all unanswered calls fail, after the process has ended."""
        for answer in self._unanswered.values():
            answer.set_exception(errors.SlotError(self._end))
        self._unanswered.clear()
