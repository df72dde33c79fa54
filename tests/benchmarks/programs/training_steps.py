"""Trains a small model with and without the platform's library, in turn, and times its parts; prints one JSON document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from trialplane.training import checkpoint, progress
from trialplane.training.batches import BatchOrder, ResumableSampler
from trialplane.training.checkpoint import Checkpoints

SAMPLES, BATCH = 20_000, 64
LINES = 14_800_000


class Job:
    """A context whose reports go through a pipe to another process, as a trial's do."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self._drain = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def report(self, step: int, **metrics: float) -> None:
        self._send({"step": step, **metrics})

    def pulse(self, step: int, seconds: float) -> None:
        self._send({"step": step, "seconds": seconds})

    def close(self) -> None:
        assert self._drain.stdin is not None
        self._drain.stdin.close()
        self._drain.wait()

    def _send(self, message: Mapping[str, float]) -> None:
        assert self._drain.stdin is not None
        self._drain.stdin.write(json.dumps(message).encode() + b"\n")
        self._drain.stdin.flush()


class Loop:
    """One model, its data and its optimizer."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.data = torch.randn(SAMPLES, width)
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.step = 0

    def loss(self, indices: list[int]) -> torch.Tensor:
        return self.model(self.data[indices]).square().mean()

    def update(self, loss: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return norm

    def bare(self, steps: int) -> float:
        """Seconds of so many steps without the platform."""
        order = torch.randperm(SAMPLES)
        began = time.perf_counter()
        for step in range(steps):
            self.update(self.loss(order[step * BATCH : (step + 1) * BATCH].tolist()))
        return time.perf_counter() - began

    def ours(self, steps: int, batches: Iterator[list[int]], meter: progress.Meter, checkpoints: Checkpoints) -> float:
        """Seconds of so many steps with it, and one checkpoint."""
        began = time.perf_counter()
        for number in range(steps):
            with meter.own_work():
                loss = self.loss(next(batches))
            norm = self.update(loss)
            self.step += 1
            meter.step(self.step, samples=BATCH, tokens=BATCH, loss=loss, lr=1e-3, grad_norm=norm)
            if number == 0:  # so that it is written while these steps run
                state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                checkpoints.save(self.step, state, rank_state={"rng": checkpoint.rng_state()})
        return time.perf_counter() - began


def loops(scratch: Path, rounds: int, steps: int, width: int) -> dict[str, Any]:
    """Percent of our loop over the bare one, round by round."""
    loop, job = Loop(width), Job()
    total = (rounds + 1) * steps
    batches = iter(ResumableSampler(BatchOrder(SAMPLES, BATCH), 0, 1, 0, total))
    meter = progress.Meter(job, total_steps=total + 1, every=1.0)
    overhead, bare = [], []
    with Checkpoints(scratch / "loop") as checkpoints:
        for number in range(rounds + 1):
            taken = [loop.bare(steps), loop.ours(steps, batches, meter, checkpoints)]
            checkpoints.wait()  # the bare loop has the machine for itself
            if number:  # the first warms up
                overhead.append(100 * (taken[1] / taken[0] - 1))
                bare.append(1000 * taken[0] / steps)
        newest = checkpoints.newest()
        assert newest is not None
    job.close()
    return {"overhead": overhead, "step_ms": sorted(bare)[len(bare) // 2], "loop_state_mib": newest.size / 2**20}


def saves(scratch: Path, rounds: int, mib: int) -> dict[str, Any]:
    """Milliseconds that a save takes from a step, until it is complete, and of torch's own."""
    state = {"model": {f"layer.{number}": torch.randn(mib << 14) for number in range(16)}}
    taken: dict[str, list[float]] = {"save": [], "complete": [], "torch_save": []}
    with Checkpoints(scratch / "saves", keep_last=1) as checkpoints:
        for number in range(rounds + 1):
            began = time.perf_counter()
            checkpoints.save(number, state)
            returned = time.perf_counter()
            checkpoints.wait()
            complete = time.perf_counter()
            with (scratch / "plain.pt").open("wb") as file:
                torch.save(state, file)
                os.fsync(file.fileno())
            ended = time.perf_counter()
            if number:
                for name, seconds in (
                    ("save", returned - began),
                    ("complete", complete - began),
                    ("torch_save", ended - complete),
                ):
                    taken[name].append(1000 * seconds)
    return taken


def orders(rounds: int) -> dict[str, Any]:
    """Microseconds per step of a rank's share, and the memory it takes."""
    tracemalloc.start()
    order = BatchOrder(LINES, 256)
    list(ResumableSampler(order, 3, 8, 0, 64))
    memory = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    permutation = torch.randperm(LINES)
    taken: dict[str, Any] = {"order": [], "randperm": [], "order_mib": memory, "randperm_mib": permutation.nbytes / 2**20}
    for number in range(rounds):
        began = time.perf_counter()
        for _ in ResumableSampler(order, 3, 8, number * 256, (number + 1) * 256):
            pass
        ours = time.perf_counter()
        for step in range(256):
            permutation[step * 256 + 96 : step * 256 + 128].tolist()
        taken["order"].append(1e6 * (ours - began) / 256)
        taken["randperm"].append(1e6 * (time.perf_counter() - ours) / 256)
    return taken


def meters(rounds: int) -> dict[str, Any]:
    """Microseconds of the meter in a step that has no line."""
    job, loss = Job(), torch.zeros(())
    taken = []
    for _ in range(rounds):
        meter = progress.Meter(job, total_steps=10**9, every=1e9)
        began = time.perf_counter()
        for step in range(1, 1001):
            with meter.own_work():
                pass
            meter.step(step, samples=32, tokens=32, loss=loss, lr=1e-3, grad_norm=loss)
        taken.append(1e6 * (time.perf_counter() - began) / 1000)
    job.close()
    return {"meter": taken}


def main() -> None:
    """Prints everything."""
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    scratch, rounds = Path(arguments["scratch"]), arguments["rounds"]
    scratch.mkdir()
    answer = {
        **loops(scratch, rounds, arguments["steps"], arguments["width"]),
        **saves(scratch, max(rounds // 3, 1), arguments["state_mib"]),
        **orders(rounds),
        **meters(rounds),
    }
    print(json.dumps(answer))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
