"""Writing of one checkpoint, in a thread of each rank: every rank writes its files, then rank 0 writes COMPLETE.

The ranks wait for each other twice, even after failures: when all have written their files or failed to, and when rank 0 has
completed the checkpoint or failed to. So no rank waits in vain, and every rank learns of a failure. The training continues
during the write, so the ranks use a separate process group: collectives of two threads on one group would be mixed up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from torch import distributed

from trialplane import errors
from trialplane.training.checkpoint import tensors
from trialplane.training.steps import record, stores
from trialplane.training.steps.record import Part, Rules, Saved
from trialplane.training.steps.stores import Store

T = TypeVar("T")

_OUT_OF_SPACE: Mapping[int | None, str] = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}


@dataclasses.dataclass(frozen=True)
class Share:
    """One rank's share of a checkpoint: copies of its states, and a barrier.

    Attributes:
        step: Number of optimizer steps done.
        states: Copied states, by file.
        size: Bytes of their tensors.
        rank: Number of this rank.
        world_size: Number of ranks.
        sharded: Whether each rank writes a part of the state.
        metric: Value for `keep_best`; only rank 0's is used.
        meta: Plain values of the job; only rank 0's are used.
        barrier: Function that waits for all ranks.
    """

    step: int
    states: Mapping[str, Mapping[str, Any]]
    size: int
    rank: int
    world_size: int
    sharded: bool
    metric: float | None
    meta: Mapping[str, Any]
    barrier: Callable[[], None]


def write(store: Store, rules: Rules, share: Share) -> None:
    """Write this rank's share. Return when the checkpoint is complete.

    The ranks wait for each other after they have written, and again after rank 0 has written COMPLETE; see the module.

    Raises:
        CheckpointError: The checkpoint could not be completed. Older ones are unchanged.
    """
    failure: Exception | None = None
    name = ""
    parts: dict[str, Part] = {}
    try:
        name = record.unused_name(share.step, store.complete())
        parts = _write_parts(store, name, share)
    except Exception as error:  # noqa: BLE001  raised below: this rank must first meet the other ranks, which wait for it
        failure = error
    _wait_for_ranks(store, share)
    if share.rank == 0:
        try:
            if failure is None:
                _complete(store, rules, name, share, parts)
        except Exception as error:  # noqa: BLE001  raised below, for the same reason
            failure = error
        if failure is not None:
            with contextlib.suppress(OSError):  # the failure before is reported, not this one
                store.sweep()
    _wait_for_ranks(store, share)
    if failure is None and not store.has(name):  # rank 0 has not completed it
        failure = errors.CheckpointError("another rank could not write its part; see the error of that rank")
    if failure is not None:
        raise _write_error(store, share, failure) from failure


def _write_parts(store: Store, name: str, share: Share) -> dict[str, Part]:
    """Write the files of this rank. If one fails, remove all of them, so that a full disk does not stay full."""
    parts_file = _parts_file(share.rank)
    parts: dict[str, Part] = {}
    try:
        for file, state in share.states.items():
            with store.create(name, file) as sink:
                parts[file] = tensors.write(state, sink)
        if share.rank != 0:  # rank 0 reads the sizes and checksums of the others' files, to write COMPLETE
            with store.create(name, parts_file) as sink:
                sink.write(json.dumps({file: dataclasses.asdict(part) for file, part in parts.items()}).encode())
    except BaseException:
        for file in (*share.states, parts_file):
            store.discard(name, file)
        raise
    return parts


def _complete(store: Store, rules: Rules, name: str, share: Share, parts: dict[str, Part]) -> None:
    """Complete the checkpoint with the files of all ranks, and delete checkpoints that no rule keeps. Only for rank 0.

    `share` and `parts` are those of rank 0. The parts of the other ranks are read from the files that these ranks wrote.

    Raises:
        CheckpointError: A rank did not write its part.
    """
    for rank in range(1, share.world_size):
        parts_json = store.read_draft(name, _parts_file(rank))
        if parts_json is None:
            raise errors.CheckpointError(f"rank {rank} could not write its part; see the error of that rank")
        parts |= {file: Part(**part) for file, part in json.loads(parts_json).items()}
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
        for old in rules.surplus(stores.records(store).saved):
            store.remove(old.name)
    except OSError as error:  # the new checkpoint is complete nevertheless
        warnings.warn(
            f"an old checkpoint at {store.location} could not be deleted, and still takes space: {error}", stacklevel=1
        )


def _parts_file(rank: int) -> str:
    """Return the name of the file in which a rank lists its files for rank 0, with their sizes and checksums."""
    return f"rank-{rank:05d}.json"


def _wait_for_ranks(store: Store, share: Share) -> None:
    """Wait for all ranks.

    Raises:
        CheckpointError: A rank has ended, or did not come in time.
    """
    try:
        share.barrier()
    except RuntimeError as error:  # of torch's barrier, or of threading's (BrokenBarrierError)
        raise _write_error(
            store, share, errors.CheckpointError(f"the ranks did not meet: {errors.first_line(error)}")
        ) from error


def _write_error(store: Store, share: Share, failure: Exception) -> errors.CheckpointError:
    """Return the error for a failure, with the state of older checkpoints and a remedy."""
    older = "There is no earlier checkpoint"
    try:
        if complete := store.complete():
            older = f"The checkpoint of step {record.step_of(complete[-1])} is complete and unchanged"
    except OSError as error:
        older = f"The other checkpoints cannot be listed: {error}"
    head = f"the checkpoint of step {share.step} at {store.location} was not written"
    cause = _OUT_OF_SPACE.get(failure.errno) if isinstance(failure, OSError) else None
    if cause is None:
        error_class = "" if isinstance(failure, errors.CheckpointError) else f"{type(failure).__name__}: "
        return errors.CheckpointError(f"{head}: {error_class}{errors.first_line(failure)}. {older}")
    free = store.free()
    free_space = "" if free is None else f", and {_readable_size(free)} are free"
    return errors.CheckpointError(
        f"{head}: {cause}. It takes {_readable_size(share.size)} on rank {share.rank}{free_space}. {older}. Make room, "
        "keep fewer (keep_last, keep_best, keep_every), or write elsewhere (checkpoints.url)"
    )


def _readable_size(size: int) -> str:
    """Return a number of bytes in GiB, MiB or KiB: `1.5 GiB`."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1024:.1f} KiB"


