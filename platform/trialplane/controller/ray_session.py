"""The controller's Ray session: started on a laptop (`connect`), or joined in a cluster (`join`).

Also the answers of slots, which are references to objects of Ray, and measurements of the object stores.
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

STARTS = 3  # attempts: Ray gives its processes only 30 s to start, and on a busy machine the next one may be fast enough
QUERY_SECONDS = 2.0  # longest wait for a node to report what it has spilled, or for a head to accept a connection
_PREFIX = "trialplane-ray-"  # of the name of the folder with Ray's files
_RAY_FOLDER = "r"  # Ray's own folder in that folder, which Ray makes accessible to every user
_LONGEST_BASE = 17  # characters of the folder for temporary files: the path of a Unix socket in it has at most 107
_YOUNG = 60.0  # seconds in which another controller may not have locked its new folder yet
HEAD_PAUSE = 0.2  # seconds between two attempts to reach a head that starts


@contextlib.contextmanager
def connect(roles: Sequence[Role], store_size: Callable[[int], int]) -> Iterator[None]:
    """Start a Ray for this process on this machine, with room for the slots of all roles, and end it.

    Ray reads its settings on import: see `__main__`.

    Args:
        roles: Roles of the job.
        store_size: Returns the size of the object store for a number of free bytes in /dev/shm.

    Raises:
        SlotError: Ray does not start, or has fewer GPUs than the trials need.
    """
    folder, lock = _make_folder()
    keeps_logs = False
    try:
        _start_ray(roles, store_size, folder)
        yield
    except errors.SlotError:
        keeps_logs = True  # the error names the folder; the next controller that starts Ray removes it
        raise
    finally:
        ray.shutdown()
        if not keeps_logs:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make_folder() -> tuple[Path, int]:
    """Create a folder for Ray's files, and remove those that killed controllers have left behind.

    Only this user may enter the folder. Ray makes its own folder accessible to every user of the machine, and without the
    folder around it any of them could replace a socket in it.

    Returns:
        The folder, and the descriptor of its lock, which is held as long as Ray runs.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) > _LONGEST_BASE:
        base = Path("/tmp")
    for leftover in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # the folder is locked, belongs to another user, or was just removed
            if time.time() - leftover.stat().st_mtime > _YOUNG:
                descriptor = _lock(leftover)
                shutil.rmtree(leftover, ignore_errors=True)
                os.close(descriptor)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    return folder, _lock(folder)


def _lock(folder: Path) -> int:
    """Lock a folder, and return the descriptor whose closing releases the lock.

    Raises:
        OSError: Another process has locked the folder, or it cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _start_ray(roles: Sequence[Role], store_size: Callable[[int], int], folder: Path) -> None:
    """Start Ray, in up to `STARTS` tries if it is slow, and check that it has enough GPUs. See `connect`."""
    slot_count = sum(role.pods for role in roles)
    gpu_count = sum(role.resources.gpus_for(role.pods) for role in roles)
    with _map_to_slot_error(f"Ray does not start on this machine (its logs are in {folder})"):
        for attempt in range(1, STARTS + 1):
            children_before = process.children()
            try:
                ray.init(
                    address="local",
                    num_cpus=max(slot_count, 1),
                    resources={cluster.slot(role.name): role.pods for role in roles},
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    object_store_memory=store_size(shutil.disk_usage("/dev/shm").free),
                    _temp_dir=str(folder / _RAY_FOLDER),
                )
                break
            except Exception as error:
                if not _is_timeout(error) or attempt == STARTS:
                    raise
                log.warning("Ray was not up after 30 s and is started again: %s", errors.first_line(error))
                for pid in process.children() - children_before:  # Ray does not end them after a failed start
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    available_gpus = int(ray.cluster_resources().get("GPU", 0))
    if available_gpus < gpu_count:
        raise errors.SlotError(
            f"{errors.counted(slot_count, 'slot')} request {errors.counted(gpu_count, 'GPU')}, but Ray finds "
            f"{available_gpus}; lower --parallel, --nodes or --gpus"
        )


def join(address: str, should_give_up: Callable[[], bool], on_trouble: Callable[[str], None] = lambda _: None) -> bool:
    """Join the Ray of a cluster, whose pods provide the slots, as soon as its head answers.

    The head is a container of the same pod and starts after this one. Without a head, Ray would spend 40 s on each attempt
    to join, so a connection is tested first. No error ends the wait, because the head may be replaced by another one.

    Args:
        address: `HOST:PORT` of the head.
        should_give_up: Returns whether to end the wait; called before each attempt.
        on_trouble: Called with the reason why a head that accepts connections cannot be joined, once for each reason.

    Returns:
        Whether Ray was joined.
    """
    last_problem = ""
    while not should_give_up():
        is_reachable = False
        try:
            _check_connection(address)
            is_reachable = True
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            return True
        except Exception as error:  # noqa: BLE001  Ray raises errors of many classes here, and all mean the same
            ray.shutdown()
            problem = errors.first_line(error)
            if problem != last_problem:
                log.info("the Ray at %s does not answer yet: %s", address, problem)
                if is_reachable:
                    on_trouble(problem)
            last_problem = problem
            time.sleep(HEAD_PAUSE)
    return False


def is_head_lost(address: str, patience: float = 0.0) -> bool:
    """Return whether nothing answers any more at the address that was joined.

    Args:
        address: `HOST:PORT` of the head.
        patience: Seconds to wait for a head that is about to end. When it ends, this process first loses the raylet, while
            the head still accepts connections for a moment.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            _check_connection(address)
        except OSError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(HEAD_PAUSE)


