"""Write one checkpoint, in a thread of each rank: every rank its files, then rank 0 the file COMPLETE.

The ranks meet twice, also after failures: when all have written their files or failed to, and when rank 0 has completed the
checkpoint or failed to. So no rank waits for one that has given up, and every rank learns of a failure. As the training
continues meanwhile, they use a separate process group: collectives of two threads on one group would be mixed up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import distributed

from trialplane import errors
from trialplane.training.checkpoint import tensors
from trialplane.training.steps import record, stores
from trialplane.training.steps.record import Part, Rules, Saved
from trialplane.training.steps.stores import Store

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Share:
    """One rank's share of a checkpoint: copies of its states, and how the ranks meet.

    Attributes:
        step: optimizer steps done.
        trees: copied states by file.
        size: bytes of their tensors.
        rank: of this process.
        world_size: number of ranks.
        sharded: whether each rank writes a part of the state.
        metric: rank 0's counts.
        meta: rank 0's counts.
        barrier: waits for all ranks.
    """

    step: int
    trees: Mapping[str, Mapping[str, Any]]
    size: int
    rank: int
    world_size: int
    sharded: bool
    metric: float | None
    meta: Mapping[str, Any]
    barrier: Callable[[], None]


def write(store: Store, rules: Rules, share: Share) -> None:
    """Write this rank's share; return when the checkpoint is complete.

    Raises:
        CheckpointError: it is not complete; older ones are as they were.
    """
    failure: Exception | None = None
    name, parts = "", {}
    try:
        name = record.name_of(share.step, store.complete())
        parts = _write_parts(store, name, share)
    except Exception as error:  # noqa: BLE001  of any file system's library; the others wait, so it is raised below
        failure = error
    _meet(store, share)
    if share.rank == 0:
        try:
            if failure is None:
                _complete(store, rules, name, share, parts)
        except Exception as error:  # noqa: BLE001  as above
            failure = error
        if failure is not None:
            with contextlib.suppress(OSError):  # the first failure is reported
                store.sweep()
    _meet(store, share)
    if failure is None and not store.has(name):
        failure = errors.CheckpointError("another rank could not write its part; see the error of that rank")
    if failure is not None:
        raise _described(store, share, failure) from failure


def _write_parts(store: Store, name: str, share: Share) -> dict[str, Part]:
    """Write the files of this rank; take them back when one fails, so that a full disk is not left full."""
    marker = _marker(share.rank)
    parts: dict[str, Part] = {}
    try:
        for file, tree in share.trees.items():
            with store.create(name, file) as sink:
                parts[file] = tensors.write(tree, sink)
        if share.rank != 0:
            with store.create(name, marker) as sink:
                sink.write(json.dumps({file: dataclasses.asdict(part) for file, part in parts.items()}).encode())
    except BaseException:
        for file in (*share.trees, marker):
            store.discard(name, file)
        raise
    return parts


def _complete(store: Store, rules: Rules, name: str, share: Share, parts: dict[str, Part]) -> None:
    """In rank 0: collect the files of all ranks, complete the checkpoint and delete the superfluous ones."""
    for rank in range(1, share.world_size):
        marker = store.written(name, _marker(rank))
        if marker is None:
            raise errors.CheckpointError(f"rank {rank} could not write its part; see the error of that rank")
        parts |= {file: Part(**part) for file, part in json.loads(marker).items()}
    saved = Saved(
        step=share.step,
        name=name,
        location=store.url(name),
        world_size=share.world_size,
        sharded=share.sharded,
        metric=share.metric,
        parts=parts,
        meta=share.meta,
    )
    store.publish(name, record.dump(saved), parts)
    try:
        store.sweep()
        for old in rules.superfluous(stores.records(store)[0]):
            store.remove(old.name)
    except OSError as error:  # the new one is complete all the same
        warnings.warn(
            f"an old checkpoint at {store.location} could not be deleted, and still takes space: {error}", stacklevel=1
        )


def _marker(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def _meet(store: Store, share: Share) -> None:
    try:
        share.barrier()
    except RuntimeError as error:  # torch's, and threading's: a rank is gone, or none came in time
        raise _described(
            store, share, errors.CheckpointError(f"the ranks did not meet: {errors.first_line(error)}")
        ) from error


def _described(store: Store, share: Share, failure: Exception) -> errors.CheckpointError:
    """Return the error of a failure, with the state of older checkpoints and a remedy."""
    try:
        complete = store.complete()
    except OSError as error:
        last = f"The other checkpoints cannot be listed: {error}"
    else:
        before = record.order(complete[-1])[0] if complete else None
        last = (
            "There is no earlier checkpoint"
            if before is None
            else f"The checkpoint of step {before} is complete and unchanged"
        )
    head = f"the checkpoint of step {share.step} at {store.location} was not written"
    if not isinstance(failure, OSError) or failure.errno not in (errno.ENOSPC, errno.EDQUOT):
        name = "" if isinstance(failure, errors.CheckpointError) else f"{type(failure).__name__}: "
        return errors.CheckpointError(f"{head}: {name}{errors.first_line(failure)}. {last}")
    free = store.free()
    free_space = "" if free is None else f", and {_bytes(free)} are free"
    cause = "the disk is full" if failure.errno == errno.ENOSPC else "the quota is used up"
    return errors.CheckpointError(
        f"{head}: {cause}. It takes {_bytes(share.size)} on rank {share.rank}{free_space}. {last}. Make room, keep fewer "
        "(keep_last, keep_best, keep_every), or write elsewhere (checkpoints.url)"
    )


def _bytes(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1024:.1f} KiB"


def barrier(world_size: int) -> Callable[[], None]:
    """Return a barrier of all ranks that a thread may call; every rank calls this at the same point of its program.

    Raises:
        InputError: there are several ranks, and torch.distributed is not initialized.
    """
    if world_size == 1:
        return _alone
    if not can_meet():
        raise errors.InputError(
            f"a checkpoint of {world_size} ranks needs a barrier: call torch.distributed.init_process_group first, or give "
            "save(barrier=…)"
        )
    return functools.partial(distributed.barrier, group=_group(distributed.group.WORLD))


def agree(choose: Callable[[], T], rank: int, world_size: int) -> T:
    """Return the choice of rank 0 in every rank; without torch.distributed, each rank's own choice.

    Raises:
        errors of `choose`: in rank 0, and in the others a CheckpointError with the same message.
    """
    if world_size == 1 or not can_meet():
        return choose()
    group = _group(distributed.group.WORLD)
    box: list[Any] = [None, "rank 0 made no choice"]
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


def can_meet() -> bool:
    """Whether torch.distributed has a process group."""
    return bool(distributed.is_available() and distributed.is_initialized())


def _alone() -> None:
    return None


@functools.lru_cache(maxsize=1)
def _group(world: Any) -> Any:
    """A gloo group of all ranks, made once for each default group, `world`."""
    return distributed.new_group(backend="gloo")
