"""Bytes a second from two producers to a consumer that reads everything: `moving '{"way": "ours", "games": 40, …}'`.

Every way moves games as lists of arrays, made once, and has four of them on the way at most. Ours goes as in a collection:
a producer's process writes a segment, a Ray actor beside it gives a reference, an actor beside the consumer's process copies
into a segment of that one. The clock runs from the consumer's sixth game to its last.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.benchmarks.programs import games

PRODUCERS = 2
IN_FLIGHT = 4
AHEAD = 2  # games on offer that a producer keeps ready
WARM = 6  # games that are not counted: imports, and pages that are made


def main() -> None:
    """Prints gigabytes a second."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    if "role" in arguments:
        {"producer": _produce, "consumer": _consume}[arguments["role"]](arguments)
        return
    # Each tensor on the way is an open file in each of two processes.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    ways: dict[str, Callable[[dict[str, Any]], float]] = {
        "ours": _through_segments,
        "queue": _through_a_queue,
        "torch": _through_a_queue,
        "ray": _through_ray,
        "ray_torch": _through_ray,
        "memcpy": _copied,
    }
    seconds = ways[arguments["way"]](arguments)
    moved = games.size(games.game(arguments["positions"])) * (arguments["games"] - WARM)
    print(json.dumps({"gb_per_second": moved / seconds / 1e9}))  # noqa: T201  this is the answer


class Clock:
    """Seconds from the last game that is not counted to the last of all."""

    def __init__(self) -> None:
        self._arrived = 0
        self._began = 0.0
        self.seconds = 0.0

    def arrived(self) -> None:
        """A game was read."""
        self._arrived += 1
        if self._arrived == WARM:
            self._began = time.perf_counter()
        self.seconds = time.perf_counter() - self._began


def _game(arguments: dict[str, Any]) -> Any:
    made = games.game(arguments["positions"])
    if "torch" not in arguments["way"]:
        return made
    import torch

    return {name: [torch.from_numpy(array) for array in arrays] for name, arrays in made.items()}


def _copied(arguments: dict[str, Any]) -> float:
    buffer = np.ones(2 * games.size(games.game(arguments["positions"])), dtype=np.uint8)
    half = buffer.nbytes // 2
    clock = Clock()
    for _ in range(arguments["games"]):
        np.copyto(buffer[:half], buffer[half:])
        clock.arrived()
    return clock.seconds


def _put(arguments: dict[str, Any], queue: Any, ended: Any, count: int) -> None:
    game = _game(arguments)
    for _ in range(count):
        # Copies: torch would move a tensor into shared memory once and then send only its name.
        queue.put(
            {name: [array.clone() for array in arrays] for name, arrays in game.items()} if _is_torch(arguments) else game
        )
    ended.wait()  # tensors of a process that has ended are lost


def _is_torch(arguments: dict[str, Any]) -> bool:
    return "torch" in arguments["way"]


