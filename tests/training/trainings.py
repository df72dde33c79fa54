"""Helpers for tests of checkpoints: a small training with all kinds of state, locations, and ranks as threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import torch
from fsspec.implementations.memory import MemoryFileSystem

from trialplane import errors
from trialplane.training import checkpoint
from trialplane.training.batches import BatchOrder
from trialplane.training.checkpoint import Checkpoints

ORDER = BatchOrder(100, 8, seed=3)
DATA = torch.randn(100, 6, generator=torch.Generator().manual_seed(0))


class Training:
    """A small model with everything that has a state: dropout, AdamW, warm-up, gradient scaling."""

    def __init__(self, width: int = 5) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1, step / 5))
        self.scaler = torch.amp.GradScaler("cpu")
        self.step = 0

    def run(self, stop: int) -> list[tuple[Any, ...]]:
        """Trains until `stop`; what each step saw and did."""
        losses = []
        while self.step < stop:
            indices = ORDER.indices(self.step)
            loss = self.model(DATA[indices]).square().mean() + random.random() + np.random.rand()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.step += 1
            losses.append((self.step, indices.tolist(), loss.item(), self.scheduler.get_last_lr()))
        return losses

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "order": ORDER.state_dict(self.step),
        }

    def take(self, resumed: checkpoint.Resumed) -> None:
        self.model.load_state_dict(resumed.state["model"])
        self.optimizer.load_state_dict(resumed.state["optimizer"])
        self.scheduler.load_state_dict(resumed.state["scheduler"])
        self.scaler.load_state_dict(resumed.state["scaler"])
        self.step = ORDER.start(resumed.state["order"])
        assert resumed.rank_state is not None
        checkpoint.set_rng_state(resumed.rank_state["rng"])


def small(value: float = 0.0) -> dict[str, Any]:
    return {"model": {"weight": torch.full((4, 3), value), "bias": torch.full((3,), value)}, "note": "x"}


def saved(place: Path | str, *steps: int, **rules: Any) -> Checkpoints:
    """A place with checkpoints whose weights are their steps."""
    checkpoints = Checkpoints(place, background=False, **rules)
    for step in steps:
        checkpoints.save(step, small(step), rank_state={"rank": 0})
    return checkpoints


def steps(checkpoints: Checkpoints) -> list[int]:
    return [saved.step for saved in checkpoints.all()]


def names(folder: Path | str) -> list[str]:
    """The names in a folder, or at a URL."""
    files, path = fsspec.url_to_fs(str(folder))
    return sorted(entry.rstrip("/").rpartition("/")[2] for entry in files.ls(path, detail=False))


def bucket() -> str:
    """An empty place in fsspec's memory."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return "memory://bucket/run/trial-0"


def in_ranks(world_size: int, act: Callable[[int, Callable[[], None]], Any]) -> list[BaseException | None]:
    """Runs `act(rank, barrier)` in a thread per rank; what each raised."""
    barrier = threading.Barrier(world_size, timeout=600)
    raised: list[BaseException | None] = [None] * world_size

    def meet() -> None:
        barrier.wait()

    def one(rank: int) -> None:
        try:
            act(rank, meet)
        except (errors.TrialplaneError, OSError) as error:
            raised[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised
