"""The packed arrays of a result as a file that `numpy.load` opens."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane.policies import transport


def convert(packed: Path) -> Path:
    """Writes `result.npz` beside the packed file: one array per leaf, named by its path in the tree.

    Not by `numpy.savez`, which takes names as arguments and so cannot write an array named `file`.
    """
    import numpy as np

    tree = transport.unpack(np.fromfile(packed, dtype=np.uint8))
    archive = packed.with_name("result.npz")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as parts:
        for name, leaf in _leaves(tree, ""):
            array = np.asarray(leaf)
            if array.dtype.hasobject:  # None, or a whole number of more than 64 bits: `numpy.load` would want pickle
                array = np.asarray(str(leaf))
            with parts.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, array, allow_pickle=False)
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
