"""States that a trial saves with `ctx.save`: in torch's format if the job uses torch, otherwise as packed NumPy arrays.

A state is complete or absent, holds no code, and includes the state of the random generators. The two newest are kept. In a
trial that is paused at rungs (certain steps), a state is saved at each.
Imports torch only if the job has imported it, or if a state with tensors is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from trialplane import errors
from trialplane.policies import transport
from trialplane.training import generators
from trialplane.training.steps import stores
from trialplane.training.steps.record import Saved

_KEEP = 2  # number of states: the older one is used if the newest is damaged, or if its step is beyond a rung
_PACKED_FILE = "state.packed"


class SaveChoice(NamedTuple):
    """Decision of rank 0 in `ctx.save`.

    Attributes:
        stops: Whether the attempt stops.
        pauses: Whether the trial pauses at a rung.
        is_due: Whether `every` seconds have passed since the last checkpoint, or the step is at a rung.
        is_last: Whether it is the last step of a whole trial.
    """

    stops: bool
    pauses: bool
    is_due: bool
    is_last: bool


class Restored(NamedTuple):
    """State that was read, and its step."""

    step: int
    state: dict[str, Any]


class States:
    """The states of one trial.

    Args:
        location: Folder or fsspec URL of the trial's checkpoints.
        rank: Number of this rank.
        world_size: Number of ranks. With several, torch.distributed must be initialized, and all ranks must call the same
            methods.
    """

    def __init__(self, location: str, rank: int = 0, world_size: int = 1) -> None:
        self._location, self._rank, self._world_size = location, rank, world_size
        self._torch_checkpoints: Any = None  # created for a job with tensors

    def agree(self, choose: Callable[[], SaveChoice]) -> SaveChoice:
        """Return rank 0's decision in every rank. `choose` is called in rank 0 only.

        Raises:
            InputError: There are several ranks, and torch.distributed is not initialized.
        """
        if self._world_size == 1:
            return choose()
        from trialplane.training.checkpoint import writer  # imports torch, which ranks use

        if not writer.has_process_group():
            raise errors.InputError(
                f"ctx.save in a trial of {self._world_size} ranks needs torch.distributed: call init_process_group first"
            )
        return writer.agree(choose, self._rank, self._world_size)

    def save(self, step: int, state: Mapping[str, Any], *, wait: bool) -> None:
        """Save a state, with that of the random generators; in torch's format if the job has imported torch.

        Args:
            step: Step of the last report whose work the state contains.
            state: Tensors, arrays, numbers, strings, and lists and mappings of them.
            wait: Return only when the checkpoint is complete.

        Raises:
            CheckpointError: This state, or the one before, could not be written.
            TypeError, TransportError: The state has a value that cannot be saved.
        """
        if "torch" in sys.modules or self._world_size > 1:  # several ranks always use torch
            from trialplane.training import checkpoint  # imports torch

            generator_state = {"rng": checkpoint.rng_state()}
            self._checkpoints.save(
                step, {"state": state}, rank_state=generator_state, rank=self._rank, world_size=self._world_size
            )
            if wait:
                self._checkpoints.wait()
        else:
            packed = transport.pack({"state": dict(state), "rng": generators.state()})
            stores.save_file(self._location, step, file=_PACKED_FILE, write=lambda sink: sink.write(packed.data), keep=_KEEP)

    def wait(self) -> None:
        """Wait until the last state is complete.

        Raises:
            CheckpointError: The state could not be written.
        """
        if self._torch_checkpoints is not None:
            self._torch_checkpoints.wait()

    def restore(self, is_usable: Callable[[int], bool]) -> Restored | None:
        """Read the newest intact state, and restore the random generators.

        If torch.distributed is initialized, rank 0 selects the state for all ranks, which must all call this.

        Args:
            is_usable: Function that returns whether the trial can continue from a checkpoint of a step. Others are skipped.

        Returns:
            None if there is no usable state.

        Raises:
            CheckpointDamaged: No usable state is intact, and at least one is damaged.
        """
        if self._world_size == 1:
            return stores.newest(stores.open_store(self._location), self._restore, is_usable)
        from trialplane.training.checkpoint import writer  # imports torch, which ranks use

        # Every rank reads the checkpoint that rank 0 has selected, because ranks may see different lists of a shared folder.
        chosen: Saved | None = writer.agree(lambda: self._checkpoints.newest_intact(is_usable), self._rank, self._world_size)
        return None if chosen is None else self._restore(chosen)

    def restore_newest(self) -> Restored | None:
        """Read the newest state, and restore the random generators. Return None if there is no state.

        Raises:
            CheckpointDamaged: It is damaged. An older state is not used instead.
        """
        return stores.only_newest(stores.open_store(self._location), self._restore)

    @property
    def _checkpoints(self) -> Any:
        """Checkpoints in torch's format, created at the first use."""
        if self._torch_checkpoints is None:
            from trialplane.training import checkpoint  # imports torch

            self._torch_checkpoints = checkpoint.Checkpoints(self._location, keep_last=_KEEP)
        return self._torch_checkpoints

    def _restore(self, saved: Saved) -> Restored:
        """Read the state of a checkpoint, and restore the random generators if their state was saved for this rank."""
        if _PACKED_FILE not in saved.parts:  # in torch's format
            from trialplane.training import checkpoint  # imports torch

            tree, rank_state = self._checkpoints.load(saved, rank=self._rank, world_size=self._world_size)
            if "state" not in tree:
                raise errors.CheckpointError(
                    f"{saved.location} was not saved by ctx.save; read it with trialplane.training.checkpoint"
                )
            if rank_state is not None:  # otherwise the number of ranks has changed
                checkpoint.set_rng_state(rank_state["rng"])
            return Restored(saved.step, tree["state"])
        store = stores.open_store(self._location)
        with store.local(saved.name, _PACKED_FILE) as path:
            stores.verify(path, saved.parts[_PACKED_FILE], f"{saved.location}/{_PACKED_FILE}")
            tree = transport.unpack(np.fromfile(path, dtype=np.uint8), copy=True)
        generators.set_state(tree["rng"])
        return Restored(saved.step, tree["state"])
