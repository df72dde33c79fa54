"""A training up to its first step: each rank joins the others by gloo, reduces one number and writes down when.

`torchrun first_step.py FOLDER` is the peer's way; as a job, `first_step:run` is ours. What a real script imports is imported
at the top, as there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401
import torch
import transformers  # noqa: F401
from torch import distributed


def step(folder: Path) -> None:
    """The step itself, the same for both."""
    distributed.init_process_group("gloo")
    total = torch.ones(1)
    distributed.all_reduce(total)
    moment = time.perf_counter()  # one clock for all processes
    assert total.item() == int(os.environ["WORLD_SIZE"])
    (folder / os.environ["RANK"]).write_text(str(moment))
    distributed.destroy_process_group()


def run(ctx: Any) -> float:
    """One rank, as a job."""
    step(Path(ctx.params["folder"]))
    return 1.0


if __name__ == "__main__":
    step(Path(sys.argv[1]))
