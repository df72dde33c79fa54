"""Bytes a second from two workers to a learner that reads everything: `moving '{"way": "ours", "games": 40, …}'`.

Every way moves games as lists of arrays, made once, and has so many of them on the way at most. Ours is a whole collection
on this machine: units handed out one by one, their results, and the learner. The clock runs from its 20th game to its last.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.benchmarks.programs import games

PRODUCERS = 2
IN_FLIGHT = 32
TRAIN = """
import games


def play(ctx):
    game = games.game(ctx.params["positions"])
    for unit in ctx.units():
        ctx.give(unit, game)


def learn(ctx, results):
    clock = games.Clock()
    for result in results:
        games.read(result.value)
        clock.arrived()
    return {"seconds": clock.seconds}
"""


def main() -> None:
    """Prints gigabytes a second."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    # Each tensor on the way is an open file in each of two processes.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    ways: dict[str, Callable[[dict[str, Any]], float]] = {
        "ours": _through_the_platform,
        "queue": _through_a_queue,
        "torch": _through_a_queue,
        "ray": _through_ray,
        "ray_torch": _through_ray,
        "memcpy": _copied,
    }
    seconds = ways[arguments["way"]](arguments)
    moved = games.size(games.game(arguments["positions"])) * (arguments["games"] - games.WARM)
    print(json.dumps({"gb_per_second": moved / seconds / 1e9}))  # noqa: T201  this is the answer


def _game(arguments: dict[str, Any]) -> Any:
    made = games.game(arguments["positions"])
    if "torch" not in arguments["way"]:
        return made
    import torch

    return {name: [torch.from_numpy(array) for array in arrays] for name, arrays in made.items()}


def _copied(arguments: dict[str, Any]) -> float:
    buffer = np.ones(2 * games.size(games.game(arguments["positions"])), dtype=np.uint8)
    half = buffer.nbytes // 2
    clock = games.Clock()
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
    workers = [context.Process(target=_put, args=(arguments, queue, ended, count)) for _ in range(PRODUCERS)]
    for worker in workers:
        worker.start()
    clock = games.Clock()
    for _ in range(count * PRODUCERS):
        games.read(queue.get())
        clock.arrived()
    ended.set()
    for worker in workers:
        worker.join()
    return clock.seconds


class Peer:
    """A worker or a learner as a Ray program has it: the actor itself works."""

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
    workers = [remote.remote(arguments) for _ in range(PRODUCERS)]
    learner = remote.remote(arguments)
    clock, given = games.Clock(), 0
    reading: deque[Any] = deque()
    while given < arguments["games"] or reading:
        while given < arguments["games"] and len(reading) < IN_FLIGHT:
            reading.append(learner.read.remote(workers[given % PRODUCERS].make.remote()))
            given += 1
        ray.get(reading.popleft())
        clock.arrived()
    ray.shutdown()
    return clock.seconds


def _start_ray() -> None:
    import ray

    # As `controller/slots.py` starts one on this machine.
    ray.init(address="local", num_cpus=PRODUCERS, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)


def _through_the_platform(arguments: dict[str, Any]) -> float:
    """A collection of one iteration, as a user submits it; its learner has the clock."""
    platform, run = str(Path(sys.executable).with_name("platform")), f"moving-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "moving")
        job.mkdir()
        shutil.copy(games.__file__, job / "games.py")
        (job / "train.py").write_text(TRAIN)
        collect = {
            "units": arguments["games"],
            "iterations": 1,
            "workers": PRODUCERS,
            "learner": "train:learn",
            "in_flight": IN_FLIGHT * games.size(games.game(arguments["positions"])),
        }
        document = {
            "kind": "collect",
            "entrypoint": "train:play",
            "preload": ["numpy"],
            "params": {"positions": arguments["positions"]},
            "collect": collect,
        }
        (job / "job.yaml").write_text(json.dumps(document))
        _run([platform, "submit", "collect", str(job), "--local", "--name", run])
        (result,) = json.loads(_run([platform, "results", run, "--output", "json"]))
    return float(result["metrics"]["seconds"])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[1:3]} exited {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(Path.cwd()))
    main()
