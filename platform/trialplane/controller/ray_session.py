"""The controller's Ray session, local or in a cluster, and the size and spilling of its object stores.

It makes no decisions; what runs in the session is the concern of `slots`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray._private import internal_api, state

from trialplane import errors
from trialplane.job.kinds import Role
from trialplane.training import process
from trialplane.wire import cluster

log = logging.getLogger(__name__)

STARTS = 3  # Ray gives its processes 30 s, which cannot be changed, and a busy machine may be faster a minute later
QUERY_SECONDS = 2.0  # for a node to report what it has spilled, and for a head to take a connection
_PREFIX = "trialplane-ray-"  # of a Ray's folder
_RAYS = "r"  # what Ray opens to every user, below what it cannot open
_LONGEST_BASE = 17  # characters of the folder above it, as the path of a Unix socket has 107 at most
_YOUNG = 60.0  # seconds in which a folder may not be locked yet
HEAD_PAUSE = 0.2  # seconds between two tries to reach a head that starts


@contextlib.contextmanager
def connect(roles: Sequence[Role], store: Callable[[int], int]) -> Iterator[None]:
    """Start a Ray for this process on this machine, with room for the slots of all roles, and end it.

    `store` computes the size of its object store from the free bytes in /dev/shm: `plan.sizes.local_object_store`.
    Ray reads its settings on import: see `__main__`.

    Raises:
        SlotError: Ray does not start, or has fewer GPUs than the trials need.
    """
    folder, lock = _make_folder()
    keeps = False
    try:
        _start(roles, store, folder)
        yield
    except errors.SlotError:
        keeps = True  # its logs, until the next one starts
        raise
    finally:
        ray.shutdown()
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make_folder() -> tuple[Path, int]:
    """A folder of this user alone, above Ray's, and the lock on it; removes those that killed controllers left.

    Ray opens its own to every user of the machine, who could replace a socket in it.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) > _LONGEST_BASE:
        base = Path("/tmp")
    for leftover in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or just removed
            if time.time() - leftover.stat().st_mtime > _YOUNG:
                descriptor = _lock(leftover)
                shutil.rmtree(leftover, ignore_errors=True)
                os.close(descriptor)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    return folder, _lock(folder)


def _lock(folder: Path) -> int:
    """Lock a folder until the descriptor is closed; raise OSError if it is another process's."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _start(roles: Sequence[Role], store: Callable[[int], int], folder: Path) -> None:
    size, gpus = sum(role.pods for role in roles), sum(role.pods * role.resources.gpus for role in roles)
    with _as_slot_error(f"Ray does not start on this machine (its logs are in {folder})"):
        for start in range(1, STARTS + 1):
            children = process.children()
            try:
                ray.init(
                    address="local",
                    num_cpus=max(size, 1),
                    resources={cluster.slot(role.name): role.pods for role in roles},
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    object_store_memory=store(shutil.disk_usage("/dev/shm").free),
                    _temp_dir=str(folder / _RAYS),
                )
                break
            except Exception as error:
                if not _was_slow(error) or start == STARTS:
                    raise
                log.warning("Ray was not up after 30 s and is started again: %s", errors.first_line(error))
                for pid in process.children() - children:  # otherwise they would stay until this process ends
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    available_gpus = int(ray.cluster_resources().get("GPU", 0))
    if available_gpus < gpus:
        raise errors.SlotError(
            f"{errors.counted(size, 'slot')} request {errors.counted(gpus, 'GPU')}, but Ray finds {available_gpus}; lower "
            "--parallel, --nodes or --gpus"
        )


def join(address: str, give_up: Callable[[], bool], on_trouble: Callable[[str], None] = lambda _: None) -> bool:
    """Join the Ray of a cluster, whose pods provide the slots, as soon as its head answers.

    The head is a container beside this one and starts after it. Ray itself would spend 40 s on each try without a head. No
    error ends the wait: whatever is wrong with Ray is no end of the run, and the next try may be at another head.

    Args:
        address: host:port of the head.
        give_up: polled while there is no head; True ends the wait.
        on_trouble: called with the reason why a head that takes connections cannot be joined, once for each reason.

    Returns:
        Whether it was joined.
    """
    problem = ""
    while not give_up():
        answers = False
        try:
            _reach(address)
            answers = True
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            return True
        except Exception as error:  # noqa: BLE001  Ray has no class of its own for any of them
            ray.shutdown()
            if problem != (problem := errors.first_line(error)):
                log.info("the Ray at %s does not answer yet: %s", address, problem)
                if answers:
                    on_trouble(problem)
            time.sleep(HEAD_PAUSE)
    return False


def is_head_lost(address: str, patience: float = 0.0) -> bool:
    """Whether nothing answers any more at the address that was joined.

    Args:
        address: host:port of the head.
        patience: seconds in which it may still go away: it ends a moment after its raylet, whose end is seen first here.
    """
    until = time.monotonic() + patience
    while True:
        try:
            _reach(address)
        except OSError:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(HEAD_PAUSE)


def _reach(address: str) -> None:
    """Connect to a head once. Raises OSError when nothing answers."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=QUERY_SECONDS).close()


@contextlib.contextmanager
def _as_slot_error(problem: str) -> Iterator[None]:
    """Raise errors of Ray as SlotError."""
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        raise errors.SlotError(f"{problem}: {errors.first_line(error)}") from error
    except Exception as error:
        if not _was_slow(error):
            raise
        text = f"{problem}: {errors.first_line(error)} Is the machine very busy? `platform resume` tries again"
        raise errors.SlotError(text) from error


def _was_slow(error: Exception) -> bool:
    """Whether Ray's processes took too long to start: it raises a plain Exception for nothing else."""
    return type(error) is Exception


def disconnect() -> None:
    """Leave the Ray that was joined."""
    ray.shutdown()


def wait(answers: Sequence[Any], timeout: float) -> list[Any]:
    """Wait for one of these answers for at most `timeout` seconds; with 0 returns all that are ready."""
    if not answers:
        time.sleep(timeout)
        return []
    # A call per answer would cost as much as the answers.
    num_returns = 1 if timeout else len(answers)
    ready, _ = ray.wait(list(answers), num_returns=num_returns, timeout=timeout, fetch_local=False)
    return list(ready)


def result(answer: Any) -> Any:
    """Return an answer of a slot.

    Raises:
        SlotError: the slot was lost.
        Exception: the call's own error.
    """
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        raise error.cause or error from None
    except ray.exceptions.RayError as error:
        raise errors.SlotError(errors.first_line(error)) from error


def store_bytes(roles: Sequence[Role]) -> int:
    """Bytes of the smallest object store of a node with slots; 0 while there is none."""
    slots = [cluster.slot(role.name) for role in roles]
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return int(
        min(
            (
                node_resources.get("object_store_memory", 0)
                for node_resources in nodes
                if any(node_resources.get(resource) for resource in slots)
            ),
            default=0,
        )
    )


def spilled_bytes() -> int | None:
    """Bytes that the object stores of all nodes have spilled to disk so far; None when no node answers.

    Ray has no public call for it: this is what its command `ray memory` uses.
    """
    from grpc import RpcError  # type: ignore[import-untyped]

    try:
        reply = internal_api.get_memory_info_reply(state.state, timeout_seconds=QUERY_SECONDS)
    except (RpcError, AssertionError):  # a node that has just gone, or all of them
        return None
    return int(reply.store_stats.spilled_bytes_total)
