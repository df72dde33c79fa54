"""Only numpy arrays and plain values cross a process boundary.

Rule: a result is packed into one contiguous buffer with a small header. Torch tensors become numpy arrays first. Any other
value is refused, with its path in the tree.
Why: torch tensors in a queue are shared file descriptors of the sender: 4 workers put 500 tensors each, exited, and 0 of
4 results arrived. One packed buffer moves through Ray's object store twice as fast as a list of arrays.
Enforced where: a trial's process packs the job's results, and only their reader unpacks them. The processes in between,
which use Ray, do not import torch. `pickling.dumps` pickles the platform's own messages and refuses tensors.
Test: tests/policies/test_transport.py, test_lost_tensors.py and test_refused_tensors.py.

Layout of a packed buffer: 8 bytes with its total size and 8 with the length of the header, both little-endian; the header;
then the arrays, each at a multiple of 64 bytes from the start of the buffer. The header is JSON:

    {"tree": {"x": {"$array": 0}, "games": {"$arrays": [1, 200]}, "y": 1},      a list of 200 arrays, from number 1 on
     "arrays": [["<i2", [3], 0, 1], ["<f4", [8, 8], 64, 200]]}                  dtype, shape, offset, count
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialplane import errors

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    import numpy as np

MODE = "TRIALPLANE_TRANSPORT"
ENV = {MODE: "numpy"}
ALIGNMENT = 64
_HEAD = 16  # bytes before the header
_ARRAY = "$array"  # {"$array": 7} stands for array 7
_ARRAYS = "$arrays"  # {"$arrays": [7, 200]} stands for a list of 200 arrays that starts with array 7
_MAX_DEPTH = 100  # levels of a tree; a tree that contains itself has infinitely many
_MAX_BITS = 13_000  # of an integer, because Python parses at most 4,300 digits
_BFLOAT16 = "bfloat16"  # numpy has no such type, so its bits are packed as uint16
_DTYPE = re.compile(r"[<>|][a-zA-Z]\d+(\[\w+\])?")  # numpy's `dtype.str`, for example <f4 or <M8[ns]


def apply() -> None:
    """Set the variable that marks the policy as applied, for pods and checks."""
    for name, value in ENV.items():
        os.environ.setdefault(name, value)


def check() -> None:
    """Raise PolicyError if the policy is not applied in this process."""
    if os.environ.get(MODE) != ENV[MODE]:
        raise errors.PolicyError(f"{MODE}={ENV[MODE]} is not set in this process; start it through trialplane")


class Packing:
    """Tree that is ready to be packed: its size is known, but its arrays are not copied yet.

    Args:
        tree: Dicts with string keys, dataclasses, lists and tuples of numpy arrays, torch tensors and plain values. Tensors
            on a GPU are copied to the host once. After unpacking, dataclasses are dicts, tuples are lists, and bfloat16
            tensors are their bits as uint16: `torch.from_numpy(bits).view(torch.bfloat16)`.
        name: Name of the tree, for errors.

    Attributes:
        nbytes: Size of the packed buffer, in bytes.

    Raises:
        TransportError: The tree contains a value of another type.
    """

    def __init__(self, tree: Any, name: str = "result") -> None:
        leaves = _Leaves(tree, name)  # the arrays of the tree, and the tree with markers in their place
        self._arrays = leaves.arrays
        self._offsets: list[int] = []  # of each array, from the start of the first one
        entries: list[list[Any]] = []  # of the header: dtype, shape, offset, count
        offset = 0
        last_layout: tuple[Any, ...] = ()  # of the array before
        for array, special_dtype in zip(leaves.arrays, leaves.special_dtypes, strict=True):
            size = _padded(array.nbytes)
            layout = (array.dtype, special_dtype, array.shape)
            # Consecutive arrays of one layout share an entry. Empty ones do not: all of them are at the same offset.
            if size and layout == last_layout:
                entries[-1][-1] += 1  # the count
            else:
                entries.append([special_dtype or array.dtype.str, array.shape, offset, 1])
                last_layout = layout
            self._offsets.append(offset)
            offset += size
        self._header = json.dumps({"tree": leaves.rest, "arrays": entries}, separators=(",", ":")).encode()
        self._start = _padded(_HEAD + len(self._header))
        self.nbytes = self._start + offset

    def write(self, buffer: Array) -> None:
        """Write the packed tree into the first `nbytes` bytes of a uint8 array of shape (bytes,); copy each array once."""
        import numpy as np

        head = self.nbytes.to_bytes(8, "little") + len(self._header).to_bytes(8, "little") + self._header
        buffer[: self._start] = np.frombuffer(head.ljust(self._start, b"\0"), dtype=np.uint8)
        for array, offset in zip(self._arrays, self._offsets, strict=True):
            size, begin = array.nbytes, self._start + offset
            if not size:  # an empty array, perhaps at the end of the buffer
                continue
            np.copyto(np.ndarray(array.shape, array.dtype, buffer, begin), array)
            if size % ALIGNMENT:  # clear the padding, so that equal trees give equal bytes
                buffer[begin + size : begin + _padded(size)] = 0


def pack(tree: Any, name: str = "result") -> Array:
    """Return the tree as one buffer, a uint8 array of shape (bytes,). For arguments and errors, see `Packing`."""
    import numpy as np

    packing = Packing(tree, name)
    packed = np.empty(packing.nbytes, dtype=np.uint8)
    packing.write(packed)
    return packed


def size_of(packed: Array) -> int:
    """Return the size of the packed tree at the start of a uint8 array, in bytes. Bytes after it are ignored.

    Raises:
        TransportError: The array has no complete packed tree.
    """
    if packed.nbytes < _HEAD:
        raise errors.TransportError(
            f"{packed.nbytes} bytes are too few for a packed result, which starts with {_HEAD} bytes"
        )
    size = int.from_bytes(packed[:8].tobytes(), "little")
    header_size = int.from_bytes(packed[8:_HEAD].tobytes(), "little")
    if header_size > size - _HEAD:
        raise errors.TransportError(f"not a packed result: its header would have {header_size} of {size} bytes")
    if size > packed.nbytes:
        raise errors.TransportError(f"a packed result of {size} bytes was truncated to {packed.nbytes}")
    return size


def unpack(packed: Array, *, copy: bool = False) -> Any:
    """Return the tree in a packed buffer.

    Args:
        packed: Result of `pack`, or a view of it: a uint8 array of shape (bytes,).
        copy: Return writable copies of the arrays instead of read-only views of `packed`.

    Raises:
        TransportError: The buffer is not a packed tree, or is damaged.
    """
    size_of(packed)  # raises if this is not a packed tree
    packed = packed.view()
    packed.flags.writeable = False  # of this view, and so of the arrays, which are views of it
    header_size = int.from_bytes(packed[8:_HEAD].tobytes(), "little")
    try:
        header = json.loads(packed[_HEAD : _HEAD + header_size].tobytes())
        start = _padded(_HEAD + header_size)
        arrays = [array for entry in header["arrays"] for array in _views(packed, start, *entry)]
        return _restore(header["tree"], [array.copy() for array in arrays] if copy else arrays)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        problem = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.TransportError(
            f"the header of a packed result of {packed.nbytes} bytes is damaged ({problem})"
        ) from error


def _views(packed: Array, start: int, dtype_name: str, shape: list[int], offset: int, count: int) -> Iterator[Array]:
    """Yield consecutive arrays of one dtype and shape, as views of a packed buffer.

    Args:
        packed: Packed buffer.
        start: Position of the first array of the buffer, in bytes.
        dtype_name: For example "<f4", or "bfloat16".
        shape: Shape of each array.
        offset: Position of the first of these arrays, from `start`, in bytes.
        count: Number of arrays.

    Raises:
        ValueError: The dtype is not supported, or the arrays exceed the buffer.
    """
    import numpy as np

    if dtype_name != _BFLOAT16 and not _DTYPE.fullmatch(dtype_name):
        raise ValueError(f"no dtype: {dtype_name!r}")
    dtype = np.dtype(np.uint16 if dtype_name == _BFLOAT16 else dtype_name)
    if dtype.hasobject:
        raise ValueError(f"a dtype of Python objects: {dtype_name!r}")
    size = _padded(dtype.itemsize * math.prod(shape))
    begin = start + offset
    # Negative numbers are refused here, because numpy gives them a meaning.
    is_negative = min(offset, count, *shape) < 0
    has_several_empty = size == 0 and count != 1  # an entry has at most one empty array, see `Packing`
    if is_negative or has_several_empty or begin + size * count > packed.nbytes:
        raise ValueError(f"{count} arrays of {size} bytes at {offset} exceed the buffer")
    for index in range(count):
        position = begin + index * size if size else 0  # an empty array may be at the end of the buffer
        yield np.ndarray(shape, dtype, packed, position)


def _padded(size: int) -> int:
    """Return a size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT  # -(-a // b) rounds the quotient up


