"""Checkpoints of a training run: saved beside the training, complete or absent, and found again after a crash.

    checkpoints = checkpoint.Checkpoints(ctx.checkpoints, keep_last=2, keep_best=1)
    found = checkpoints.resume(rank=ctx.rank, world_size=ctx.world_size, like=model)
    if found is not None:
        model.load_state_dict(found.state["model"])
        ...
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "order": order.state_dict(step)}
    checkpoints.save(step, state, rank_state={"rng": checkpoint.rng_state()}, rank=ctx.rank, world_size=ctx.world_size)
    checkpoints.wait()

`save` copies to memory and returns; a thread writes. All ranks call it at the same steps. Files are torch's, read with
`weights_only=True`: tensors and plain values, no code.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import dataclasses
import random
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trialplane import errors
from trialplane.training import process
from trialplane.training.checkpoint import tensors, writer
from trialplane.training.steps import record, stores
from trialplane.training.steps.record import Direction, Saved

_SLOW = 1.0  # seconds that a save may wait for the one before without a word


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A checkpoint, loaded.

    Attributes:
        saved: which one.
        state: what was saved; of this rank, when sharded.
        rank_state: what this rank saved for itself; None when other ranks, or none, did.
        notes: what a reader of the log should know.
    """

    saved: Saved
    state: dict[str, Any]
    rank_state: dict[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """Optimizer steps done: the step to go on with, counted from 0."""
        return self.saved.step


class Checkpoints:
    """The checkpoints of one run in one place.

    Args:
        place: a folder that all ranks see, or an fsspec URL.
        keep_last: keep so many of the newest. With 2, a damaged newest one has one before it.
        keep_best: keep so many of the best by `metric`.
        keep_every: keep those whose step is a multiple of it.
        direction: of the metric.
        background: write in a thread; False to return from `save` when everything is written.

    Raises:
        InputError: the rules keep nothing, or the place cannot be used.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        keep_last: int = 2,
        keep_best: int = 0,
        keep_every: int | None = None,
        direction: Direction = "minimize",
        background: bool = True,
    ) -> None:
        self._store = stores.open_store(str(place))
        self._rules = record.Rules(keep_last, keep_best, keep_every, direction)
        self._copier = tensors.Copier()
        self._background = background
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._writing: concurrent.futures.Future[None] | None = None

    @property
    def place(self) -> str:
        """The folder or URL."""
        return self._store.place

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        rank_state: Mapping[str, Any] | None = None,
        metric: float | None = None,
        rank: int = 0,
        world_size: int = 1,
        barrier: Callable[[], None] | None = None,
        sharded: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Copies a state to memory and starts to write it; every rank calls it, at the same steps.

        The checkpoint is there when all ranks have written and rank 0 has made it complete; never in part. A save that
        comes while the one before is being written waits for that.

        Args:
            step: optimizer steps done.
            state: tensors and plain values in dictionaries and lists; the model's state dict under "model", whose shapes are
                compared when a model is loaded. Only rank 0's is written, unless `sharded`.
            rank_state: what this rank alone needs again, such as `rng_state()`.
            metric: by which the best are kept; rank 0's counts.
            rank: of this process.
            world_size: number of ranks.
            barrier: waits for all ranks; called by a thread, so it needs a process group of its own. Without it, one is made
                of gloo where torch.distributed is initialized.
            sharded: each rank's state is a part of the whole, and all are written.
            meta: plain values to be read without the tensors; rank 0's counts.

        Raises:
            CheckpointError: the save *before* failed; older checkpoints are as they were. This one was not begun.
            TypeError: the state holds what a safe load would refuse.
        """
        if not 0 <= step < 10**10 or not 0 <= rank < world_size:
            raise ValueError(f"save(step={step}, rank={rank}, world_size={world_size}): counted from 0")
        meet = barrier or writer.barrier(world_size)
        began = time.perf_counter()
        self.wait()
        if (waited := time.perf_counter() - began) > _SLOW:
            warnings.warn(
                f"the checkpoint of step {step} waited {waited:.1f} s until the one before was written; save less often, or "
                f"to a faster place than {self.place}",
                stacklevel=2,
            )
        trees = {}
        if sharded or rank == 0:
            trees[record.state_file(rank, sharded)] = state
        if rank_state is not None:
            trees[record.rank_file(rank)] = rank_state
        whole, size = self._copier.copy(trees, "state")
        share = writer.Share(step, whole, size, rank, world_size, sharded, metric, dict(meta or {}), meet)
        if not self._background:
            writer.write(self._store, self._rules, share)
            return
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
            atexit.register(self.close)  # a job that returns without `wait` has its last checkpoint all the same
        self._writing = self._thread.submit(writer.write, self._store, self._rules, share)

    def wait(self) -> None:
        """Returns when nothing is being written any more.

        Raises:
            CheckpointError: the last save failed; older checkpoints are as they were.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Waits, and ends the thread; errors as of `wait`. A save after it starts another."""
        try:
            self.wait()
        finally:
            if self._thread is not None:
                atexit.unregister(self.close)
                self._thread.shutdown()
                self._thread = None

    def all(self) -> list[Saved]:
        """The complete checkpoints, the oldest first; one whose COMPLETE is damaged is left out with a warning."""
        found, damaged = stores.records(self._store)
        for error in damaged:
            warnings.warn(f"a checkpoint is left out: {error}", stacklevel=2)
        return found

    def newest(self) -> Saved | None:
        """The newest complete checkpoint, or None."""
        found = self.all()
        return found[-1] if found else None

    def verify(self, saved: Saved) -> None:
        """Reads every file of a checkpoint.

        Raises:
            CheckpointDamaged: one is missing, cut or changed.
        """
        for file, part in saved.parts.items():
            with self._store.local(saved.name, file) as path:
                tensors.verify(path, part, f"{saved.place}/{file}")

    def load(
        self,
        saved: Saved,
        *,
        rank: int = 0,
        world_size: int | None = None,
        like: Any = None,
        map_location: Any = "cpu",
        verify: bool = True,
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """A checkpoint's state, and this rank's own or None when it has none.

        Args:
            saved: which one.
            rank: of this process.
            world_size: number of ranks that go on; the checkpoint's when left out.
            like: the model, or its state dict, that will take `state["model"]`; compared before anything is read.
            map_location: as of `torch.load`.
            verify: whether to compare checksums.

        Raises:
            CheckpointMismatch: it is of another model, or in parts for another number of ranks.
            CheckpointDamaged: its files are not as they were written.
        """
        world_size = world_size or saved.world_size
        if saved.sharded and world_size != saved.world_size:
            raise errors.CheckpointMismatch(
                f"{saved.place} was saved in {saved.world_size} parts, one of each rank (sharded=True), and these are "
                f"{world_size} ranks. Go on with {saved.world_size} ranks, or save with sharded=False once there"
            )
        file = saved.state_file(rank)
        ours = tensors.shapes(like)
        if ours and (other := record.difference(saved.parts[file].shapes, ours)):
            raise errors.CheckpointMismatch(
                f"{saved.place} is of another model: {other}. Give the parameters it was trained with, or another run a "
                "new name"
            )
        state = self._read(saved, file, map_location, verify)
        own = record.rank_file(rank)
        if world_size != saved.world_size or own not in saved.parts:
            return state, None
        return state, self._read(saved, own, map_location, verify)

    def resume(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        like: Any = None,
        map_location: Any = "cpu",
        otherwise: str | Path | None = None,
    ) -> Resumed | None:
        """Loads the newest whole checkpoint: of a damaged one a warning is given, and the one before is taken.

        Rank 0 chooses for all ranks where torch.distributed is initialized; else each rank looks for itself.

        Args:
            rank: of this process.
            world_size: number of ranks that go on; need not be that of the checkpoint, unless it is sharded.
            like: the model, as of `load`.
            map_location: as of `torch.load`.
            otherwise: the place of another run's checkpoints, to begin from when there is none here.

        Returns:
            None when there is no checkpoint here and `otherwise` is not given.

        Raises:
            CheckpointMismatch: as of `load`.
            CheckpointDamaged: there are checkpoints, and none is whole.
            CheckpointError: there is none here, and none at `otherwise`.
        """
        self.wait()
        chosen = writer.agree(self._whole, rank, world_size)
        if chosen is None:
            if otherwise is None:
                return None
            other = Checkpoints(otherwise).resume(rank=rank, world_size=world_size, like=like, map_location=map_location)
            if other is None:
                raise errors.CheckpointError(
                    f"there is no checkpoint at {otherwise} to go on from: that run has saved none, or it was deleted. To "
                    "begin from step 0, submit without --resume"
                )
            return other
        state, own = self.load(chosen, rank=rank, world_size=world_size, like=like, map_location=map_location, verify=False)
        notes = [f"goes on from {chosen.place}, after step {chosen.step}"]
        if world_size != chosen.world_size:
            notes.append(
                f"it was saved by {errors.counted(chosen.world_size, 'rank')} and these are {world_size}: model, "
                "optimizer and the order of samples go on as they were; random numbers (dropout) are each rank's new ones, "
                "by seed, rank and step"
            )
        return Resumed(chosen, state, own, tuple(notes))

    def _whole(self) -> Saved | None:
        """The newest checkpoint all of whose files are as they were written."""
        found = self.all()
        for saved in reversed(found):
            try:
                self.verify(saved)
            except errors.CheckpointDamaged as error:
                warnings.warn(f"a checkpoint is left out, and the one before it is taken: {error}", stacklevel=3)
            else:
                return saved
        if found:
            raise errors.CheckpointDamaged(
                f"none of the {errors.counted(len(found), 'checkpoint')} at {self.place} is whole. To begin again from "
                "step 0, delete or move that place"
            )
        return None

    def _read(self, saved: Saved, file: str, map_location: Any, verify: bool) -> dict[str, Any]:
        place = f"{saved.place}/{file}"
        with self._store.local(saved.name, file) as path:
            part = saved.parts[file] if verify else None
            state: dict[str, Any] = tensors.read(path, part, place, map_location)
            return state


def rng_state() -> dict[str, Any]:
    """The state of all generators of this process, in tensors and plain values; the GPU's is that of the current device."""
    version, words, gauss = random.getstate()
    legacy: dict[str, Any] = np.random.get_state(legacy=False)
    state = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {**legacy, "state": {**legacy["state"], "key": torch.from_numpy(legacy["state"]["key"].astype(np.int64))}},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Puts all generators into a state of `rng_state`; the GPU's where both had one."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    legacy = state["numpy"]
    key = legacy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def reseed(seed: int, rank: int, step: int) -> None:
    """Seeds all generators for a rank that goes on at `step` without a state of its own: the number of ranks has changed."""
    words = np.random.SeedSequence([seed % 2**64, rank, step]).generate_state(1, np.uint64)
    process.seed_everything(int(words[0] >> np.uint64(1)))