def _through_a_queue(arguments: dict[str, Any]) -> float:
    context = multiprocessing.get_context("spawn")
    if _is_torch(arguments):
        import torch.multiprocessing

        context = torch.multiprocessing.get_context("spawn")
    queue, ended = context.Queue(IN_FLIGHT), context.Event()
    count = arguments["games"] // PRODUCERS
    producers = [context.Process(target=_put, args=(arguments, queue, ended, count)) for _ in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    clock = Clock()
    for _ in range(count * PRODUCERS):
        games.read(queue.get())
        clock.arrived()
    ended.set()
    for producer in producers:
        producer.join()
    return clock.seconds


class Peer:
    """A producer or a consumer as a Ray program has it: the actor itself works."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._game = _game(arguments)

    def make(self) -> Any:
        """Gives a game."""
        return self._game

    def read(self, game: Any) -> int:
        """Reads one."""
        return games.read(game)


def _through_ray(arguments: dict[str, Any]) -> float:
    import ray

    _start_ray()
    remote = ray.remote(num_cpus=0)(Peer)
    producers = [remote.remote(arguments) for _ in range(PRODUCERS)]
    consumer = remote.remote(arguments)
    clock, given = Clock(), 0
    reading: deque[Any] = deque()
    while given < arguments["games"] or reading:
        while given < arguments["games"] and len(reading) < IN_FLIGHT:
            reading.append(consumer.read.remote(producers[given % PRODUCERS].make.remote()))
            given += 1
        ray.get(reading.popleft())
        clock.arrived()
    ray.shutdown()
    return clock.seconds


def _start_ray() -> None:
    import ray

    # As `controller/slots.py` starts one on this machine.
    ray.init(address="local", num_cpus=PRODUCERS, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)


class Place:
    """What a slot's actor does for a result, without all the rest of a slot."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from trialplane.runtime.collect import segments

        self._lock = threading.Lock()
        self._writer = segments.Writer(arguments["folder"])
        self._read = segments.read
        command = [sys.executable, "-m", "tests.benchmarks.programs.moving", json.dumps(arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def heard(self) -> Any:
        """What the process says next; a consumer's word that it has read a file makes room for the next."""
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        if "took" in said:
            with self._lock:
                self._writer.release(said["took"])
        return said

    def fetch(self, file: str) -> Any:
        """The result in a file, for Ray to copy; the caller waits for the first of two and hands the other on."""
        return True, self._read(file)

    def tell(self, message: dict[str, Any]) -> None:
        """Says something to the process."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def feed(self, references: list[Any]) -> None:
        """Copies a result into a segment and tells the process."""
        import ray

        packed = ray.get(references[0])
        with self._lock:
            file, _ = self._writer.copy(packed)
        self.tell({"file": file})

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def _through_segments(arguments: dict[str, Any]) -> float:
    import ray

    _start_ray()
    folder = tempfile.mkdtemp(prefix="benchmark-", dir="/dev/shm")
    arguments = {**arguments, "folder": folder}
    remote = ray.remote(num_cpus=0, concurrency_groups={"control": 1, "data": 1})(Place)
    producers = [remote.remote({**arguments, "role": "producer"}) for _ in range(PRODUCERS)]
    consumer = remote.remote({**arguments, "role": "consumer"})
    calls: dict[Any, tuple[str, Any]] = {place.heard.remote(): ("said", place) for place in producers}
    clock, fetched, arrived, feeding = Clock(), 0, 0, 0
    offers: deque[tuple[Any, str]] = deque()
    there: deque[Any] = deque()
    while arrived < arguments["games"]:
        while offers and fetched - arrived < IN_FLIGHT:
            place, file = offers.popleft()
            fetched += 1
            known, reference = place.fetch.options(num_returns=2, concurrency_group="data").remote(file)
            calls[known] = ("fetched", (place, file, reference))
        while there and feeding < AHEAD:
            feeding += 1
            consumer.feed.options(concurrency_group="data").remote([there.popleft()])
            calls[consumer.heard.remote()] = ("took", None)
        for call in ray.wait(list(calls), num_returns=1, fetch_local=False)[0]:
            what, about = calls.pop(call)
            if what == "said":
                offers.append((about, ray.get(call)["file"]))
                calls[about.heard.remote()] = ("said", about)
            elif what == "fetched":
                place, file, reference = about
                place.tell.options(concurrency_group="control").remote({"fetched": file})
                there.append(reference)
            else:
                arrived, feeding = arrived + 1, feeding - 1
                clock.arrived()
    ray.get([place.end.options(concurrency_group="control").remote() for place in (*producers, consumer)])
    ray.shutdown()
    shutil.rmtree(folder)
    return clock.seconds


def _produce(arguments: dict[str, Any]) -> None:
    """A producer's process: writes games, at most two ahead of those that were fetched."""
    from trialplane.runtime.collect import segments

    game, writer = _game(arguments), segments.Writer(arguments["folder"])
    for number in range(arguments["games"]):
        if number >= AHEAD:
            writer.release(json.loads(sys.stdin.readline())["fetched"])
        print(json.dumps({"file": writer.write(game)[0]}), flush=True)  # noqa: T201
    sys.stdin.read()


def _consume(arguments: dict[str, Any]) -> None:
    """The consumer's process: reads games."""
    from trialplane.policies import transport
    from trialplane.runtime.collect import segments

    del arguments
    for line in sys.stdin:
        file = json.loads(line)["file"]
        games.read(transport.unpack(segments.read(file)))
        print(json.dumps({"took": file}), flush=True)  # noqa: T201


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(Path.cwd()))
    main()