class _Leaves:
    """Arrays of a tree, and the rest of the tree as JSON.

    Args:
        tree: Tree, as of `Packing`.
        name: Name of the tree, for errors.

    Attributes:
        arrays: Arrays of the tree, in order. Tensors on a GPU are copied to pinned host memory concurrently.
        special_dtypes: For each array, the name of its dtype if numpy lacks it, otherwise "".
        rest: The tree with markers instead of its arrays, for JSON.

    Raises:
        TransportError: The tree contains a value that cannot be sent.
    """

    def __init__(self, tree: Any, name: str) -> None:
        self.arrays: list[Array] = []
        self.special_dtypes: list[str] = []
        self._name = name
        self._path: list[str | int] = []
        self._torch = sys.modules.get("torch")
        self._devices: set[Any] = set()  # GPUs whose copies to the host may be unfinished
        self.rest = self._strip(tree)  # fills the arrays, their dtypes and the devices
        for device in self._devices:  # wait for these copies
            assert self._torch is not None
            self._torch.cuda.current_stream(device).synchronize()

    def _strip(self, node: Any) -> Any:
        """Add the arrays of a node to `arrays`, and return the node for JSON, with markers instead of them.

        Raises:
            TransportError: A value in the node cannot be sent.
        """
        node_type = type(node)
        if node_type in (float, bool, str) or node is None:  # the fastest check for the most frequent values
            return node
        if self._collect_array(node):
            return {_ARRAY: len(self.arrays) - 1}
        if isinstance(node, int):
            if node.bit_length() > _MAX_BITS:
                raise self._refusal_error(f"is an integer of {node.bit_length():,} bits; the limit is {_MAX_BITS:,}")
            return node
        if isinstance(node, (float, str)):  # of a subclass
            return node
        if isinstance(node, Mapping):
            return self._strip_dict(node)
        if isinstance(node, (list, tuple)):
            return self._strip_list(node)
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            return self._strip_dict({field.name: getattr(node, field.name) for field in dataclasses.fields(node)})
        raise self._refusal_error(
            f"is a {node_type.__module__}.{node_type.__qualname__}, which cannot be sent between processes; "
            "return numpy arrays, numbers, strings, and dicts or lists of these"
        )

    def _strip_dict(self, node: Mapping[Any, Any]) -> dict[str, Any]:
        """Return a dict with markers instead of its arrays."""
        for key in node:
            if not isinstance(key, str) or key in (_ARRAY, _ARRAYS):
                raise self._refusal_error(f"has the key {key!r}; keys must be strings other than {_ARRAY!r} and {_ARRAYS!r}")
        self._descend()
        stripped = {}
        for key, value in node.items():
            self._path[-1] = key
            stripped[key] = self._strip(value)
        self._path.pop()
        return stripped

    def _strip_list(self, node: Sequence[Any]) -> Any:
        """Return a list with markers instead of its arrays, or a single marker if it contains only arrays."""
        first = len(self.arrays)
        self._descend()
        stripped = []
        for index, value in enumerate(node):
            self._path[-1] = index
            stripped.append(self._strip(value))
        self._path.pop()
        only_arrays = all(type(value) is dict and _ARRAY in value for value in stripped)
        return {_ARRAYS: [first, len(stripped)]} if only_arrays and stripped else stripped

    def _descend(self) -> None:
        """Add a level to the path of the current node, for its children.

        Raises:
            TransportError: The tree is too deep.
        """
        if len(self._path) >= _MAX_DEPTH:
            raise self._refusal_error(f"is {_MAX_DEPTH} levels deep, which is not allowed. Does it contain itself?")
        self._path.append("")  # the caller replaces it with each child's key or index, and removes it at the end

    def _collect_array(self, node: Any) -> bool:
        """Add a node to `arrays` if it is an array or a tensor. Return whether it is."""
        import numpy as np

        if isinstance(node, (np.ndarray, np.generic)):
            array, special_dtype = np.asarray(node), ""
            # Checked only for the kinds that can be special, because most arrays are not: objects (O), variable-length
            # strings (T), structures and other libraries' types (V), and subclasses of array.
            if array.dtype.kind in "OTV" or type(node) is not np.ndarray:
                special_dtype = self._special_dtype(array.dtype, node)
                array = array.view(np.uint16) if special_dtype else array
        elif self._torch is not None and isinstance(node, self._torch.Tensor):
            array, special_dtype = self._from_tensor(node, self._torch)
        else:
            return False
        self.arrays.append(array)
        self.special_dtypes.append(special_dtype)
        return True

    def _special_dtype(self, dtype: np.dtype[Any], node: Any) -> str:
        """Return the name of a dtype that numpy lacks, or "" for one of numpy's.

        Args:
            dtype: dtype of the node.
            node: Array or scalar.

        Raises:
            TransportError: An array of this dtype cannot be sent.
        """
        if dtype.hasobject:
            raise self._refusal_error("is an array of Python objects; use a numeric or a string dtype")
        if dtype.names is not None:
            raise self._refusal_error("is a structured array; return its fields as arrays of their own")
        if hasattr(node, "mask"):
            raise self._refusal_error("is a masked array; return its data and its mask")
        is_added = dtype.isbuiltin == 2  # numpy's number for a type that another library has added
        if is_added and dtype.name != _BFLOAT16:
            raise self._refusal_error(f"has the dtype {dtype.name}, which numpy does not support; return its bits")
        return _BFLOAT16 if is_added else ""

    def _from_tensor(self, tensor: Any, torch: Any) -> tuple[Array, str]:
        """Return a tensor as an array, and the name of its dtype if numpy lacks it, or "".

        Raises:
            TransportError: numpy cannot represent the tensor.
        """
        if tensor.layout is not torch.strided:
            raise self._refusal_error("is a sparse tensor; return its indices and values")
        special_dtype = _BFLOAT16 if tensor.dtype is torch.bfloat16 else ""
        try:
            tensor = tensor.detach().resolve_conj().resolve_neg()
            if special_dtype:
                tensor = tensor.view(torch.uint16)  # the same bits in a dtype that numpy has
            array: Array = self._on_host(tensor, torch).numpy()
        except (TypeError, RuntimeError) as error:  # a dtype, or a kind of tensor, that numpy lacks
            problem = f"is a tensor of {tensor.dtype} on {tensor.device}, which cannot become a numpy array"
            raise self._refusal_error(f"{problem}: {errors.first_line(error)}") from error
        return array, special_dtype

    def _on_host(self, tensor: Any, torch: Any) -> Any:
        """Return the tensor in the host's memory. A copy from a GPU completes when its stream is synchronized."""
        if tensor.device.type != "cuda":
            return tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        self._devices.add(tensor.device)
        return host

    def _refusal_error(self, problem: str) -> errors.TransportError:
        """Return the error for the current node, with its path."""
        parts = [f"[{part!r}]" for part in self._path]
        is_long = len(parts) > 12
        path = "".join([*parts[:5], "…", *parts[-5:]] if is_long else parts)
        return errors.TransportError(f"{self._name}{path} {problem}")


def _restore(rest: Any, arrays: Sequence[Any]) -> Any:
    """Return a tree with the arrays instead of their markers.

    Args:
        rest: Tree with markers.
        arrays: All arrays of the tree, in order.

    Raises:
        LookupError: A marker names arrays that do not exist.
    """
    if isinstance(rest, dict):
        if _ARRAY in rest:
            return arrays[rest[_ARRAY]]
        if _ARRAYS in rest:
            first, count = rest[_ARRAYS]
            if not 0 <= first <= first + count <= len(arrays):
                raise IndexError(f"there are no arrays {first} to {first + count - 1}")
            return list(arrays[first : first + count])
        return {key: _restore(value, arrays) for key, value in rest.items()}
    if isinstance(rest, list):
        return [_restore(value, arrays) for value in rest]
    return rest
