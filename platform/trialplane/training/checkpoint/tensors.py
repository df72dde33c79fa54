"""State of a training as bytes: copied to separate memory, written by torch, and read by torch's safe loader.

A state is a tree of dictionaries, lists and tuples, whose leaves are tensors and plain values that
`torch.load(weights_only=True)` accepts. So reading a checkpoint never runs code from it. Imports torch.
"""

from __future__ import annotations

import collections
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trialplane import errors
from trialplane.training.steps import stores
from trialplane.training.steps.record import Part
from trialplane.training.steps.stores import Sink

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Copier:
    """Copier of states to CPU memory. It reuses the memory, because new pages cost more time than the copy.

    A copy is valid until the next one.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}  # reused memory, by the path of the tensor in the state
        # Copies of the current state's tensors, by device, address and layout of the original. Tied weights have the same.
        self._copied: dict[tuple[Any, ...], torch.Tensor] = {}
        self._size = 0  # bytes of these copies

    def copy(self, state: Mapping[str, Any], name: str) -> tuple[dict[str, Any], int]:
        """Return a copy of a state, and the number of bytes of its tensors. Wait for the GPUs that it has tensors on.

        The name of the state is for errors.

        Raises:
            TypeError: A leaf has a type that the safe loader does not accept.
        """
        self._copied, self._size = {}, 0
        copied = {key: self._copy_value(value, f'{name}["{key}"]') for key, value in state.items()}
        devices = {device for device, *_ in self._copied}
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # without an argument this waits for the current device only
        self._copied = {}
        return copied, self._size

    def _copy_value(self, value: Any, path: str) -> Any:
        """Return a copy of a value, with all values in it. `path` is for errors: `state["model"]['bias']`.

        Raise TypeError for a type that torch's safe loader refuses, such as a subclass of list.
        """
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value, path)
        if isinstance(value, Mapping):
            copied = {key: self._copy_value(item, f"{path}[{key!r}]") for key, item in value.items()}
            if type(value) is collections.Counter:  # the milestones in the state of torch's MultiStepLR
                return collections.Counter(copied)
            if hasattr(value, "_metadata"):  # of a module: versions of its parts, which load_state_dict reads
                ordered: Any = collections.OrderedDict(copied)
                ordered._metadata = value._metadata
                return ordered
            return copied
        if type(value) in (list, tuple):
            return type(value)(self._copy_value(item, f"{path}[{index}]") for index, item in enumerate(value))
        if type(value) is set:
            return set(value)
        if type(value) in _PLAIN:
            return value
        raise TypeError(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint does not keep: tensors, "
            "plain values, and dictionaries and lists of them. Give .item() or torch.from_numpy(…) of a numpy value, "
            ".state_dict() of an object, .to_local() of a DTensor"
        )

    def _copy_tensor(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        """Return a copy of a tensor in the memory for its path. The copy from a GPU may not be complete yet."""
        tensor = tensor.detach()
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_meta:
            kind = "on the meta device" if tensor.is_meta else f"a {type(tensor).__name__} of layout {tensor.layout}"
            raise TypeError(f"{path} is {kind}, which a checkpoint does not keep; give a plain dense tensor")
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        # Tied weights stay tied, and are written once. Empty tensors may have the same address without being tied.
        if tensor.numel() and key in self._copied:
            return self._copied[key]
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            is_pinned = tensor.device.type == "cuda"  # pinned memory is copied at the full speed of the bus
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=is_pinned)
            self._buffers[path] = buffer
        buffer.copy_(tensor, non_blocking=True)
        self._copied[key] = buffer
        self._size += buffer.nbytes
        return buffer


def write(state: Mapping[str, Any], sink: Sink) -> Part:
    """Write a state that `Copier` has copied, and return the description of the file for COMPLETE.

    The description has the shapes of the state's "model".

    Raises:
        OSError: The file could not be written.
        RuntimeError: torch cannot write the state, for another reason than the file.
    """
    try:
        torch.save(state, sink)
    except (OSError, RuntimeError):
        if sink.error is None:
            raise
        raise sink.error from None  # torch raises its own error after a failed write; the sink has the original one
    return Part(sink.size, sink.crc, shapes(state.get("model")))


def read(path: Path, part: Part | None, location: str, map_location: Any) -> Any:
    """Return the state in a file, after a comparison of its checksum.

    Args:
        path: File to read.
        part: Description of the file in COMPLETE, to compare its checksum; None to skip that.
        location: Path or URL of the file, for errors.
        map_location: Device for the tensors, as for `torch.load`.

    Raises:
        CheckpointDamaged: The file has changed since it was written, or cannot be read.
    """
    if part is not None:
        stores.verify(path, part, location)
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except (RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError, FileNotFoundError) as error:
        raise errors.CheckpointDamaged(f"{location} cannot be read: {errors.first_line(error)}") from error


def shapes(model: Any) -> dict[str, list[int]]:
    """Return the shapes of a module or its `state_dict()`, by name; empty for any other value."""
    if isinstance(model, torch.nn.Module):
        model = model.state_dict()
    if not isinstance(model, Mapping):
        return {}
    return {str(name): list(value.shape) for name, value in model.items() if isinstance(value, torch.Tensor)}
