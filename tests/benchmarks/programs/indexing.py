"""Seconds to build a corpus's line index, round by round; the first round warms the page cache and is not counted."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from trialplane.training.lines import LineDataset, scan

assert scan  # imported before the clock starts: numpy is in every process that builds


def main(corpus: str, rounds: int) -> dict[str, list[float]]:
    """Builds it in a new folder each time."""
    seconds = []
    for number in range(rounds + 1):
        cache = Path(tempfile.mkdtemp(dir=Path(corpus).parent))
        began = time.perf_counter()
        LineDataset(corpus, cache=cache)
        if number:
            seconds.append(time.perf_counter() - began)
        shutil.rmtree(cache)
    return {"seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))  # noqa: T201
