"""No process forks once CUDA is initialized or another thread runs in it.

Rule: a job's own workers start by spawn, and the warm template is forked only while it is clean.
Why: the better outcome is an error, "Cannot re-initialize CUDA in forked subprocess". The worse one is a hang: the child
waits for a lock held by a thread that it does not have.
Enforced where: `apply()` makes spawn the start method of multiprocessing in every trial; the template asks
`reasons_not_to_fork()` before each fork and starts the trial by spawn if there is one. Hugging Face's `datasets` uses its
own multiprocessing (`multiprocess`), which forks, even for `num_proc=1`: `apply()` makes it spawn as well, and then
`Dataset.map` and `Dataset.filter` refuse `num_proc` if CUDA is initialized or this is one of several ranks.
Test: tests/policies/test_policies.py, tests/policies/test_datasets.py, tests/worker/test_template.py.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trialplane import errors

START_METHOD = "TRIALPLANE_START_METHOD"
ENV = {
    START_METHOD: "spawn",
    # Lets an import call torch.cuda.is_available() without starting the driver, which does not survive a fork.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

_DATASET = "datasets.arrow_dataset"  # module of the class with map and filter
_GUARDED = "_trialplane_guarded"  # attribute of a guarded method
_FORK_FREE = ("spawn", "forkserver")


def apply() -> None:
    """Make spawn the start method of multiprocessing, unless the job has chosen one, and guard `datasets`."""
    for name, value in ENV.items():
        os.environ.setdefault(name, value)
    if multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method(os.environ[START_METHOD])
    if _DATASET in sys.modules:  # imported before; otherwise it is guarded when it is imported
        _guard(sys.modules[_DATASET])
    elif _IMPORT_HOOK not in sys.meta_path:
        sys.meta_path.insert(0, _IMPORT_HOOK)


def check() -> None:
    """Raise PolicyError if workers of this process would be forked."""
    method = multiprocessing.get_start_method(allow_none=True)
    if method not in _FORK_FREE:
        raise errors.PolicyError(
            f"multiprocessing starts workers by {method or 'fork (the default)'}, which breaks once CUDA or a thread is "
            'active in this process. Call multiprocessing.set_start_method("spawn"), or start through trialplane'
        )
    dataset = sys.modules.get(_DATASET)
    if dataset is not None and not hasattr(dataset.Dataset.map, _GUARDED):
        raise errors.PolicyError(
            "datasets was imported before the policy was applied, and Dataset.map(num_proc=…) would fork unsafely. Call "
            "trialplane.policies.spawn.apply(), or start through trialplane"
        )


def reasons_not_to_fork() -> list[str]:
    """Return reasons why a fork of this process could break its child. Empty if a fork is safe."""
    return _cuda_reasons() + _thread_reasons()


def reasons_not_to_map() -> list[str]:
    """Return reasons why `Dataset.map` must not start processes from this one. Empty if it may."""
    reasons = _rank_reasons() + _cuda_reasons()
    multiprocess = sys.modules.get("multiprocess")  # the package by which `datasets` starts processes
    if multiprocess is None or multiprocess.get_start_method(allow_none=True) not in _FORK_FREE:
        reasons += _thread_reasons()  # other threads only endanger processes that are forked
    return reasons


def _cuda_reasons() -> list[str]:
    """Return a reason if CUDA is in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return ["CUDA is initialized"]
    if any(target.startswith("/dev/nvidia") for target in _open_files()):
        return ["a CUDA device is open"]
    return []


def _thread_reasons() -> list[str]:
    """Return a reason if this process has other threads."""
    threads = _other_threads()
    return [f"{len(threads)} thread(s) are alive: {', '.join(sorted(set(threads)))}"] if threads else []


def _rank_reasons() -> list[str]:
    """Return a reason if this is one of several ranks."""
    # The variables tell that before the rank has joined the process group, and the group afterwards.
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = str(distributed.get_rank()), str(distributed.get_world_size())
    is_one_of_several = rank != "" and world_size.isdigit() and int(world_size) > 1
    return [f"this is rank {rank} of {world_size}, and each would map everything"] if is_one_of_several else []


def _open_files() -> list[str]:
    """Return the targets of this process's file descriptors."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(descriptor.readlink()))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return targets


def _other_threads() -> list[str]:
    """Return the names of all threads except the main one, including those of native libraries."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        is_main = int(thread.name) == os.getpid()
        if is_main:
            continue
        try:
            names.append((thread / "comm").read_text().strip())
        except (FileNotFoundError, ProcessLookupError):  # the thread has just ended
            continue
    return names


def _guard(dataset: ModuleType) -> None:
    """Make the processes of `datasets` start by spawn, and guard its methods that start processes."""
    multiprocess = sys.modules["multiprocess"]  # `datasets` has imported it
    if multiprocess.get_start_method(allow_none=True) is None:
        multiprocess.set_start_method(os.environ[START_METHOD])
    for name in ("map", "filter"):
        method = getattr(dataset.Dataset, name)
        if not hasattr(method, _GUARDED):
            setattr(dataset.Dataset, name, _guard_method(method))


def _guard_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that raises PolicyError if it would start processes that could fail or hang."""
    import inspect  # not needed without `datasets`

    position = list(inspect.signature(method).parameters).index("num_proc")  # among arguments without names

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        positional_num_proc = args[position] if len(args) > position else None
        num_proc = kwargs.get("num_proc", positional_num_proc)
        reasons = reasons_not_to_map() if num_proc else []
        if reasons:
            raise errors.PolicyError(
                f"Dataset.{method.__name__}(num_proc={num_proc}) starts processes (datasets does so even for 1), "
                f"but {'; '.join(reasons)}. Forked processes would fail or hang. Call it before the model is on the GPU and "
                "before ranks start, or use num_proc=None to stay in this process, or call "
                "trialplane.training.mapping.mapped(dataset, function, cache=ctx.cache), which uses all cores in clean "
                "processes, once for all ranks"
            )
        return method(*args, **kwargs)

    setattr(guarded, _GUARDED, True)
    return guarded


class _ImportHook(importlib.abc.MetaPathFinder):
    """Import hook that guards `datasets` when it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec that guards `datasets` after loading it. None for all other modules."""
        if fullname != _DATASET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:  # otherwise `datasets` is not installed
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _guard(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_IMPORT_HOOK = _ImportHook()
