"""Only numpy arrays and plain values cross a process boundary.

Rule: a result is packed into one contiguous buffer with a small header; torch tensors become numpy arrays at the border,
and what is neither array nor plain value is refused with its path in the tree (`leaves.py`).
Why: torch tensors in a queue are shared file descriptors of the sender: 4 workers put 500 tensors each, exited, and 0 of
4 results arrived. One packed buffer moves through Ray's object store twice as fast as a list of arrays.
Enforced where: a trial's process packs what the job returned or gave, and its reader unpacks it; the processes between
them, which call Ray, have no torch; what the platform itself pickles goes through `pickling.dumps`, which refuses tensors.
Test: tests/policies/test_transport.py, test_lost_tensors.py and test_refused_tensors.py.

Layout of a packed buffer: 8 bytes with its size in all and 8 with the length of the header, both little-endian; the header;
then the arrays, each at a multiple of 64 bytes from the start of the buffer. The header is JSON:

    {"tree": {"x": {"$array": 0}, "games": {"$arrays": [1, 200]}, "y": 1},      a list of 200 arrays, from number 1 on
     "arrays": [["<i2", [3], 0, 1], ["<f4", [8, 8], 64, 200]]}                  dtype, shape, offset, so many in a row
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.policies import leaves

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

MODE = "TRIALPLANE_TRANSPORT"
ENV = {MODE: "numpy"}
ALIGNMENT = 64
_HEAD = 16  # bytes before the header
_DTYPE = re.compile(r"[<>|][a-zA-Z]\d+(\[\w+\])?")  # as numpy's `dtype.str` has it


def apply() -> None:
    """Sets the variable by which pods and checks know the policy."""
    for name, value in ENV.items():
        os.environ.setdefault(name, value)


def check() -> None:
    """Raises PolicyError when this process was not told to send numpy only."""
    if os.environ.get(MODE) != ENV[MODE]:
        raise errors.PolicyError(f"{MODE}={ENV[MODE]} is not set in this process; start it through trialplane")


class Packing:
    """A tree that is about to be packed: its size is known, and its arrays have not been copied yet.

    Args:
        tree: dicts with string keys and dataclasses (which come back as dicts), lists and tuples (which come back as
            lists) of numpy arrays, torch tensors (CUDA ones are copied to the host, once) and plain values. bfloat16
            comes back as its bits, uint16: `torch.from_numpy(bits).view(torch.bfloat16)`.
        name: what messages call the tree.

    Attributes:
        nbytes: of the packed buffer.

    Raises:
        TransportError: something in the tree is none of these; names its path.
    """

    def __init__(self, tree: Any, name: str = "result") -> None:
        found = leaves.Leaves(tree, name)
        self._arrays = found.arrays
        self._offsets: list[int] = []
        entries: list[list[Any]] = []
        offset = 0  # from the start of the first array
        last: tuple[Any, ...] = ()
        for array, kind in zip(found.arrays, found.kinds, strict=True):
            size = _padded(array.nbytes)
            this = (array.dtype, kind, array.shape)
            if size and this == last:
                entries[-1][3] += 1
            else:
                entries.append([kind or array.dtype.str, array.shape, offset, 1])
                last = this
            self._offsets.append(offset)
            offset += size
        self._header = json.dumps({"tree": found.rest, "arrays": entries}, separators=(",", ":")).encode()
        self._start = _padded(_HEAD + len(self._header))
        self.nbytes = self._start + offset

    def write(self, buffer: Array) -> None:
        """Writes the packed tree into the first `nbytes` of a uint8 array; each array is copied once, straight there."""
        import numpy as np

        if buffer.dtype != np.uint8 or buffer.ndim != 1 or buffer.nbytes < self.nbytes:
            raise ValueError(f"{self.nbytes} bytes do not fit into {buffer.dtype}{buffer.shape}")
        head = self.nbytes.to_bytes(8, "little") + len(self._header).to_bytes(8, "little") + self._header
        buffer[: self._start] = np.frombuffer(head.ljust(self._start, b"\0"), dtype=np.uint8)
        for array, offset in zip(self._arrays, self._offsets, strict=True):
            size, begin = array.nbytes, self._start + offset
            if not size:
                continue
            np.copyto(np.ndarray(array.shape, array.dtype, buffer, begin), array)
            if size % ALIGNMENT:  # the same tree is always the same bytes, also where others were before
                buffer[begin + size : begin + _padded(size)] = 0


def pack(tree: Any, name: str = "result") -> Array:
    """The tree as one buffer: a uint8 array of shape (bytes,). Arguments and errors are those of `Packing`."""
    import numpy as np

    packing = Packing(tree, name)
    packed = np.empty(packing.nbytes, dtype=np.uint8)
    packing.write(packed)
    return packed


def size_of(packed: Array) -> int:
    """Bytes of the packed tree with which a uint8 array begins; what lies behind it is not looked at.

    Raises:
        TransportError: the array holds no packed tree, or not the whole of it.
    """
    if packed.nbytes < _HEAD:
        raise errors.TransportError(f"{packed.nbytes} bytes are no packed result, which has {_HEAD} before its header")
    size, header = (int.from_bytes(packed[at : at + 8].tobytes(), "little") for at in (0, 8))
    if header > size - _HEAD:
        raise errors.TransportError(f"no packed result: it names a header of {header} bytes in a result of {size}")
    if size > packed.nbytes:
        raise errors.TransportError(f"a packed result of {size} bytes was cut: {packed.nbytes} are there")
    return size


def unpack(packed: Array, *, copy: bool = False) -> Any:
    """The tree in a packed buffer.

    Args:
        packed: what `pack` returned, or a view of it; a uint8 array of shape (bytes,).
        copy: False gives read-only views of `packed`; True gives arrays of their own, which may be written.

    Raises:
        TransportError: it is no packed tree, or a damaged one.
    """
    size_of(packed)
    packed = packed.view()
    packed.flags.writeable = False
    length = int.from_bytes(packed[8:_HEAD].tobytes(), "little")
    try:
        header = json.loads(packed[_HEAD : _HEAD + length].tobytes())
        start = _padded(_HEAD + length)
        arrays = [array for entry in header["arrays"] for array in _views(packed, start, *entry)]
        return leaves.restore(header["tree"], [array.copy() for array in arrays] if copy else arrays)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        what = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.TransportError(f"the header of a packed result of {packed.nbytes} bytes is damaged ({what})") from error


def _views(packed: Array, start: int, code: str, shape: list[int], offset: int, count: int) -> Iterator[Array]:
    """So many arrays of one dtype and shape, one after another."""
    import numpy as np

    if code != leaves.BFLOAT16 and not _DTYPE.fullmatch(code):
        raise ValueError(f"no dtype: {code!r}")
    dtype = np.dtype(np.uint16 if code == leaves.BFLOAT16 else code)
    if dtype.hasobject:
        raise ValueError(f"a dtype of Python objects: {code!r}")
    step = _padded(dtype.itemsize * math.prod(shape))
    begin = start + offset
    # numpy takes a negative side for one that it is to find out.
    if min(offset, count, *shape) < 0 or begin + step * count > packed.nbytes or not (step or count == 1):
        raise ValueError(f"{count} arrays of {step} bytes at {offset} do not lie in it")
    for at in range(begin, begin + step * count, step) if step else [0]:
        yield np.ndarray(shape, dtype, packed, at)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
