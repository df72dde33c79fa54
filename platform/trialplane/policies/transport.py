"""Only numpy arrays and plain values cross a process boundary.

Rule: a result is packed into one contiguous buffer with a small header; torch tensors become numpy arrays at the border,
and what is neither array nor plain value is refused with its path in the tree.
Why: torch tensors in a queue are shared file descriptors of the sender: 4 workers put 500 tensors each, exited, and 0 of
4 results arrived. One packed buffer moves through Ray's object store twice as fast as a list of arrays.
Enforced where: the trial process packs what `run(ctx)` returned; the controller unpacks it.
Test: tests/policies/test_transport.py.

Layout of a packed buffer: 8 bytes little-endian length of the header, the header (JSON: the tree, with `{"$array": i}`
for array i, and dtype, shape and offset of each), then the arrays, each at a multiple of 64 bytes from the start of the
buffer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trialplane import errors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

MODE = "TRIALPLANE_TRANSPORT"
ENV = {MODE: "numpy"}
ALIGNMENT = 64
_PLAIN = (str, int, float, bool, type(None))
_BFLOAT16 = "bfloat16"  # numpy has no such type: carried as uint16, restored as such


def apply() -> None:
    """Sets the variable by which pods and checks know the policy."""
    for name, value in ENV.items():
        os.environ.setdefault(name, value)


def check() -> None:
    """Raises PolicyError when this process was not told to send numpy only."""
    if os.environ.get(MODE) != ENV[MODE]:
        raise errors.PolicyError(f"{MODE}={ENV[MODE]} is not set in this process; start it through trialplane")


def pack(tree: Any) -> Array:
    """The tree as one buffer.

    Args:
        tree: dicts with string keys, lists and tuples (which come back as lists) of numpy arrays, torch tensors (CUDA
            ones are copied to the host) and plain values.

    Returns:
        A uint8 array of shape (bytes,).

    Raises:
        TransportError: something in the tree is none of these; names its path.
    """
    import numpy as np

    arrays: list[Array] = []
    kinds: list[str] = []
    header_tree = _strip(tree, "result", arrays, kinds)
    # ascontiguousarray would turn a 0-d array into a 1-d one.
    arrays = [array if array.flags.c_contiguous else np.ascontiguousarray(array) for array in arrays]
    entries: list[dict[str, Any]] = []
    offset = 0  # from the start of the first array
    for array, kind in zip(arrays, kinds, strict=True):
        entries.append({"dtype": kind or array.dtype.str, "shape": array.shape, "offset": offset})
        offset += _padded(array.nbytes)
    header = json.dumps({"tree": header_tree, "arrays": entries}).encode()
    start = _padded(8 + len(header))
    packed = np.zeros(start + offset, dtype=np.uint8)
    packed[:8] = np.frombuffer(len(header).to_bytes(8, "little"), dtype=np.uint8)
    packed[8 : 8 + len(header)] = np.frombuffer(header, dtype=np.uint8)
    for array, entry in zip(arrays, entries, strict=True):
        begin = start + entry["offset"]
        packed[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
    return packed


def unpack(packed: Array, *, copy: bool = False) -> Any:
    """The tree in a packed buffer.

    Args:
        packed: what `pack` returned, or a view of it.
        copy: False gives read-only views of `packed`; True gives arrays of their own, which may be written.
    """
    length = int.from_bytes(packed[:8].tobytes(), "little")
    header = json.loads(packed[8 : 8 + length].tobytes())
    start = _padded(8 + length)
    arrays = [_view(packed, start, entry, copy) for entry in header["arrays"]]
    return _restore(header["tree"], arrays)


def _strip(node: Any, path: str, arrays: list[Array], kinds: list[str]) -> Any:
    """The tree with each array replaced by its index; the arrays go to `arrays`."""
    array, kind = _as_array(node, path)
    if array is not None:
        arrays.append(array)
        kinds.append(kind)
        return {"$array": len(arrays) - 1}
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, str) or key == "$array":
                raise errors.TransportError(f"{path} has the key {key!r}; keys must be strings other than '$array'")
        return {key: _strip(value, f"{path}[{key!r}]", arrays, kinds) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_strip(value, f"{path}[{index}]", arrays, kinds) for index, value in enumerate(node)]
    if isinstance(node, _PLAIN):
        return node
    raise errors.TransportError(
        f"{path} is a {type(node).__module__}.{type(node).__qualname__}, which may not cross a process boundary; "
        "return numpy arrays, numbers, strings, and dicts or lists of these"
    )


def _as_array(node: Any, path: str) -> tuple[Array | None, str]:
    """The node as a numpy array and its kind, or None when it is no array."""
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(node, torch.Tensor):
        tensor = node.detach().cpu()
        if tensor.is_sparse:
            raise errors.TransportError(f"{path} is a sparse tensor; return its indices and values")
        if tensor.dtype == torch.bfloat16:
            return tensor.contiguous().view(torch.uint16).numpy(), _BFLOAT16
        return tensor.resolve_conj().resolve_neg().numpy(), ""
    if isinstance(node, np.generic):
        return np.asarray(node), ""
    if isinstance(node, np.ndarray):
        if node.dtype.hasobject:
            raise errors.TransportError(f"{path} is an array of Python objects; use a numeric or a string dtype")
        if node.dtype.names is not None:
            raise errors.TransportError(f"{path} is a structured array; return its fields as arrays of their own")
        return node, ""
    return None, ""


def _view(packed: Array, start: int, entry: Mapping[str, Any], copy: bool) -> Array:
    import numpy as np

    dtype = np.dtype(np.uint16 if entry["dtype"] == _BFLOAT16 else entry["dtype"])
    shape = tuple(entry["shape"])
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    begin = start + int(entry["offset"])
    array: np.ndarray[Any, np.dtype[Any]] = packed[begin : begin + size].view(dtype).reshape(shape)
    if copy:
        return array.copy()
    array = array.view()
    array.flags.writeable = False
    return array


def _restore(node: Any, arrays: list[Array]) -> Any:
    if isinstance(node, dict):
        if "$array" in node:
            return arrays[node["$array"]]
        return {key: _restore(value, arrays) for key, value in node.items()}
    if isinstance(node, list):
        return [_restore(value, arrays) for value in node]
    return node


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
