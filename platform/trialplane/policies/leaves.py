"""A tree as its arrays and what is left of it, and back: which values may cross a process boundary, for `transport`.

Knows nothing of bytes and layouts. torch is looked at only where it has been imported already: else nothing is a tensor.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialplane import errors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

ONE = "$array"  # {"$array": 7} stands for the array of that number
MANY = "$arrays"  # {"$arrays": [7, 200]} for a list of 200, from that number on
MAX_DEPTH = 100  # of a tree; one that contains itself would have no end
MAX_BITS = 13_000  # of a whole number: Python reads none of over 4,300 digits
BFLOAT16 = "bfloat16"  # numpy has no such type: carried as its bits, uint16


class Leaves:
    """What a tree is made of.

    Args:
        tree: dicts with string keys and dataclasses (which come back as dicts), lists and tuples (which come back as
            lists) of numpy arrays, torch tensors and plain values.
        name: what messages call it.

    Attributes:
        arrays: the arrays in it, in order; those of tensors on a GPU are copies in pinned memory, all made at once.
        kinds: for each array "", or the type that numpy lacks.
        rest: the tree with marks in place of its arrays, for JSON.

    Raises:
        TransportError: something in the tree may not cross; names its path.
    """

    def __init__(self, tree: Any, name: str) -> None:
        self.arrays: list[Array] = []
        self.kinds: list[str] = []
        self._name = name
        self._path: list[str | int] = []
        self._torch = sys.modules.get("torch")
        self._devices: set[Any] = set()  # of copies that are under way
        self.rest = self._strip(tree)
        for device in self._devices:
            assert self._torch is not None
            self._torch.cuda.current_stream(device).synchronize()

    def _strip(self, node: Any) -> Any:
        kind = type(node)
        if kind in (float, bool, str) or node is None:
            return node
        if self._is_array(node):
            return {ONE: len(self.arrays) - 1}
        if isinstance(node, int):
            if node.bit_length() > MAX_BITS:
                raise self._refused(f"is a whole number of {node.bit_length():,} bits; at most {MAX_BITS:,} may cross")
            return node
        if isinstance(node, (float, str)):
            return node
        if isinstance(node, Mapping):
            return self._strip_dict(node)
        if isinstance(node, (list, tuple)):
            return self._strip_list(node)
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            return self._strip_dict({field.name: getattr(node, field.name) for field in dataclasses.fields(node)})
        raise self._refused(
            f"is a {kind.__module__}.{kind.__qualname__}, which may not cross a process boundary; "
            "return numpy arrays, numbers, strings, and dicts or lists of these"
        )

    def _strip_dict(self, node: Mapping[Any, Any]) -> dict[str, Any]:
        for key in node:
            if not isinstance(key, str) or key in (ONE, MANY):
                raise self._refused(f"has the key {key!r}; keys must be strings other than {ONE!r} and {MANY!r}")
        self._descend()
        made = {}
        for key, value in node.items():
            self._path[-1] = key
            made[key] = self._strip(value)
        self._path.pop()
        return made

    def _strip_list(self, node: Sequence[Any]) -> Any:
        first = len(self.arrays)
        self._descend()
        made = []
        only = True  # arrays
        for index, value in enumerate(node):
            self._path[-1] = index
            made.append(self._strip(value))
            only = only and type(made[-1]) is dict and ONE in made[-1]
        self._path.pop()
        return {MANY: [first, len(made)]} if only and made else made

    def _descend(self) -> None:
        if len(self._path) >= MAX_DEPTH:
            raise self._refused(f"is {MAX_DEPTH} levels deep, which no tree may be; does it contain itself?")
        self._path.append("")

    def _is_array(self, node: Any) -> bool:
        """Whether the node is an array, which is then among `arrays`."""
        import numpy as np

        if isinstance(node, (np.ndarray, np.generic)):
            array, kind = np.asarray(node), ""
            if array.dtype.kind in "OTV" or type(node) is not np.ndarray:
                kind = self._checked(array.dtype, node)
                array = array.view(np.uint16) if kind else array
        elif self._torch is not None and isinstance(node, self._torch.Tensor):
            array, kind = self._from_tensor(node, self._torch)
        else:
            return False
        self.arrays.append(array)
        self.kinds.append(kind)
        return True

    def _checked(self, dtype: np.dtype[Any], node: Any) -> str:
        """The type that numpy lacks, or "" when it has it."""
        if dtype.hasobject:
            raise self._refused("is an array of Python objects; use a numeric or a string dtype")
        if dtype.names is not None:
            raise self._refused("is a structured array; return its fields as arrays of their own")
        if hasattr(node, "mask"):
            raise self._refused("is a masked array; return its data and its mask")
        if dtype.isbuiltin == 2 and dtype.name != BFLOAT16:  # a type that another library has added to numpy
            raise self._refused(f"has the dtype {dtype.name}, which numpy itself does not know; return its bits")
        return BFLOAT16 if dtype.isbuiltin == 2 else ""

    def _from_tensor(self, tensor: Any, torch: Any) -> tuple[Array, str]:
        if tensor.layout is not torch.strided:
            raise self._refused("is a sparse tensor; return its indices and values")
        kind = BFLOAT16 if tensor.dtype is torch.bfloat16 else ""
        try:
            tensor = tensor.detach().resolve_conj().resolve_neg()
            if kind:
                tensor = tensor.view(torch.uint16)
            array: Array = self._on_host(tensor, torch).numpy()
        except (TypeError, RuntimeError, NotImplementedError) as error:  # a dtype, or a kind of tensor, that numpy lacks
            what = f"is a tensor of {tensor.dtype} on {tensor.device}, which cannot become a numpy array"
            raise self._refused(f"{what}: {errors.first_line(error)}") from error
        return array, kind

    def _on_host(self, tensor: Any, torch: Any) -> Any:
        """The tensor in the host's memory; a copy from a GPU is complete only when that has been waited for."""
        if tensor.device.type != "cuda":
            return tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        self._devices.add(tensor.device)
        return host

    def _refused(self, what: str) -> errors.TransportError:
        parts = [f"[{part!r}]" for part in self._path]
        path = "".join(parts if len(parts) <= 12 else [*parts[:5], "…", *parts[-5:]])
        return errors.TransportError(f"{self._name}{path} {what}")


def restore(rest: Any, arrays: Sequence[Any]) -> Any:
    """The tree, with arrays in place of its marks."""
    if isinstance(rest, dict):
        if ONE in rest:
            return arrays[rest[ONE]]
        if MANY in rest:
            first, count = rest[MANY]
            if not 0 <= first <= first + count <= len(arrays):
                raise IndexError(f"there are no arrays {first} to {first + count - 1}")
            return list(arrays[first : first + count])
        return {key: restore(value, arrays) for key, value in rest.items()}
    if isinstance(rest, list):
        return [restore(value, arrays) for value in rest]
    return rest
