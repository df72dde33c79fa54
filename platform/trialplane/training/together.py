"""How the ranks of one training meet outside of the training's own collectives: at a barrier, and to choose the same thing.

A thread that writes a checkpoint meets the other ranks' threads while the training goes on, so it needs a process group of
its own: collectives of two threads on one group would be mixed up. Must not import torch before it is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from trialplane import errors

T = TypeVar("T")


def barrier(world_size: int) -> Callable[[], None]:
    """A barrier of all ranks that a thread may call; every rank asks for it at the same point of its program.

    Raises:
        InputError: there are several ranks, and torch.distributed is not initialized.
    """
    if world_size == 1:
        return _alone
    if not initialized():
        raise errors.InputError(
            f"a checkpoint of {world_size} ranks needs a barrier: call torch.distributed.init_process_group first, or give "
            "save(barrier=…)"
        )
    from torch import distributed

    return functools.partial(distributed.barrier, group=_group(distributed.group.WORLD))


def agree(choose: Callable[[], T], rank: int, world_size: int) -> T:
    """What rank 0 chooses, in every rank; each rank's own choice where torch.distributed is not initialized.

    Raises:
        whatever `choose` raises: in rank 0, and for the others an error that says so.
    """
    if world_size == 1 or not initialized():
        return choose()
    from torch import distributed

    group = _group(distributed.group.WORLD)
    box: list[Any] = [None, "rank 0 did not come to a choice"]
    try:
        if rank == 0:
            box = [choose(), ""]
    except errors.TrialplaneError as error:
        box = [None, str(error)]
        raise
    finally:
        distributed.broadcast_object_list(box, src=0, group=group)
    if box[1]:
        raise errors.CheckpointError(box[1])
    chosen: T = box[0]
    return chosen


def initialized() -> bool:
    """Whether torch.distributed has a process group."""
    from torch import distributed

    return bool(distributed.is_available() and distributed.is_initialized())


def _alone() -> None:
    return None


@functools.lru_cache(maxsize=1)
def _group(world: Any) -> Any:
    """A gloo group of all ranks, made once for each default group, `world`."""
    from torch import distributed

    return distributed.new_group(backend="gloo")