def _check_connection(address: str) -> None:
    """Open and close a connection to a head.

    Raises:
        OSError: Nothing answers at this address.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=QUERY_SECONDS).close()


@contextlib.contextmanager
def _map_to_slot_error(problem: str) -> Iterator[None]:
    """Raise SlotError for errors of Ray, with a text that begins with `problem`."""
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        raise errors.SlotError(f"{problem}: {errors.first_line(error)}") from error
    except Exception as error:
        if not _is_timeout(error):
            raise
        text = f"{problem}: {errors.first_line(error)} Is the machine very busy? `platform resume` tries again"
        raise errors.SlotError(text) from error


def _is_timeout(error: Exception) -> bool:
    """Return whether an error means that Ray's processes took too long to start: only then Ray raises a plain Exception."""
    return type(error) is Exception


def disconnect() -> None:
    """Leave the Ray that was joined."""
    ray.shutdown()


def wait(answers: Sequence[Any], timeout: float) -> list[Any]:
    """Wait at most `timeout` seconds for the first of these answers, and return it in a list; empty if none has arrived.

    With a timeout of 0, return all that have arrived.
    """
    if not answers:
        time.sleep(timeout)
        return []
    # With timeout 0, one call of Ray collects all answers: a call for each would cost as much as the answers themselves.
    num_returns = 1 if timeout else len(answers)
    ready, _ = ray.wait(list(answers), num_returns=num_returns, timeout=timeout, fetch_local=False)
    return list(ready)


def result(answer: Any) -> Any:
    """Return an answer of a slot.

    Raises:
        SlotError: The slot was lost.
        Exception: The call itself failed.
    """
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        raise error.cause or error from None  # the cause is the error that the call itself has raised
    except ray.exceptions.RayError as error:
        raise errors.SlotError(errors.first_line(error)) from error


def store_bytes(roles: Sequence[Role]) -> int:
    """Return the bytes of the smallest object store of a node with slots; 0 while no node has any."""
    slot_resources = [cluster.slot(role.name) for role in roles]
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes_with_slots = [resources for resources in nodes if any(resources.get(name) for name in slot_resources)]
    return int(min((resources.get("object_store_memory", 0) for resources in nodes_with_slots), default=0))


def spilled_bytes() -> int | None:
    """Return the bytes that the object stores of all nodes have spilled to disk so far; None if Ray cannot say it now.

    Ray has no public call for this. Its command `ray memory` uses the same private one.
    """
    from grpc import RpcError  # type: ignore[import-untyped]

    try:
        reply = internal_api.get_memory_info_reply(state.state, timeout_seconds=QUERY_SECONDS)
    except (RpcError, AssertionError):  # the node that Ray asks has just ended, or no node is alive
        return None
    return int(reply.store_stats.spilled_bytes_total)
