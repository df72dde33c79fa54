"""States that a trial saves with `ctx.save`: torch's where the job uses torch, packed numpy arrays otherwise.

Either is complete or absent, holds no code, and comes with the state of the random generators. The two newest are kept.
Imports torch only if the job has imported it, or if it reads a state with tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from trialplane import errors
from trialplane.policies import transport
from trialplane.training import generators
from trialplane.training.steps import record, stores
from trialplane.training.steps.record import Saved

_KEEP = 2  # with two, one that is damaged, or beyond a rung, has one before it
_PACKED = "state.packed"


class Restored(NamedTuple):
    """A state that was read."""

    step: int
    state: dict[str, Any]


class States:
    """The states of one trial.

    Args:
        location: folder or fsspec URL of its checkpoints.
        rank: number of this rank.
        world_size: number of ranks. With several, torch.distributed must be initialized, and all ranks call the same.
    """

    def __init__(self, location: str, rank: int = 0, world_size: int = 1) -> None:
        self._location, self._rank, self._world_size = location, rank, world_size
        self._torch: Any = None  # the checkpoints of a job with tensors

    def agree(self, choose: Callable[[], tuple[bool, bool, bool]]) -> tuple[bool, bool, bool]:
        """Return the choice of rank 0 in every rank."""
        if self._world_size == 1:
            return choose()
        from trialplane.training.checkpoint import writer  # imports torch, which ranks use

        if not writer.can_meet():
            raise errors.InputError(
                f"ctx.save in a trial of {self._world_size} ranks needs torch.distributed: call init_process_group first"
            )
        return writer.agree(choose, self._rank, self._world_size)

    def save(self, step: int, state: Mapping[str, Any], *, wait: bool) -> None:
        """Save a state.

        Args:
            step: of the last report whose work it contains.
            state: tensors, arrays, numbers, strings, lists and mappings of them.
            wait: whether to return only when it is complete.

        Raises:
            CheckpointError: it could not be written, or the one before.
            TypeError, TransportError: it has a value that cannot be saved.
        """
        if "torch" in sys.modules or self._world_size > 1:
            from trialplane.training import checkpoint  # imports torch

            rng = {"rng": checkpoint.rng_state()}
            self._checkpoints.save(step, {"state": state}, rank_state=rng, rank=self._rank, world_size=self._world_size)
            if wait:
                self._checkpoints.wait()
        else:
            self._pack(step, {"state": dict(state), "rng": generators.state()})

    def wait(self) -> None:
        """Wait until the last state is complete.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._torch is not None:
            self._torch.wait()

    def restore(self, is_usable: Callable[[int], bool]) -> Restored | None:
        """Read the newest intact state, and set the random generators as they were when it was saved.

        Args:
            is_usable: whether the trial can continue from a checkpoint of a step; others are skipped.

        Raises:
            CheckpointDamaged: there are usable ones, and all are damaged.
        """
        restored = stores.newest(stores.open_store(self._location), self._read, is_usable)
        if restored is None:
            return None
        checkpoint, (state, set_generators) = restored
        set_generators()
        return Restored(checkpoint.step, state)

    @property
    def _checkpoints(self) -> Any:
        if self._torch is None:
            from trialplane.training import checkpoint  # imports torch

            self._torch = checkpoint.Checkpoints(self._location, keep_last=_KEEP)
        return self._torch

    def _read(self, saved: Saved) -> tuple[dict[str, Any], Callable[[], None]]:
        """The state of a checkpoint, and a function that sets the random generators."""
        if _PACKED not in saved.parts:
            from trialplane.training import checkpoint  # imports torch

            tree, rank_state = self._checkpoints.load(saved, rank=self._rank, world_size=self._world_size)
            if "state" not in tree:
                raise errors.CheckpointError(
                    f"{saved.location} was not saved by ctx.save; read it with trialplane.training.checkpoint"
                )
            return tree["state"], lambda: None if rank_state is None else checkpoint.set_rng_state(rank_state["rng"])
        store = stores.open_store(self._location)
        with store.local(saved.name, _PACKED) as path:
            stores.verify(path, saved.parts[_PACKED], f"{saved.location}/{_PACKED}")
            tree = transport.unpack(np.fromfile(path, dtype=np.uint8), copy=True)
        return tree["state"], lambda: generators.set_state(tree["rng"])

    def _pack(self, step: int, tree: Mapping[str, Any]) -> None:
        packed = transport.pack(tree)
        store = stores.open_store(self._location)
        try:
            existing = store.complete()
            name = record.name_of(step, existing)
            with store.create(name, _PACKED) as sink:
                sink.write(packed.data)
            parts = {_PACKED: record.Part(sink.size, sink.crc)}
            store.publish(name, record.dump(Saved(step, name, store.url(name), 1, False, None, parts, {})), [_PACKED])
            for outdated in existing[: len(existing) + 1 - _KEEP]:
                store.remove(outdated)
            store.sweep()
        except OSError as error:
            raise errors.CheckpointError(
                f"the checkpoint of step {step} could not be written to {self._location}: {error.strerror or error}. Free "
                "some space there, then continue with `platform resume`"
            ) from error
