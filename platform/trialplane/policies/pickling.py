"""Only recipes are pickled to another process, never data.

Rule: an object sent to a spawned process pickles to at most 1 MiB, a dataset has the same length after pickling, and the
platform's own messages contain no tensor.
Why: a list of 14.7 million strings took 15 s and 5 GB to pickle, and eight workers started with an empty dataset.
Enforced where: after `apply()`, multiprocessing refuses to send a larger object; `check_dataset` checks a dataset before
anything starts; `dumps` pickles the platform's own messages to its processes.
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

_multiprocessing_dump = reduction.dump


def limit() -> int:
    """Return the largest pickle allowed, in bytes."""
    return int(os.environ.get(LIMIT, ENV[LIMIT]))


def apply() -> None:
    """Refuse objects over the limit in every `multiprocessing.Process` that is started by spawn."""
    for name, value in ENV.items():
        os.environ.setdefault(name, value)
    reduction.dump = _guarded_dump


def check() -> None:
    """Raise PolicyError if a large object could be sent from this process."""
    if reduction.dump is not _guarded_dump:
        raise errors.PolicyError(
            "multiprocessing would send objects of any size from this process; "
            "call trialplane.policies.pickling.apply() first, or start through trialplane"
        )


def dumps(message: Any, name: str) -> bytes:
    """Return the pickle of a message of the platform to one of its own processes.

    Args:
        message: Object to pickle.
        name: Name of the message, for errors.

    Raises:
        TransportError: The message contains a torch tensor.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, name).dump(message)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Pickler that refuses tensors anywhere in an object."""

    def __init__(self, buffer: io.BytesIO, name: str) -> None:
        super().__init__(buffer)
        self._name = name
        self._torch = sys.modules.get("torch")  # without it there are no tensors

    def reducer_override(self, obj: Any) -> Any:
        """Refuse a tensor; pickle any other object as usual. See `pickle.Pickler`."""
        if self._torch is not None and isinstance(obj, self._torch.Tensor):
            raise errors.TransportError(
                f"{self._name} would send a torch.Tensor of shape {tuple(obj.shape)}, {obj.dtype} on {obj.device}, to "
                "another process. Only numpy arrays can be sent: use tensor.numpy(force=True)"
            )
        return NotImplemented


def check_dataset(dataset: Any) -> None:
    """Raise PolicyError if `dataset` is too large to send, or changes its length when it is pickled.

    Args:
        dataset: Picklable object. If it has a length, that is compared.
    """
    name = type(dataset).__name__
    try:
        data = pickle.dumps(dataset)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise errors.PolicyError(
            f"{name} cannot be pickled ({error}), so it cannot be sent to a worker. Keep open files and "
            "locks out of its state"
        ) from error
    _refuse_large(len(data), name)
    if hasattr(dataset, "__len__"):
        length, new_length = len(dataset), len(pickle.loads(data))
        if length != new_length:
            raise errors.PolicyError(
                f"{name} has {length} items here but {new_length} after pickling, so workers would see another dataset. "
                "Have __setstate__ restore everything that __len__ and __getitem__ need"
            )


def _guarded_dump(obj: Any, file: Any, protocol: int | None = None) -> None:
    """Pickle as `multiprocessing.reduction.dump` does, but refuse an object over the limit before it is sent."""
    buffer = io.BytesIO()
    _multiprocessing_dump(obj, buffer, protocol)
    is_process = isinstance(obj, multiprocessing.process.BaseProcess)
    _refuse_large(buffer.tell(), f"the arguments of {obj.name}" if is_process else type(obj).__name__)
    file.write(buffer.getbuffer())


def _refuse_large(size: int, name: str) -> None:
    """Raise PolicyError if a pickle of this size, in bytes, is over the limit."""
    if size > limit():
        raise errors.PolicyError(
            f"{name} would send {size / 2**20:.1f} MiB to another process; the limit is {limit() / 2**20:.1f} MiB. "
            "Send a recipe instead: trialplane.training.lines.LineDataset for lines of text, a datasets.Dataset loaded from "
            "files for tables; or keep the path and open (or memory-map) the file on first use, leaving the data out of "
            "__getstate__"
        )
