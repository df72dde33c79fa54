"""From the order to run a training to the first step of its last rank: a warm template, and torchrun of the same script.

The script imports torch, transformers and accelerate, joins by gloo and reduces one number. Our template has imported that
before, as it has for every attempt of a run but the first in a pod; what that takes is in a row of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace

SCRIPT = Path(__file__).parent / "programs" / "first_step.py"


def measure(place: Workplace) -> Iterator[Row]:
    """Ours and torchrun in turn, round by round; torchrun's first one fills the file cache and is not counted."""
    ranks = place.size(8, 2)
    ours: list[float] = []
    warm: list[float] = []
    theirs: list[float] = []
    if not place.quick:
        place.say("ranks: warm-up, torchrun")
        _torchrun(place, "warm-up", ranks)
    for number in range(place.repeats(3)):
        place.say(f"ranks: round {number + 1}, ours")
        folder = place.scratch / f"ranks-{number}"
        folder.mkdir()
        answer = place.call("warm_ranks", {"folder": str(folder), "ranks": ranks, "trials": place.size(5, 2)}, timeout=600)
        if answer["methods"] != ["fork"]:
            raise MeasurementFailed(
                f"ranks: the template was not forked but {answer['methods']}; its log is gone with {folder}"
            )
        ours += answer["seconds"]
        warm.append(answer["warm"])
        place.say(f"ranks: round {number + 1}, torchrun")
        theirs.append(_torchrun(place, str(number), ranks))
    what = f"{ranks} ranks, until the last one's first step (gloo)"
    yield Row("ranks", what, "s", tuple(ours), f"torchrun --nproc_per_node={ranks}", tuple(theirs), Goal(times=3.0))
    yield Row("ranks", "the template's imports before that, once a pod", "s", tuple(warm))


def _torchrun(place: Workplace, name: str, ranks: int) -> float:
    """Seconds of one torchrun."""
    folder = place.scratch / f"torchrun-{name}"
    folder.mkdir()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    began = time.perf_counter()
    place.time_command([*launcher, str(SCRIPT), str(folder)], timeout=600)
    return max(float((folder / str(rank)).read_text()) for rank in range(ranks)) - began
