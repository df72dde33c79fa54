"""What came packed with a result as files for everybody: arrays that `numpy.load` opens, and JSON of what has none."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane.policies import transport
from trialplane.wire import records


def convert(packed: Path) -> list[Path]:
    """Writes files beside the packed one: `result.npz` and `result.json`, those of them that have something in them.

    The archive has one array per leaf of what holds an array anywhere, named by its path in the tree; the other file what
    was returned beside that, by name. Not by `numpy.savez`, which takes names as arguments and so cannot write an array
    named `file`.
    """
    import numpy as np

    tree = transport.unpack(np.fromfile(packed, dtype=np.uint8))
    leaves = {name: dict(_leaves(value, name)) for name, value in tree.items()}
    arrays = [name for name, below in leaves.items() if any(isinstance(leaf, np.ndarray) for leaf in below.values())]
    made = []
    if arrays:
        made.append(packed.with_name("result.npz"))
        with zipfile.ZipFile(made[-1], "w", zipfile.ZIP_DEFLATED) as parts:
            for name, leaf in ((name, leaf) for top in arrays for name, leaf in leaves[top].items()):
                array = np.asarray(leaf)
                if array.dtype.hasobject:  # None, or a whole number of more than 64 bits: `numpy.load` would want pickle
                    array = np.asarray(str(leaf))
                with parts.open(f"{name}.npy", "w", force_zip64=True) as part:
                    np.lib.format.write_array(part, array, allow_pickle=False)
    plain = {name: records.to_dict(value) for name, value in tree.items() if name not in arrays}
    if plain:
        made.append(packed.with_name("result.json"))
        made[-1].write_text(json.dumps(plain, indent=1))
    return made


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, node
