"""The packed arrays of a result as a file that `numpy.load` opens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane.policies import transport


def convert(packed: Path) -> Path:
    """Writes `result.npz` beside the packed file: one array per leaf, named by its path in the tree."""
    import numpy as np

    tree = transport.unpack(np.fromfile(packed, dtype=np.uint8))
    archive = packed.with_name("result.npz")
    np.savez_compressed(archive, **dict(_leaves(tree, "")))
    return archive


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, node