def barrier(world_size: int) -> Callable[[], None]:
    """Return a barrier of all ranks that a thread may call. Every rank must call this at the same point of its program.

    Raises:
        InputError: There are several ranks, and torch.distributed is not initialized.
    """
    if world_size == 1:
        return lambda: None
    if not has_process_group():
        raise errors.InputError(
            f"a checkpoint of {world_size} ranks needs a barrier: call torch.distributed.init_process_group first, or give "
            "save(barrier=…)"
        )
    return functools.partial(distributed.barrier, group=_gloo_group(distributed.group.WORLD, "write"))


class _Outcome(NamedTuple):
    """Choice of rank 0, or the error that it raised."""

    choice: Any
    error: errors.TrialplaneError | None


def agree(choose: Callable[[], T], rank: int, world_size: int) -> T:
    """Return the choice of rank 0 in every rank. Without torch.distributed, return each rank's own choice.

    Raises:
        TrialplaneError: The function `choose` raised it in rank 0. It is raised in all ranks.
    """
    if world_size == 1 or not has_process_group():
        return choose()
    group = _gloo_group(distributed.group.WORLD, "agree")
    outcome = _Outcome(None, errors.CheckpointError("rank 0 made no choice"))  # if `choose` raises another kind of error
    try:
        if rank == 0:
            outcome = _Outcome(choose(), None)
    except errors.TrialplaneError as error:
        outcome = _Outcome(None, error)
    finally:  # also after any other error in rank 0, because the other ranks wait for the broadcast
        received = [outcome]
        distributed.broadcast_object_list(received, src=0, group=group)  # replaces the element by that of rank 0
    choice, error_of_rank_0 = received[0]
    if error_of_rank_0 is not None:
        raise error_of_rank_0
    return choice  # type: ignore[no-any-return]


def has_process_group() -> bool:
    """Whether torch.distributed has a process group."""
    return bool(distributed.is_available() and distributed.is_initialized())


@functools.lru_cache(maxsize=2)
def _gloo_group(world: Any, purpose: Literal["write", "agree"]) -> Any:
    """Return a gloo group of all ranks, cached for the default group `world`.

    There are two: a write in a thread waits for the other ranks while the training agrees on the next state to save.
    """
    return distributed.new_group(backend="gloo")
