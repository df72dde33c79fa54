"""Checkpoints of a training: saved in the background, complete or absent, and resumed from after a crash.

`save` copies the state to memory and returns, and a thread writes it. All ranks call it at the same steps. Files are in
torch's format and are read with `weights_only=True`: they have tensors and plain values, and no code. The package has an
example.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trialplane import errors
from trialplane.policies import transport
from trialplane.training import generators, process
from trialplane.training.checkpoint import tensors, writer
from trialplane.training.steps import record, stores
from trialplane.training.steps.record import Direction, Saved

_SLOW = 1.0  # seconds that a save may wait for the one before without a warning


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A loaded checkpoint.

    Attributes:
        saved: Description of the checkpoint.
        state: Saved state. For a sharded checkpoint, this rank's part.
        rank_state: State that this rank saved for itself. None if it saved none, or if the number of ranks has changed.
        notes: Messages for the log.
    """

    saved: Saved
    state: dict[str, Any]
    rank_state: dict[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """Number of optimizer steps done, which is the next step to do, from 0."""
        return self.saved.step


class Checkpoints:
    """The checkpoints of a training.

    Args:
        location: Folder that all ranks can reach, or fsspec URL; usually `ctx.checkpoints`.
        keep_last: Number of newest checkpoints to keep. With 2, there is another one if the newest is damaged.
        keep_best: Number of best checkpoints to keep, by `metric` of `save`.
        keep_every: Keep all checkpoints whose step is a multiple of this.
        direction: Direction of `metric`: "minimize" or "maximize".
        background: Write in a thread. With False, `save` returns when everything is written.

    Raises:
        InputError: The rules keep no checkpoint, or `location` cannot be used.
    """

    def __init__(
        self,
        location: str | Path,
        *,
        keep_last: int = 2,
        keep_best: int = 0,
        keep_every: int | None = None,
        direction: Direction = "minimize",
        background: bool = True,
    ) -> None:
        self._store = stores.open_store(str(location))
        self._rules = record.Rules(keep_last, keep_best, keep_every, direction)
        self._copier = tensors.Copier()
        self._background = background
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._writing: concurrent.futures.Future[None] | None = None

    @property
    def location(self) -> str:
        """Folder or URL of the checkpoints."""
        return self._store.location

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
        """Copy a state to memory and start to write it. Call it in every rank, at the same steps.

        The checkpoint is complete when all ranks have written it, and absent before. If the previous checkpoint is still
        being written, this waits for it.

        Args:
            step: Number of optimizer steps done.
            state: Tensors and plain values in dictionaries and lists. Put the model's state dict under "model": its shapes
                are compared when it is loaded. Only rank 0's state is written, unless `sharded`.
            rank_state: State that only this rank needs, such as `{"rng": rng_state()}`.
            metric: Value for `keep_best`. Rank 0's value is used.
            rank: Number of this rank, from 0.
            world_size: Number of ranks.
            barrier: Function that waits for all ranks. It is called in a thread, so it needs its own process group. Default:
                a gloo group, if torch.distributed is initialized.
            sharded: Write the states of all ranks, as parts of the whole.
            meta: Plain values that can be read without the tensors. Rank 0's values are used.

        Raises:
            CheckpointError: The previous save failed. Older checkpoints are unchanged, and this one was not started.
            TypeError: The state has values that cannot be loaded safely.
            ValueError: `step` or `rank` is out of range.
        """
        if not 0 <= step < 10**10 or not 0 <= rank < world_size:
            raise ValueError(f"save(step={step}, rank={rank}, world_size={world_size}): counted from 0")
        barrier = barrier or writer.barrier(world_size)
        start = time.perf_counter()
        self.wait()
        if (waited := time.perf_counter() - start) > _SLOW:
            warnings.warn(
                f"the checkpoint of step {step} waited {waited:.1f} s until the one before was written; save less often, or "
                f"to faster storage than {self.location}",
                stacklevel=2,
            )
        states = {}  # by the name of the file to write
        if sharded or rank == 0:
            states[record.state_file(rank, sharded)] = state
        if rank_state is not None:
            states[record.rank_file(rank)] = rank_state
        copied_states, size = self._copier.copy(states, "state")
        share = writer.Share(
            step=step,
            states=copied_states,
            size=size,
            rank=rank,
            world_size=world_size,
            sharded=sharded,
            metric=metric,
            meta=dict(meta or {}),
            barrier=barrier,
        )
        if not self._background:
            writer.write(self._store, self._rules, share)
            return
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
            atexit.register(self.close)  # a job that returns without `wait` still gets its last checkpoint
        self._writing = self._thread.submit(writer.write, self._store, self._rules, share)

    def wait(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            CheckpointError: The last save failed. Older checkpoints are unchanged.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait for the last checkpoint, and end the thread. A later `save` starts another one.

        Raises:
            CheckpointError: The last save failed. Older checkpoints are unchanged.
        """
        try:
            self.wait()
        finally:
            if self._thread is not None:
                atexit.unregister(self.close)
                self._thread.shutdown()
                self._thread = None

    def all(self) -> list[Saved]:
        """List the complete checkpoints, oldest first. Skip those whose description is damaged, with a warning."""
        saved, damaged = stores.records(self._store)
        for error in damaged:
            warnings.warn(f"a damaged checkpoint is skipped: {error}", stacklevel=2)
        return saved

    def newest(self) -> Saved | None:
        """Return the newest complete checkpoint. None without a checkpoint."""
        saved = self.all()
        return saved[-1] if saved else None

    def verify(self, saved: Saved) -> None:
        """Read every file of a checkpoint, and compare its checksum.

        Raises:
            CheckpointDamaged: A file is missing, truncated or changed.
        """
        for file, part in saved.parts.items():
            with self._store.local(saved.name, file) as path:
                stores.verify(path, part, f"{saved.location}/{file}")

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
        """Load a checkpoint.

        Args:
            saved: Checkpoint to load.
            rank: Number of this rank, from 0.
            world_size: Number of ranks now. Default: that of the checkpoint.
            like: Model, or its state dict, for `state["model"]`. Its shapes are compared before anything is read.
            map_location: Device for the tensors, as for `torch.load`.
            verify: Compare checksums.

        Returns:
            The state, and the state of this rank. The latter is None if this rank saved none, or if the number of ranks has
            changed.

        Raises:
            CheckpointMismatch: The checkpoint is of another model, or sharded for another number of ranks.
            CheckpointDamaged: A file is missing, truncated or changed.
        """
        world_size = world_size or saved.world_size
        if saved.sharded and world_size != saved.world_size:
            raise errors.CheckpointMismatch(
                f"{saved.location} was saved in {saved.world_size} parts, one of each rank (sharded=True), but there are "
                f"{world_size} ranks now. Continue with {saved.world_size} ranks, and save once with sharded=False there to "
                "change the number"
            )
        file = record.state_file(rank, saved.sharded)
        shapes = tensors.shapes(like)
        difference = record.difference(saved.parts[file].shapes, shapes) if shapes else ""
        if difference:
            raise errors.CheckpointMismatch(
                f"{saved.location} is of another model: {difference}. Use the parameters with which it was trained, or "
                "submit the changed job under a new name"
            )
        state = self._read(saved, file, map_location, verify)
        file_of_rank = record.rank_file(rank)
        if world_size != saved.world_size or file_of_rank not in saved.parts:
            return state, None
        return state, self._read(saved, file_of_rank, map_location, verify)

    def resume(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        like: Any = None,
        map_location: Any = "cpu",
        otherwise: str | Path | None = None,
    ) -> Resumed | None:
        """Load the newest intact checkpoint. Damaged ones are skipped with a warning.

        If torch.distributed is initialized, rank 0 chooses the checkpoint for all ranks.

        Args:
            rank: Number of this rank, from 0.
            world_size: Number of ranks now. It can differ from that of the checkpoint, unless the checkpoint is sharded.
            like: Model, or its state dict, for `state["model"]`. Its shapes are compared before anything is read.
            map_location: Device for the tensors, as for `torch.load`.
            otherwise: Folder or URL with the checkpoints of another run, to start from if there are none here; usually
                `ctx.resume_from`.

        Returns:
            The checkpoint. None if there is none here and `otherwise` is not given.

        Raises:
            CheckpointMismatch: The checkpoint is of another model, or sharded for another number of ranks.
            CheckpointDamaged: There are checkpoints, and all are damaged.
            CheckpointError: There is no checkpoint here, and none at `otherwise`.
        """
        self.wait()
        chosen = writer.agree(self.newest_intact, rank, world_size)
        if chosen is None:
            if otherwise is None:
                return None
            other = Checkpoints(otherwise).resume(rank=rank, world_size=world_size, like=like, map_location=map_location)
            if other is None:
                raise errors.CheckpointError(
                    f"there is no checkpoint at {otherwise} to continue from: that run has saved none, or it was deleted. "
                    "To start from step 0, submit without --resume"
                )
            return other
        # `newest_intact` has compared all checksums already.
        state, rank_state = self.load(
            chosen, rank=rank, world_size=world_size, like=like, map_location=map_location, verify=False
        )
        notes = [f"continues from {chosen.location}, after step {chosen.step}"]
        if world_size != chosen.world_size:
            notes.append(
                f"it was saved by {errors.counted(chosen.world_size, 'rank')}, and there are {world_size} now: model, "
                "optimizer and the order of samples continue unchanged; random numbers (dropout) are new in each rank, by "
                "seed, rank and step"
            )
        return Resumed(saved=chosen, state=state, rank_state=rank_state, notes=tuple(notes))

    def newest_intact(self, is_usable: Callable[[int], bool] = lambda step: True) -> Saved | None:
        """Return the newest usable checkpoint whose checksums are right; None without any.

        Args:
            is_usable: Function that returns whether a checkpoint of a step can be used. Others are skipped.

        Raises:
            CheckpointDamaged: No usable checkpoint is intact, and at least one is damaged.
        """

        def verified(saved: Saved) -> Saved:
            self.verify(saved)
            return saved

        return stores.newest(self._store, verified, is_usable)

    def _read(self, saved: Saved, file: str, map_location: Any, verify: bool) -> dict[str, Any]:
        """Return the state in a file of a checkpoint."""
        location = f"{saved.location}/{file}"
        with self._store.local(saved.name, file) as path:
            part = saved.parts[file] if verify else None
            state: dict[str, Any] = tensors.read(path, part, location, map_location)
            return state


def rng_state() -> dict[str, Any]:
    """Return the state of the random generators of Python, NumPy, torch and the current GPU, for a checkpoint."""
    packed = torch.from_numpy(transport.pack(generators.state()))  # torch loads no arrays of NumPy safely
    state = {"packed": packed, "torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore a state from `rng_state`. That of a GPU is restored if this process can use one."""
    generators.set_state(transport.unpack(state["packed"].numpy(), copy=True))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def reseed(seed: int, rank: int, step: int) -> None:
    """Seed all random generators of a rank that continues at a step without their saved state.

    That is the case after a change of the number of ranks. `seed` is the seed of the trial.
    """
    words = np.random.SeedSequence([seed % 2**64, rank, step]).generate_state(1, np.uint64)
    process.seed_everything(int(words[0] >> np.uint64(1)))  # 63 bits, which fit into a signed integer
