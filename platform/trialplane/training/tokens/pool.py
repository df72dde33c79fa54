"""The processes that tokenize: fresh interpreters that get one shard after another and are ended together.

Processes, because the Rust library's threads share one Python interpreter that must unpack all of their results. Fresh
interpreters, because no fork is safe beside threads or CUDA, and because multiprocessing's spawn would import the job's
script, with torch, once per core.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import trialplane
from trialplane import errors
from trialplane.policies import pickling
from trialplane.training.tokens import shards
from trialplane.training.tokens.worker import Work

SAY_EVERY = 10.0  # seconds
_MODULE = "trialplane.training.tokens.worker"
# One core each, without threads.
_ENV = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def tokenize(work: Work, shards: Sequence[int], processes: int, say: Callable[[str], object]) -> None:
    """Create the shards. Complete ones stay, even if others fail.

    Raises:
        DataError: a line cannot be read.
        CacheError: the disk is full, or a worker was killed.
    """
    todo = iter(shards)
    progress = _Progress(len(shards), len(work.lines), say)
    with _workers(work, min(processes, len(shards))) as workers, selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(_pipe(worker.stdout), selectors.EVENT_READ, worker)
            _give(worker, next(todo, None))
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                line = _pipe(worker.stdout).readline()
                if not line:
                    selector.unregister(_pipe(worker.stdout))
                    _refuse_death(worker, work)
                    continue
                answer: dict[str, Any] = json.loads(line)
                if "failed" in answer:
                    raise _failure(answer, work)
                progress.add_shard()
                _give(worker, next(todo, None))


def _give(worker: subprocess.Popen[bytes], shard: int | None) -> None:
    """Send the next shard's number, or close the input, which ends the worker."""
    stdin = _pipe(worker.stdin)
    with contextlib.suppress(BrokenPipeError):  # the end of a worker's output reports its death
        if shard is None:
            stdin.close()
        else:
            stdin.write(b"%d\n" % shard)
            stdin.flush()


@contextlib.contextmanager
def _workers(work: Work, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start `count` workers and send them their work; end all when the block ends."""
    package = str(Path(trialplane.__file__).parents[1])
    path_entries = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **_ENV, "PYTHONPATH": os.pathsep.join(path_entries)}
    # -P: a file of the working folder must not pass for a library.
    command = [sys.executable, "-P", "-m", _MODULE]
    data = pickling.dumps(work, "the work of a tokenizing process")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for worker in started:  # only now: the work may be larger than a pipe, and the started workers read it
            with contextlib.suppress(BrokenPipeError):
                _pipe(worker.stdin).write(data)
        yield started
    finally:
        for worker in started:
            if worker.poll() is None:
                worker.kill()  # within a shard, when another failed: the next run removes its incomplete file
        for worker in started:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(BrokenPipeError):
                    _pipe(pipe).close()


def _refuse_death(worker: subprocess.Popen[bytes], work: Work) -> None:
    """Raise CacheError if a worker that closed its output has failed."""
    code = worker.wait()
    if code == 0:
        return
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = "; the system sends SIGKILL mostly when memory is short" if code == -signal.SIGKILL else ""
    raise errors.CacheError(
        f"a tokenizing process (pid {worker.pid}) {how}{hint}; its output is above. Complete shards are kept "
        f"in {work.folder}: run it again, with fewer processes if memory was short"
    )


def _failure(answer: dict[str, Any], work: Work) -> errors.TrialplaneError:
    if answer["failed"] == "data":
        return errors.DataError(answer["message"])
    return errors.CacheError(
        f"token files cannot be written to {work.folder}: {answer['message']}; complete shards are kept. "
        "Make room and run it again, or name another cache folder"
    )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


class _Progress:
    """Print the progress from time to time."""

    def __init__(self, shards: int, lines: int, say: Callable[[str], object]) -> None:
        self._shards, self._lines, self._say = shards, lines, say
        self._completed = 0
        self._began = self._reported_at = time.monotonic()

    def add_shard(self) -> None:
        """Count a complete shard."""
        self._completed += 1
        now = time.monotonic()
        if now - self._reported_at < SAY_EVERY or self._completed == self._shards:
            return
        self._reported_at = now
        rate = self._completed / (now - self._began)
        seconds_left = (self._shards - self._completed) / rate
        self._say(
            f"tokenizing: {self._completed / self._shards:.0%}, {rate * shards.LINES:,.0f} lines/s, "
            f"{seconds_left:,.0f} s left"
        )
