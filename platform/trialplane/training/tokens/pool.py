"""The processes that tokenize: started as fresh interpreters, given one shard after another, ended together.

Processes, because the Rust library's own threads share one Python interpreter that must unpack all they make. Fresh
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
# One core each, without threads of their own; and no GPU is theirs.
_ENV = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def tokenize(work: Work, shards: Sequence[int], processes: int, say: Callable[[str], object]) -> None:
    """Make the shards. Those that were made stay, whatever happens to the others.

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
                progress.made()
                _give(worker, next(todo, None))


def _give(worker: subprocess.Popen[bytes], shard: int | None) -> None:
    """Send the next shard's number, or close the input, at which the worker ends."""
    stdin = _pipe(worker.stdin)
    with contextlib.suppress(BrokenPipeError):  # a dead worker's output says so
        if shard is None:
            stdin.close()
        else:
            stdin.write(b"%d\n" % shard)
            stdin.flush()


@contextlib.contextmanager
def _workers(work: Work, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many workers, with their work; none is left when the block ends."""
    package = str(Path(trialplane.__file__).parents[1])
    known = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **_ENV, "PYTHONPATH": os.pathsep.join(known)}
    # -P: a file of the working folder must not pass for a library.
    command = [sys.executable, "-P", "-m", _MODULE]
    data = pickling.dumps(work, "the work of a tokenizing process")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for worker in started:  # only now: the work of one fits into its pipe when it has started and reads
            with contextlib.suppress(BrokenPipeError):
                _pipe(worker.stdin).write(data)
        yield started
    finally:
        for worker in started:
            if worker.poll() is None:
                worker.kill()  # in mid-shard, when another failed: its half-made file is swept up by whoever comes next
        for worker in started:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(BrokenPipeError):
                    _pipe(pipe).close()


def _refuse_death(worker: subprocess.Popen[bytes], work: Work) -> None:
    """Raise CacheError when a worker that closed its output did not end well."""
    code = worker.wait()
    if code == 0:
        return
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = "; SIGKILL is most often the system's answer to too little memory" if code == -signal.SIGKILL else ""
    raise errors.CacheError(
        f"a tokenizing process (pid {worker.pid}) {how}{hint}; its own words are above. The shards that were made are kept "
        f"in {work.folder}: run it again, with fewer processes if memory was short"
    )


def _failure(answer: dict[str, Any], work: Work) -> errors.TrialplaneError:
    if answer["failed"] == "data":
        return errors.DataError(answer["message"])
    return errors.CacheError(
        f"token files cannot be written to {work.folder}: {answer['message']}; the shards that were made are kept, and the "
        "cache counts only when all are there. Make room and run it again, or name another cache folder"
    )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


class _Progress:
    """Says now and then how far it is."""

    def __init__(self, shards: int, lines: int, say: Callable[[str], object]) -> None:
        self._shards, self._lines, self._say = shards, lines, say
        self._made = 0
        self._began = self._said = time.monotonic()

    def made(self) -> None:
        """One more shard is there."""
        self._made += 1
        now = time.monotonic()
        if now - self._said < SAY_EVERY or self._made == self._shards:
            return
        self._said = now
        rate = self._made / (now - self._began)
        left = (self._shards - self._made) / rate
        self._say(f"tokenizing: {self._made / self._shards:.0%}, {rate * shards.LINES:,.0f} lines/s, {left:,.0f} s left")
