"""What is pickled to another process is a recipe, never data.

Rule: an object sent to a spawned process pickles to at most 1 MiB, a dataset comes back with the length it had, and no
tensor is in what the platform itself sends.
Why: a list of 14.7 million strings took 15 s and 5 GB to pickle, and eight workers started with an empty dataset.
Enforced where: `apply()` makes multiprocessing refuse a larger object at the moment it would be sent; `check_dataset`
proves a dataset before anything starts; the platform's own messages to its processes are made by `dumps`.
Test: tests/policies/test_pickling.py, and test_refused_tensors.py.
"""

from __future__ import annotations

import io
import multiprocessing.process
import os
import pickle
import sys
from multiprocessing import reduction
from typing import Any

from trialplane import errors

LIMIT = "TRIALPLANE_PICKLE_LIMIT"
ENV = {LIMIT: str(1 << 20)}

_original_dump = reduction.dump


def limit() -> int:
    """The largest pickle allowed, in bytes."""
    return int(os.environ.get(LIMIT, ENV[LIMIT]))


def apply() -> None:
    """Makes every `multiprocessing.Process` that starts by spawn refuse an object over the limit."""
    for name, value in ENV.items():
        os.environ.setdefault(name, value)
    reduction.dump = _guarded_dump


def check() -> None:
    """Raises PolicyError when a large object could be sent from this process."""
    if reduction.dump is not _guarded_dump:
        raise errors.PolicyError(
            "multiprocessing would send objects of any size from this process; "
            "call trialplane.policies.pickling.apply() first, or start through trialplane"
        )


def dumps(message: Any, name: str) -> bytes:
    """The pickle of a message of ours to a process of ours, in which there is no tensor.

    Args:
        message: what is sent.
        name: its name in the error.

    Raises:
        TransportError: a torch tensor is in it; names its shape and dtype.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, name).dump(message)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Refuses tensors, wherever in an object they are."""

    def __init__(self, buffer: io.BytesIO, name: str) -> None:
        super().__init__(buffer)
        self._name = name
        self._torch = sys.modules.get("torch")  # where it has not been imported, nothing is a tensor

    def reducer_override(self, obj: Any) -> Any:
        if self._torch is not None and isinstance(obj, self._torch.Tensor):
            raise errors.TransportError(
                f"{self._name} would send a torch.Tensor of shape {tuple(obj.shape)}, {obj.dtype} on {obj.device}, to "
                "another process; only numpy arrays cross: give tensor.numpy(force=True)"
            )
        return NotImplemented


def check_dataset(dataset: Any) -> None:
    """Raises PolicyError when `dataset` is too large to send, or does not come back with its length.

    Args:
        dataset: anything picklable; its length is compared when it has one.
    """
    name = type(dataset).__name__
    try:
        data = pickle.dumps(dataset)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise errors.PolicyError(
            f"{name} cannot be pickled ({error}), so no worker can have it; keep open files and locks out of its state"
        ) from error
    _refuse_large(len(data), name)
    if hasattr(dataset, "__len__"):
        before, after = len(dataset), len(pickle.loads(data))
        if before != after:
            raise errors.PolicyError(
                f"{name} has {before} items here but {after} after pickling, so workers would see another dataset; "
                "let __setstate__ restore everything that __len__ and __getitem__ need"
            )


def _guarded_dump(obj: Any, file: Any, protocol: int | None = None) -> None:
    """`multiprocessing.reduction.dump`, refusing what is over the limit before anything is sent."""
    buffer = io.BytesIO()
    _original_dump(obj, buffer, protocol)
    is_process = isinstance(obj, multiprocessing.process.BaseProcess)
    _refuse_large(buffer.tell(), f"the arguments of {obj.name}" if is_process else type(obj).__name__)
    file.write(buffer.getbuffer())


def _refuse_large(size: int, name: str) -> None:
    if size > limit():
        raise errors.PolicyError(
            f"{name} would send {size / 2**20:.1f} MiB to another process; the limit is {limit() / 2**20:.1f} MiB. "
            "Send a recipe instead: trialplane.training.lines.LineDataset for lines of text, a datasets.Dataset loaded from "
            "files for tables; or keep the path and open (or memory-map) the file on first use, leaving the data out of "
            "__getstate__"
        )
