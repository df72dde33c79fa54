"""A process that computes on devices or sums with others, and prints what it saw as JSON.

python -m trialplane.worker.probe.compute matmul GPUS
python -m trialplane.worker.probe.compute reduce BACKEND RANK RANKS FILE
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from trialplane import policies

_SIDE = 1024
_BYTES = {"nccl": 64 * 2**20, "gloo": 2**20}
_PATIENCE = datetime.timedelta(seconds=90)


def main(argv: Sequence[str]) -> None:
    """Does what the arguments say."""
    policies.apply_all()
    if argv[0] == "matmul":
        said = matmul(int(argv[1]))
    else:
        backend, rank, ranks, file = argv[1:]
        said = reduce(backend, int(rank), int(ranks), file)
    print(json.dumps(said), flush=True)  # noqa: T201  read by `devices`


def matmul(gpus: int) -> dict[str, Any]:
    """Multiplies on the CPU or on each GPU and compares with what must come out.

    Args:
        gpus: that the pod asked for; when fewer are seen, nothing is computed.
    """
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if gpus else []
    for place in range(gpus) if len(devices) >= gpus else []:
        _multiply(f"cuda:{place}")
    if not gpus:
        _multiply("cpu")
    return {"torch": torch.__version__, "cuda": torch.version.cuda or "", "devices": devices}


def reduce(backend: str, rank: int, ranks: int, file: str) -> dict[str, Any]:
    """Sums a tensor over all processes.

    Args:
        backend: nccl or gloo.
        rank: of this process; its GPU too.
        ranks: how many there are.
        file: where they meet.
    """
    import torch
    import torch.distributed as group

    device = torch.device(f"cuda:{rank}" if backend == "nccl" else "cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    group.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=ranks, timeout=_PATIENCE)
    size = _BYTES[backend]
    seconds = 0.0
    for _ in range(3):  # the first one connects
        tensor = torch.full((size // 4,), float(rank + 1), device=device)
        group.barrier()
        begin = time.perf_counter()
        group.all_reduce(tensor)
        wanted = ranks * (ranks + 1) / 2
        if not bool((tensor == wanted).all()):
            raise SystemExit(f"the sum over {ranks} processes is {tensor[0].item()} and not {wanted}")
        seconds = time.perf_counter() - begin
    group.destroy_process_group()
    return {"seconds": seconds, "bytes": size}


def _multiply(device: str) -> None:
    import torch

    matrix = torch.full((_SIDE, _SIDE), 0.5, device=device)
    if not bool((matrix @ matrix == 0.25 * _SIDE).all()):
        raise SystemExit(f"{device} multiplies wrongly")


if __name__ == "__main__":
    main(sys.argv[1:])
