"""What readers of the same weights hold in memory: `broadcast '{"way": "ours", "mib": 256, "readers": 8, "folder": …}'`.

Ours is the file that the workers of a node share; the peer's way is that each process gets a pickle. A page that several
processes share counts for each as its part of it (PSS), so the sum is what the machine has to hold.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Prints mebibytes of all readers together."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    weights = {f"layer {number}": np.full(1 << 18, number, dtype=np.float32) for number in range(arguments["mib"])}
    pickled = pickle.dumps(weights, protocol=5) if arguments["way"] == "pickle" else b""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(arguments["readers"]), context.Queue()
    pipes = [context.Pipe() for _ in range(arguments["readers"])]
    readers = [context.Process(target=_read, args=(arguments, theirs, barrier, answers)) for _, theirs in pipes]
    for reader in readers:
        reader.start()
    if arguments["way"] == "ours":
        from trialplane.policies import transport

        Path(arguments["folder"], "packed").write_bytes(transport.pack(weights).data)
    for ours, _ in pipes:
        ours.send_bytes(pickled)
    held = sum(answers.get() for _ in readers)
    for reader in readers:
        reader.join()
    print(json.dumps({"mib": held / 2**20}))  # noqa: T201  this is the answer


def _read(arguments: dict[str, Any], pipe: Any, barrier: Any, answers: Any) -> None:
    """Reads all weights, and says by how much the process has grown when every reader has them."""
    from trialplane.policies import transport
    from trialplane.worker.collect import memory, segments

    barrier.wait()
    before = _proportional()
    barrier.wait()
    data = pipe.recv_bytes()
    if arguments["way"] == "ours":
        folder = Path(arguments["folder"])
        held = memory.share_file("benchmark.weights", np.fromfile(folder / "packed", dtype=np.uint8), folder)
        tree = transport.unpack(segments.read(held.path))
    else:
        tree = pickle.loads(data)
        del data
    total = sum(float(array.sum()) for array in tree.values())
    barrier.wait()
    answers.put(_proportional() - before)
    barrier.wait()
    assert total >= 0
    if arguments["way"] == "ours":
        del tree
        held.release()


def _proportional() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("smaps_rollup has no such line")


if __name__ == "__main__":
    main()
